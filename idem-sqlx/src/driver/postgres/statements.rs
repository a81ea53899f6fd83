//! The statements of PostgreSQL.
//!
//! Time is `statement_timestamp()`: that of the transaction would be as old as the transaction. A
//! statement that had to wait for another one counts from before it waited, as its caller does.

use std::sync::Arc;
use std::time::Duration;

use crate::table::Table;

pub(super) struct Statements {
    pub(super) table: String,
    pub(super) insert: Arc<str>,
    pub(super) insert_within: Arc<str>,
    pub(super) insert_all: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) window: Arc<str>,
    pub(super) window_in_flight: Arc<str>,
    pub(super) window_few: Arc<str>,
    pub(super) has_more: Arc<str>,
    pub(super) ids: Arc<str>,
    pub(super) put_owned: Arc<str>,
    pub(super) put_as_read: Arc<str>,
    pub(super) remove: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) mark: Arc<str>,
    pub(super) sweep: Arc<str>,
    pub(super) sweep_outcomes: Arc<str>,
    pub(super) time: Arc<str>,
    pub(super) schema: Arc<str>,
    pub(super) create: Arc<str>,
}

/// In the order of `columns::Row`. What is left is rounded up: a lease never ends early.
const ROW: &str = "state, attempt, owner, origin, \
    round(extract(epoch FROM lease_until - leased_at) * 1000)::bigint, \
    round(extract(epoch FROM expires_at - leased_at) * 1000)::bigint, \
    ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint, \
    round(extract(epoch FROM expires_at - valid_until) * 1000)::bigint, \
    fingerprint, is_error, codec, outcome, questions, took_over, revision";

const MS: &str = "interval '1 millisecond'";

/// In flight, and not expired. Written so that no index fits but that of the key: the planner takes
/// the index of records in flight for empty, and would go through all of it, and through what is
/// left there of those that ended.
fn held_now(table: &str) -> String {
    format!("{table}state || '' = 'in_flight' AND {table}expires_at - statement_timestamp() > interval '0'")
}

/// Wakes who waits for a row. Not into a queue that is nearly full: then the statement, or the
/// caller's COMMIT, would fail. Waiters look again by themselves.
fn notify(channel: &str, id: &str) -> String {
    format!(
        "CASE WHEN waited AND {channel} <> '' AND pg_notification_queue_usage() < 0.9 \
         THEN pg_notify({channel}, {id})::text END"
    )
}

impl Statements {
    /// Of steps of their own. A claim waits no longer for locks than this, if the connection does
    /// not see to that: else one whose caller has gone could be carried out much later, and nobody
    /// would own its key.
    pub(super) fn new(table: &Table, limit: Option<Duration>) -> Self {
        Self::of(table, limit, &format!("owner = $18 AND {}", held_now("")))
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::of(table, None, "owner = $18 AND state = 'in_flight'")
    }

