//! The steps of a call: shown with it, and forgotten with it unless they are to be kept.

use idem_core::{Error, Idempotency};
use idem_testkit::{PostgresServer, RedisServer};
use serde_json::{Value, json};

use crate::support::{idem, runtime};

const PLACE: &str = "orders.place";

/// Charges and reserves, and fails after that. Returns the steps that ran.
async fn fails_after_two_steps(idempotency: &Idempotency, key: &str) -> Vec<&'static str> {
    let ran = std::sync::Mutex::new(Vec::new());
    let order = idempotency.operation(PLACE).key(key).fingerprint(&7);
    let placed = order.run(|| async {
        for name in ["pen", "ink"] {
            idem_core::step(("reserve", name), async || {
                ran.lock().unwrap().push("reserve");
                Ok::<_, Error>(())
            })
            .await?;
        }
        idem_core::step("charge", async || {
            ran.lock().unwrap().push("charge");
            Ok::<_, Error>(())
        })
        .await?;
        Err::<(), _>(Error::config(PLACE, "it fails"))
    });
    assert!(placed.await.is_err());
    ran.into_inner().unwrap()
}

async fn are_shown_and_forgotten(url: &str) {
    let idempotency = runtime(url).await;
    let all = ["reserve", "reserve", "charge"];
    assert_eq!(fails_after_two_steps(&idempotency, "o-1").await, all);
    assert_eq!(fails_after_two_steps(&idempotency, "o-10").await, all);
    // An operation whose name and key only look like those of a step.
    let other = idempotency.operation("orders.place/other").key("o-2");
    other.run(async || Ok::<_, Error>(())).await.unwrap();

    let shown = idem(url, &["show", PLACE, "o-1"]).with(0).out;
    for part in [
        "STEP",
        "charge",
        "reserve o-1:ink",
        "reserve o-1:pen",
        "committed",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = idem(url, &["show", PLACE, "o-1", "--json"]).with(0).json();
    let keys: Vec<&Value> = shown["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["key"])
        .collect();
    assert_eq!(keys, [&json!("o-1"), &json!("o-1:ink"), &json!("o-1:pen")]);

    let kept = idem(url, &["forget", PLACE, "o-1", "--yes", "--keep-steps"]).with(0);
    assert!(!kept.out.contains("steps"), "{kept:?}");
    assert!(fails_after_two_steps(&idempotency, "o-1").await.is_empty());
    let forgotten = idem(url, &["forget", PLACE, "o-1", "--yes"]).with(0);
    assert!(forgotten.out.contains("and its 3 steps"), "{forgotten:?}");
    assert_eq!(fails_after_two_steps(&idempotency, "o-1").await, all);
    assert!(fails_after_two_steps(&idempotency, "o-10").await.is_empty());
    let audit = idem(
        url,
        &["audit", "--operation", "orders.place/charge", "--json"],
    );
    let decisions = audit.with(0).json();
    assert_eq!(
        decisions["decisions"].as_array().unwrap().len(),
        1,
        "{decisions}"
    );
    what_is_left_of_a_call_is_forgotten(url, &idempotency).await;
}

/// The record of the call is gone, and its steps are left. Records of other calls stay.
async fn what_is_left_of_a_call_is_forgotten(url: &str, idempotency: &Idempotency) {
    let looks_alike = || idempotency.operation("orders.placed/charge").key("o-3");
    let alike = looks_alike().run(async || Ok::<_, Error>(()));
    alike.await.unwrap();
    let all = ["reserve", "reserve", "charge"];
    assert_eq!(fails_after_two_steps(idempotency, "o-3").await, all);
    assert_eq!(fails_after_two_steps(idempotency, "o-30").await, all);
    let kept = idem(url, &["forget", PLACE, "o-3", "--yes", "--keep-steps"]);
    kept.with(0);

    // The record of the call is gone now.
    let kept = idem(url, &["forget", PLACE, "o-3", "--yes", "--keep-steps"]).with(3);
    assert!(kept.err.contains("no record of"), "{kept:?}");
    let left = idem(url, &["forget", PLACE, "o-3", "--yes", "--json"]);
    let left = left.with(0).json();
    assert_eq!(left["steps"].as_array().unwrap().len(), 3, "{left}");
    idem(url, &["forget", PLACE, "o-3", "--yes"]).with(3);

    assert!(looks_alike().inspect().await.unwrap().is_some());
    assert!(fails_after_two_steps(idempotency, "o-30").await.is_empty());
    assert_eq!(fails_after_two_steps(idempotency, "o-3").await, all);
}

#[tokio::test]
async fn steps_in_redis_are_shown_and_forgotten_with_their_call() {
    let server = RedisServer::start().await.unwrap();
    are_shown_and_forgotten(&server.url()).await;
}

#[tokio::test]
async fn steps_in_postgres_are_shown_and_forgotten_with_their_call() {
    let server = PostgresServer::shared().await.unwrap();
    are_shown_and_forgotten(&server.url()).await;
}

#[tokio::test]
async fn steps_in_sqlite_are_shown_and_forgotten_with_their_call() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    are_shown_and_forgotten(&url).await;
}
