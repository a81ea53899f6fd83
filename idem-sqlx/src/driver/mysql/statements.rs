//! The statements of MySQL and MariaDB.
//!
//! Time is `UTC_TIMESTAMP(6)`, the start of the statement. A statement that had to wait for another
//! one counts from before it waited, as its caller does.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::RecordId;

use super::super::dialect::{Guard, Kept};
use super::super::steps::RENEWALS;
use crate::columns::Columns;
use crate::table::Table;

pub(super) struct Statements {
    insert: String,
    insert_ignoring: String,
    table: String,
    then_read: String,
    then_read_revisions: String,
    pub(super) read: Arc<str>,
    pub(super) window: Arc<str>,
    pub(super) window_in_flight: Arc<str>,
    pub(super) put_owned: Arc<str>,
    pub(super) put_as_read: Arc<str>,
    pub(super) remove: Arc<str>,
    renew: String,
    then_renew: String,
    renewed: String,
    pub(super) sweep: Arc<str>,
    pub(super) sweep_outcomes: Arc<str>,
    pub(super) time: Arc<str>,
    pub(super) schema: Arc<str>,
    pub(super) create: Arc<str>,
}

/// In the order of `columns::Row`. What is left is rounded up: a lease never ends early.
const ROW: &str = "state, attempt, owner, origin, \
    TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, \
    (TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, valid_until, expires_at) DIV 1000, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

/// Not `INSERT IGNORE`, which would turn errors into warnings. An existing row stays as it is.
const IF_NONE: &str = " ON DUPLICATE KEY UPDATE operation = VALUES(operation); ";

/// A parameter in milliseconds as an interval.
const MS: &str = "INTERVAL ? * 1000 MICROSECOND";

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        let t = &table.quoted('`');
        let at = "operation = ? AND `key` = ?";
        let expires = format!("COALESCE(UTC_TIMESTAMP(6) + {MS}, expires_at)");
        let put = |guard: &str| {
            Arc::from(format!(
                "UPDATE {t} SET state = ?, attempt = ?, owner = ?, origin = ?, leased_at = {expires} - {MS}, \
                 lease_until = {expires} - {MS} + {MS}, valid_until = {expires} - {MS}, expires_at = {expires}, \
                 fingerprint = ?, is_error = ?, codec = ?, outcome = ?, questions = ?, took_over = ?, revision = ? WHERE {at} AND {guard}"
            ))
        };
        let row = ROW.replace("outcome,", "CAST('' AS BINARY),");
        let from = "(TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND)";
        let window = |only: &str| {
            Arc::from(format!(
                "SELECT {row}, operation, `key`, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP('1970-01-01'), expires_at) FROM {t} \
                 WHERE expires_at > UTC_TIMESTAMP(6) AND expires_at >= {from} AND (expires_at, operation, `key`) > ({from}, ?, ?) {only}\
                 ORDER BY expires_at, operation, `key` LIMIT ?"
            ))
        };
        Self {
            table: t.clone(),
            insert_ignoring: format!(
                "INSERT IGNORE INTO {t} (operation, `key`, state, attempt, owner, origin, leased_at, lease_until, valid_until, expires_at, \
                 fingerprint, is_error, codec, outcome, questions, took_over, revision) SELECT "
            ),
            insert: format!(
                "INSERT INTO {t} (operation, `key`, state, attempt, owner, origin, leased_at, lease_until, valid_until, expires_at, \
                 fingerprint, is_error, codec, outcome, questions, took_over, revision) VALUES "
            ),
            then_read: format!("SELECT {ROW} FROM {t} WHERE "),
            then_read_revisions: format!("SELECT revision FROM {t} WHERE false"),
            read: format!("SELECT {ROW} FROM {t} WHERE {at}").into(),
            window: window(""),
            window_in_flight: window("AND state = 'in_flight' "),
            // Compared before the columns are set: a condition sees the row as it is.
            put_owned: put("owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)"),
            put_as_read: put("revision = ? AND (NOT ? OR lease_until <= UTC_TIMESTAMP(6))"),
            remove: format!("DELETE FROM {t} WHERE {at} AND revision = ?").into(),
            // Skips locked rows. By another index or in another order, it would lock rows of others;
            // with the limit, the optimizer cannot merge the inner select into the update.
            renew: format!(
                " END AS hold, TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) AS lease \
                 FROM {t} FORCE INDEX (PRIMARY) WHERE state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6) AND ("
            ),
            then_renew: format!(
                ") LIMIT {RENEWALS} FOR UPDATE SKIP LOCKED) AS free \
                 STRAIGHT_JOIN {t} AS r FORCE INDEX (PRIMARY) ON r.operation = free.operation AND r.`key` = free.`key` \
                 SET r.leased_at = UTC_TIMESTAMP(6), r.lease_until = UTC_TIMESTAMP(6) + INTERVAL free.lease MICROSECOND, \
                 r.expires_at = UTC_TIMESTAMP(6) + INTERVAL 1000 * free.hold MICROSECOND, r.revision = "
            ),
            renewed: format!("SELECT owner FROM {t} WHERE revision = "),
            sweep: format!("DELETE FROM {t} WHERE expires_at <= UTC_TIMESTAMP(6) ORDER BY expires_at LIMIT ?").into(),
            sweep_outcomes: format!(
                "UPDATE {t} SET state = 'done', valid_until = NULL, is_error = false, codec = NULL, outcome = NULL, took_over = NULL, revision = ? \
                 WHERE state = 'committed' AND valid_until <= UTC_TIMESTAMP(6) ORDER BY valid_until LIMIT ?"
            )
            .into(),
            time: "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))".into(),
            schema: "SELECT CAST(@@autocommit AS SIGNED), (SELECT CAST(table_comment AS CHAR) FROM information_schema.tables \
                     WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?)"
                .into(),
            create: create(table).into(),
        }
    }

    /// Writes a row where there is none, and reads the one that stands there then. Each value is a
    /// number or hexadecimal: nothing that could be taken for SQL, whatever the settings of the
    /// session are.
    pub(super) fn insert(&self, id: &RecordId, columns: &Columns) -> Arc<str> {
        let mut text = String::with_capacity(2048);
        text.push_str(&self.insert);
        push_row(&mut text, id, columns);
        text.push_str(IF_NONE);
        text.push_str(&self.then_read);
        push_id(&mut text, id);
        text.into()
    }

    /// Writes each row where there is none, and reads the revisions that stand there then.
    pub(super) fn insert_all(&self, rows: &[(RecordId, Columns)]) -> Arc<str> {
        let mut text = self.insert.clone();
        for (index, (id, columns)) in rows.iter().enumerate() {
            if index > 0 {
                text.push_str(", ");
            }
            push_row(&mut text, id, columns);
        }
        text.push_str(IF_NONE);
        text.push_str(&self.then_read_revisions);
        for (id, _) in rows {
            text.push_str(" OR (");
            push_id(&mut text, id);
            text.push(')');
        }
        text.into()
    }
}

