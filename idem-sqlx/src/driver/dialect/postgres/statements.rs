//! The statements of PostgreSQL.
//!
//! Time is `statement_timestamp()`: that of the transaction would be as old as the transaction. A
//! statement that had to wait for another one counts from before it waited, as its caller does.

use std::sync::Arc;
use std::time::Duration;

use super::super::statements::{
    CHORE, ListStatements, TableStatements, UpkeepStatements, WriteStatements, in_states,
    state_now, sweep_at,
};
use crate::row::SLACK;
use crate::table::Table;

pub(super) struct Statements {
    /// The table's quoted name.
    pub(super) table_name: String,
    pub(super) inserts: InsertStatements,
    pub(super) read: Arc<str>,
    pub(super) find: Arc<str>,
    pub(super) writes: WriteStatements,
    /// `put_owned`, with a look for another row.
    pub(super) put_and_look: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) mark: Arc<str>,
    pub(super) listing: ListStatements,
    pub(super) upkeep: UpkeepStatements,
    pub(super) table: TableStatements,
}

pub(super) struct InsertStatements {
    pub(super) insert: Arc<str>,
    pub(super) insert_new: Arc<str>,
    pub(super) insert_new_within: Arc<str>,
    pub(super) insert_within: Arc<str>,
    pub(super) insert_all: Arc<str>,
}

/// The columns of `Row`, in the order in which it is read. The time left is rounded up, so that a
/// lease never ends early.
const ROW: &str = "state, attempt, owner, origin, \
    round(extract(epoch FROM lease_until - leased_at) * 1000)::bigint, \
    round(extract(epoch FROM expires_at - leased_at) * 1000)::bigint, \
    ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint, \
    round(extract(epoch FROM expires_at - valid_until) * 1000)::bigint, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

const MS: &str = "interval '1 millisecond'";

/// Texts that need not be ASCII are bytes in both directions: the server would take a text for one
/// in the `client_encoding` of the session.
const AT: &str = "operation = convert_from($1, 'UTF8') AND key = convert_from($2, 'UTF8')";

/// A parameter, or a column, of such bytes as a text.
fn text(bytes: &str) -> String {
    format!("convert_from({bytes}, 'UTF8')")
}

/// The operation and the key of a row, as bytes.
const ID: &str = "convert_to(operation, 'UTF8'), convert_to(key, 'UTF8')";

/// The columns of time.
const TIMES: &str = "leased_at, lease_until, valid_until, expires_at";

/// Matches rows that are in flight, and not expired. Only the index of the key fits this condition.
/// The planner may take an index of states or of times for empty, and would scan all of it, with
/// its dead entries.
fn held_now(table: &str) -> String {
    format!(
        "{table}state || '' = 'in_flight' AND {table}expires_at - statement_timestamp() > interval \
         '0'"
    )
}

/// Wakes the waiters for a row, unless the queue of messages is nearly full: then the statement, or
/// the caller's COMMIT, would fail. Waiters also poll.
fn notify(channel: &str, id: &str) -> String {
    let id = text(id);
    format!(
        "CASE WHEN waited AND {channel} <> '' AND pg_notification_queue_usage() < 0.9 \
         THEN pg_notify({channel}, {id})::text END"
    )
}

/// Whether the database stores any text.
pub(crate) const TAKES_ANY_TEXT: &str =
    "current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')";

/// Why a database is refused that does not.
pub(crate) const CONVERTS_TEXT: &str = "the database has another encoding than UTF8, so keys would \
    be refused; give the store a database that was created with `ENCODING 'UTF8'`";

impl Statements {
    /// Creates the statements of separate steps. A claim waits for locks no longer than `limit`,
    /// which is given if the connection has no such limit. Otherwise a claim whose caller is gone
    /// could be carried out much later, and nobody would own its key.
    pub(super) fn new(table: &Table, limit: Option<Duration>) -> Self {
        Self::write(table, limit, &format!("owner = $18 AND {}", held_now("")))
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::write(table, None, "owner = $18 AND state = 'in_flight'")
    }

