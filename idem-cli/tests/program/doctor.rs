//! The doctor finds each defect, and nothing on a healthy store.

use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_testkit::RedisServer;

use crate::support::{folder, idem, runtime, until};

#[tokio::test]
async fn a_redis_that_evicts_or_forgets_is_found_and_one_that_is_repaired_is_not() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let config = async |setting: &str, value: &str| {
        server
            .cli(&["CONFIG", "SET", setting, value])
            .await
            .unwrap();
    };
    config("maxmemory-policy", "allkeys-lru").await;
    config("client-output-buffer-limit", "pubsub 1024 512 60").await;
    config("appendonly", "no").await;
    let sick = idem(&url, &["doctor"]).with(1).out;
    for says in [
        "allkeys-lru",
        "maxmemory-policy noeviction",
        "appendonly yes",
        "subscriber",
        "remedy",
    ] {
        assert!(sick.contains(says), "{says}: {sick}");
    }
    config("maxmemory-policy", "noeviction").await;
    config("client-output-buffer-limit", "pubsub 33554432 8388608 60").await;
    config("appendonly", "yes").await;
    let report = idem(&url, &["doctor", "--json"]).with(0).json();
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
}

#[tokio::test]
async fn a_user_without_rights_and_a_replica_are_found() {
    let server = RedisServer::start().await.unwrap();
    let port = server.port();
    let rights = [
        "ACL", "SETUSER", "app", "on", ">hunter2", "~idem:*", "+@all", "-append",
    ];
    server.cli(&rights).await.unwrap();
    let found = idem(
        &format!("redis://app:hunter2@127.0.0.1:{port}/"),
        &["doctor"],
    )
    .with(1);
    assert!(
        found.out.contains("APPEND") && !found.out.contains("hunter2"),
        "{found:?}"
    );
    assert!(
        found.out.contains("remedy: Give the user the right"),
        "{found:?}"
    );
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]).await.unwrap();
    let found = idem(&server.url(), &["doctor"]).with(1);
    assert!(found.out.contains("replica"), "{found:?}");
}

pub(crate) async fn finds_a_postgres_that_forgets_or_has_no_table(url: &str) {
    // One connection, which stays as it is when settings for new ones change.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect(url)
        .await
        .unwrap();
    let alter = async |statement: &'static str| {
        idem_sqlx::sqlx::query(statement)
            .execute(&pool)
            .await
            .unwrap();
    };
    alter("ALTER ROLE CURRENT_USER SET synchronous_commit = off").await;
    let found = idem(url, &["doctor"]).with(1).out;
    assert!(
        found.contains("migrate") && found.contains("synchronous_commit is off"),
        "{found}"
    );
    alter("ALTER ROLE CURRENT_USER RESET synchronous_commit").await;
    runtime(url).await;
    let report = idem(url, &["doctor", "--json"]).with(0).json();
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
    let fine = report["fine"].to_string();
    assert!(
        fine.contains("PostgreSQL: the clock runs as this machine's does"),
        "{report}"
    );
    let notes = report["notes"].to_string();
    assert!(
        notes.contains("has no standby") && !notes.contains("index"),
        "{report}"
    );
    alter("DROP INDEX idem_records_sweep_at").await;
    let report = idem(url, &["doctor"]).with(0).out;
    assert!(report.contains("no index on `sweep_at`"), "{report}");
    alter("CREATE INDEX ON idem_records (sweep_at)").await;
    let report = idem(url, &["doctor"]).with(0).out;
    assert!(!report.contains("no index"), "{report}");
    alter("ALTER ROLE CURRENT_USER SET default_transaction_read_only = on").await;
    assert!(
        idem(url, &["doctor"])
            .with(1)
            .out
            .contains("transactions are read-only here")
    );
    let back = "SET default_transaction_read_only = off; ALTER ROLE CURRENT_USER RESET \
        default_transaction_read_only";
    idem_sqlx::sqlx::raw_sql(back).execute(&pool).await.unwrap();
    alter("ALTER SYSTEM SET synchronous_standby_names = 'none'").await;
    alter("SELECT pg_reload_conf()").await;
    until("a standby is asked for", async || {
        idem(url, &["doctor"])
            .out
            .contains("no standby is connected")
    })
    .await;
    // Waits for no standby, or it would wait forever.
    let back = "SET synchronous_commit = local; ALTER SYSTEM RESET synchronous_standby_names";
    for statement in back.split("; ").chain(["SELECT pg_reload_conf()"]) {
        idem_sqlx::sqlx::query(idem_sqlx::sqlx::AssertSqlSafe(statement))
            .execute(&pool)
            .await
            .unwrap();
    }
    until("none is asked for", async || {
        idem(url, &["doctor"]).code == 0
    })
    .await;
    alter("ALTER TABLE idem_records SET UNLOGGED").await;
    assert!(idem(url, &["doctor"]).with(1).out.contains("SET LOGGED"));
    alter("ALTER TABLE idem_records SET LOGGED").await;
}

