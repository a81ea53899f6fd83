//! PostgreSQL, MySQL, MariaDB and SQLite.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, AssertSqlSafe, Row as _};
use tokio::time::timeout;

use super::{Report, clock};
use crate::failure::Failure;
use crate::store::quoted;

/// PostgreSQL 12, as `server_version_num` has it.
const OLDEST_POSTGRES: i32 = 120_000;
/// The settings of PostgreSQL that a crash of the machine depends on, and what it may do if one is
/// off.
const CRASH_SETTINGS: [(&str, &str); 3] = [
    ("fsync", "a crash of the machine may damage the database"),
    (
        "synchronous_commit",
        "a crash forgets the last commits: a claim or an outcome that was acknowledged",
    ),
    (
        "full_page_writes",
        "a crash of the machine may damage the database",
    ),
];
/// The remedy for a table that can only be read.
const WRITABLE: &str =
    "connect to a server that may be written, and let its database and its transactions be so";
/// How long the check of a whole file may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The pause between two readings of the clock.
const BETWEEN: Duration = Duration::from_millis(300);

fn unavailable(error: &sqlx::Error) -> Failure {
    Failure::Unavailable(format!("the database cannot be asked: {error}"))
}

/// Judges the clock of a server, which says the microseconds since 1970.
async fn clock_of(
    server: &str,
    ask: impl AsyncFn() -> Result<i64, sqlx::Error>,
    report: &mut Report,
) -> Result<(), Failure> {
    let read = async || {
        let asked = clock::now();
        let micros = ask().await.map_err(|error| unavailable(&error))?;
        Ok::<_, Failure>(clock::Reading::new(
            asked,
            Duration::from_micros(u64::try_from(micros).unwrap_or_default()),
        ))
    };
    let first = read().await?;
    tokio::time::sleep(BETWEEN).await;
    clock::judge(server, &first, &read().await?, report);
    Ok(())
}

