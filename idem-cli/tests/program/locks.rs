//! The records of locks: they are listed and released as others, and never settled.

use std::time::Duration;

use idem_core::Error;
use serde_json::json;

use crate::support::{folder, idem, idem_answering, runtime};

const OPERATION: &str = "idem.lock/disks.compact";

// Another thread renews the lease while the program blocks the one of the test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_listed_and_released_and_keeps_its_fencing_number() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    let lock = || idempotency.lock("disks.compact").key("sda").wait("20s");
    let held = lock().lease("10s").acquire().await.unwrap();
    let listed = idem(&url, &["list", "--operation", OPERATION, "--json"])
        .with(0)
        .json();
    let record = &listed["records"][0];
    assert_eq!(
        (&record["key"], &record["state"], &record["attempt"]),
        (&json!("sda"), &json!("in_flight"), &json!(1))
    );
    let release = ["release", OPERATION, "sda", "--yes"];
    let refused = idem(&url, &release).with(4);
    assert!(refused.err.contains("alive"), "{refused:?}");
    let forced = idem(&url, &[&release[..], &["--force"]].concat()).with(0);
    assert!(forced.out.contains("higher fencing number"), "{forced:?}");
    // The holder learns of it when it renews.
    tokio::time::timeout(Duration::from_secs(20), held.lost())
        .await
        .unwrap();
    let next = lock().acquire().await.unwrap();
    assert_eq!(next.fencing_number(), 2);
    assert!(matches!(held.release().await, Err(Error::LeaseLost { .. })));
    let settle = ["settle", OPERATION, "sda", "--value", "-", "--yes"];
    let refused = idem_answering(&url, &settle, "1").with(4);
    assert!(refused.err.contains("no outcome"), "{refused:?}");
    next.release().await.unwrap();
    let forgotten = idem(&url, &["forget", OPERATION, "sda", "--yes"]).with(0);
    assert!(
        forgotten.out.contains("with fencing number 1"),
        "{forgotten:?}"
    );
    assert_eq!(lock().acquire().await.unwrap().fencing_number(), 1);
}