pub(crate) async fn finds_a_mariadb_that_forgets_or_has_no_table(url: &str) {
    // One connection, which stays as it is when settings for new ones change.
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .connect(url)
        .await
        .unwrap();
    let run = async |statement: &'static str| {
        idem_sqlx::sqlx::raw_sql(statement)
            .execute(&pool)
            .await
            .unwrap();
    };
    let finds = |url: &str, what: &[&str]| {
        let found = idem(url, &["doctor"]).with(1).out;
        assert!(
            what.iter().all(|what| found.contains(what)) && !found.contains("hunter2"),
            "{what:?}: {found}"
        );
    };
    run("SET GLOBAL innodb_flush_log_at_trx_commit = 2").await;
    finds(url, &["migrate", "innodb_flush_log_at_trx_commit is 2"]);
    run("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    runtime(url).await;
    let report = idem(url, &["doctor", "--json"]).with(0).json();
    assert_eq!(report["findings"], serde_json::json!([]), "{report}");
    assert!(
        report["notes"].to_string().contains("no replica is seen"),
        "{report}"
    );
    for (change, what, back) in [
        (
            "SET GLOBAL read_only = ON",
            "connect to the primary",
            "SET GLOBAL read_only = OFF",
        ),
        (
            "SET GLOBAL tx_read_only = ON",
            "the table cannot be written",
            "SET GLOBAL tx_read_only = OFF",
        ),
        (
            "ALTER TABLE idem_records ENGINE = Aria",
            "ENGINE = InnoDB",
            "ALTER TABLE idem_records ENGINE = InnoDB",
        ),
    ] {
        run(change).await;
        finds(url, &[what]);
        run(back).await;
    }
    run(
        "CREATE USER app@'%' IDENTIFIED BY 'hunter2'; GRANT SELECT, INSERT, UPDATE ON idem_records \
        TO app@'%'",
    )
    .await;
    let (_, server) = url.split_once('@').unwrap();
    finds(
        &format!("mysql://app:hunter2@{server}"),
        &["this user may not DELETE", "GRANT SELECT"],
    );
    idem(url, &["doctor"]).with(0);
}

#[tokio::test]
async fn a_sqlite_file_that_is_not_in_wal_mode_is_found() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    runtime(&url).await;
    idem(&url, &["doctor"]).with(0);
    let read_only = idem(&format!("{url}?mode=ro"), &["doctor"]).with(1).out;
    assert!(
        read_only.contains("the file cannot be written"),
        "{read_only}"
    );
    let pool = idem_sqlx::sqlx::SqlitePool::connect(&url).await.unwrap();
    // The connections from before are closed in the background, and each of them keeps the mode.
    let switch = async || {
        let row = idem_sqlx::sqlx::query("PRAGMA journal_mode = DELETE")
            .fetch_one(&pool)
            .await
            .ok()?;
        idem_sqlx::sqlx::Row::try_get::<String, _>(&row, 0).ok()
    };
    until("the mode of the file is switched", async || {
        switch().await.as_deref() == Some("delete")
    })
    .await;
    pool.close().await;
    let found = idem(&url, &["doctor"]).with(1).out;
    assert!(found.contains("WAL"), "{found}");
}