    fn write(table: &Table, limit: Option<Duration>, if_owned: &str) -> Self {
        let t = &table.quoted('"');
        let limited = limit.map_or("true".to_owned(), |limit| {
            let limit = milliseconds(limit);
            format!("set_config('lock_timeout', '{limit}', true) IS NOT NULL")
        });
        let held_now = held_now("");
        let read = format!("SELECT {ROW} FROM {t} WHERE {AT}");
        let writes = writes(t, if_owned, &limited);
        Self {
            table_name: t.clone(),
            inserts: inserts(t, &limited),
            // At other levels, a transaction that sqlx does not count may have an older snapshot.
            find: format!("{read} AND current_setting('transaction_isolation') = 'read committed'")
                .into(),
            read: read.into(),
            put_and_look: format!(
                "{}, EXISTS (SELECT 1 FROM {t} WHERE {}) AS has_beside",
                writes.put_owned,
                AT.replace("$2", "$22").replace("$1", "$21")
            )
            .into(),
            writes,
            renew: renew(t),
            mark: format!(
                "UPDATE {t} SET waited = true \
                 WHERE {AT} AND attempt = $3 AND NOT waited AND {held_now} \
                 AND lease_until > statement_timestamp()"
            )
            .into(),
            listing: listing(t),
            upkeep: upkeep(t),
            table: TableStatements {
                schema: format!(
                    "SELECT to_regclass($1) IS NOT NULL, \
                     obj_description(to_regclass($1), 'pg_class'), {TAKES_ANY_TEXT}, \
                     (SELECT convert_to(nspname::text, 'UTF8') FROM pg_catalog.pg_class AS c \
                     JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                     WHERE c.oid = to_regclass($1) AND c.relpersistence <> 't')"
                )
                .into(),
                create: create(table).into(),
            },
        }
    }
}

/// The values of the columns of time, if the row expires at this expression.
fn times(expires: &str) -> String {
    format!(
        "{expires} - $7::bigint * {MS}, {expires} - $7::bigint * {MS} + $8::bigint * {MS}, \
         {expires} - $10::bigint * {MS}, {expires}"
    )
}

/// From now to when a sweep has something to do with the row that is written, in milliseconds.
const WRITTEN_CHORE: &str =
    "($9::bigint - CASE WHEN $3 = 'committed' THEN coalesce($10::bigint, 0) ELSE 0 END)";

/// The time in so many milliseconds, and a slack for each whole minute of them.
fn from_now(chore: &str, slack: i64) -> String {
    format!("statement_timestamp() + ({chore} + {chore} / 60000 * {slack}) * {MS}")
}

fn inserts(t: &str, limited: &str) -> InsertStatements {
    let insert = format!(
        "INSERT INTO {t} (operation, key, state, attempt, owner, origin, {TIMES}, \
         fingerprint, is_error, codec, outcome, questions, took_over, revision, sweep_at)"
    );
    let values = format!(
        "{}, {}, $3, $4, $5, $6, {}, $11, $12, $13, $14, $15, $16, $17, {}",
        text("$1"),
        text("$2"),
        times(&format!("(statement_timestamp() + $9::bigint * {MS})")),
        from_now(WRITTEN_CHORE, SLACK)
    );
    let if_new = "ON CONFLICT (operation, key) DO NOTHING";
    let or_nothing = format!("{if_new} RETURNING {ROW}");
    let if_none = "NOT EXISTS (SELECT 1 FROM written)";
    InsertStatements {
        // If there is a row, nothing is written: no new version, no lock.
        insert: format!(
            "WITH written AS ({insert} SELECT {values} WHERE {limited} {or_nothing}) \
             SELECT * FROM written UNION ALL SELECT {ROW} FROM {t} WHERE {AT} AND {if_none}",
        )
        .into(),
        // Returns what only this statement does: a proxy that mixes up prepared statements may
        // carry out another one with as many parameters.
        insert_new: format!(
            "{insert} SELECT {values} WHERE {limited} {if_new} RETURNING revision AS written"
        )
        .into(),
        insert_new_within: format!(
            "WITH limited AS MATERIALIZED (SELECT {LIMIT} AS limits) \
             {insert} SELECT {values} FROM limited WHERE limits IS NOT NULL \
             {if_new} RETURNING revision AS written, {UNLIMIT}"
        )
        .into(),
        // Sets the limit for locks before there is a row to insert, and restores the transaction's
        // own limit when the row has been read.
        insert_within: format!(
            "WITH limited AS MATERIALIZED (SELECT {LIMIT} AS limits), \
             written AS ({insert} SELECT {values} FROM limited WHERE limits IS NOT NULL \
             {or_nothing}) \
             SELECT *, {UNLIMIT} FROM written \
             UNION ALL SELECT {ROW}, {UNLIMIT} FROM {t} WHERE {AT} AND {if_none}",
        )
        .into(),
        insert_all: format!(
            "INSERT INTO {t} (operation, key, state, attempt, valid_until, expires_at, revision, \
             sweep_at) \
             SELECT {}, {}, state, 0, statement_timestamp() + (length - fade) * {MS}, \
             statement_timestamp() + length * {MS}, revision, {} \
             FROM unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], \
             $6::bigint[]) AS r (operation, key, state, length, fade, revision) \
             ON CONFLICT (operation, key) DO NOTHING RETURNING revision",
            text("operation"),
            text("key"),
            from_now("length", SLACK)
        )
        .into(),
    }
}

