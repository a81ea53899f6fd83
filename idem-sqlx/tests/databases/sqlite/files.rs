//! Files that are missing, refused, full or attached.

use std::fs;
use std::path::Path;

use idem_core::{Idempotency, StoreErrorKind};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Executor as _};

use super::{execute, opened, order, url};
use crate::LONG;

#[tokio::test]
async fn a_missing_table_is_an_error_that_names_migrate() {
    let dir = crate::own::temporary();
    let pool = SqlitePoolOptions::new()
        .connect(&format!("{}?mode=rwc", url(dir.path())))
        .await
        .unwrap();
    let store = SqliteStore::builder(pool)
        .table("shop_records")
        .time_limit(LONG)
        .build();
    let idempotency = Idempotency::new(store.clone());
    let error = order(&idempotency, "k", 1).await.unwrap_err();
    assert!(error.to_string().contains("`migrate()`"), "{error}");
    store.migrate().await.unwrap();
    order(&idempotency, "k", 1).await.unwrap();
    execute(dir.path(), "DROP TABLE shop_records").await;
    let error = order(&idempotency, "k", 1).await.unwrap_err();
    assert!(error.to_string().contains("`migrate()`"), "{error}");
}

#[tokio::test]
async fn a_table_of_another_version_or_of_others_is_refused() {
    for table in [
        "CREATE TABLE idem_records (operation TEXT)",
        "CREATE TABLE idem_records ( -- idem schema 2\n key TEXT)",
    ] {
        let dir = crate::own::temporary();
        fs::File::create(dir.path().join("idem.db")).unwrap();
        execute(dir.path(), table).await;
        let error = SqliteStore::connect(url(dir.path())).await.unwrap_err();
        assert!(
            error.kind() == StoreErrorKind::Refused && error.to_string().contains("idem schema 1"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let dir = crate::own::temporary();
    let file = dir.path().join("idem.db");
    fs::write(
        &file,
        "somebody's letter, long enough to be read as the header of a database; ".repeat(20),
    )
    .unwrap();
    let error = SqliteStore::connect(url(dir.path())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(
        fs::read_to_string(&file)
            .unwrap()
            .starts_with("somebody's letter")
    );
}

#[tokio::test]
async fn a_missing_directory_and_a_malformed_url_are_refused() {
    for url in [
        "sqlite:///nowhere/at/all/idem.db",
        "postgres://host/",
        "sqlite://x?mode=sometimes",
        "sqlite::memory:",
    ] {
        let error = SqliteStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{url}: {error}");
    }
}

#[tokio::test]
async fn a_read_only_file_is_refused_and_nothing_runs() {
    let (dir, store) = opened().await;
    order(&Idempotency::new(store), "k", 1).await.unwrap();
    let pool = SqlitePool::connect(&format!("{}?mode=ro", url(dir.path())))
        .await
        .unwrap();
    let idempotency = Idempotency::new(SqliteStore::builder(pool).time_limit(LONG).build());
    let error = order(&idempotency, "other", 2).await.unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[tokio::test]
async fn a_full_disk_takes_no_new_key_and_loses_nothing() {
    let dir = crate::own::temporary();
    let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
    // As a disk with no room for more pages.
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool
        .connect_with(
            options
                .create_if_missing(true)
                .pragma("max_page_count", "16"),
        )
        .await
        .unwrap();
    let store = SqliteStore::builder(pool).time_limit(LONG).build();
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store);
    order(&idempotency, "first", 1).await.unwrap();
    let text = "x".repeat(20_000);
    let mut full = None;
    for number in 0..200 {
        let call = idempotency.operation("texts").key(&number);
        // What does not fit any more is either the claim or the commit.
        if let Err(error) = call
            .run(async || Ok::<_, idem_core::Error>(text.clone()))
            .await
        {
            full = Some(error);
            break;
        }
        let claim = order(&idempotency, &format!("small {number}"), number).await;
        if let Err(error) = claim {
            full = Some(error);
            break;
        }
    }
    let full = full.expect("it was never full");
    assert!(
        full.is_retryable() && full.to_string().contains("space"),
        "{full}"
    );
    assert!(order(&idempotency, "first", 2).await.unwrap().is_replayed());
}

/// The application's file in one journal mode, with one attached in another, where the table is.
async fn attached(dir: &Path, main: &str, other: &str) -> SqlitePool {
    let attach = format!(
        "ATTACH '{}/other.db' AS other; PRAGMA main.journal_mode = {main}; PRAGMA \
         other.journal_mode = {other}",
        dir.display()
    );
    let options = SqlitePoolOptions::new()
        .max_connections(2)
        .after_connect(move |on, _| {
            let attach = AssertSqlSafe(attach.clone());
            Box::pin(async move { on.execute(sqlx::raw_sql(attach)).await.map(drop) })
        });
    let url: SqliteConnectOptions = url(dir).parse().unwrap();
    options
        .connect_with(url.create_if_missing(true))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_table_in_an_attached_file_is_refused_where_a_crash_could_part_rows_and_record() {
    for (main, other, is_atomic) in [
        ("WAL", "WAL", false),
        ("WAL", "DELETE", false),
        ("DELETE", "WAL", false),
        ("DELETE", "DELETE", true),
    ] {
        let dir = crate::own::temporary();
        let pool = attached(dir.path(), main, other).await;
        let store = SqliteStore::builder(pool.clone())
            .table("other.idem_records")
            .time_limit(LONG)
            .build();
        let migrated = store.migrate().await;
        assert_eq!(migrated.is_ok(), is_atomic, "{main}, {other}: {migrated:?}");
        // As a team that runs its own migrations: a transaction may be the first to look.
        let ddl = SqliteStore::SCHEMA.replace("EXISTS idem_records_", "EXISTS other.idem_records_");
        let ddl = ddl.replace("EXISTS idem_records (", "EXISTS other.idem_records (");
        sqlx::raw_sql(AssertSqlSafe(ddl))
            .execute(&pool)
            .await
            .unwrap();
        let idempotency = Idempotency::new(
            SqliteStore::builder(pool.clone())
                .table("other.idem_records")
                .time_limit(LONG)
                .build(),
        );
        let operation = idempotency.operation("orders").key("k");
        let called = operation
            .transaction(&pool, async |_| Ok::<u32, idem_core::Error>(1))
            .await;
        match called {
            Ok(_) => assert!(is_atomic, "{main}, {other}"),
            Err(error) => {
                assert!(
                    !is_atomic && error.to_string().contains("attached"),
                    "{main}, {other}: {error}"
                );
                assert!(!error.is_retryable(), "{error}");
            }
        }
    }
}