#[cfg(test)]
impl Statements {
    /// Changes every text.
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        macro_rules! each {
            ($($name:ident),*) => { $(self.$name = change(&self.$name).into();)* };
        }
        each!(
            insert,
            then_read,
            read,
            window,
            window_in_flight,
            put_owned,
            put_as_read,
            remove,
            renew,
            then_renew,
            renewed,
            sweep,
            sweep_outcomes,
            time
        );
    }
}

/// Sets the limit that the session had before [`limit`].
pub(super) const UNLIMIT: &str =
    "SET SESSION innodb_lock_wait_timeout = COALESCE(@idem_lock_wait, @@SESSION.innodb_lock_wait_timeout)";

/// Begins statements that undo this if one of them fails, also where nobody reads the error because
/// the future was dropped. `MariaDB` alone can; for `MySQL` it is a comment.
fn begin_undoing(undo: &str) -> String {
    format!("/*M! BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN {undo}; RESIGNAL; END; */")
}

/// Ends them.
const END: &str = "/*M!; END */";

/// Limits how long statements wait for locks: `InnoDB` counts whole seconds. `MariaDB` takes zero
/// for not at all, and `MySQL` makes it one.
pub(super) fn limit(wait: Duration) -> String {
    format!(
        "SET @idem_lock_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {}",
        whole_seconds(wait)
    )
}

fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).min(1_000_000)
}

