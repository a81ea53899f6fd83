//! SQLite: what only a file can get wrong.

mod files;
mod limits;
mod moved;
mod parked;
mod processes;

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use idem_core::store::record::{RecordId, Removed};
use idem_core::{Idempotency, Key, Store as _};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use tempfile::TempDir;

use crate::{connected, order};

fn url(dir: &Path) -> String {
    format!("sqlite://{}/idem.db", dir.display())
}

async fn opened() -> (TempDir, SqliteStore) {
    let dir = crate::own::temporary();
    let store = connected(async || SqliteStore::connect(url(dir.path())).await).await;
    (dir, store)
}

async fn execute(dir: &Path, statement: &str) {
    let pool = SqlitePool::connect(&url(dir)).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
}

#[tokio::test]
async fn records_survive_a_restart() {
    let dir = crate::own::temporary();
    for round in 0..2 {
        let store = connected(async || SqliteStore::connect(url(dir.path())).await).await;
        let idempotency = Idempotency::new(store);
        assert_eq!(
            order(&idempotency, "k", round).await.unwrap().into_inner(),
            0
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_a_thousand_calls_is_answered() {
    let (_pool, store) = crate::pools::sqlite().await;
    crate::a_thousand_calls(&Idempotency::new(store)).await;
}

/// A place in a queue belongs to a future whether it is polled or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_step_whose_caller_is_not_polled_holds_up_no_other() {
    let (pool, store) = crate::pools::sqlite().await;
    let idempotency = Idempotency::new(store.clone());
    for (key, number) in [("first", 1), ("second", 2)] {
        order(&idempotency, key, number).await.unwrap();
    }
    let writer = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let id = |key: &str| RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
    let ids = [id("first"), id("second")];
    // The first step has its turn, and waits for the writer, since there is a row to delete. The
    // second waits for its turn.
    let mut first = pin!(store.remove(&ids[0]));
    let mut second = pin!(store.remove(&ids[1]));
    for step in [&mut first, &mut second] {
        tokio::select! {
            biased;
            answer = step => panic!("there is another writer: {answer:?}"),
            () = std::future::ready(()) => {}
        }
    }
    writer.rollback().await.unwrap();
    assert_eq!(first.await.unwrap(), Removed::Removed);
    assert_eq!(
        order(&idempotency, "third", 3).await.unwrap().into_inner(),
        3
    );
    assert_eq!(second.await.unwrap(), Removed::Removed);
}

#[tokio::test]
async fn a_damaged_row_is_unreadable_names_the_column_and_stays() {
    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    order(&idempotency, "k", 7).await.unwrap();
    for (damage, repair, column) in [
        ("codec = NULL", "codec = 'j'", "codec"),
        ("attempt = -1", "attempt = 1", "attempt"),
        ("state = 'later'", "state = 'committed'", "state"),
    ] {
        execute(dir.path(), &format!("UPDATE idem_records SET {damage}")).await;
        let error = order(&idempotency, "k", 8).await.unwrap_err();
        assert!(
            matches!(error, idem_core::Error::Codec { .. }),
            "{damage}: {error}"
        );
        assert!(
            error.to_string().contains(&format!("`{column}`")),
            "{damage}: {error}"
        );
        execute(dir.path(), &format!("UPDATE idem_records SET {repair}")).await;
        assert_eq!(
            order(&idempotency, "k", 9).await.unwrap().into_inner(),
            7,
            "{repair}"
        );
    }
}

#[tokio::test]
async fn the_longest_keys_and_names_fit() {
    let (_dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    let name = "n".repeat(128);
    for length in [255, 256, 257, 100_000] {
        let key = "k".repeat(length);
        for replayed in [false, true] {
            let call = idempotency
                .operation(&name)
                .key(&key)
                .run(async || Ok::<_, idem_core::Error>(length));
            let answer = call.await.unwrap();
            assert!(
                answer.is_replayed() == replayed && answer.into_inner() == length,
                "{length}"
            );
        }
    }
}

#[tokio::test]
async fn what_expired_is_swept() {
    let (_dir, store) = opened().await;
    let idempotency = Idempotency::new(store.clone());
    let call = idempotency
        .operation("orders")
        .key("k")
        .ttl(Duration::from_millis(20));
    call.run(async || Ok::<_, idem_core::Error>(1))
        .await
        .unwrap();
    let id = RecordId::new("orders", &Key::encode("k").unwrap()).unwrap();
    let sweeping = async {
        while store.sweep().await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), sweeping)
        .await
        .expect("it never was due");
    assert_eq!(store.sweep().await.unwrap(), 0);
    assert_eq!(store.inspect(&id).await.unwrap(), None);
}
