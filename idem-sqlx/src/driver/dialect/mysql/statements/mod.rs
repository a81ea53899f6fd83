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
use super::super::statements::{
    CHORE, ListStatements, TableStatements, UpkeepStatements, WriteStatements, in_states,
    state_now, sweep_at,
};
use super::super::{Guard, LeaseRenewal, RENEWALS};
use crate::row::Columns;
use crate::table::Table;

pub(super) struct Statements {
    /// The table's quoted name.
    table_name: String,
    /// An expression that fails in other sessions: see [`usable`].
    usable: String,
    /// Sets a variable to it.
    check: Arc<str>,
    inserts: InsertParts,
    then_read: Arc<str>,
    then_read_revisions: Arc<str>,
    /// Has one row without values if there is none, so that the session is looked at.
    pub(super) read: Arc<str>,
    pub(super) writes: WriteStatements,
    renewal: RenewalParts,
    pub(super) listing: ListStatements,
    pub(super) upkeep: UpkeepStatements,
    pub(super) table: TableStatements,
}

/// The text before the values of an insert.
struct InsertParts {
    insert: Arc<str>,
    insert_ignoring: Arc<str>,
}

/// The texts between the values of a renewal.
struct RenewalParts {
    select: Arc<str>,
    update: Arc<str>,
    read_owners: Arc<str>,
}

const COLUMNS: &str = "operation, `key`, state, attempt, owner, origin, \
    leased_at, lease_until, valid_until, expires_at, sweep_at, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

/// The columns of `Row`, in the order in which it is read. The time left is rounded up, so that a
/// lease never ends early. Texts are bytes in both directions: the server would read and write them
/// in the character sets of the session.
const ROW: &str = "CAST(state AS BINARY), attempt, owner, CAST(origin AS BINARY), \
    TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, \
    (TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000, \
    TIMESTAMPDIFF(MICROSECOND, valid_until, expires_at) DIV 1000, \
    CAST(fingerprint AS BINARY), is_error, CAST(codec AS BINARY), outcome, questions, \
    CAST(took_over AS BINARY), revision";

/// The operation and the key of a row.
const ID: &str = "CAST(operation AS BINARY), CAST(`key` AS BINARY)";

/// A parameter of bytes as a text of these columns.
const TEXT: &str = "CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin";

/// Whether the session has a setting that changes what statements mean, except its time. `MariaDB`
/// has two modes that do, `ORACLE` and `EMPTY_STRING_IS_NULL`. They are shown by what they do: to
/// search for their names, the server would write the text of all modes for each look.
const IS_ODD: &str = "/*M! (NULL || 0) IS NOT NULL OR '' IS NULL OR */ \
    @@completion_type <> 'NO_CHAIN' OR @@sql_select_limit < 18446744073709551615";

/// Whether no write of the session is ever committed, because separate steps commit none.
const NEVER_COMMITS: &str = " OR @@autocommit = 0";

/// Fails in a session whose settings change what statements mean: the sum is too large a number.
///
/// Each connection may have settings of its own, so each message has it, but for writes of what was
/// read before on their connection, and commits outside a transaction. It is not in a statement that
/// writes, but before or after it: where
/// statements are replicated, a replica would compare the time of the statement with its own clock.
fn usable(or_odd: &str) -> String {
    format!(
        "9223372036854775807 + ({IS_ODD}{or_odd} \
         OR ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) > 60)"
    )
}

/// Takes `sql_safe_updates` from the statement that follows: because of its derived table, MariaDB
/// would refuse it.
const UNGUARDED: &str = "/*M! SET STATEMENT sql_safe_updates = 0 FOR */";

/// The isolation level of the session, for each of the two servers.
const LEVEL: &str = "/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */";

/// Whether the session's plain reads see what is not committed, and may never be.
const READS_UNCOMMITTED: &str =
    "/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */ = 'READ-UNCOMMITTED'";

/// Keeps an existing row. `INSERT IGNORE` would turn errors into warnings.
const IF_NONE: &str = " ON DUPLICATE KEY UPDATE operation = VALUES(operation); ";

const AT: &str = "operation = CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin \
    AND `key` = CONVERT(? USING utf8mb4) COLLATE utf8mb4_bin";

