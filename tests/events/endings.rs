//! Each ending of a body, in a lease and in the caller's transaction.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use idem::sqlx::sqlite::SqlitePoolOptions;
use idem::{ErrorAction, Idempotency, Outcome, SqliteStore};
use serde::{Deserialize, Serialize};

use crate::Log;

#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] idem::Error),
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Value,
    Kept,
    Released,
    BodyPanics,
    PolicyPanics,
}

fn body(ending: Ending) -> Result<u32, Failure> {
    match ending {
        Ending::Value => Ok(1),
        Ending::BodyPanics => panic!("the body"),
        Ending::Kept | Ending::Released | Ending::PolicyPanics => Err(Failure::Declined),
    }
}

fn policy(ending: Ending) -> ErrorAction {
    match ending {
        Ending::Kept => ErrorAction::Keep,
        Ending::PolicyPanics => panic!("the policy"),
        Ending::Value | Ending::Released | Ending::BodyPanics => ErrorAction::Release,
    }
}

fn text(ended: std::thread::Result<Result<Outcome<u32>, Failure>>) -> String {
    match ended {
        Ok(Ok(outcome)) => format!("{}{}", if outcome.is_replayed() { "again " } else { "" }, outcome.get()),
        Ok(Err(failure)) => failure.to_string(),
        Err(panic) => format!("panic of {}", panic.downcast_ref::<&str>().unwrap()),
    }
}

#[tokio::test]
async fn p6_p12_values_errors_and_panics_end_alike_in_a_lease_and_in_a_transaction() {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store);
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    // What the caller gets, what is reported, and what a second call gets, whose body gives 2.
    for (ending, gets, reported, second) in [
        (Ending::Value, "1", &["executed"][..], "again 1"),
        (Ending::Kept, "declined", &["error_kept"], "declined"),
        (Ending::Released, "declined", &["released"], "2"),
        (Ending::BodyPanics, "panic of the body", &["panicked", "released"], "2"),
        (Ending::PolicyPanics, "panic of the policy", &["panicked", "released"], "2"),
    ] {
        for (is_leased, observes) in [(true, false), (false, false), (true, true), (false, true)] {
            let case = format!("{ending:?}, leased: {is_leased}, observes: {observes}");
            let operation = || idempotency.operation("events.endings").key(&case);
            let call = if observes { operation().observe() } else { operation() };
            let call = call.errors(|_: &Failure| policy(ending));
            drop(log.decisions());
            let ended = if is_leased {
                AssertUnwindSafe(call.run(async || body(ending))).catch_unwind().await
            } else {
                let mut tx = pool.begin().await.unwrap();
                let ended = AssertUnwindSafe(call.run_in(&mut tx, async |_| body(ending))).catch_unwind().await;
                // A caller that commits all the same.
                tx.commit().await.unwrap();
                ended
            };
            assert_eq!(text(ended), gets, "{case}");
            let decisions: Vec<_> = log.decisions().into_iter().map(|(_, decision)| decision).collect();
            // A call that observes in a transaction claims after its body, so it has nothing to release.
            let reported = if observes && !is_leased { &reported[..1] } else { reported };
            assert_eq!(decisions, reported, "{case}");
            let again = operation().errors(|_: &Failure| ErrorAction::Keep).run(async || Ok(2)).await;
            assert_eq!(text(Ok(again)), second, "{case}");
        }
    }
}