impl Statements {
    /// Writes a row where there is none, in the caller's transaction, and reads the one that stands
    /// there then, whatever this transaction has read before.
    ///
    /// Of several inserts that wait for one row, all but one meet a deadlock when its owner rolls
    /// back. So they queue for a lock of the server, which is given back as soon as the insert is
    /// over.
    pub(super) fn insert_within(&self, id: &RecordId, columns: &Columns, wait: Duration) -> Arc<str> {
        let mut text = String::with_capacity(2048);
        let seconds = whole_seconds(wait);
        let mut undo = "DO RELEASE_LOCK(".to_owned();
        self.push_lock(&mut undo, id);
        let _ = write!(undo, "); {UNLIMIT}");
        let _ = write!(text, "{} {}; SELECT @idem_locked := COALESCE(GET_LOCK(", begin_undoing(&undo), limit(wait));
        self.push_lock(&mut text, id);
        let _ = write!(text, ", {seconds}), 0); {}", self.insert_ignoring);
        let mut row = String::with_capacity(1024);
        push_row(&mut row, id, columns);
        text.push_str(row.strip_prefix('(').and_then(|row| row.strip_suffix(')')).unwrap_or_default());
        text.push_str(" FROM DUAL WHERE @idem_locked = 1; ");
        text.push_str(&self.then_read);
        push_id(&mut text, id);
        let _ = write!(text, " AND @idem_locked = 1 LOCK IN SHARE MODE; {undo} {END}");
        text.into()
    }

    /// Undoes what the insert has left behind that failed.
    pub(super) fn unlock(&self, id: &RecordId) -> Arc<str> {
        let mut text = "DO RELEASE_LOCK(".to_owned();
        self.push_lock(&mut text, id);
        let _ = write!(text, "); {UNLIMIT}");
        text.into()
    }

    /// The name of the lock: such names belong to the whole server, so the database is in it. At
    /// most 64 characters.
    fn push_lock(&self, text: &mut String, id: &RecordId) {
        text.push_str("CONCAT('idem.', SUBSTR(SHA2(CONCAT_WS('.', DATABASE(), ");
        push_text(text, Some(self.table.as_bytes()));
        text.push_str(", ");
        push_text(text, Some(id.as_str().as_bytes()));
        text.push_str("), 256), 1, 48))");
    }
}

impl Statements {
    /// As `read`, with its values in the text.
    pub(super) fn read_in_text(&self, id: &RecordId) -> Arc<str> {
        let mut text = self.then_read.clone();
        push_id(&mut text, id);
        text.into()
    }

    /// As `put_owned` or `put_as_read`, with their values in the text.
    pub(super) fn put_in_text(&self, id: &RecordId, guard: Guard, columns: &Columns) -> Arc<str> {
        let statement = match guard {
            Guard::Owner(_) => &self.put_owned,
            Guard::Revision(_) | Guard::RanOut(_) => &self.put_as_read,
        };
        let Columns { expires_in, hold, lease, fade, .. } = *columns;
        let mut values = Values(Vec::with_capacity(24));
        // In the order in which they are bound otherwise.
        values.text(Some(columns.state));
        values.number(Some(columns.attempt));
        values.bytes(columns.owner.as_ref().map(<[u8; 16]>::as_slice));
        values.text(columns.origin);
        for length in [expires_in, hold, expires_in, hold, lease, expires_in, fade, expires_in] {
            values.number(length);
        }
        values.text(columns.fingerprint.as_deref());
        values.number(Some(i64::from(columns.is_error)));
        values.text(columns.codec.as_deref());
        values.bytes(columns.outcome.as_deref());
        values.number(Some(columns.questions));
        values.text(columns.took_over.as_deref());
        values.number(Some(columns.revision));
        values.text(Some(id.operation()));
        values.text(Some(id.key()));
        match guard {
            Guard::Owner(owner) => values.bytes(Some(&owner.to_bytes())),
            Guard::Revision(revision) | Guard::RanOut(revision) => {
                values.number(Some(revision));
                values.number(Some(i64::from(matches!(guard, Guard::RanOut(_)))));
            }
        }
        values.put_into(statement)
    }
}

/// The values of a statement, as text.
struct Values(Vec<String>);

impl Values {
    fn number(&mut self, value: Option<i64>) {
        self.0.push(value.map_or_else(|| "NULL".to_owned(), |value| value.to_string()));
    }

    fn text(&mut self, value: Option<&str>) {
        let mut text = String::new();
        push_text(&mut text, value.map(str::as_bytes));
        self.0.push(text);
    }