    #[allow(clippy::too_many_lines, reason = "a table of statements")]
    fn of(table: &Table, limit: Option<Duration>, if_owned: &str) -> Self {
        let t = &table.quoted('"');
        let at = "operation = $1 AND key = $2";
        let expires = format!("coalesce(statement_timestamp() + $9::bigint * {MS}, expires_at)");
        let held = |expires: &str| {
            format!(
                "{expires} - $7::bigint * {MS}, {expires} - $7::bigint * {MS} + $8::bigint * {MS}, {expires} - $10::bigint * {MS}, {expires}"
            )
        };
        let times = "leased_at, lease_until, valid_until, expires_at";
        let insert = format!(
            "INSERT INTO {t} (operation, key, state, attempt, owner, origin, {times}, fingerprint, is_error, codec, outcome, questions, took_over, revision)"
        );
        let values = format!(
            "$1, $2, $3, $4, $5, $6, {}, $11, $12, $13, $14, $15, $16, $17",
            held(&format!("(statement_timestamp() + $9::bigint * {MS})"))
        );
        let or_nothing = format!("ON CONFLICT (operation, key) DO NOTHING RETURNING {ROW}");
        let limited = limit.map_or("true".to_owned(), |limit| {
            format!("set_config('lock_timeout', '{}', true) IS NOT NULL", milliseconds(limit))
        });
        // `waited` stays for a committed record, so that `RETURNING` tells what it was.
        let put = |guard: &str, channel: &str, id: &str| {
            Arc::from(format!(
                "WITH put AS (UPDATE {t} SET state = $3, attempt = $4, owner = $5, origin = $6, ({times}) = ROW ({}), fingerprint = $11, \
                 is_error = $12, codec = $13, outcome = $14, questions = $15, took_over = $16, revision = $17, waited = waited AND $3 <> 'in_flight' \
                 WHERE {at} AND {guard} RETURNING waited) \
                 SELECT {} FROM put",
                held(&expires),
                notify(channel, id)
            ))
        };
        Self {
            table: t.clone(),
            // If there is a row, nothing is written: no new version, no lock.
            insert: format!(
                "WITH written AS ({insert} SELECT {values} WHERE {limited} {or_nothing}) \
                 SELECT * FROM written UNION ALL SELECT {ROW} FROM {t} WHERE {at} AND NOT EXISTS (SELECT 1 FROM written)",
            )
            .into(),
            // The limit for locks is set before there is a row to insert, and the transaction's own
            // one is back when the row has been read.
            insert_within: format!(
                "WITH limited AS MATERIALIZED (SELECT {LIMIT} AS limits), \
                 written AS ({insert} SELECT {values} FROM limited WHERE limits IS NOT NULL {or_nothing}) \
                 SELECT *, {UNLIMIT} FROM written \
                 UNION ALL SELECT {ROW}, {UNLIMIT} FROM {t} WHERE {at} AND NOT EXISTS (SELECT 1 FROM written)",
            )
            .into(),
            insert_all: format!(
                "INSERT INTO {t} (operation, key, state, attempt, valid_until, expires_at, revision) \
                 SELECT operation, key, state, 0, statement_timestamp() + (length - fade) * {MS}, statement_timestamp() + length * {MS}, revision \
                 FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[]) \
                 AS r (operation, key, state, length, fade, revision) ON CONFLICT (operation, key) DO NOTHING RETURNING revision"
            )
            .into(),
            read: format!("SELECT {ROW} FROM {t} WHERE {at}").into(),
            window: window(t, "expires_at", ""),
            window_in_flight: window(t, "expires_at", "AND state = 'in_flight' "),
            // Written so that no index fits but that of the key.
            window_few: window(t, "(expires_at + interval '0')", "AND operation = $5 "),
            has_more: format!("SELECT 1 FROM {t} WHERE operation = $1 LIMIT 1 OFFSET $2").into(),
            ids: ids(t),
            put_owned: put(if_owned, "$19", "$20"),
            put_as_read: put(
                &format!("revision = $18 AND (NOT $19 OR lease_until <= statement_timestamp()) AND {limited}"),
                "$20",
                "$21",
            ),
            remove: format!(
                "WITH removed AS (DELETE FROM {t} WHERE {at} AND revision = $3 RETURNING waited) SELECT {} FROM removed",
                notify("$4", "$5")
            )
            .into(),
            // Skips locked rows, so that they do not hold up the others.
            renew: format!(
                "WITH free AS MATERIALIZED (SELECT r.operation, r.key, renewed.hold \
                 FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[]) AS renewed (operation, key, owner, hold), {t} AS r \
                 WHERE r.operation = renewed.operation AND r.key = renewed.key AND r.owner = renewed.owner AND {} \
                 FOR NO KEY UPDATE OF r SKIP LOCKED) \
                 UPDATE {t} AS r SET leased_at = statement_timestamp(), lease_until = statement_timestamp() + (r.lease_until - r.leased_at), \
                 expires_at = statement_timestamp() + free.hold * {MS}, revision = $5 FROM free \
                 WHERE r.operation = free.operation AND r.key = free.key RETURNING r.owner",
                held_now("r.")
            )
            .into(),
            mark: format!(
                "UPDATE {t} SET waited = true WHERE {at} AND attempt = $3 AND NOT waited AND {} \
                 AND lease_until > statement_timestamp()",
                held_now("")
            )
            .into(),
            // Where the table has partitions, rows of several share a `ctid`: so each is looked at. `IS
            // TRUE` fits no index: with old statistics, the planner takes all rows that expired for
            // few, and would compare each of them with the list.
            sweep: format!(
                "DELETE FROM {t} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {t} WHERE expires_at <= statement_timestamp() \
                 ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)) AND (expires_at <= statement_timestamp()) IS TRUE"
            )
            .into(),
            sweep_outcomes: format!(
                "UPDATE {t} SET state = 'done', valid_until = NULL, is_error = false, codec = NULL, outcome = NULL, took_over = NULL, revision = $2 \
                 WHERE ctid = ANY (ARRAY(SELECT ctid FROM {t} WHERE state = 'committed' AND valid_until <= statement_timestamp() \
                 ORDER BY valid_until LIMIT $1 FOR UPDATE SKIP LOCKED)) \
                 AND (state = 'committed' AND valid_until <= statement_timestamp()) IS TRUE"
            )
            .into(),
            time: "SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint".into(),
            schema: "SELECT to_regclass($1) IS NOT NULL, obj_description(to_regclass($1), 'pg_class')".into(),
            create: create(table).into(),
        }
    }
}

