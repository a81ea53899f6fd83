//! Programs that call by `block_on`: between two calls, nobody drives their tokio runtime. Whatever
//! has become the file's writer must not wait for it.

use std::path::Path;
use std::time::Duration;

use idem_core::store::record::{Claim, Issue, Owner, Renewal};
use idem_core::{Idempotency, Store as _};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use idem_sqlx::sqlx::{self, ConnectOptions as _};
use tokio::runtime::{Builder, Runtime};

use super::{opened, url};
use crate::failed::Failed;
use crate::{LONG, id};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Another process writes, which waits for ten seconds at most.
async fn another_writes(dir: &Path) {
    let options: SqliteConnectOptions = url(dir).parse().unwrap();
    let options = options.busy_timeout(Duration::from_secs(10));
    let mut other = options.connect().await.unwrap();
    let write = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK");
    write.execute(&mut other).await.expect("the writer is held");
}

#[test]
fn a_step_that_nobody_drives_to_its_end_does_not_keep_the_writer() {
    let (program, others) = (runtime(), runtime());
    let (dir, store) = program.block_on(opened());
    let claims = ["one", "two"].map(|key| Claim::new(id(key), Owner::generate(), LONG, LONG));
    for claim in &claims {
        program.block_on(store.claim(claim)).unwrap();
    }
    let renewals = claims.map(|claim| Renewal::new(claim.id, claim.owner, LONG));
    for round in 0..120 {
        let (store, renewals) = (store.clone(), renewals.clone());
        program.block_on(async {
            tokio::spawn(async move {
                store.renew(&renewals).await;
                let issue = |n| Issue::new(id(&format!("{round}, {n}")), LONG);
                store.issue(&[issue(1), issue(2)]).await;
            });
            for _ in 0..round * 50 {
                tokio::task::yield_now().await;
            }
        });
        others.block_on(another_writes(dir.path()));
    }
}

/// It sees what is not committed, so it is made again by the writer.
#[test]
fn a_read_over_a_shared_cache_that_nobody_drives_to_its_end_does_not_keep_the_writer() {
    let (program, others) = (runtime(), runtime());
    let (dir, store) = program.block_on(opened());
    let claim = Claim::new(id("one"), Owner::generate(), LONG, LONG);
    program.block_on(store.claim(&claim)).unwrap();
    let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
    let options = options.shared_cache(true).pragma("read_uncommitted", "1");
    let pool = program.block_on(SqlitePool::connect_with(options)).unwrap();
    let store = program.block_on(async { SqliteStore::builder(pool).time_limit(LONG).build() });
    for round in 0..120 {
        let (store, id) = (store.clone(), claim.id.clone());
        program.block_on(async {
            tokio::spawn(async move {
                for _ in 0..2 {
                    let found = store.inspect(&id).await.unwrap();
                    assert!(found.is_some());
                }
            });
            for _ in 0..round * 50 {
                tokio::task::yield_now().await;
            }
        });
        others.block_on(another_writes(dir.path()));
    }
}

#[test]
fn a_transaction_that_is_dropped_while_it_begins_does_not_keep_the_writer() {
    let (program, others) = (runtime(), runtime());
    let (dir, store) = program.block_on(opened());
    let pool = program
        .block_on(SqlitePool::connect(&url(dir.path())))
        .unwrap();
    let idempotency = Idempotency::new(store);
    let other = others
        .block_on(SqlitePool::connect(&url(dir.path())))
        .unwrap();
    let writer = others
        .block_on(other.begin_with("BEGIN IMMEDIATE"))
        .unwrap();
    program.block_on(async {
        let operation = idempotency.operation("orders").key("k");
        let call = operation.transaction(&pool, async |_| Ok::<u32, Failed>(1));
        // It waits for the writer until it is dropped.
        let dropped = tokio::time::timeout(Duration::from_millis(200), call).await;
        assert!(dropped.is_err(), "{dropped:?}");
    });
    others.block_on(writer.rollback()).unwrap();
    // The thread that begins looks again within 100 ms, between two of these.
    for _ in 0..200 {
        others.block_on(another_writes(dir.path()));
    }
    // The program goes on.
    program.block_on(async {
        let operation = idempotency.operation("orders").key("k");
        let call = operation.transaction(&pool, async |_| Ok::<u32, Failed>(1));
        assert!(!call.await.unwrap().is_replayed());
    });
}