fn writes(t: &str, if_owned: &str, limited: &str) -> WriteStatements {
    let times = times(&format!(
        "coalesce(statement_timestamp() + $9::bigint * {MS}, expires_at)"
    ));
    let sweep_at = sweep_at("sweep_at", |slack| from_now(WRITTEN_CHORE, slack));
    // A committed record keeps `waited`, so that `RETURNING` returns what it was.
    let put = |guard: &str, channel: &str, id: &str| {
        let notify = notify(channel, id);
        Arc::from(format!(
            "UPDATE {t} SET state = $3, attempt = $4, owner = $5, origin = $6, \
             ({TIMES}) = ROW ({times}), fingerprint = $11, is_error = $12, codec = $13, \
             outcome = $14, questions = $15, took_over = $16, revision = $17, \
             waited = waited AND $3 <> 'in_flight', sweep_at = {sweep_at} \
             WHERE {AT} AND {guard} RETURNING {notify}"
        ))
    };
    let as_read = format!(
        "revision = $18 AND (NOT $19 OR lease_until <= statement_timestamp()) AND {limited}"
    );
    let notify = notify("$4", "$5");
    WriteStatements {
        put_owned: put(if_owned, "$19", "$20"),
        put_as_read: put(&as_read, "$20", "$21"),
        remove: format!("DELETE FROM {t} WHERE {AT} AND revision = $3 RETURNING {notify}").into(),
    }
}

/// Skips locked rows, so that the other leases do not wait for them. A record never gets a shorter
/// hold.
fn renew(t: &str) -> Arc<str> {
    let held_now = held_now("r.");
    let sweep_at = sweep_at("r.sweep_at", |slack| from_now("free.hold", slack));
    let [operation, key] = ["renewed.operation", "renewed.key"].map(text);
    Arc::from(format!(
        "WITH free AS MATERIALIZED (SELECT r.operation, r.key, greatest(renewed.hold, \
         round(extract(epoch FROM r.expires_at - r.leased_at) * 1000)::bigint) AS hold \
         FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[]) \
         AS renewed (operation, key, owner, hold), {t} AS r \
         WHERE r.operation = {operation} AND r.key = {key} \
         AND r.owner = renewed.owner AND {held_now} FOR NO KEY UPDATE OF r SKIP LOCKED) \
         UPDATE {t} AS r SET leased_at = statement_timestamp(), \
         lease_until = statement_timestamp() + (r.lease_until - r.leased_at), \
         expires_at = statement_timestamp() + free.hold * {MS}, sweep_at = {sweep_at}, \
         revision = $5 FROM free \
         WHERE r.operation = free.operation AND r.key = free.key RETURNING r.owner"
    ))
}

