//! The steps of a call: shown with it in its current run, and left behind when that ends.

mod beside;
mod purged;

use std::sync::Mutex;
use std::time::Duration;

use idem_core::{Abandoned, Error, Idempotency, KeyPart, UnkeptAction};
use idem_testkit::{MariaDbServer, PostgresServer, RedisServer};
use serde_json::{Value, json};

use crate::support::{Ended, folder, idem, idem_answering, runtime};

const PLACE: &str = "orders.place";
const CHARGE: &str = "idem.step/orders.place/charge";
const BESIDE: &str = "idem.step/orders.place";
const ALL: [&str; 4] = ["reserve", "reserve", "label", "charge"];

/// Reserves, ships and charges, and fails after that: then the record is released, or abandoned.
/// Returns the steps that ran.
async fn place<K: KeyPart>(
    idempotency: &Idempotency,
    key: K,
    failed: UnkeptAction,
) -> Result<Vec<&'static str>, Error> {
    let ran = Mutex::new(Vec::new());
    let run = |step| ran.lock().unwrap().push(step);
    let order = idempotency.operation(PLACE).key(&key).fingerprint(&7);
    let order = order.abandoned(Abandoned::Reject).wait(Duration::ZERO);
    let placed = order.errors(|_: &Error| failed).run(|| async {
        for name in ["pen", "ink"] {
            idem_core::step(("reserve", name), async || {
                run("reserve");
                Ok::<_, Error>(())
            })
            .await?;
        }
        // It fails after a step inside of it.
        let shipped = idem_core::step("ship", async || {
            idem_core::step("label", async || {
                run("label");
                Ok::<_, Error>("l-7".to_owned())
            })
            .await?;
            Err::<(), _>(Error::config(PLACE, "no ship"))
        });
        assert!(shipped.await.is_err());
        idem_core::step("charge", async || {
            run("charge");
            Ok::<_, Error>("visa of Ada".to_owned())
        })
        .await?;
        Err::<(), _>(Error::config(PLACE, "it fails"))
    });
    match placed.await {
        Err(Error::Config { .. }) => Ok(ran.into_inner().unwrap()),
        Err(error) => Err(error),
        Ok(_) => panic!("it did not fail"),
    }
}

async fn released<K: KeyPart>(idempotency: &Idempotency, key: K) -> Vec<&'static str> {
    place(idempotency, key, UnkeptAction::Release)
        .await
        .unwrap()
}

async fn abandoned<K: KeyPart>(idempotency: &Idempotency, key: K) -> Vec<&'static str> {
    place(idempotency, key, UnkeptAction::Abandon)
        .await
        .unwrap()
}

fn shown(url: &str, operation: &str, key: &str) -> Value {
    idem(url, &["show", operation, key, "--json"])
        .with(0)
        .json()
}

/// Operations, keys and states of the steps that `show` lists.
fn steps(shown: &Value) -> Vec<(String, String, String)> {
    let text = |step: &Value, name: &str| step[name].as_str().unwrap().to_owned();
    let steps = shown["steps"].as_array().unwrap().iter();
    steps
        .map(|step| {
            assert!(
                step["attempt"].is_u64() && step["expires_in_ms"].is_u64(),
                "{step}"
            );
            (
                text(step, "operation"),
                text(step, "key"),
                text(step, "state"),
            )
        })
        .collect()
}

/// How many records of steps of `orders.place` the store has.
fn stored(url: &str) -> usize {
    let listed = idem(url, &["list", "--json", "--limit", "10000"])
        .with(0)
        .json();
    let records = listed["records"].as_array().unwrap().iter();
    let operations = records.map(|record| record["operation"].as_str().unwrap());
    operations
        .filter(|name| name.starts_with("idem.step/orders.place/"))
        .count()
}

fn yes(url: &str, args: &[&str]) -> Ended {
    idem(url, &[args, &["--yes"]].concat())
}

