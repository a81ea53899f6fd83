//! The statements of SQLite. Times are milliseconds since 1970, which each version of SQLite can
//! tell.

use std::sync::Arc;

use super::super::statements::{
    CHORE, ListStatements, TableStatements, UpkeepStatements, WriteStatements, in_states,
    state_now, sweep_at,
};
use crate::row::SLACK;
use crate::table::Table;

pub(super) struct Statements {
    pub(super) insert: Arc<str>,
    pub(super) insert_only: Arc<str>,
    pub(super) read: Arc<str>,
    /// Reads as the writer, who sees nobody's changes but its own.
    pub(super) read_as_writer: Arc<str>,
    pub(super) writes: WriteStatements,
    /// Its leases are rows of `given`, which the caller writes: see [`given`].
    renew: Arc<str>,
    renewed: Arc<str>,
    insert_all: Arc<str>,
    inserted: Arc<str>,
    pub(super) listing: ListStatements,
    pub(super) upkeep: UpkeepStatements,
    pub(super) table: TableStatements,
}

const AT: &str = "operation = ?1 AND key = ?2";

/// The same time throughout a statement.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";

/// The hold of a record that is renewed: it never gets a shorter one.
const HOLD: &str = "max(given.hold, coalesce(expires_at - leased_at, 0))";

/// From now to when a sweep has something to do with the row that is written.
const WRITTEN_CHORE: &str = "(?9 - iif(?3 = 'committed', coalesce(?10, 0), 0))";

/// The time in so many milliseconds, and a slack for each whole minute of them.
fn from_now(chore: &str, slack: i64) -> String {
    format!("{NOW} + {chore} + {chore} / 60000 * {slack}")
}

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        Self::write(
            table,
            &format!("state = 'in_flight' AND owner = ?18 AND expires_at > {NOW}"),
        )
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::write(table, "state = 'in_flight' AND owner = ?18")
    }

    fn write(table: &Table, if_owned: &str) -> Self {
        let t = &table.quoted('"');
        let insert = format!(
            "INSERT INTO {t} (operation, key, state, attempt, owner, origin, \
             leased_at, lease_until, valid_until, expires_at, \
             fingerprint, is_error, codec, outcome, questions, took_over, revision, sweep_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, {NOW} + ?9 - ?7, {NOW} + ?9 - ?7 + ?8, \
             {NOW} + ?9 - ?10, {NOW} + ?9, ?11, ?12, ?13, ?14, ?15, ?16, ?17, {}) \
             ON CONFLICT (operation, key) DO NOTHING",
            from_now(WRITTEN_CHORE, SLACK)
        );
        let read = format!(
            "SELECT {}, (SELECT read_uncommitted FROM pragma_read_uncommitted) FROM {t} WHERE {AT}",
            row("outcome")
        );
        Self {
            insert: format!("{insert}; {read}").into(),
            insert_only: insert.into(),
            read_as_writer: format!(
                "UPDATE {t} SET revision = revision WHERE {AT} RETURNING {}",
                row("outcome")
            )
            .into(),
            read: read.into(),
            writes: writes(t, if_owned),
            renew: format!(
                "UPDATE {t} AS r SET leased_at = {NOW}, \
                 lease_until = {NOW} + lease_until - leased_at, \
                 expires_at = {NOW} + {HOLD}, revision = ?, sweep_at = {} FROM given \
                 WHERE r.operation = given.operation AND r.key = given.key \
                 AND state = 'in_flight' AND r.owner = given.owner AND expires_at > {NOW}",
                sweep_at("sweep_at", |slack| from_now(HOLD, slack))
            )
            .into(),
            renewed: format!("SELECT r.owner FROM {} WHERE r.revision = ?", at_given(t)).into(),
            insert_all: format!(
                "INSERT INTO {t} (operation, key, state, attempt, valid_until, expires_at, \
                 revision, sweep_at) \
                 SELECT operation, key, state, 0, {NOW} + length - fade, {NOW} + length, \
                 revision, {} FROM given WHERE true ON CONFLICT (operation, key) DO NOTHING",
                from_now("length", SLACK)
            )
            .into(),
            inserted: format!(
                "SELECT r.revision FROM {} WHERE r.revision = given.revision",
                at_given(t)
            )
            .into(),
            listing: listing(t),
            upkeep: upkeep(t),
            table: TableStatements {
                schema: schema(table).into(),
                create: create(table).into(),
            },
        }
    }
}