fn listing(t: &str) -> ListStatements {
    ListStatements {
        window: window(t, "sweep_at", "", "$4"),
        // Only the index of the key fits this expression.
        window_of_operation: window(
            t,
            "(sweep_at + interval '0')",
            &format!("AND operation = {} ", text("$4")),
            "$5",
        ),
        window_of_keys: window_of_keys(t),
        // The expression would be computed for each row that is passed by.
        window_end: format!(
            "SELECT {SWEEP_AT}, {ID} FROM \
             (SELECT sweep_at, operation, key FROM {t} WHERE {} \
             ORDER BY sweep_at, operation, key LIMIT 1 OFFSET $4) AS last",
            after("sweep_at")
        )
        .into(),
        window_in_states: format!(
            "SELECT {}, {ID}, {SWEEP_AT} FROM {t} WHERE {} AND {} \
             ORDER BY sweep_at, operation, key",
            row_without_outcome(),
            between(),
            in_states("$7", "$8")
        )
        .into(),
        count: format!(
            "SELECT convert_to(operation, 'UTF8'), {}, count(*), \
             (extract(epoch FROM statement_timestamp() - min(leased_at)) * 1000)::bigint \
             FROM {t} WHERE {} GROUP BY 1, 2",
            state_now("statement_timestamp()"),
            between()
        )
        .into(),
        has_more: format!(
            "SELECT 1 FROM {t} WHERE operation = {} LIMIT 1 OFFSET $2",
            text("$1")
        )
        .into(),
        // In one row: the client takes longer to read a row than the server to find it.
        ids: format!(
            "SELECT array_agg(convert_to(operation, 'UTF8')), array_agg(convert_to(key, 'UTF8')) \
             FROM (SELECT operation, key FROM {t} WHERE (operation, key) > ({}, {}) \
             ORDER BY operation, key LIMIT $3) AS ids",
            text("$1"),
            text("$2")
        )
        .into(),
    }
}

fn upkeep(t: &str) -> UpkeepStatements {
    // In a table with partitions, rows of several of them share a `ctid`, so each row is compared
    // again. No index fits `IS TRUE`. With old statistics, the planner expects few rows that are
    // due, and would compare each of them with the list.
    let due = format!(
        "ctid = ANY (ARRAY(SELECT ctid FROM {t} WHERE sweep_at <= statement_timestamp() \
         ORDER BY sweep_at LIMIT $1 FOR UPDATE SKIP LOCKED)) \
         AND (sweep_at <= statement_timestamp()) IS TRUE"
    );
    UpkeepStatements {
        sweep: format!("DELETE FROM {t} WHERE {due} AND expires_at <= statement_timestamp()")
            .into(),
        sweep_outcomes: format!(
            "UPDATE {t} SET state = 'done', valid_until = NULL, is_error = false, codec = NULL, \
             outcome = NULL, took_over = NULL, revision = $2, \
             sweep_at = expires_at \
             WHERE {due} AND state = 'committed' AND valid_until <= statement_timestamp()"
        )
        .into(),
        postpone: format!(
            "UPDATE {t} SET sweep_at = {CHORE} \
             WHERE {due} AND {CHORE} > statement_timestamp() \
             AND expires_at > statement_timestamp()"
        )
        .into(),
        time: "SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint".into(),
    }
}

/// The time of a row in a position, in microseconds since 1970.
const SWEEP_AT: &str = "(extract(epoch FROM sweep_at) * 1000000)::bigint";

fn row_without_outcome() -> String {
    ROW.replace("outcome,", "''::bytea,")
}

/// The time that a parameter holds.
fn time(parameter: &str) -> String {
    format!("(timestamptz 'epoch' + {parameter}::bigint * interval '1 microsecond')")
}

/// Matches rows after a position, in the order of this expression.
fn after(sweep_at: &str) -> String {
    let from = time("$1");
    let [operation, key] = ["$2", "$3"].map(text);
    format!("{sweep_at} >= {from} AND ({sweep_at}, operation, key) > ({from}, {operation}, {key})")
}

/// Matches rows between two positions, the last one included, that have not expired.
fn between() -> String {
    let to = time("$4");
    let [operation, key] = ["$5", "$6"].map(text);
    format!(
        "{} AND sweep_at <= {to} AND (sweep_at, operation, key) <= ({to}, {operation}, {key}) \
         AND expires_at > statement_timestamp()",
        after("sweep_at")
    )
}

