//! The statements of SQLite. Times are milliseconds since 1970, which each version of SQLite can
//! tell.

use std::sync::Arc;

use crate::table::Table;

pub(super) struct Statements {
    pub(super) insert: Arc<str>,
    pub(super) insert_only: Arc<str>,
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
    pub(super) sweep: Arc<str>,
    pub(super) sweep_outcomes: Arc<str>,
    pub(super) time: Arc<str>,
    pub(super) schema: Arc<str>,
    pub(super) create: Arc<str>,
}

/// The same throughout a statement.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";

impl Statements {
    pub(super) fn new(table: &Table) -> Self {
        Self::of(table, &format!("state = 'in_flight' AND owner = ?18 AND expires_at > {NOW}"))
    }

    /// Of steps in a caller's transaction. Nobody else sees a claim there, so that it has not
    /// expired, however long the transaction takes.
    pub(super) fn within_transactions(table: &Table) -> Self {
        Self::of(table, "state = 'in_flight' AND owner = ?18")
    }

    fn of(table: &Table, if_owned: &str) -> Self {
        let t = &table.quoted('"');
        let at = "operation = ?1 AND key = ?2";
        let row = format!(
            "state, attempt, owner, origin, lease_until - leased_at, expires_at - leased_at, expires_at - {NOW}, expires_at - valid_until, \
             fingerprint, is_error, codec, outcome, questions, took_over, revision"
        );
        let expires = format!("coalesce({NOW} + ?9, expires_at)");
        let put = |guard: &str| {
            Arc::from(format!(
                "UPDATE {t} SET state = ?3, attempt = ?4, owner = ?5, origin = ?6, leased_at = {expires} - ?7, \
                 lease_until = {expires} - ?7 + ?8, valid_until = {expires} - ?10, expires_at = {expires}, \
                 fingerprint = ?11, is_error = ?12, codec = ?13, outcome = ?14, questions = ?15, took_over = ?16, revision = ?17 WHERE {at} AND {guard}"
            ))
        };
        let light = row.replace("outcome,", "x'',");
        // One bound alone: of several, SQLite takes the first it meets, and would go through all
        // rows before the place each time. A `+` takes a column from the choice.
        let window = |expires_at: &str, only: &str| {
            Arc::from(format!(
                "SELECT {light}, operation, key, expires_at FROM {t} WHERE {expires_at} >= max(?1, {NOW} + 1) \
                 AND (+expires_at, operation, key) > (?1, ?2, ?3) {only}\
                 ORDER BY {expires_at}, operation, key LIMIT ?4"
            ))
        };
        let insert = format!(
            "INSERT INTO {t} (operation, key, state, attempt, owner, origin, leased_at, lease_until, valid_until, expires_at, \
             fingerprint, is_error, codec, outcome, questions, took_over, revision) VALUES (?1, ?2, ?3, ?4, ?5, ?6, {NOW} + ?9 - ?7, {NOW} + ?9 - ?7 + ?8, \
             {NOW} + ?9 - ?10, {NOW} + ?9, ?11, ?12, ?13, ?14, ?15, ?16, ?17) ON CONFLICT (operation, key) DO NOTHING"
        );
        Self {
            insert: format!("{insert}; SELECT {row} FROM {t} WHERE {at}").into(),
            insert_only: insert.into(),
            read: format!("SELECT {row} FROM {t} WHERE {at}").into(),
            window: window("expires_at", ""),
            window_in_flight: window("expires_at", "AND state = 'in_flight' "),
            window_few: window("+expires_at", "AND operation = ?5 "),
            has_more: format!("SELECT 1 FROM {t} WHERE operation = ?1 LIMIT 1 OFFSET ?2").into(),
            ids: format!(
                "SELECT operation, key FROM {t} WHERE (operation, key) > (?1, ?2) ORDER BY operation, key LIMIT ?3"
            )
            .into(),
            put_owned: put(if_owned),
            put_as_read: put(&format!("revision = ?18 AND (NOT ?19 OR lease_until <= {NOW})")),
            remove: format!("DELETE FROM {t} WHERE {at} AND revision = ?3").into(),
            renew: format!(
                "UPDATE {t} SET leased_at = {NOW}, lease_until = {NOW} + lease_until - leased_at, expires_at = {NOW} + ?4, revision = ?5 \
                 WHERE {at} AND state = 'in_flight' AND owner = ?3 AND expires_at > {NOW}"
            )
            .into(),
            sweep: format!(
                "DELETE FROM {t} WHERE rowid IN (SELECT rowid FROM {t} WHERE expires_at <= {NOW} ORDER BY expires_at LIMIT ?1)"
            )
            .into(),
            sweep_outcomes: format!(
                "UPDATE {t} SET state = 'done', valid_until = NULL, is_error = 0, codec = NULL, outcome = NULL, took_over = NULL, revision = ?2 \
                 WHERE rowid IN (SELECT rowid FROM {t} WHERE state = 'committed' AND valid_until IS NOT NULL AND valid_until <= {NOW} \
                 ORDER BY valid_until LIMIT ?1)"
            )
            .into(),
            time: format!("SELECT {NOW}").into(),
            schema: match table.schema() {
                Some(schema) => format!("SELECT sql FROM \"{schema}\".sqlite_master WHERE type = 'table' AND name = ?1"),
                None => "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?1".to_owned(),
            }
            .into(),
            create: create(table).into(),
        }
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
            insert_only,
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
            sweep,
            sweep_outcomes,
            time
        );
    }
}

/// The mark in the statement that created a table: SQLite keeps its text, comments included.
pub(super) fn mark(created_by: &str) -> String {
    let mark = created_by.split_once("-- idem schema ").map(|(_, rest)| rest);
    let version = mark.and_then(|rest| rest.split_whitespace().next());
    version.map(|version| format!("idem schema {version}")).unwrap_or_default()
}

fn create(table: &Table) -> String {
    let ddl = include_str!("../schema/sqlite.sql");
    let ddl = ddl.replace("EXISTS idem_records (", &format!("EXISTS {} (", table.quoted('"')));
    let ddl = ddl.replace("ON idem_records (", &format!("ON \"{}\" (", table.name()));
    let index = |column: &str| match table.schema() {
        // An index names the schema itself, and its table is in the same.
        Some(schema) => format!("\"{schema}\".\"{}_{column}\"", table.name()),
        None => format!("\"{}_{column}\"", table.name()),
    };
    let ddl = ddl.replace("idem_records_expires_at", &index("expires_at"));
    let ddl = ddl.replace("idem_records_in_flight", &index("in_flight"));
    let ddl = ddl.replace("idem_records_valid_until", &index("valid_until"));
    // At once as the writer: two that create one table at the same time come one after the other.
    format!("BEGIN IMMEDIATE;\n{ddl}\nCOMMIT;")
}