/// A parameter in milliseconds as an interval.
const MS: &str = "INTERVAL ? * 1000 MICROSECOND";

fn from_now(milliseconds: &str) -> String {
    format!("UTC_TIMESTAMP(6) + INTERVAL {milliseconds} * 1000 MICROSECOND")
}

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        // A commit follows no read. It changes nothing in such a session, and the read that follows
        // it fails.
        let if_owned = format!(
            "owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6) \
             AND ({IS_ODD}{NEVER_COMMITS}) = 0"
        );
        Self::write(table, &if_owned, NEVER_COMMITS)
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::write(table, "owner = ? AND state = 'in_flight'", "")
    }

    fn write(table: &Table, if_owned: &str, or_odd: &str) -> Self {
        let t = &table.quoted('`');
        let usable = &usable(or_odd);
        // Computed once for a statement, whether there are rows or not.
        let session = &format!("(SELECT {usable} AS usable) AS session");
        Self {
            table_name: t.clone(),
            usable: usable.clone(),
            check: format!("SET @idem_usable = {usable}").into(),
            inserts: InsertParts {
                insert: format!("INSERT INTO {t} ({COLUMNS}) VALUES ").into(),
                insert_ignoring: format!("INSERT IGNORE INTO {t} ({COLUMNS}) SELECT ").into(),
            },
            then_read: format!("SELECT {ROW}, {READS_UNCOMMITTED} FROM {t} WHERE ").into(),
            then_read_revisions: format!("SELECT revision FROM {t} WHERE false").into(),
            read: format!(
                "SELECT {ROW}, {READS_UNCOMMITTED} FROM {session} LEFT JOIN {t} ON {AT} \
                 WHERE usable > 0 LIMIT 1"
            )
            .into(),
            writes: writes(t, if_owned),
            renewal: renewal(t),
            listing: listing(&format!("{session} STRAIGHT_JOIN {t}")),
            upkeep: upkeep(t, usable),
            table: TableStatements {
                schema: schema(table, usable).into(),
                create: create_statements(table).into(),
            },
        }
    }

    /// Writes a row if there is none, and reads the row that is there then. Each value is a number
    /// or hexadecimal, so that no value can be taken for SQL, whatever the settings of the session
    /// are. It is a transaction, so that a claim whose read fails leaves nothing.
    pub(super) fn insert(
        &self,
        id: &RecordId,
        columns: &Columns,
        lock_limit: Option<Duration>,
    ) -> Arc<str> {
        let mut text = String::with_capacity(2048);
        let _ = write!(text, "{}; ", self.check);
        if let Some(wait) = lock_limit {
            let _ = write!(text, "{}; ", limit(wait));
        }
        text.push_str("START TRANSACTION; ");
        text.push_str(&self.inserts.insert);
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

    /// Writes a row, and fails if there is one.
    pub(super) fn insert_new(
        &self,
        id: &RecordId,
        columns: &Columns,
        lock_limit: Option<Duration>,
    ) -> Arc<str> {
        let mut text = String::with_capacity(1024);
        let _ = write!(text, "{}; ", self.check);
        if let Some(wait) = lock_limit {
            let _ = write!(text, "{}; ", limit(wait));
        }
        text.push_str(&self.inserts.insert);
        push_row(&mut text, id, columns);
        if lock_limit.is_some() {
            let _ = write!(text, "; {UNLIMIT}");
        }
        text.into()
    }

    /// As `put_as_read`, with its values in the text, and with a limit for locks around it.
    pub(super) fn put_limited(
        &self,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
        wait: Duration,
    ) -> Arc<str> {
        let mut key = String::new();
        push_text(&mut key, Some(id.key().as_bytes()));
        let mut outcome = String::new();
        push_bytes(&mut outcome, columns.outcome.payload.as_deref());
        let put = self.put_in_text(id, guard, columns, [key, outcome]);
        format!("{}; {put}; {UNLIMIT}", limit(wait)).into()
    }

    /// Reads what is committed, at the isolation level that sees more. The level is that of the
    /// next transaction, which this read is.
    pub(super) fn read_committed(&self, id: &RecordId) -> Arc<str> {
        let mut text = format!(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {}",
            self.then_read
        );
        push_id(&mut text, id);
        text.into()
    }

    /// Writes each row that does not exist, and reads the revisions that are there then.
    pub(super) fn insert_all(&self, rows: &[(RecordId, Columns)]) -> Arc<str> {
        let mut text = format!("{}; {}", self.check, self.inserts.insert);
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

fn writes(t: &str, if_owned: &str) -> WriteStatements {
    let sweep_at = sweep_at("sweep_at", |_| from_now("?"));
    // The guard is compared before the columns are set: a condition sees the row as it is.
    let put = |guard: &str, now: &str| {
        let expires = format!("COALESCE({now} + {MS}, expires_at)");
        Arc::from(format!(
            "UPDATE {t} SET state = ?, attempt = ?, owner = ?, origin = ?, \
             lease_until = {expires} - {MS} + {MS}, valid_until = {expires} - {MS}, \
             expires_at = {expires}, leased_at = {expires} - {MS}, sweep_at = {sweep_at}, \
             fingerprint = ?, is_error = ?, codec = ?, outcome = ?, questions = ?, \
             took_over = ?, revision = ? WHERE {AT} AND {guard}"
        ))
    };
    let if_as_read = "revision = ? AND (NOT ? OR lease_until <= UTC_TIMESTAMP(6))";
    WriteStatements {
        // Nothing has looked at the time of the session. If it is before the lease, an outcome
        // would be written as expired.
        put_owned: put(if_owned, "GREATEST(UTC_TIMESTAMP(6), leased_at)"),
        put_as_read: put(if_as_read, "UTC_TIMESTAMP(6)"),
        remove: format!("DELETE FROM {t} WHERE {AT} AND revision = ?").into(),
    }
}

/// A record never gets a shorter hold. Skips locked rows. With another index or in another order, it would lock rows of others. Because
/// of the limit, the optimizer cannot merge the inner select into the update.
fn renewal(t: &str) -> RenewalParts {
    let sweep_at = sweep_at("r.sweep_at", |slack| {
        from_now(&format!("(free.hold + free.hold DIV 60000 * {slack})"))
    });
    RenewalParts {
        select: format!(
            " END, COALESCE(TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, 0)) AS hold, \
             TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) AS lease \
             FROM {t} FORCE INDEX (PRIMARY) \
             WHERE state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6) AND ("
        )
        .into(),
        update: format!(
            ") LIMIT {RENEWALS} FOR UPDATE SKIP LOCKED) AS free \
             STRAIGHT_JOIN {t} AS r FORCE INDEX (PRIMARY) \
             ON r.operation = free.operation AND r.`key` = free.`key` \
             SET r.leased_at = UTC_TIMESTAMP(6), \
             r.lease_until = UTC_TIMESTAMP(6) + INTERVAL free.lease MICROSECOND, \
             r.expires_at = UTC_TIMESTAMP(6) + INTERVAL 1000 * free.hold MICROSECOND, \
             r.sweep_at = {sweep_at}, \
             r.revision = "
        )
        .into(),
        read_owners: format!("SELECT owner FROM {t} WHERE revision = ").into(),
    }
}

fn listing(t: &str) -> ListStatements {
    let row = ROW.replace("outcome,", "x'',");
    let sweep_at = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP('1970-01-01'), sweep_at)";
    let time = "(TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND)";
    let after = format!(
        "usable > 0 AND sweep_at >= {time} AND (sweep_at, operation, `key`) > ({time}, {TEXT}, {TEXT})"
    );
    let between = format!(
        "{after} AND sweep_at <= {time} \
         AND (sweep_at, operation, `key`) <= ({time}, {TEXT}, {TEXT}) \
         AND expires_at > UTC_TIMESTAMP(6)"
    );
    // Otherwise the optimizer may read the whole table for each window.
    let windows = format!("{t} FORCE INDEX (idem_records_sweep_at)");
    let window = |index: &str, only: &str| {
        Arc::from(format!(
            "SELECT {row}, {ID}, {sweep_at} FROM {t}{index} WHERE {after} {only}\
             ORDER BY sweep_at, operation, `key` LIMIT ?"
        ))
    };
    ListStatements {
        window: window("", ""),
        window_of_operation: window(
            " FORCE INDEX (PRIMARY)",
            &format!("AND operation = {TEXT} "),
        ),
        window_end: format!(
            "SELECT {sweep_at}, {ID} FROM {windows} WHERE {after} \
             ORDER BY sweep_at, operation, `key` LIMIT 1 OFFSET ?"
        )
        .into(),
        window_in_states: format!(
            "SELECT {row}, {ID}, {sweep_at} \
             FROM {windows} WHERE {between} AND {} \
             ORDER BY sweep_at, operation, `key`",
            in_states("?", "?")
        )
        .into(),
        count: format!(
            "SELECT CAST(operation AS BINARY), CAST(CONVERT(now USING utf8mb4) AS BINARY), \
             count(*), TIMESTAMPDIFF(MICROSECOND, min(leased_at), UTC_TIMESTAMP(6)) DIV 1000 \
             FROM (SELECT operation, {} AS now, leased_at FROM {windows} WHERE {between}) AS r \
             GROUP BY operation, now",
            state_now("UTC_TIMESTAMP(6)")
        )
        .into(),
        window_of_keys: format!(
            "SELECT {row}, {ID}, {sweep_at} FROM {t} FORCE INDEX (PRIMARY) \
             WHERE usable > 0 AND operation = {TEXT} AND `key` >= {TEXT} AND `key` < {TEXT} \
             AND expires_at > UTC_TIMESTAMP(6) ORDER BY `key` LIMIT ?"
        )
        .into(),
        has_more: format!(
            "SELECT 1 FROM {t} FORCE INDEX (PRIMARY) WHERE usable > 0 AND operation = {TEXT} \
             LIMIT 1 OFFSET ?"
        )
        .into(),
        // Two ranges, because MySQL does not seek by a row of two columns.
        ids: format!(
            "SELECT {ID} FROM {t} FORCE INDEX (PRIMARY) \
             WHERE usable > 0 \
             AND ((operation = {TEXT} AND `key` > {TEXT}) OR operation > {TEXT}) \
             ORDER BY operation, `key` LIMIT ?"
        )
        .into(),
    }
}

/// A sweep takes the rows that are due and not locked. A condition on other columns beside the
/// limit would lock each row that it passes by.
fn upkeep(t: &str, usable: &str) -> UpkeepStatements {
    let due = format!(
        "(SELECT operation, `key` FROM {t} WHERE sweep_at <= UTC_TIMESTAMP(6) \
         ORDER BY sweep_at LIMIT ? FOR UPDATE SKIP LOCKED) AS due \
         STRAIGHT_JOIN {t} AS r FORCE INDEX (PRIMARY) \
         ON r.operation = due.operation AND r.`key` = due.`key`"
    );
    UpkeepStatements {
        sweep: format!("{UNGUARDED} DELETE r FROM {due} WHERE expires_at <= UTC_TIMESTAMP(6)")
            .into(),
        sweep_outcomes: format!(
            "{UNGUARDED} UPDATE {due} SET state = 'done', valid_until = NULL, is_error = false, \
             codec = NULL, outcome = NULL, took_over = NULL, revision = ?, sweep_at = expires_at \
             WHERE state = 'committed' AND valid_until <= UTC_TIMESTAMP(6)"
        )
        .into(),
        postpone: format!(
            "{UNGUARDED} UPDATE {due} SET sweep_at = {CHORE} \
             WHERE {CHORE} > UTC_TIMESTAMP(6) AND expires_at > UTC_TIMESTAMP(6)"
        )
        .into(),
        // A sweep asks for the time first.
        time: format!(
            "SELECT LEAST({usable}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))"
        )
        .into(),
    }
}

/// Reads the mark of the table, in a usable session. As text, also where a step prepares its
/// statements: see `Mysql::in_text`.
fn schema(table: &Table, usable: &str) -> String {
    let name = table.name();
    let schema = table
        .schema()
        .map_or_else(|| "NULL".to_owned(), |schema| format!("'{schema}'"));
    format!(
        "SELECT (SELECT CAST(CONVERT(table_comment USING utf8mb4) AS BINARY) \
         FROM information_schema.tables \
         WHERE table_schema = COALESCE({schema}, DATABASE()) AND table_name = '{name}'), \
         CAST(CONVERT(DATABASE() USING utf8mb4) AS BINARY), {usable}"
    )
}

#[cfg(test)]
impl Statements {
    /// Changes every text.
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [
            &mut self.inserts.insert,
            &mut self.then_read,
            &mut self.read,
            &mut self.renewal.select,
            &mut self.renewal.update,
            &mut self.renewal.read_owners,
        ];
        super::super::statements::rewrite(texts, change);
        self.writes.rewrite(change);
        self.listing.rewrite(change);
        self.upkeep.rewrite(change);
    }
}