/// Reads the rows of a listing, in the order of this expression.
fn window(table: &str, sweep_at: &str, only: &str, limit: &str) -> Arc<str> {
    let row = row_without_outcome();
    let after = after(sweep_at);
    Arc::from(format!(
        "SELECT {row}, {ID}, {SWEEP_AT} FROM {table} WHERE {after} {only}\
         ORDER BY {sweep_at}, operation, key LIMIT {limit}"
    ))
}

/// Reads rows of an operation in a range of keys. Only the index of the key fits this.
fn window_of_keys(table: &str) -> Arc<str> {
    let row = row_without_outcome();
    let [operation, from, before] = ["$1", "$2", "$3"].map(text);
    Arc::from(format!(
        "SELECT {row}, {ID}, {SWEEP_AT} FROM {table} \
         WHERE operation = {operation} AND key >= {from} AND key < {before} \
         AND expires_at > statement_timestamp() ORDER BY key LIMIT $4"
    ))
}

#[cfg(test)]
impl Statements {
    /// Changes every text.
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [
            &mut self.inserts.insert,
            &mut self.inserts.insert_new,
            &mut self.inserts.insert_new_within,
            &mut self.inserts.insert_within,
            &mut self.inserts.insert_all,
            &mut self.read,
            &mut self.find,
            &mut self.put_and_look,
            &mut self.renew,
            &mut self.mark,
        ];
        super::super::statements::rewrite(texts, change);
        self.writes.rewrite(change);
        self.listing.rewrite(change);
        self.upkeep.rewrite(change);
    }
}

/// Limits how long the transaction waits for locks, and saves its previous limit.
const LIMIT: &str = "set_config('idem.lock_timeout', current_setting('lock_timeout'), true) \
    || set_config('lock_timeout', $18, true)";

/// Restores the limit that was saved.
const UNLIMIT: &str = "set_config('lock_timeout', current_setting('idem.lock_timeout'), true)";

/// [`UNLIMIT`] as a statement.
pub(super) fn unlimit() -> String {
    format!("SELECT {UNLIMIT}")
}

/// [`LIMIT`] as a statement.
pub(super) fn limit(wait: Duration) -> String {
    format!(
        "SELECT {}",
        LIMIT.replace("$18", &format!("'{}'", milliseconds(wait)))
    )
}

/// Returns a limit for locks, rounded up so that it never ends before the caller's own. Zero would
/// mean no limit.
pub(super) fn milliseconds(wait: Duration) -> String {
    format!(
        "{}ms",
        wait.as_micros().div_ceil(1000).clamp(1, 2_000_000_000)
    )
}

/// Returns the channel for changes of a table's rows. If two tables share one, waiters are only
/// woken more often.
pub(super) fn channel(table: &Table) -> String {
    // Identifiers are plain ASCII; a channel's name has at most 63 bytes.
    let name = format!("idem.{}", table.name());
    name.get(..63).unwrap_or(&name).to_owned()
}

fn create(table: &Table) -> String {
    let lock = format!("hashtext('idem.{}')", table.name());
    format!(
        "SELECT pg_advisory_xact_lock({lock});\n{}",
        create_statements(table)
    )
}

/// Returns the statements that create the table, as a migration file has them.
pub(super) fn create_statements(table: &Table) -> String {
    let ddl = include_str!("../schema/postgres.sql");
    let ddl = ddl.replace(
        "EXISTS idem_records (",
        &format!("EXISTS {} (", table.quoted('"')),
    );
    let ddl = ddl.replace("ON idem_records (", &format!("ON {} (", table.quoted('"')));
    let ddl = ddl.replace(
        "ON TABLE idem_records ",
        &format!("ON TABLE {} ", table.quoted('"')),
    );
    // An index is in the schema of its table.
    ddl.replace(
        "idem_records_sweep_at",
        &format!("\"{}\"", index(table, "sweep_at")),
    )
}

fn index(table: &Table, column: &str) -> String {
    let name = table.name();
    let name = name.get(..63 - 1 - column.len()).unwrap_or(name);
    format!("{name}_{column}")
}
