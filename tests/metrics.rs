//! P12: every decision is counted.

#![cfg(feature = "metrics")]
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;

use idem::{Error, Idempotency, MemoryStore};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn p12_decisions_are_counted_by_operation_and_bodies_are_timed() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let idempotency = Idempotency::new(MemoryStore::new());
            for _ in 0..3 {
                idempotency.operation("counted").key("k").run(async || Ok::<_, Error>(1)).await.unwrap();
            }
            for name in ["not a name", "nor \u{202e} this", ""] {
                idempotency.operation(name).key("k").run(async || Ok::<_, Error>(1)).await.unwrap_err();
            }
            idempotency.operation("counted").key("k").lookup::<u32>().await.unwrap();
            for _ in 0..2 {
                idempotency.operation("counted").key("k").observe().run(async || Ok::<_, Error>(1)).await.unwrap();
            }
            idempotency.operation("counted").observe().run(async || Ok::<_, Error>(1)).await.unwrap();
        });
    });
    let (mut counted, mut observed) = (BTreeMap::new(), BTreeMap::new());
    let mut bodies = 0;
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(|label| label.value().to_owned()).collect();
        match (key.key().name(), value) {
            ("idem_decisions_total", DebugValue::Counter(count)) => drop(counted.insert(labels.join(" "), count)),
            ("idem_observed_total", DebugValue::Counter(count)) => drop(observed.insert(labels.join(" "), count)),
            ("idem_body_seconds", DebugValue::Histogram(times)) => bodies += times.len(),
            _ => {}
        }
    }
    let expected =
        [("(invalid) misconfigured", 3), ("counted executed", 1), ("counted looked_up", 1), ("counted replayed", 2)];
    assert_eq!(counted, expected.map(|(labels, count)| (labels.to_owned(), count)).into());
    let expected = [("counted rejected_missing_key", 1), ("counted replayed", 2)];
    assert_eq!(observed, expected.map(|(labels, count)| (labels.to_owned(), count)).into());
    assert_eq!(bodies, 1);
}
