//! P12: every decision is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use idem::{Error, Idempotency, MemoryStore};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn p12_decisions_are_counted_by_operation_and_bodies_are_timed() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let idempotency = Idempotency::new(MemoryStore::new());
            for _ in 0..3 {
                idempotency
                    .operation("counted")
                    .key("k")
                    .run(async || Ok::<_, Error>(1))
                    .await
                    .unwrap();
            }
            for name in ["not a name", "nor \u{202e} this", ""] {
                idempotency
                    .operation(name)
                    .key("k")
                    .run(async || Ok::<_, Error>(1))
                    .await
                    .unwrap_err();
            }
            idempotency
                .operation("counted")
                .key("k")
                .lookup::<u32>()
                .await
                .unwrap();
            for _ in 0..2 {
                idempotency
                    .operation("counted")
                    .key("k")
                    .observe()
                    .run(async || Ok::<_, Error>(1))
                    .await
                    .unwrap();
            }
            idempotency
                .operation("counted")
                .observe()
                .run(async || Ok::<_, Error>(1))
                .await
                .unwrap();
        });
    });
    let mut counted = BTreeMap::new();
    let mut observed = BTreeMap::new();
    let mut bodies = 0;
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| label.value().to_owned())
            .collect();
        match (key.key().name(), value) {
            ("idem_decisions_total", DebugValue::Counter(count)) => {
                counted.insert(labels.join(" "), count);
            }
            ("idem_observed_total", DebugValue::Counter(count)) => {
                observed.insert(labels.join(" "), count);
            }
            ("idem_body_seconds", DebugValue::Histogram(times)) => bodies += times.len(),
            _ => {}
        }
    }
    let expected = [
        ("(invalid) misconfigured", 3),
        ("counted executed", 1),
        ("counted looked_up", 1),
        ("counted replayed", 2),
    ];
    assert_eq!(
        counted,
        expected
            .map(|(labels, count)| (labels.to_owned(), count))
            .into()
    );
    let expected = [("counted rejected_missing_key", 1), ("counted replayed", 2)];
    assert_eq!(
        observed,
        expected
            .map(|(labels, count)| (labels.to_owned(), count))
            .into()
    );
    assert_eq!(bodies, 1);
}

#[cfg(all(feature = "axum", feature = "http"))]
#[test]
fn p12_requests_that_the_extractor_refuses_are_counted_by_their_route() {
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::post;
    use idem::http::IdempotencyKey;
    use tower::ServiceExt as _;

    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let app = axum::Router::new()
        .route("/needs/{id}", post(async |_: IdempotencyKey| "ran"))
        .route("/takes", post(async |_: Option<IdempotencyKey>| "ran"));
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            for (path, key, status) in [
                ("/needs/7", "", 400),
                ("/needs/8", "", 400),
                ("/needs/7", "a b", 400),
                ("/needs/7", "k", 200),
                ("/takes", "a b", 400),
                ("/takes", "", 200),
            ] {
                let mut request = Request::post(path);
                if !key.is_empty() {
                    request = request.header("idempotency-key", key);
                }
                let request = request.body(Body::empty()).unwrap();
                let response = app.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), status, "{path} {key}");
            }
        });
    });
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshots.snapshot().into_vec() {
        let labels: Vec<_> = key.key().labels().map(metrics::Label::value).collect();
        if let ("idem_decisions_total", DebugValue::Counter(count)) = (key.key().name(), value) {
            counted.insert(labels.join(" "), count);
        }
    }
    let expected = [
        ("extractor.POST/needs/+7Bid+7D rejected_invalid", 1),
        ("extractor.POST/needs/+7Bid+7D rejected_missing_key", 2),
        ("extractor.POST/takes rejected_invalid", 1),
    ];
    assert_eq!(
        counted,
        expected
            .map(|(labels, count)| (labels.to_owned(), count))
            .into()
    );
}

/// Finds the quoted texts that follow `before`.
fn quoted_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

/// Reads all sources in a folder, as one text.
fn sources(folder: &Path) -> String {
    let mut texts = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts += &std::fs::read_to_string(path).unwrap();
        }
    }
    texts
}