/// The rows of the table that are at the operations and keys of `given`, each found by the index.
fn at_given(t: &str) -> String {
    format!("given CROSS JOIN {t} AS r ON r.operation = given.operation AND r.key = given.key")
}

/// Returns a statement about many rows, which are parameters in front of it.
fn given(columns: &str, rows: usize, statement: &str) -> Arc<str> {
    let row = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
    let rows = vec![row; rows].join(", ");
    format!("WITH given ({columns}) AS (VALUES {rows}) {statement}").into()
}

/// The columns of leases to renew.
const LEASES: &str = "operation, key, owner, hold";
/// The columns of tokens to issue.
const ISSUES: &str = "operation, key, state, length, fade, revision";

impl Statements {
    /// Renews so many leases, and writes one revision.
    pub(super) fn renew(&self, leases: usize) -> Arc<str> {
        given(LEASES, leases, &self.renew)
    }

    /// Reads the owners of those that have this revision.
    pub(super) fn renewed(&self, leases: usize) -> Arc<str> {
        given(LEASES, leases, &self.renewed)
    }

    pub(super) fn insert_all(&self, rows: usize) -> Arc<str> {
        given(ISSUES, rows, &self.insert_all)
    }

    /// Reads the revisions of those that were written.
    pub(super) fn inserted(&self, rows: usize) -> Arc<str> {
        given(ISSUES, rows, &self.inserted)
    }
}

/// The columns of `Row`, in the order in which it is read.
fn row(outcome: &str) -> String {
    format!(
        "state, attempt, owner, origin, lease_until - leased_at, expires_at - leased_at, \
         expires_at - {NOW}, expires_at - valid_until, \
         fingerprint, is_error, codec, {outcome}, questions, took_over, revision"
    )
}

fn writes(t: &str, if_owned: &str) -> WriteStatements {
    let expires = format!("coalesce({NOW} + ?9, expires_at)");
    let sweep_at = sweep_at("sweep_at", |slack| from_now(WRITTEN_CHORE, slack));
    let put = |guard: &str| {
        Arc::from(format!(
            "UPDATE {t} SET state = ?3, attempt = ?4, owner = ?5, origin = ?6, \
             leased_at = {expires} - ?7, lease_until = {expires} - ?7 + ?8, \
             valid_until = {expires} - ?10, expires_at = {expires}, \
             fingerprint = ?11, is_error = ?12, codec = ?13, outcome = ?14, questions = ?15, \
             took_over = ?16, revision = ?17, sweep_at = {sweep_at} WHERE {AT} AND {guard}"
        ))
    };
    WriteStatements {
        put_owned: put(if_owned),
        put_as_read: put(&format!(
            "revision = ?18 AND (NOT ?19 OR lease_until <= {NOW})"
        )),
        remove: format!("DELETE FROM {t} WHERE {AT} AND revision = ?3").into(),
    }
}

fn listing(t: &str) -> ListStatements {
    let row = row("x''");
    let window = |sweep_at: &str, only: &str, limit: &str| {
        let after = after_position(sweep_at);
        Arc::from(format!(
            "SELECT {row}, operation, key, sweep_at FROM {t} WHERE {after} {only}\
             ORDER BY {sweep_at}, operation, key LIMIT {limit}"
        ))
    };
    let between = format!(
        "{} AND sweep_at <= ?4 AND (+sweep_at, operation, key) <= (?4, ?5, ?6) \
         AND expires_at > {NOW}",
        after_position("sweep_at")
    );
    ListStatements {
        window: window("sweep_at", "", "?4"),
        window_of_operation: window("+sweep_at", "AND operation = ?4 ", "?5"),
        window_of_keys: format!(
            "SELECT {row}, operation, key, sweep_at FROM {t} \
             WHERE operation = ?1 AND key >= ?2 AND key < ?3 AND expires_at > {NOW} \
             ORDER BY key LIMIT ?4"
        )
        .into(),
        window_end: window_end(t),
        window_in_states: format!(
            "SELECT {row}, operation, key, sweep_at FROM {t} WHERE {between} AND {} \
             ORDER BY sweep_at, operation, key",
            in_states("?7", "?8")
        )
        .into(),
        count: format!(
            "SELECT operation, {}, count(*), {NOW} - min(leased_at) FROM {t} WHERE {between} \
             GROUP BY 1, 2",
            state_now(NOW)
        )
        .into(),
        has_more: format!("SELECT 1 FROM {t} WHERE operation = ?1 LIMIT 1 OFFSET ?2").into(),
        ids: format!(
            "SELECT operation, key FROM {t} WHERE (operation, key) > (?1, ?2) \
             ORDER BY operation, key LIMIT ?3"
        )
        .into(),
    }
}