/// Returns the text that undoes a claim of which a statement failed.
pub(super) fn undo(lock_limit: Option<Duration>) -> Arc<str> {
    if lock_limit.is_some() {
        format!("ROLLBACK; {UNLIMIT}").into()
    } else {
        "ROLLBACK".into()
    }
}

/// A row in brackets.
fn push_row(text: &mut String, id: &RecordId, columns: &Columns) {
    text.push('(');
    push_cells(text, id, columns);
    text.push(')');
}

fn push_cells(text: &mut String, id: &RecordId, columns: &Columns) {
    push_text(text, Some(id.operation().as_bytes()));
    text.push_str(", ");
    push_text(text, Some(id.key().as_bytes()));
    push_values(text, columns);
}

/// The values of the columns after the key.
fn push_values(text: &mut String, columns: &Columns) {
    text.push_str(", ");
    push_text(text, Some(columns.state.as_bytes()));
    let _ = write!(text, ", {}, ", columns.attempt);
    push_bytes(text, columns.lease.owner.as_ref().map(<[u8; 16]>::as_slice));
    text.push_str(", ");
    push_text(text, columns.lease.origin.map(str::as_bytes));
    let lease = &columns.lease;
    let expires = columns.expires_in.unwrap_or_default();
    let [.., anew] = columns.sweeps();
    let lengths = [
        lease.hold.map(|hold| expires - hold),
        lease
            .hold
            .zip(lease.length)
            .map(|(hold, length)| expires - hold + length),
        columns.fade.map(|fade| expires - fade),
        Some(expires),
        anew,
    ];
    for length in lengths {
        let _ = match length {
            Some(length) => write!(
                text,
                ", UTC_TIMESTAMP(6) + INTERVAL {length} * 1000 MICROSECOND"
            ),
            None => write!(text, ", NULL"),
        };
    }
    text.push_str(", ");
    push_text(text, columns.fingerprint.as_deref().map(str::as_bytes));
    let _ = write!(text, ", {}, ", u8::from(columns.outcome.is_error));
    push_text(text, columns.outcome.codec.as_deref().map(str::as_bytes));
    text.push_str(", ");
    push_bytes(text, columns.outcome.payload.as_deref());
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
    /// Renews the leases whose rows are not locked. In one statement, because each statement waits
    /// for the disk.
    pub(super) fn renew(&self, leases: &[&LeaseRenewal], revision: i64) -> Arc<str> {
        let mut text = format!(
            "{}; {UNGUARDED} UPDATE (SELECT operation, `key`, GREATEST(CASE owner",
            self.check
        );
        for lease in leases {
            text.push_str(" WHEN ");
            push_bytes(&mut text, Some(&lease.owner.to_bytes()));
            let _ = write!(text, " THEN {}", lease.hold);
        }
        text.push_str(&self.renewal.select);
        push_leases(&mut text, leases);
        let _ = write!(text, "{}{revision}", self.renewal.update);
        text.into()
    }

    /// Reads the owners of the leases that were renewed with this revision.
    pub(super) fn renewed(&self, leases: &[&LeaseRenewal], revision: i64) -> Arc<str> {
        let mut text = format!("{}{revision} AND (", self.renewal.read_owners);
        push_leases(&mut text, leases);
        text.push(')');
        text.into()
    }
}

fn push_leases(text: &mut String, leases: &[&LeaseRenewal]) {
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
    let digit = |half: u8| {
        DIGITS
            .get(usize::from(half))
            .copied()
            .map_or('0', char::from)
    };
    text.push_str("x'");
    for byte in value {
        text.push(digit(byte >> 4));
        text.push(digit(byte & 15));
    }
    text.push('\'');
}

/// Returns the statement that creates the table, as a migration file has it.
pub(super) fn create_statements(table: &Table) -> String {
    include_str!("../../schema/mysql.sql")
        .replace("`idem_records` (", &format!("{} (", table.quoted('`')))
}