/// Reads the rows of a listing, in the order of this expression.
fn window(table: &str, expires_at: &str, only: &str) -> Arc<str> {
    let from = "(timestamptz 'epoch' + $1::bigint * interval '1 microsecond')";
    let row = ROW.replace("outcome,", "''::bytea,");
    Arc::from(format!(
        "SELECT {row}, operation, key, (extract(epoch FROM expires_at) * 1000000)::bigint FROM {table} \
         WHERE {expires_at} > statement_timestamp() AND {expires_at} >= {from} \
         AND ({expires_at}, operation, key) > ({from}, $2, $3) {only}\
         ORDER BY {expires_at}, operation, key LIMIT $4"
    ))
}

fn ids(table: &str) -> Arc<str> {
    Arc::from(format!(
        "SELECT operation, key FROM {table} WHERE (operation, key) > ($1, $2) ORDER BY operation, key LIMIT $3"
    ))
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
            insert_within,
            insert_all,
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
            mark,
            sweep,
            sweep_outcomes,
            time
        );
    }
}

/// Limits how long the transaction waits for locks, and notes the limit that it had.
const LIMIT: &str =
    "set_config('idem.lock_timeout', current_setting('lock_timeout'), true) || set_config('lock_timeout', $18, true)";

/// Sets the limit that was noted.
const UNLIMIT: &str = "set_config('lock_timeout', current_setting('idem.lock_timeout'), true)";

/// [`UNLIMIT`] as a statement.
pub(super) fn unlimit() -> String {
    format!("SELECT {UNLIMIT}")
}

/// [`LIMIT`] as a statement.
pub(super) fn limit(wait: Duration) -> String {
    format!("SELECT {}", LIMIT.replace("$18", &format!("'{}'", milliseconds(wait))))
}

/// A limit for locks, rounded up: it never ends before the caller's own. Zero would be no limit.
pub(super) fn milliseconds(wait: Duration) -> String {
    format!("{}ms", wait.as_micros().div_ceil(1000).clamp(1, 2_000_000_000))
}

/// Returns the channel for changes of a table's rows. Two tables that share one only wake waiters
/// in vain.
pub(super) fn channel(table: &Table) -> String {
    // Identifiers are plain ASCII; a channel's name has at most 63 bytes.
    let name = format!("idem.{}", table.name());
    name.get(..63).unwrap_or(&name).to_owned()
}

fn create(table: &Table) -> String {
    let ddl = include_str!("../schema/postgres.sql");
    let ddl = ddl.replace("EXISTS idem_records (", &format!("EXISTS {} (", table.quoted('"')));
    let ddl = ddl.replace("ON idem_records (", &format!("ON {} (", table.quoted('"')));
    let ddl = ddl.replace("ON TABLE idem_records ", &format!("ON TABLE {} ", table.quoted('"')));
    // An index is in the schema of its table.
    let ddl = ddl.replace("idem_records_expires_at", &format!("\"{}\"", index(table, "expires_at")));
    let ddl = ddl.replace("idem_records_in_flight", &format!("\"{}\"", index(table, "in_flight")));
    let ddl = ddl.replace("idem_records_valid_until", &format!("\"{}\"", index(table, "valid_until")));
    format!("SELECT pg_advisory_xact_lock(hashtext('idem.{}'));\n{ddl}", table.name())
}

fn index(table: &Table, column: &str) -> String {
    let name = table.name();
    let name = name.get(..63 - 1 - column.len()).unwrap_or(name);
    format!("{name}_{column}")
}
