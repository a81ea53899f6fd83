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

/// Finds the quoted texts that follow `before`.
fn quoted_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_and_decisions_that_there_are() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).expect(path);
    let (code, guide) = (read("idem-core/src/observe.rs"), read("src/docs/operating.md"));
    let metrics = ["counter!(\"", "histogram!(\"", "gauge!(\""].map(|macro_| quoted_after(&code, macro_)).concat();
    let decisions = quoted_after(&code, " => (\"");
    assert!(metrics.len() >= 5 && decisions.len() > 40, "{metrics:?} {decisions:?}");

    let (mut asked, mut named) = (0, 0);
    for path in ["docs/dashboards/alerts.yml", "docs/dashboards/alerts.test.yml", "docs/dashboards/grafana.json"] {
        let text = read(path).replace("\\\"", "\"");
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for name in words.filter(|word| word.starts_with("idem_")) {
            let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(metrics.contains(&plain), "{path} asks for {name}, which there is not: {metrics:?}");
            asked += 1;
        }
        for label in ["decision=\"", "decision=~\"", "would=\""] {
            for name in quoted_after(&text, label).into_iter().flat_map(|names| names.split('|')) {
                assert!(decisions.contains(&name), "{path} asks for {name}, which is no decision");
                named += 1;
            }
        }
    }
    assert!(asked > 40 && named > 40, "{asked} metrics and {named} decisions were looked for");

    let alerts = read("docs/dashboards/alerts.yml");
    let tests = read("docs/dashboards/alerts.test.yml");
    let alerts: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(guide.contains(&format!("| `{alert}` |")), "the guide does not say what to do about {alert}");
        assert!(tests.contains(&format!("alertname: {alert}\n")), "no test of promtool has {alert} fire");
    }
}
