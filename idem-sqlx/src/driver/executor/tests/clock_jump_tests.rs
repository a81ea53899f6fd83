//! The clock of a database is set. To simulate that, its statements add a number from a table.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

use std::sync::Arc;
use std::time::Duration;

use idem_core::Key;
use idem_core::store::Began;
use idem_core::store::admin::{Intervened, Intervention};
use idem_core::store::record::{Claim, Claimed, Commit, Owner, Ownership, RecordId, Removed};
use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::time::{Instant, sleep};

use self::sqlx::mysql::MySqlPool;
use self::sqlx::postgres::PgPool;
use super::file;
use crate::v09::driver::dialect::Dialect;
use crate::v09::driver::dialect::mysql::Mysql;
use crate::v09::driver::dialect::postgres::Postgresql;
use crate::v09::driver::dialect::sqlite::SqliteFile;
use crate::v09::driver::executor::{Executor, Settings};
use crate::v09::driver::store::{MySqlStore, PostgresStore, SqliteStore, admin, steps};
use crate::v09::driver::transaction;
use crate::v09::sqlx;

/// Of an owner that stays alive. A step may take as long.
const LEASE: Duration = Duration::from_secs(30);
/// Of an owner that is taken over.
const SHORT: Duration = Duration::from_secs(3);
/// By which the clock is set ahead: longer than the lease, shorter than the hold.
const AHEAD: &str = "UPDATE clock_set SET ms = 60000";
const HOLD: Duration = Duration::from_secs(3600);
const TABLE: [&str; 2] = [
    "CREATE TABLE clock_set (ms BIGINT NOT NULL)",
    "INSERT INTO clock_set VALUES (0)",
];

/// A store of whose clock this is the time.
fn executor<D: Dialect>(pool: sqlx::Pool<D::Db>, now: &str, set: &str) -> Arc<Executor<D>> {
    let [now, set] = [now, set].map(str::to_owned);
    let settings = Settings {
        limit: LEASE,
        ..Settings::default()
    };
    Executor::with_dialect(pool, &settings, move |dialect: &mut D| {
        dialect.rewrite(&|text| text.replace(&now, &set));
    })
}

fn claim(key: &str) -> Claim {
    let id = RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
    Claim::new(id, Owner::generate(), LEASE, HOLD)
}

/// Sets the clock while an owner is alive: nobody takes its place before its lease is over.
async fn outlives_a_jump<D: Dialect>(
    owner: &Arc<Executor<D>>,
    other: &Arc<Executor<D>>,
    set_ahead: impl AsyncFnOnce(),
) {
    for executor in [owner, other] {
        let first = steps::claim(executor, &claim(&format!("{executor:p}")))
            .await
            .unwrap();
        assert!(
            matches!(first, Claimed::Owned { .. }),
            "both have seen the clock: {first:?}"
        );
    }
    let held = claim("held");
    let late = claim("late").with_lease(SHORT);
    let begun = Instant::now();
    for claim in [&held, &late] {
        assert!(matches!(
            steps::claim(owner, claim).await.unwrap(),
            Claimed::Owned { attempt: 1, .. }
        ));
    }
    set_ahead().await;

    let another = claim("held");
    let claimed = steps::claim(other, &another).await.unwrap();
    assert!(
        matches!(claimed, Claimed::InFlight { attempt: 1, lease_left } if lease_left <= LEASE),
        "{claimed:?}"
    );
    let removed = steps::remove(other, &held.id).await.unwrap();
    assert!(matches!(removed, Removed::InFlight { .. }), "{removed:?}");
    let released = admin::intervene(other, &Intervention::release(held.id.clone()))
        .await
        .unwrap();
    assert!(
        matches!(released, Intervened::Alive { attempt: 1, .. }),
        "{released:?}"
    );
    let mut connection = other.connections.pool.begin().await.unwrap();
    let within = transaction::claim(other, &mut *connection, &another, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        matches!(within, Began::LeaseHolds { attempt: 1, left } if left <= LEASE),
        "{within:?}"
    );
    drop(connection);

    let commit = Commit::new(held.id.clone(), held.owner, 1, None, HOLD);
    assert_eq!(
        steps::commit(owner, &commit).await.unwrap(),
        Ownership::Held
    );
    // The other owner neither renews nor commits.
    let another = claim("late");
    let taken = loop {
        match steps::claim(other, &another).await.unwrap() {
            Claimed::InFlight { lease_left, .. } => sleep(lease_left.min(SHORT / 20)).await,
            taken => break taken,
        }
        assert!(begun.elapsed() < SHORT * 10, "it is never taken over");
    };
    assert!(
        matches!(taken, Claimed::Owned { attempt: 2, .. }),
        "{taken:?}"
    );
    assert!(
        begun.elapsed() >= SHORT * 9 / 10,
        "taken over while its owner may run"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_an_owner_outlives_a_postgres_whose_clock_is_set_ahead() {
    const NOW: &str = "statement_timestamp()";
    let server = PostgresServer::start().await.unwrap();
    let pool = PgPool::connect(&server.url()).await.unwrap();
    let store = PostgresStore::builder(pool.clone()).time_limit(LEASE);
    store.build().migrate().await.unwrap();
    for text in TABLE {
        sqlx::query(text).execute(&pool).await.unwrap();
    }
    let set = format!("({NOW} + (SELECT ms FROM clock_set) * interval '1 millisecond')");
    let [owner, other] = [(); 2].map(|()| executor::<Postgresql>(pool.clone(), NOW, &set));
    outlives_a_jump(&owner, &other, async || {
        sqlx::query(AHEAD).execute(&pool).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_an_owner_outlives_a_mariadb_whose_clock_is_set_ahead() {
    const NOW: &str = "UTC_TIMESTAMP(6)";
    let server = MariaDbServer::start().await.unwrap();
    let pool = MySqlPool::connect(&server.url()).await.unwrap();
    let store = MySqlStore::builder(pool.clone()).time_limit(LEASE);
    store.build().migrate().await.unwrap();
    for text in TABLE {
        sqlx::query(text).execute(&pool).await.unwrap();
    }
    let set = format!("({NOW} + INTERVAL (SELECT ms FROM clock_set) * 1000 MICROSECOND)");
    let [owner, other] = [(); 2].map(|()| executor::<Mysql>(pool.clone(), NOW, &set));
    outlives_a_jump(&owner, &other, async || {
        sqlx::query(AHEAD).execute(&pool).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_an_owner_outlives_a_host_whose_clock_is_set_ahead_under_sqlite() {
    const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";
    let (_dir, pool) = file().await;
    let store = SqliteStore::builder(pool.clone()).time_limit(LEASE);
    store.build().migrate().await.unwrap();
    for text in TABLE {
        sqlx::query(text).execute(&pool).await.unwrap();
    }
    let set = format!("({NOW} + (SELECT ms FROM clock_set))");
    let [owner, other] = [(); 2].map(|()| executor::<SqliteFile>(pool.clone(), NOW, &set));
    outlives_a_jump(&owner, &other, async || {
        sqlx::query(AHEAD).execute(&pool).await.unwrap();
    })
    .await;
}
