//! Purges: what becomes of the steps of calls that are removed, and of those that are kept.

use idem_core::{Error, Idempotency, UnkeptAction};
use idem_testkit::{MariaDbServer, PostgresServer, RedisServer};
use serde_json::json;

use super::{ALL, BESIDE, CHARGE, PLACE, abandoned, in_dir, released, shown, stored, yes};
use crate::support::{idem, idem_answering, runtime};

/// What a purge of calls does with their steps.
async fn are_purged(url: &str) {
    let idempotency = runtime(url).await;
    let place = async |key: &'static str| released(&idempotency, ("user-7", key)).await;
    for key in ["o-1", "o-2"] {
        assert_eq!(place(key).await, ALL);
    }
    assert_eq!(released(&idempotency, ("user-70", "o-1")).await, ALL);
    // One whose run has ended by hand.
    yes(url, &["forget", PLACE, "user-7:o-1"]).with(0);
    assert_eq!(place("o-1").await, ALL);
    // The body of this one runs, and it has steps of an earlier attempt.
    assert_eq!(place("alive").await, ALL);
    let order = idempotency
        .operation(PLACE)
        .key(&("user-7", "alive"))
        .fingerprint(&7);
    let idem_core::Begin::Execute(lease) = order.begin().await.unwrap() else {
        panic!("it is not free")
    };
    assert_eq!(stored(url), 5 * 5);

    // One key as a whole: its steps have other keys.
    let purged = yes(url, &["purge", "--key", "user-7:o-2"]).with(0);
    assert!(purged.out.starts_with("6 records of "), "{purged:?}");
    assert!(purged.out.contains("(5 of them of steps)"), "{purged:?}");
    assert_eq!(place("o-2").await, ALL);

    // A state says nothing of the steps: they go with their call.
    let purge = [
        "purge",
        "--key",
        "user-7*",
        "--state",
        "committed",
        "--json",
    ];
    assert_eq!(yes(url, &purge).with(0).json()["removed"], json!(0));
    let asked = idem_answering(
        url,
        &["purge", "--operation", PLACE, "--key", "user-7:o-2"],
        "n\n",
    );
    let asked = asked.with(4);
    assert!(
        asked.err.contains("1 records of orders.place with"),
        "{asked:?}"
    );
    assert!(
        asked
            .err
            .contains("The steps of those that had not ended are removed"),
        "{asked:?}"
    );
    let purged = yes(
        url,
        &[
            "purge",
            "--operation",
            PLACE,
            "--key",
            "user-7:o-2",
            "--json",
        ],
    );
    assert_eq!(purged.with(0).json()["removed"], json!(6));
    assert_eq!(stored(url), 5 * 4);

    // The erasure of a customer: nothing is left but what runs.
    let purged = yes(url, &["purge", "--first-part", "user-7", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&purged["removed"], &purged["kept"]),
        (&json!(11), &json!(1))
    );
    lease.release().await.unwrap();
    assert_eq!(place("alive").await, [""; 0]);
    let purged = yes(url, &["purge", "--first-part", "user-7", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&purged["removed"], &purged["kept"]),
        (&json!(6), &json!(0))
    );
    let left = idem(url, &["list", "--key", "user-7*"]).with(0).out;
    assert!(!left.contains("user-7:"), "{left}");

    only_steps_of_their_calls_are_purged(url, &idempotency).await;
}

/// The steps of an operation's calls, and of no other's.
async fn only_steps_of_their_calls_are_purged(url: &str, idempotency: &Idempotency) {
    assert_eq!(
        released(idempotency, ("user-70", "o-1")).await,
        [""; 0],
        "they were kept"
    );
    // An id that could be that of a run.
    let id = "AAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(released(idempotency, ("user-9", id)).await, ALL);
    let purged = yes(url, &["purge", "--key", "user-9"]).with(0);
    assert!(purged.out.starts_with("0 records"), "{purged:?}");
    assert!(released(idempotency, ("user-9", id)).await.is_empty());
    yes(url, &["purge", "--first-part", "user-9"]).with(0);

    let below = idempotency.operation("orders.place/other").key("user-70");
    let below = below
        .errors(|_: &Error| UnkeptAction::Release)
        .run(|| async {
            idem_core::step("charge", async || Ok::<_, Error>(1)).await?;
            Err::<(), _>(Error::config(PLACE, "it fails"))
        });
    below.await.unwrap_err();
    let purged = yes(url, &["purge", "--operation", PLACE, "--json"])
        .with(0)
        .json();
    assert_eq!(purged["removed"], json!(6), "{purged}");
    assert_eq!(stored(url), 1);
    // The next attempt needs it, until its run has ended.
    for left in [1, 0] {
        let step = "idem.step/orders.place/other/charge";
        let purged = yes(url, &["purge", "--operation", step, "--json"]);
        assert_eq!(purged.with(0).json()["removed"], json!(1 - left));
        assert_eq!(stored(url), left);
        if left == 1 {
            yes(url, &["forget", "orders.place/other", "user-70"]).with(0);
        }
    }
}