async fn are_shown_and_forgotten(url: &str) {
    let idempotency = runtime(url).await;
    assert_eq!(released(&idempotency, "o-1").await, ALL);
    assert_eq!(released(&idempotency, "o-10").await, ALL);

    let found = shown(url, PLACE, "o-1");
    let run = found["run"].as_str().unwrap();
    let at = |key: &str| key.replace("RUN", run);
    let names: Vec<_> = steps(&found)
        .into_iter()
        .map(|(operation, key, state)| format!("{operation} {key} {state}"))
        .collect();
    let [charge, ink, pen, ship, label] = &names[..] else {
        panic!("{names:?}")
    };
    assert_eq!(
        *charge,
        at("idem.step/orders.place/charge o-1:RUN committed")
    );
    assert_eq!(
        *ink,
        at("idem.step/orders.place/reserve o-1:RUN:ink committed")
    );
    assert_eq!(
        *pen,
        at("idem.step/orders.place/reserve o-1:RUN:pen committed")
    );
    assert_eq!(*ship, at("idem.step/orders.place/ship o-1:RUN released"));
    assert!(
        label.starts_with(&at("idem.step/orders.place/ship/label o-1:RUN:")),
        "{label}"
    );
    let text = idem(url, &["show", PLACE, "o-1"]).with(0).out;
    for part in [
        "STEP",
        "KEY",
        CHARGE,
        &at("o-1:RUN:ink"),
        "committed",
        "29d",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    // A step inside of one that was forgotten belongs to no run.
    yes(
        url,
        &["forget", "idem.step/orders.place/ship", &at("o-1:RUN")],
    )
    .with(0);
    assert_eq!(steps(&shown(url, PLACE, "o-1")).len(), 3);
    assert_eq!(released(&idempotency, "o-1").await, ["label"]);
    assert_eq!(steps(&shown(url, PLACE, "o-1")).len(), 5);

    // The next attempt has the same run and no new effect.
    assert!(released(&idempotency, "o-1").await.is_empty());
    assert_eq!(shown(url, PLACE, "o-1")["run"], json!(run));
    a_refused_forget_changes_nothing(url, &idempotency).await;
    let listed = idem(
        url,
        &["list", "--operation", PLACE, "--key", "o-1", "--json"],
    );
    assert_eq!(listed.with(0).json()["records"][0]["run"], json!(run));
    let stays = stored(url);
    let forgotten = yes(url, &["forget", PLACE, "o-1", "--reason", "again"]).with(0);
    assert!(
        forgotten.out.starts_with("forgotten orders.place o-1"),
        "{forgotten:?}"
    );
    idem(url, &["forget", PLACE, "o-1", "--yes"]).with(3);
    assert_eq!(stored(url), stays);
    let audit = idem(url, &["show", PLACE, "o-1", "--json"]).with(3).json();
    let decisions = audit["decisions"].as_array().unwrap().iter();
    let forgotten = decisions.filter(|one| one["decision"] == "forgotten");
    assert_eq!(forgotten.count(), 1, "{audit}");
    assert_eq!(released(&idempotency, "o-1").await, ALL);
    let again = shown(url, PLACE, "o-1");
    assert_eq!(steps(&again).len(), 5);
    assert_ne!(again["run"], json!(run));
    assert!(released(&idempotency, "o-10").await.is_empty());

    let order = idempotency.operation(PLACE).key("o-1").fingerprint(&7);
    order.run(async || Ok::<_, Error>(1)).await.unwrap();
    let committed = shown(url, PLACE, "o-1");
    assert!(
        committed.get("steps").is_none() && committed.get("run").is_none(),
        "{committed}"
    );
    let text = idem(url, &["show", PLACE, "o-1"]).with(0).out;
    assert!(!text.contains("STEP"), "{text}");
    digests_are_shown(url, &idempotency).await;
    a_release_keeps_the_steps(url, &idempotency).await;
    single_steps_are_changed(url, &idempotency).await;
}

/// A body runs, or the operator says no.
async fn a_refused_forget_changes_nothing(url: &str, idempotency: &Idempotency) {
    let asked = idem_answering(url, &["forget", PLACE, "o-1"], "n\n").with(4);
    for part in [
        "its 5 steps run again: ",
        "charge, reserve ink, reserve pen, ship, ship/label.",
    ] {
        assert!(asked.err.contains(part), "{part}: {asked:?}");
    }
    let before = stored(url);
    let order = idempotency.operation(PLACE).key("o-1").fingerprint(&7);
    let idem_core::Begin::Execute(lease) = order.begin().await.unwrap() else {
        panic!("it is not free")
    };
    yes(url, &["forget", PLACE, "o-1"]).with(4);
    lease.release().await.unwrap();
    assert_eq!(stored(url), before);
    assert!(released(idempotency, "o-1").await.is_empty());
}

/// Keys and parts that are stored as digests.
async fn digests_are_shown(url: &str, idempotency: &Idempotency) {
    for length in [180, 200, 300] {
        let key = "k".repeat(length);
        let order = || {
            let order = idempotency.operation("orders.long").key(&key);
            order.errors(|_: &Error| UnkeptAction::Release)
        };
        let long = "p".repeat(300);
        let placed = order().run(|| async {
            let shipped = idem_core::step(("ship", &long), async || {
                idem_core::step(("label", &long), async || Ok::<_, Error>(1)).await?;
                Err::<(), _>(Error::config(PLACE, "no ship"))
            });
            assert!(shipped.await.is_err());
            Err::<(), _>(Error::config(PLACE, "it fails"))
        });
        assert!(placed.await.is_err());
        let found = shown(url, "orders.long", &key);
        let found: Vec<_> = steps(&found).into_iter().map(|(name, ..)| name).collect();
        let expected = [
            "idem.step/orders.long/ship",
            "idem.step/orders.long/ship/label",
        ];
        assert_eq!(found, expected, "{length}");
        // The whole key finds them all.
        let purged = yes(url, &["purge", "--key", &key, "--json"]).with(0);
        assert_eq!(purged.json()["removed"], json!(3), "{length}: {purged:?}");
        assert!(!purged.err.contains("digests"), "{purged:?}");
        let left = idem(url, &["list", "--json", "--limit", "10000"])
            .with(0)
            .out;
        assert!(!left.contains("orders.long"), "{left}");
    }
}

/// `forget --keep-steps` does what `release` does.
async fn a_release_keeps_the_steps(url: &str, idempotency: &Idempotency) {
    let keep = ["forget", PLACE, "o-2", "--keep-steps"];
    yes(url, &keep).with(3);
    assert_eq!(abandoned(idempotency, "o-2").await, ALL);
    let run = shown(url, PLACE, "o-2")["run"].clone();
    let kept = yes(url, &keep).with(0);
    assert!(
        kept.out.starts_with("released orders.place o-2"),
        "{kept:?}"
    );
    assert_eq!(shown(url, PLACE, "o-2")["run"], run);
    let refused = yes(url, &keep).with(4);
    assert_eq!(
        refused.err,
        yes(url, &["release", PLACE, "o-2"]).with(4).err
    );
    assert!(abandoned(idempotency, "o-2").await.is_empty());
    yes(url, &["forget", PLACE, "o-2"]).with(0);
    assert_eq!(abandoned(idempotency, "o-2").await, ALL);
}

/// By the name and the key that `show` prints.
async fn single_steps_are_changed(url: &str, idempotency: &Idempotency) {
    let charged = async |ends: bool| {
        let order = idempotency.operation(PLACE).key("o-4").lease("30s");
        let order = order.abandoned(Abandoned::Reject).wait(Duration::ZERO);
        let order = order.errors(|_: &Error| UnkeptAction::Release);
        let placed = order.run(|| async {
            let charge = idem_core::step_with("charge").errors(|_: &Error| UnkeptAction::Abandon);
            let charge = charge.run(|| async {
                if ends {
                    Ok("by the step".to_owned())
                } else {
                    Err(Error::config(PLACE, "no reply"))
                }
            });
            let charge = charge.await?;
            assert!(ends, "{charge}");
            Err::<(), _>(Error::config(PLACE, &charge))
        });
        placed.await.unwrap_err().to_string()
    };
    let step = || steps(&shown(url, PLACE, "o-4")).remove(0);
    charged(false).await;
    let (operation, key, state) = step();
    assert_eq!((&*operation, &*state), (CHARGE, "abandoned"));
    // The call's key is not that of a step.
    let settle = |operation, key| {
        let settle = ["settle", operation, key, "--value", "-", "--yes"];
        idem_answering(url, &settle, "\"by hand\"")
    };
    for (operation, key) in [(CHARGE, "o-4"), (BESIDE, "o-4")] {
        let refused = settle(operation, key).with(4);
        assert!(
            refused.err.contains("`idem show` of the call"),
            "{refused:?}"
        );
    }
    let refused = charged(true).await;
    assert!(refused.contains("was abandoned"), "{refused}");
    let released = yes(url, &["release", CHARGE, &key]).with(0);
    assert!(released.out.contains(CHARGE), "{released:?}");
    assert!(charged(true).await.contains("by the step"));
    assert_eq!(step().2, "committed");
    yes(url, &["forget", CHARGE, &key]).with(0);
    charged(false).await;
    settle(CHARGE, &key).with(0);
    assert!(charged(true).await.contains("by hand"));
    let step = shown(url, CHARGE, &key);
    let decisions = step["decisions"].as_array().unwrap().iter();
    let names: Vec<_> = decisions
        .map(|one| one["decision"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["settled", "forgotten", "released"]);
}

#[tokio::test]
async fn steps_in_redis_are_shown_and_end_with_their_run() {
    let server = RedisServer::start().await.unwrap();
    are_shown_and_forgotten(&server.url()).await;
    let sick = idem(&server.url(), &["doctor"]);
    assert!(!sick.out.contains("idem.step"), "{sick:?}");
}

#[tokio::test]
async fn steps_in_postgres_are_shown_and_end_with_their_run() {
    let server = PostgresServer::shared().await.unwrap();
    are_shown_and_forgotten(&server.url()).await;
}

#[tokio::test]
async fn steps_in_mariadb_are_shown_and_end_with_their_run() {
    let server = MariaDbServer::shared().await.unwrap();
    are_shown_and_forgotten(&server.url()).await;
}

fn in_dir(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}/idem.db", dir.path().display())
}

#[tokio::test]
async fn steps_in_sqlite_are_shown_and_end_with_their_run() {
    let dir = folder();
    are_shown_and_forgotten(&in_dir(&dir)).await;
}