/// The standbys of a server, as far as this user may know.
async fn standbys(pool: &PgPool, report: &mut Report) -> Result<(), Failure> {
    let row = sqlx::query(
        "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), \
         current_setting('synchronous_standby_names') FROM pg_stat_replication",
    );
    let row = row
        .fetch_one(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    let count = |index: usize| {
        row.try_get::<i64, _>(index)
            .map_err(|error| unavailable(&error))
    };
    let names: String = row.try_get(2).map_err(|error| unavailable(&error))?;
    match (count(0)?, count(1)?, names.is_empty()) {
        (0, _, true) => report.note("has no standby; while the server is down, calls fail closed"),
        (0, _, false) => report.found(
            format!(
                "no standby is connected, and synchronous_standby_names is `{names}`: each \
                commit waits for one, and calls fail"
            ),
            "start the standbys, or set synchronous_standby_names = ''",
        ),
        (all, 0, true) => report.note(format!(
            "has {all} standbys and none is synchronous, so a failover forgets the last claims and \
             outcomes; synchronous_standby_names has each commit wait for them"
        )),
        (all, ..) => report.fine(format!("a commit waits for a standby, of {all}")),
    }
    Ok(())
}

/// The replicas of a server of MySQL or MariaDB, as far as this user may know.
async fn replicas(pool: &MySqlPool, report: &mut Report) -> Result<(), Failure> {
    let threads = "SELECT CAST(count(*) AS SIGNED) FROM information_schema.processlist WHERE \
        command LIKE 'Binlog Dump%'";
    let row = sqlx::query(threads)
        .fetch_one(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    let all: i64 = row.try_get(0).map_err(|error| unavailable(&error))?;
    // The name differs between MySQL and MariaDB. Without the plug-in, neither variable exists.
    let status = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_master_status', \
        'Rpl_semi_sync_source_status')";
    let row = sqlx::query(status)
        .fetch_optional(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    let is_waited_for = row.is_some_and(|row| {
        row.try_get::<String, _>(1)
            .is_ok_and(|status| status == "ON")
    });
    judge_replicas(all, is_waited_for, report);
    Ok(())
}

fn judge_replicas(all: i64, is_waited_for: bool, report: &mut Report) {
    match (all, is_waited_for) {
        (0, _) => report.note(
            "no replica is seen (that needs the right PROCESS); while a server without one is \
             down, calls fail closed",
        ),
        (_, true) => report.fine(format!(
            "a commit waits for a replica, of {all} (semi-synchronous \
            replication)"
        )),
        (_, false) => report.note(format!(
            "has {all} replicas and a commit waits for none, so a failover forgets the last claims \
             and outcomes; semi-synchronous replication has each commit wait"
        )),
    }
}

pub(super) async fn postgres(
    pool: &PgPool,
    table: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    settings_of_postgres(pool, report).await?;
    let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    clock_of(
        "PostgreSQL",
        async || sqlx::query(micros).fetch_one(pool).await?.try_get(0),
        report,
    )
    .await?;
    standbys(pool, report).await?;
    table_of_postgres(pool, table, report).await
}

/// Judges the version and the settings of a server.
async fn settings_of_postgres(pool: &PgPool, report: &mut Report) -> Result<(), Failure> {
    let row = sqlx::query(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
         pg_is_in_recovery(), current_setting('default_transaction_isolation'), \
         current_setting($1), current_setting($2), current_setting($3), current_setting($4)",
    );
    let names = CRASH_SETTINGS.map(|(name, _)| name);
    let row = names
        .into_iter()
        .chain(["default_transaction_read_only"])
        .fold(row, idem_sqlx::sqlx::query::Query::bind)
        .fetch_one(pool)
        .await;
    let row = row.map_err(|error| unavailable(&error))?;
    let text = |index: usize| {
        row.try_get::<String, _>(index)
            .map_err(|error| unavailable(&error))
    };
    let version: i32 = row.try_get(0).map_err(|error| unavailable(&error))?;
    if version < OLDEST_POSTGRES {
        report.found(
            format!("PostgreSQL {} is too old", text(1)?),
            "upgrade to version 12 or newer",
        );
    } else {
        report.fine(format!("PostgreSQL {}", text(1)?));
    }
    report.fine(format!(
        "isolation `{}`: every step is correct at every level",
        text(3)?
    ));
    if row.try_get(2).map_err(|error| unavailable(&error))? {
        report.found(
            "this server is a replica, which takes no records",
            "connect to the primary; with several hosts, `target_session_attrs=read-write`",
        );
    }
    if text(7)? == "on" {
        report.found(
            "transactions are read-only here",
            "ALTER ROLE .. SET default_transaction_read_only = off",
        );
    }
    for (index, (name, loss)) in (4..).zip(CRASH_SETTINGS) {
        match text(index)?.as_str() {
            "off" => report.found(
                format!("{name} is off: {loss}"),
                format!("set {name} = on, at least for the role of the service"),
            ),
            _ => report.fine(format!("{name} is on")),
        }
    }
    Ok(())
}

/// Judges the table and its indexes.
async fn table_of_postgres(pool: &PgPool, table: &str, report: &mut Report) -> Result<(), Failure> {
    let row = sqlx::query(
        "SELECT relpersistence::text, has_table_privilege(oid, 'SELECT') AND \
         has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE') AND \
         has_table_privilege(oid, 'DELETE'), (SELECT count(*) FROM pg_index WHERE indrelid = \
         pg_class.oid AND NOT indisvalid), (SELECT count(*) FROM pg_index WHERE indrelid = \
         pg_class.oid AND pg_get_indexdef(indexrelid) LIKE '%(sweep_at%') FROM pg_class WHERE oid \
         = to_regclass($1)",
    );
    let row = row
        .bind(quoted(table, '"'))
        .fetch_optional(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    // A missing table was found before.
    let Some(row) = row else { return Ok(()) };
    let persistence: String = row.try_get(0).map_err(|error| unavailable(&error))?;
    match persistence.as_str() {
        "p" => report.fine("the table survives a crash"),
        _ => report.found(
            "the table is unlogged or temporary: a crash empties it",
            format!("ALTER TABLE {table} SET LOGGED"),
        ),
    }
    if row.try_get(1).map_err(|error| unavailable(&error))? {
        report.fine("this user may read and write the table");
    } else {
        report.found(
            "this user may not read and write the table",
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO the role of the service, and \
                 run the doctor as that"
            ),
        );
    }
    if row
        .try_get::<i64, _>(2)
        .map_err(|error| unavailable(&error))?
        > 0
    {
        report.found(
            "an index of the table is not valid",
            format!("REINDEX TABLE {table}"),
        );
    }
    if row
        .try_get::<i64, _>(3)
        .map_err(|error| unavailable(&error))?
        == 0
    {
        report.note(
            "the table has no index on `sweep_at`, so sweeps and listings read all its rows; `idem \
             schema postgres` prints the statement",
        );
    }
    Ok(())
}

pub(super) async fn mysql(
    pool: &MySqlPool,
    table: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    let rows = sqlx::query(
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'read_only', \
         'innodb_flush_log_at_trx_commit', 'autocommit', 'transaction_isolation', 'tx_isolation')",
    );
    let rows = rows
        .fetch_all(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    let mut settings = BTreeMap::new();
    for row in rows {
        let pair = (row.try_get::<String, _>(0), row.try_get::<String, _>(1));
        if let (Ok(name), Ok(value)) = pair {
            settings.insert(name.to_lowercase(), value);
        }
    }
    let setting = |name: &str| settings.get(name).map(String::as_str).unwrap_or_default();
    judge_mysql(&setting, report);
    let micros = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    clock_of(
        "the server",
        async || sqlx::query(micros).fetch_one(pool).await?.try_get(0),
        report,
    )
    .await?;
    replicas(pool, report).await?;
    table_of_mysql(pool, table, setting("read_only") == "OFF", report).await
}

/// Judges the version and the settings of a server.
fn judge_mysql<'a>(setting: &impl Fn(&str) -> &'a str, report: &mut Report) {
    version_of_mysql(setting("version"), report);
    let isolation = if setting("transaction_isolation").is_empty() {
        "tx_isolation"
    } else {
        "transaction_isolation"
    };
    report.fine(format!(
        "isolation `{}`: every step is correct at every level",
        setting(isolation)
    ));
    if setting("read_only") != "OFF" {
        report.found("this server is read-only", "connect to the primary");
    }
    match setting("innodb_flush_log_at_trx_commit") {
        "1" => report.fine("each commit is on the disk when it returns"),
        other => report.found(
            format!(
                "innodb_flush_log_at_trx_commit is {other}: a crash forgets the last commits: \
                a claim or an outcome that was acknowledged"
            ),
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in the configuration",
        ),
    }
}

/// Judges the table, and what this user may do with it.
async fn table_of_mysql(
    pool: &MySqlPool,
    table: &str,
    is_server_writable: bool,
    report: &mut Report,
) -> Result<(), Failure> {
    let quoted = quoted(table, '`');
    let engine = sqlx::query(
        "SELECT CAST(engine AS CHAR) FROM information_schema.tables WHERE table_schema = \
         COALESCE(?, DATABASE()) AND table_name = ?",
    );
    let (schema, name) = table
        .split_once('.')
        .map_or((None, table), |(schema, name)| (Some(schema), name));
    let engine = engine
        .bind(schema)
        .bind(name)
        .fetch_optional(pool)
        .await
        .map_err(|error| unavailable(&error))?;
    let Some(engine) = engine else { return Ok(()) };
    let engine: String = engine.try_get(0).map_err(|error| unavailable(&error))?;
    if engine.eq_ignore_ascii_case("InnoDB") {
        report.fine("the table is in InnoDB");
    } else {
        report.found(
            format!("the table is in {engine}, which has no transactions"),
            format!("ALTER TABLE {quoted} ENGINE = InnoDB"),
        );
    }
    rights_of_mysql(pool, &quoted, report).await;
    // A server that is not `read_only` may still refuse to write: its transactions, the database or
    // the storage engine can be read-only.
    let delete = format!("DELETE FROM {quoted} WHERE false");
    if is_server_writable && let Err(error) = sqlx::query(AssertSqlSafe(delete)).execute(pool).await
    {
        report.found(format!("the table cannot be written: {error}"), WRITABLE);
    }
    Ok(())
}

/// Asks which statements this user may run. `EXPLAIN` needs the rights of its statement, and runs
/// nothing.
async fn rights_of_mysql(pool: &MySqlPool, quoted: &str, report: &mut Report) {
    for (right, statement) in [
        (
            "SELECT",
            format!("EXPLAIN SELECT 1 FROM {quoted} WHERE false"),
        ),
        (
            "UPDATE",
            format!("EXPLAIN UPDATE {quoted} SET attempt = attempt WHERE false"),
        ),
        (
            "DELETE",
            format!("EXPLAIN DELETE FROM {quoted} WHERE false"),
        ),
        (
            "INSERT",
            format!("EXPLAIN INSERT INTO {quoted} SELECT * FROM {quoted} WHERE false"),
        ),
    ] {
        match sqlx::query(AssertSqlSafe(statement)).fetch_all(pool).await {
            Ok(_) => report.fine(format!("this user may {right}")),
            Err(error) => report.found(
                format!("this user may not {right}: {error}"),
                format!(
                    "GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted} TO the user of the \
                    service, and run the doctor as that"
                ),
            ),
        }
    }
}

fn version_of_mysql(version: &str, report: &mut Report) {
    let number = |index: usize| {
        version
            .split(['.', '-'])
            .nth(index)
            .and_then(|part| part.parse::<u32>().ok())
            .unwrap_or_default()
    };
    let found = (number(0), number(1));
    let oldest = if version.contains("MariaDB") {
        (10, 6)
    } else {
        (8, 0)
    };
    if found < oldest {
        report.found(
            format!("version {version} is too old"),
            format!("upgrade to version {}.{} or newer", oldest.0, oldest.1),
        );
    } else {
        report.fine(format!("version {version}"));
    }
}

pub(super) async fn sqlite(
    pool: &SqlitePool,
    table: &str,
    report: &mut Report,
) -> Result<(), Failure> {
    let one = async |question: &'static str| -> Result<String, sqlx::Error> {
        sqlx::query(question).fetch_one(pool).await?.try_get(0)
    };
    let version = one("SELECT sqlite_version()")
        .await
        .map_err(|error| unavailable(&error))?;
    report.fine(format!("SQLite {version}"));
    match one("PRAGMA journal_mode")
        .await
        .map_err(|error| unavailable(&error))?
        .as_str()
    {
        "wal" => report.fine("the file is in WAL mode"),
        mode => report.found(
            format!(
                "the file is in the mode `{mode}`: readers and the writer keep each other waiting, \
                 and steps time out"
            ),
            "PRAGMA journal_mode = WAL, once; or open it with `SqliteStore::connect`, which sets \
             it",
        ),
    }
    match try_to_write(pool, table).await {
        Ok(()) => report.fine("the file can be written"),
        Err(error) => report.found(
            format!("the file cannot be written: {error}"),
            "give the service the rights to the file and to its directory (and no `mode=ro` in the \
             URL), and look what holds a transaction open",
        ),
    }
    match timeout(LIMIT, one("PRAGMA quick_check(1)")).await {
        Ok(Ok(answer)) if answer == "ok" => report.fine("the file is whole"),
        Ok(Ok(answer)) => report.found(
            format!("the file is damaged: {answer}"),
            "restore a backup; `sqlite3 file .recover` reads what can be read",
        ),
        Ok(Err(error)) => return Err(unavailable(&error)),
        Err(_) => {
            report
                .note("the file is too large to be looked through here: run `PRAGMA quick_check`");
        }
    }
    report.note(
        "how far a commit is on the disk is a setting of each connection: \
        `SqliteStore::connect` has synchronous = FULL; a pool of your own should have it too",
    );
    Ok(())
}

/// Writes nothing, as a writer. `BEGIN IMMEDIATE` alone succeeds on a read-only file, so a
/// statement that writes follows it. A missing table was found before.
async fn try_to_write(pool: &SqlitePool, table: &str) -> Result<(), sqlx::Error> {
    let delete = format!("DELETE FROM {} WHERE false", quoted(table, '"'));
    let explained = sqlx::query(AssertSqlSafe(format!("EXPLAIN {delete}")))
        .fetch_all(pool)
        .await;
    let step = if explained.is_ok() {
        delete
    } else {
        "SELECT 1".to_owned()
    };
    let text = format!("BEGIN IMMEDIATE; {step}; ROLLBACK");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(pool)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_no_commit_waits_for_are_noted() {
        let judged = |all, is_waited_for| {
            let mut report = Report::default();
            judge_replicas(all, is_waited_for, &mut report);
            (report.fine.concat(), report.notes.concat())
        };
        assert!(judged(0, false).1.contains("no replica is seen"));
        assert!(judged(2, false).1.contains("a commit waits for none"));
        assert!(judged(2, true).0.contains("a commit waits for a replica"));
    }
}