/// Finds the names of a consumer's decisions: each is the first text of an arm of a table.
fn first_texts_of_arms(code: &str) -> Vec<&str> {
    let arms = code.split(" => ").skip(1);
    arms.filter_map(|arm| {
        arm.trim_start_matches(['{', '(', '\n', ' '])
            .strip_prefix('"')?
            .split('"')
            .next()
    })
    .collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a paragraph for each file")]
fn dashboards_and_alerts_ask_for_metrics_and_decisions_that_there_are() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).expect(path);
    let core = sources(Path::new(&format!("{root}/idem-core/src")));
    let queue = read("idem-queue/src/events.rs");
    let guides = [
        "src/docs/observing.md",
        "src/docs/operating.md",
        "src/docs/queues.md",
    ]
    .map(read)
    .concat();
    let metrics = ["counter!(\"", "histogram!(\"", "gauge!(\""]
        .map(|macro_| [quoted_after(&core, macro_), quoted_after(&queue, macro_)].concat())
        .concat();
    let events = ["Event::debug(\"", "Event::info(\"", "Event::warn(\""]
        .map(|stated| quoted_after(&core, stated))
        .concat();
    let distinct: BTreeSet<_> = events.iter().collect();
    assert_eq!(distinct.len(), events.len(), "stated twice: {events:?}");
    let decisions = [events, first_texts_of_arms(&queue)].concat();
    assert!(
        metrics.len() >= 7 && decisions.len() > 40,
        "{metrics:?} {decisions:?}"
    );

    let mut asked = 0;
    let mut named = 0;
    for path in [
        "docs/dashboards/alerts.yml",
        "docs/dashboards/alerts.test.yml",
        "docs/dashboards/grafana.json",
    ] {
        let text = read(path).replace("\\\"", "\"");
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for name in words.filter(|word| word.starts_with("idem_")) {
            let plain = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert!(
                metrics.contains(&plain),
                "{path} asks for {name}, which there is not: {metrics:?}"
            );
            asked += 1;
        }
        for label in ["decision=\"", "decision=~\"", "would=\""] {
            for name in quoted_after(&text, label)
                .into_iter()
                .flat_map(|names| names.split('|'))
            {
                assert!(
                    decisions.contains(&name),
                    "{path} asks for {name}, which is no decision"
                );
                named += 1;
            }
        }
    }
    assert!(
        asked > 40 && named > 40,
        "{asked} metrics and {named} decisions were looked for"
    );

    let alerts = read("docs/dashboards/alerts.yml");
    let tests = read("docs/dashboards/alerts.test.yml");
    // promtool evaluates what these panels ask, with the first event of a series.
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("docs/dashboards/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    for panel in panels {
        let asked = panel["targets"][0]["expr"].as_str().unwrap();
        let misses_the_first = asked.contains("increase(") && !asked.contains(" unless ");
        assert!(
            !misses_the_first,
            "a new series counts as 0 in the panel {}",
            panel["title"]
        );
    }
    let counting: Vec<_> = panels
        .iter()
        .filter(|panel| panel["type"] == "stat")
        .collect();
    assert!(counting.len() >= 3, "{counting:?}");
    for panel in counting {
        let asked = panel["targets"][0]["expr"]
            .as_str()
            .unwrap()
            .replace("$operation", ".*")
            .replace("$__range", "6h");
        assert!(
            tests.contains(&asked),
            "promtool does not evaluate the panel {}",
            panel["title"]
        );
        assert!(
            panel["fieldConfig"]["defaults"]["thresholds"].is_object(),
            "no thresholds: {}",
            panel["title"]
        );
    }
    for decision in &decisions {
        assert!(
            guides.contains(&format!("`{decision}`")),
            "no guide says what {decision} means"
        );
    }
    let alerts: Vec<_> = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(
            guides.contains(&format!("| `{alert}` |")),
            "the guide does not say what to do about {alert}"
        );
        assert!(
            tests.contains(&format!("alertname: {alert}\n")),
            "no test of promtool has {alert} fire"
        );
    }
}
