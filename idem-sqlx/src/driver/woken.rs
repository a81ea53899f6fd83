//! Waiters are woken by their own process, whether or not the database can tell: here they would not
//! look again before the test has failed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use idem_core::Key;
use idem_core::store::record::{Claim, Claimed, Commit, Owner, Ownership, RecordId, Release, ReleaseTo};
use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::time::timeout;

use super::core::Core;
use super::dialect::Dialect;
use super::{MySqlStore, PostgresStore, SqliteStore, steps, wait};

/// Longer than anything here takes: a test that comes here hangs.
const LONG: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::from_secs(600);

/// Claims a key, has somebody wait for it, and ends the claim when the waiter has looked.
async fn wakes<D: Dialect>(core: &Arc<Core<D>>, key: &str, end: impl AsyncFnOnce(&Claim, u64) -> Ownership) {
    let id = RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
    let claim = Claim::new(id.clone(), Owner::generate(), NEVER, NEVER * 2);
    let Claimed::Owned { attempt, .. } = steps::claim(core, &claim).await.unwrap() else { panic!("{key} is taken") };
    let before = core.answers();
    let waiting = tokio::spawn({
        let core = core.clone();
        async move { wait::wait(&core, &id, attempt, (NEVER, NEVER)).await }
    });
    let looked = async {
        while core.answers() == before {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, looked).await.expect("the waiter looks");
    assert_eq!(end(&claim, attempt).await, Ownership::Held);
    timeout(LONG, waiting).await.expect("the waiter was not woken").unwrap().unwrap();
}

async fn wakes_at_each_end<D: Dialect>(core: &Arc<Core<D>>) {
    wakes(core, "committed", async |claim, attempt| {
        let commit = Commit::new(claim.id.clone(), claim.owner, attempt, None, LONG);
        steps::commit(core, &commit).await.unwrap()
    })
    .await;
    wakes(core, "released", async |claim, _| {
        let release = Release::new(claim.id.clone(), claim.owner, ReleaseTo::Released { keep: LONG });
        steps::release(core, &release).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_postgres_is_woken_by_its_own_process_without_messages() {
    let server = PostgresServer::start().await.unwrap();
    let store = PostgresStore::connect(server.url()).await.unwrap();
    store.migrate().await.unwrap();
    store.0.without_messages();
    wakes_at_each_end(&store.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_mariadb_is_woken_by_its_own_process() {
    let server = MariaDbServer::start().await.unwrap();
    let store = MySqlStore::connect(server.url()).await.unwrap();
    store.migrate().await.unwrap();
    wakes_at_each_end(&store.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_sqlite_is_woken_by_its_own_process() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::connect(format!("sqlite://{}/idem.db", dir.path().display())).await.unwrap();
    wakes_at_each_end(&store.0).await;
}