    fn bytes(&mut self, value: Option<&[u8]>) {
        let mut text = String::new();
        push_bytes(&mut text, value);
        self.0.push(text);
    }

    /// In place of the question marks. No table's name has one.
    fn put_into(self, statement: &str) -> Arc<str> {
        let mut text = String::with_capacity(2048);
        let mut values = self.0.iter();
        for (index, part) in statement.split('?').enumerate() {
            if index > 0 {
                text.push_str(values.next().map_or("NULL", String::as_str));
            }
            text.push_str(part);
        }
        text.into()
    }
}

/// A row in brackets.
fn push_row(text: &mut String, id: &RecordId, columns: &Columns) {
    text.push('(');
    push_text(text, Some(id.operation().as_bytes()));
    text.push_str(", ");
    push_text(text, Some(id.key().as_bytes()));
    text.push_str(", ");
    push_text(text, Some(columns.state.as_bytes()));
    let _ = write!(text, ", {}, ", columns.attempt);
    push_bytes(text, columns.owner.as_ref().map(<[u8; 16]>::as_slice));
    text.push_str(", ");
    push_text(text, columns.origin.map(str::as_bytes));
    let expires = columns.expires_in.unwrap_or_default();
    let lengths = [
        columns.hold.map(|hold| expires - hold),
        columns.hold.zip(columns.lease).map(|(hold, lease)| expires - hold + lease),
        columns.fade.map(|fade| expires - fade),
        Some(expires),
    ];
    for length in lengths {
        let _ = match length {
            Some(length) => write!(text, ", UTC_TIMESTAMP(6) + INTERVAL {length} * 1000 MICROSECOND"),
            None => write!(text, ", NULL"),
        };
    }
    text.push_str(", ");
    push_text(text, columns.fingerprint.as_deref().map(str::as_bytes));
    let _ = write!(text, ", {}, ", u8::from(columns.is_error));
    push_text(text, columns.codec.as_deref().map(str::as_bytes));
    text.push_str(", ");
    push_bytes(text, columns.outcome.as_deref());
    let _ = write!(text, ", {}, ", columns.questions);
    push_text(text, columns.took_over.as_deref().map(str::as_bytes));
    let _ = write!(text, ", {})", columns.revision);
}

fn push_id(text: &mut String, id: &RecordId) {
    text.push_str("operation = ");
    push_text(text, Some(id.operation().as_bytes()));
    text.push_str(" AND `key` = ");
    push_text(text, Some(id.key().as_bytes()));
}

impl Statements {
    /// Renews the leases whose rows are free, all in one statement: one after the other would wait
    /// for the disk each time.
    pub(super) fn renew(&self, leases: &[&Kept], revision: i64) -> Arc<str> {
        let mut text = "UPDATE (SELECT operation, `key`, CASE owner".to_owned();
        for lease in leases {
            text.push_str(" WHEN ");
            push_bytes(&mut text, Some(&lease.owner.to_bytes()));
            let _ = write!(text, " THEN {}", lease.hold);
        }
        text.push_str(&self.renew);
        push_leases(&mut text, leases);
        let _ = write!(text, "{}{revision}", self.then_renew);
        text.into()
    }

    /// Reads the owners of the leases that were renewed with this revision.
    pub(super) fn renewed(&self, leases: &[&Kept], revision: i64) -> Arc<str> {
        let mut text = format!("{}{revision} AND (", self.renewed);
        push_leases(&mut text, leases);
        text.push(')');
        text.into()
    }
}

fn push_leases(text: &mut String, leases: &[&Kept]) {
    text.push_str("false");
    for lease in leases {
        text.push_str(" OR (");
        push_id(text, &lease.id);
        text.push_str(" AND owner = ");
        push_bytes(text, Some(&lease.owner.to_bytes()));
        text.push(')');
    }
}

fn push_text(text: &mut String, value: Option<&[u8]>) {
    if value.is_some() {
        text.push_str("_utf8mb4 ");
    }
    push_bytes(text, value);
}

fn push_bytes(text: &mut String, value: Option<&[u8]>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    let Some(value) = value else {
        text.push_str("NULL");
        return;
    };
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().map_or('0', char::from);
    text.push_str("x'");
    for byte in value {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text.push('\'');
}

fn create(table: &Table) -> String {
    include_str!("../schema/mysql.sql").replace("`idem_records` (", &format!("{} (", table.quoted('`')))
}
