//! Waiters are woken by their own process, even if the database sends no messages. Polling cannot
//! hide a missed wake-up here, because the first pause is longer than the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use idem_core::Key;
use idem_core::adapter::Backoff;
use idem_core::store::record::{
    Claim, Claimed, Commit, Owner, Ownership, RecordId, Release, ReleaseTo,
};
use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::time::timeout;

use self::sqlx::mysql::MySqlPool;
use self::sqlx::postgres::PgPool;
use super::file;
use crate::v09::driver::dialect::Dialect;
use crate::v09::driver::executor::Executor;
use crate::v09::driver::store::{MySqlStore, PostgresStore, SqliteStore, steps, wait};
use crate::v09::sqlx;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(600);

/// Claims a key, starts a waiter, and ends the claim when the waiter has read the record.
async fn wakes<D: Dialect>(
    executor: &Arc<Executor<D>>,
    key: &str,
    end: impl AsyncFnOnce(&Claim, u64) -> Ownership,
) {
    let id = RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
    let claim = Claim::new(id.clone(), Owner::generate(), NEVER, NEVER * 2);
    let Claimed::Owned { attempt, .. } = steps::claim(executor, &claim).await.unwrap() else {
        panic!("{key} is taken")
    };
    let before = executor.answers();
    let pauses = Backoff::new(NEVER, NEVER);
    let waiting = tokio::spawn({
        let executor = executor.clone();
        async move { wait::wait(&executor, &id, attempt, pauses).await }
    });
    let first_read = async {
        while executor.answers() == before {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, first_read)
        .await
        .expect("the waiter does not read the record");
    assert_eq!(end(&claim, attempt).await, Ownership::Held);
    timeout(LONG, waiting)
        .await
        .expect("the waiter was not woken")
        .unwrap()
        .unwrap();
}

async fn wakes_at_each_end<D: Dialect>(executor: &Arc<Executor<D>>) {
    wakes(executor, "committed", async |claim, attempt| {
        let commit = Commit::new(claim.id.clone(), claim.owner, attempt, None, LONG);
        steps::commit(executor, &commit).await.unwrap()
    })
    .await;
    wakes(executor, "released", async |claim, _| {
        let release = Release::new(
            claim.id.clone(),
            claim.owner,
            ReleaseTo::Released { keep: LONG },
        );
        steps::release(executor, &release).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_postgres_is_woken_by_its_own_process_without_messages() {
    let server = PostgresServer::start().await.unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let store = PostgresStore::builder(pool).time_limit(LONG).build();
    store.migrate().await.unwrap();
    store.0.disable_messages();
    wakes_at_each_end(&store.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_mariadb_is_woken_by_its_own_process() {
    let server = MariaDbServer::start().await.unwrap();
    let pool = MySqlPool::connect(&server.url()).await.unwrap();
    let store = MySqlStore::builder(pool).time_limit(LONG).build();
    store.migrate().await.unwrap();
    wakes_at_each_end(&store.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_sqlite_is_woken_by_its_own_process() {
    let (_dir, pool) = file().await;
    let store = SqliteStore::builder(pool).time_limit(LONG).build();
    store.migrate().await.unwrap();
    wakes_at_each_end(&store.0).await;
}