/// A call that goes on keeps its steps, however its key looks, and the purge says that it left them.
async fn steps_of_kept_calls_are_left(url: &str) {
    let idempotency = runtime(url).await;
    let left = "steps of other calls are left";
    // A client may send the id of another call's run as its key.
    assert_eq!(released(&idempotency, "o-1").await, ALL);
    let run = shown(url, PLACE, "o-1")["run"].clone();
    let key: &'static str = run.as_str().unwrap().to_owned().leak();
    assert_eq!(abandoned(&idempotency, key).await, ALL);
    let purge = ["purge", "--operation", PLACE, "--state"];
    for state in ["committed", "released"] {
        let purged = yes(url, &[&purge[..], &[state]].concat()).with(0);
        let removed = if state == "released" { "6 " } else { "0 " };
        assert!(purged.out.starts_with(removed), "{purged:?}");
        assert_eq!(purged.out.contains(left), state == "released", "{purged:?}");
    }
    yes(url, &["release", PLACE, key]).with(0);
    assert_eq!(released(&idempotency, key).await, [""; 0]);

    // By their own name, while the call is alive.
    let order = idempotency.operation(PLACE).key(key).fingerprint(&7);
    let idem_core::Begin::Execute(lease) = order.begin().await.unwrap() else {
        panic!("it is not free")
    };
    let purge = ["purge", "--operation", CHARGE, "--json"];
    let purged = yes(url, &purge).with(0).json();
    assert_eq!(
        (&purged["removed"], &purged["steps_left"]),
        (&json!(0), &json!(1))
    );
    lease.release().await.unwrap();

    // Inside of a step whose own key is a digest in theirs.
    let ran = std::sync::atomic::AtomicU32::new(0);
    let ship = async |purges: bool| {
        let long = idempotency.operation("orders.long").key("o-1");
        let long = long.errors(|_: &Error| UnkeptAction::Release);
        let shipped = long.run(|| async {
            let ship = idem_core::step(("ship", "x".repeat(200)), async || {
                idem_core::step("label", async || {
                    ran.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    Ok::<_, Error>(())
                })
                .await?;
                Err::<(), _>(Error::config(PLACE, "no ship"))
            });
            assert!(ship.await.is_err());
            if purges {
                let purged = idem_answering(url, &["purge", "--key", "*"], "yes\n").with(0);
                assert!(purged.out.contains(left), "{purged:?}");
            }
            Err::<(), _>(Error::config(PLACE, "it fails"))
        });
        shipped.await.unwrap_err();
    };
    ship(true).await;
    ship(false).await;
    assert_eq!(ran.into_inner(), 1);
}

#[tokio::test]
async fn steps_in_redis_are_purged_with_their_calls() {
    let server = RedisServer::start().await.unwrap();
    are_purged(&server.url()).await;
    steps_of_kept_calls_are_left(&server.url()).await;
    // A call whose record cannot be read, as in a rollout of a later version.
    let idempotency = runtime(&server.url()).await;
    assert_eq!(released(&idempotency, "o-5").await, ALL);
    let record = "idem:orders.place:o-5";
    let cli = async |args: &[&str]| server.cli(args).await.unwrap();
    cli(&["RENAME", record, "aside"]).await;
    cli(&["SET", record, "of a later version"]).await;
    for operation in [CHARGE, BESIDE, PLACE] {
        let purged = yes(&server.url(), &["purge", "--operation", operation]).with(0);
        assert!(purged.out.starts_with("0 records"), "{purged:?}");
    }
    cli(&["RENAME", "aside", record]).await;
    assert_eq!(released(&idempotency, "o-5").await, [""; 0]);
}

#[tokio::test]
async fn steps_in_postgres_are_purged_with_their_calls() {
    let server = PostgresServer::start().await.unwrap();
    are_purged(&server.url()).await;
    steps_of_kept_calls_are_left(&server.url()).await;
}

#[tokio::test]
async fn steps_in_mariadb_are_purged_with_their_calls() {
    let server = MariaDbServer::start().await.unwrap();
    are_purged(&server.url()).await;
    steps_of_kept_calls_are_left(&server.url()).await;
}

#[tokio::test]
async fn steps_in_sqlite_are_purged_with_their_calls() {
    let dir = tempfile::tempdir().unwrap();
    are_purged(&in_dir(&dir)).await;
    steps_of_kept_calls_are_left(&in_dir(&dir)).await;
}
