//! The stores of PostgreSQL, MariaDB, MySQL and SQLite on real databases: the conformance suite,
//! and the faults that only a server or a file has.
//!
//! Tests share a server of each kind, on which each has a database of its own ([`own`]). A test
//! starts a private server to kill or pause it, to change its settings, or to count all its work.
// Tests measure how long things take, and stop where they cannot go on: the helpers too.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod at_once;
mod bad_input;
mod begun;
mod beside_leases;
mod burst;
mod conformance;
mod dropped;
mod ended;
mod events;
mod expected;
mod expected_within;
mod failed;
mod faults;
mod first_claims;
mod guards;
mod hostile;
mod levels;
mod limited;
mod listing;
mod locked_tables;
mod moved;
mod mysql;
mod observing;
mod other_driver;
mod own;
mod passing;
mod pools;
mod postgres;
mod proxied;
mod recorded;
mod renewing;
mod runtimes;
mod server;
mod sessions;
mod settings;
mod sqlite;
mod table;
mod transactions;
mod waking;

use std::time::{Duration, Instant};

use idem_core::store::record::{RecordId, Removed};
use idem_core::{Idempotency, Key, Store, StoreError, StoreErrorKind};
use idem_sqlx::sqlx;
use tokio::task::JoinSet;

use self::server::Server;

/// Each failure must be an error within this time. Only tests in a module `quiet` measure it.
const TWO_SECONDS: Duration = Duration::from_secs(2);
/// Longer than anything here takes: a test that comes here hangs.
const LONG: Duration = Duration::from_secs(30);

/// Writes each test once, and runs it over both servers.
macro_rules! over_both_servers {
    ($($(#[doc = $doc:literal])* async fn $name:ident<S: Server $(,)?>() $body:block)*) => {
        $($(#[doc = $doc])* async fn $name<S: crate::server::Server>() $body)*

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<idem_testkit::PostgresServer>().await;
            })*
        }

        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<idem_testkit::MariaDbServer>().await;
            })*
        }
    };
}
use over_both_servers;

fn id(key: &str) -> RecordId {
    RecordId::new("orders", &Key::encode(key).unwrap()).unwrap()
}

fn runtime<S: Store>(store: S) -> Idempotency {
    Idempotency::new(store)
}

/// Runs a body that returns a number, under a key.
async fn order(
    idempotency: &Idempotency,
    key: &str,
    number: u32,
) -> Result<idem_core::Outcome<u32>, idem_core::Error> {
    idempotency
        .operation("orders")
        .key(key)
        .run(async || Ok::<_, idem_core::Error>(number))
        .await
}

/// Makes a thousand calls at once, four hundred of them duplicates, and each is answered.
async fn a_thousand_calls(idempotency: &Idempotency) {
    let mut calls = JoinSet::new();
    for number in (0..600_u32).chain(0..400) {
        let idempotency = idempotency.clone();
        calls.spawn(async move {
            let key = number.to_string();
            let operation = idempotency.operation("orders").key(&key).wait(LONG);
            let answer = operation.run(async || Ok::<_, idem_core::Error>(number));
            assert_eq!(answer.await.unwrap().into_inner(), number);
        });
    }
    calls.join_all().await;
}

/// A step of the store that changes nothing, which the database must refuse. At its time limit the
/// step would fail with another kind of error.
async fn refused<S: Store>(store: &S) -> StoreError {
    let error = tokio::time::timeout(LONG, store.inspect(&id("probe")))
        .await
        .expect("the step hung")
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    hides_the_password(&error);
    error
}

/// A step of the store that changes nothing, which must fail within two seconds.
async fn fails_in_time<S: Store>(store: &S) -> StoreError {
    let begun = Instant::now();
    let error = tokio::time::timeout(LONG, store.inspect(&id("probe")))
        .await
        .expect("the step hung")
        .unwrap_err();
    let took = begun.elapsed();
    assert!(took < TWO_SECONDS, "took {took:?}: {error}");
    hides_the_password(&error);
    error
}

fn hides_the_password(error: &StoreError) {
    assert!(
        !error.to_string().contains("wordpass"),
        "the password is shown: {error}"
    );
}

/// Waits until a step succeeds, without help for the store.
async fn recovers<S: Store>(store: &S) {
    until("the store recovers", async || {
        matches!(store.remove(&id("probe")).await, Ok(Removed::Nothing))
    })
    .await;
}

/// Connects a store that has the usual limits, or makes its table. They are short for a machine
/// that does much else, so there may be several tries.
async fn connected<S, E: std::fmt::Debug>(connect: impl AsyncFn() -> Result<S, E>) -> S {
    for _ in 0..20 {
        if let Ok(store) = connect().await {
            return store;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    connect().await.unwrap()
}

/// The answer of a call, which may need several tries if its store has the usual limits: they are
/// short for a machine that does much else. No other error is left out.
async fn answer<T>(call: impl AsyncFn() -> Result<T, idem_core::Error>) -> T {
    let answered = async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(error) => assert!(
                    error.is_retryable() && error.to_string().contains(" within "),
                    "{error}"
                ),
            }
        }
    };
    tokio::time::timeout(LONG, answered).await.unwrap()
}

/// The error of a call, which says why; after such tries.
async fn refusal(idempotency: &Idempotency, key: &str, why: &str) -> idem_core::Error {
    let refused = async || {
        let error = order(idempotency, key, 1).await.unwrap_err();
        if error.to_string().contains(why) {
            return Ok(error);
        }
        Err(error)
    };
    answer(refused).await
}

/// Waits until something is so, and says what was waited for if it never is.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, looking)
        .await
        .unwrap_or_else(|_| panic!("not within {LONG:?}: {what}"));
}

/// How many connections a pool has lent.
fn in_use<Db: sqlx::Database>(pool: &sqlx::Pool<Db>) -> usize {
    (pool.size() as usize).saturating_sub(pool.num_idle())
}