/// The rows of a listing after a position. With two lower bounds on the time, SQLite may seek by
/// the wrong one. A `+` hides a column from the planner.
fn after_position(sweep_at: &str) -> String {
    format!("{sweep_at} >= ?1 AND (+sweep_at, operation, key) > (?1, ?2, ?3)")
}

/// Reads the last position of a window.
fn window_end(t: &str) -> Arc<str> {
    let after = after_position("sweep_at");
    Arc::from(format!(
        "SELECT sweep_at, operation, key FROM {t} WHERE {after} \
         ORDER BY sweep_at, operation, key LIMIT 1 OFFSET ?4"
    ))
}

fn upkeep(t: &str) -> UpkeepStatements {
    let due = format!(
        "rowid IN (SELECT rowid FROM {t} WHERE sweep_at <= {NOW} ORDER BY sweep_at LIMIT ?1)"
    );
    UpkeepStatements {
        sweep: format!("DELETE FROM {t} WHERE {due} AND expires_at <= {NOW}").into(),
        sweep_outcomes: format!(
            "UPDATE {t} SET state = 'done', valid_until = NULL, is_error = 0, codec = NULL, \
             outcome = NULL, took_over = NULL, revision = ?2, \
             sweep_at = expires_at \
             WHERE {due} AND state = 'committed' AND valid_until <= {NOW}"
        )
        .into(),
        postpone: format!(
            "UPDATE {t} SET sweep_at = {CHORE} \
             WHERE {due} AND {CHORE} > {NOW} AND expires_at > {NOW}"
        )
        .into(),
        time: format!("SELECT {NOW}").into(),
    }
}

#[cfg(test)]
impl Statements {
    /// Changes every text.
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [
            &mut self.insert,
            &mut self.insert_only,
            &mut self.read,
            &mut self.renew,
            &mut self.insert_all,
        ];
        super::super::statements::rewrite(texts, change);
        self.writes.rewrite(change);
        self.listing.rewrite(change);
        self.upkeep.rewrite(change);
    }
}

fn schema(table: &Table) -> String {
    let master = match table.schema() {
        Some(schema) => format!("\"{schema}\".sqlite_master"),
        None => "sqlite_master".to_owned(),
    };
    format!("SELECT sql FROM {master} WHERE type = 'table' AND name = ?1")
}

/// Returns the mark in the statement that created a table. SQLite keeps its text with comments.
pub(super) fn mark(created_by: &str) -> String {
    let mark = created_by
        .split_once("-- idem schema ")
        .map(|(_, rest)| rest);
    let version = mark.and_then(|rest| rest.split_whitespace().next());
    version
        .map(|version| format!("idem schema {version}"))
        .unwrap_or_default()
}

fn create(table: &Table) -> String {
    // At once as the writer: two that create one table at the same time come one after the other.
    format!("BEGIN IMMEDIATE;\n{}\nCOMMIT;", create_statements(table))
}

/// Returns the statements that create the table, as a migration file has them.
pub(super) fn create_statements(table: &Table) -> String {
    let ddl = include_str!("../schema/sqlite.sql");
    let ddl = ddl.replace(
        "EXISTS idem_records (",
        &format!("EXISTS {} (", table.quoted('"')),
    );
    let ddl = ddl.replace("ON idem_records (", &format!("ON \"{}\" (", table.name()));
    let index = match table.schema() {
        // An index names the schema itself, and its table is in the same.
        Some(schema) => format!("\"{schema}\".\"{}_sweep_at\"", table.name()),
        None => format!("\"{}_sweep_at\"", table.name()),
    };
    ddl.replace("idem_records_sweep_at", &index)
}
