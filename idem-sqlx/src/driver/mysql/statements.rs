//! The statements of MySQL and MariaDB.
//!
//! Time is `UTC_TIMESTAMP(6)`, the start of the statement. A statement that had to wait for another
//! one counts from before it waited, as its caller does.

pub(super) mod within;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::RecordId;

use self::within::{UNLIMIT, limit};
use super::super::dialect::{Guard, Kept};
use super::super::steps::RENEWALS;
use crate::columns::Columns;
use crate::table::Table;

pub(super) struct Statements {
    insert: String,
    insert_ignoring: String,
    insert_or_lock: String,
    table: String,
    then_read: String,
    then_read_revisions: String,
    pub(super) read: Arc<str>,
    pub(super) window: Arc<str>,
    pub(super) window_in_flight: Arc<str>,
    pub(super) window_few: Arc<str>,
    pub(super) has_more: Arc<str>,
    pub(super) ids: Arc<str>,
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

const COLUMNS: &str = "operation, `key`, state, attempt, owner, origin, leased_at, lease_until, valid_until, expires_at, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

/// In the order of `columns::Row`. What is left is rounded up: a lease never ends early.
const ROW: &str = "state, attempt, owner, origin, \
    TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, \
    (TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, valid_until, expires_at) DIV 1000, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

/// The isolation level of the session, for each of the two servers.
const LEVEL: &str = "/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */";

/// Whether the session's plain reads see what is not committed, and may never be.
const READS_UNCOMMITTED: &str = "/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */ = 'READ-UNCOMMITTED'";

/// Not `INSERT IGNORE`, which would turn errors into warnings. An existing row stays as it is.
const IF_NONE: &str = " ON DUPLICATE KEY UPDATE operation = VALUES(operation); ";

/// A parameter in milliseconds as an interval.
const MS: &str = "INTERVAL ? * 1000 MICROSECOND";

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        Self::of(table, "owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)")
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::of(table, "owner = ? AND state = 'in_flight'")
    }

    fn of(table: &Table, if_owned: &str) -> Self {
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
        let window = |index: &str, only: &str| {
            Arc::from(format!(
                "SELECT {row}, operation, `key`, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP('1970-01-01'), expires_at) FROM {t}{index} \
                 WHERE expires_at > UTC_TIMESTAMP(6) AND expires_at >= {from} AND (expires_at, operation, `key`) > ({from}, ?, ?) {only}\
                 ORDER BY expires_at, operation, `key` LIMIT ?"
            ))
        };
        Self {
            table: t.clone(),
            insert: format!("INSERT INTO {t} ({COLUMNS}) VALUES "),
            insert_ignoring: format!("INSERT IGNORE INTO {t} ({COLUMNS}) SELECT "),
            insert_or_lock: format!("INSERT INTO {t} ({COLUMNS}) SELECT "),
            then_read: format!("SELECT {ROW}, {READS_UNCOMMITTED} FROM {t} WHERE "),
            then_read_revisions: format!("SELECT revision FROM {t} WHERE false"),
            read: format!("SELECT {ROW}, {READS_UNCOMMITTED} FROM {t} WHERE {at}").into(),
            window: window("", ""),
            window_in_flight: window("", "AND state = 'in_flight' "),
            window_few: window(" FORCE INDEX (PRIMARY)", "AND operation = ? "),
            has_more: format!("SELECT 1 FROM {t} FORCE INDEX (PRIMARY) WHERE operation = ? LIMIT 1 OFFSET ?").into(),
            // Two ranges: MySQL takes no row of two columns for one.
            ids: format!(
                "SELECT operation, `key` FROM {t} FORCE INDEX (PRIMARY) \
                 WHERE (operation = ? AND `key` > ?) OR operation > ? ORDER BY operation, `key` LIMIT ?"
            )
            .into(),
            // Compared before the columns are set: a condition sees the row as it is.
            put_owned: put(if_owned),
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
            // As text, also where a step prepares its statements: see `Mysql::in_text`.
            schema: format!(
                "SELECT CAST(@@autocommit AS SIGNED), (SELECT CAST(table_comment AS CHAR) FROM information_schema.tables \
                 WHERE table_schema = COALESCE({}, DATABASE()) AND table_name = '{}')",
                table.schema().map_or_else(|| "NULL".to_owned(), |schema| format!("'{schema}'")),
                table.name()
            )
            .into(),
            create: create(table).into(),
        }
    }

    /// Writes a row where there is none, and reads the one that stands there then. Each value is a
    /// number or hexadecimal: nothing that could be taken for SQL, whatever the settings of the
    /// session are. A transaction, so that nothing stays of a claim whose read fails.
    pub(super) fn insert(&self, id: &RecordId, columns: &Columns, lock_limit: Option<Duration>) -> Arc<str> {
        let mut text = String::with_capacity(2048);
        if let Some(wait) = lock_limit {
            let _ = write!(text, "{}; ", limit(wait));
        }
        text.push_str("START TRANSACTION; ");
        text.push_str(&self.insert);
        push_row(&mut text, id, columns);
        text.push_str(IF_NONE);
        text.push_str(&self.then_read);
        push_id(&mut text, id);
        text.push_str("; COMMIT");
        if lock_limit.is_some() {
            let _ = write!(text, "; {UNLIMIT}");
        }
        text.into()
    }

    /// As `put_as_read`, with its values in the text, and with a limit for locks around it.
    pub(super) fn put_limited(&self, id: &RecordId, guard: Guard, columns: &Columns, wait: Duration) -> Arc<str> {
        let mut key = String::new();
        push_text(&mut key, Some(id.key().as_bytes()));
        let mut outcome = String::new();
        push_bytes(&mut outcome, columns.outcome.as_deref());
        let put = self.put_in_text(id, guard, columns, [key, outcome]);
        format!("{}; {put}; {UNLIMIT}", limit(wait)).into()
    }

    /// Reads what is committed, at the isolation level that sees more. The level is that of the
    /// next transaction, which this read is.
    pub(super) fn read_committed(&self, id: &RecordId) -> Arc<str> {
        let mut text = format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {}", self.then_read);
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
            window_few,
            has_more,
            ids,
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

/// Ends what is left of a claim of which a statement failed.
pub(super) fn undo(lock_limit: Option<Duration>) -> Arc<str> {
    if lock_limit.is_some() { format!("ROLLBACK; {UNLIMIT}").into() } else { "ROLLBACK".into() }
}

/// A row in brackets.
fn push_row(text: &mut String, id: &RecordId, columns: &Columns) {
    text.push('(');
    push_text(text, Some(id.operation().as_bytes()));
    text.push_str(", ");
    push_text(text, Some(id.key().as_bytes()));
    push_values(text, columns);
    text.push(')');
}

/// The values of the columns after the key.
fn push_values(text: &mut String, columns: &Columns) {
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
    let _ = write!(text, ", {}", columns.revision);
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
