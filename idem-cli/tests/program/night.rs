//! Friday night: a worker was killed, and a person decides.

use std::io::Write as _;

use idem_core::{Error, RecordState};
use idem_testkit::{MariaDbServer, PostgresServer, RedisCluster, RedisServer};
use serde_json::{Value, json};

use crate::audit;
use crate::doctor;
use crate::many;
use crate::settle;
use crate::support::{
    Ended, OPERATION, TRACE, charge, folder, idem, idem_answering, idem_logging, killed_worker,
    runtime,
};

/// That a change was logged: what was done to which record, by whom, and why.
#[track_caller]
fn assert_is_reported(ended: &Ended, decision: &str, digest: &str, reason: &str) {
    let event = ended
        .err
        .lines()
        .find(|line| line.contains(&format!("decision=\"{decision}\"")));
    let event = event.unwrap_or_else(|| panic!("no event: {ended:?}"));
    for part in [
        OPERATION,
        digest,
        "who=\"ada@",
        &format!("reason=\"{reason}\""),
    ] {
        assert!(event.contains(part), "{part}: {event}");
    }
}

/// Lists what is abandoned, looks at it, settles it; the next call replays.
#[expect(
    clippy::too_many_lines,
    reason = "one story, in the order of its events"
)]
async fn is_found_and_settled(url: &str) {
    let key = &format!("o-{:016x}", std::process::id());
    killed_worker(url, key).await;
    let idempotency = runtime(url).await;
    let refused = charge(&idempotency, key).await.unwrap_err();
    assert!(matches!(refused, Error::Abandoned { .. }), "{refused:?}");

    let listed = idem(
        url,
        &[
            "list",
            "--state",
            "abandoned",
            "--operation",
            OPERATION,
            "--json",
        ],
    )
    .with(0)
    .json();
    let record = &listed["records"][0];
    assert_eq!(
        (&record["key"], &record["state"], &record["attempt"]),
        (&json!(key), &json!("abandoned"), &json!(1))
    );
    assert!(record["age_ms"].as_u64().unwrap() >= 700, "{record}");
    assert_eq!(listed["cursor"], Value::Null);
    let table = idem(url, &["list", "--state", "abandoned"]).with(0).out;
    assert!(
        table.starts_with("OPERATION") && table.contains(key),
        "{table}"
    );

    // The digest that the log line of the refused call has.
    let digest = idempotency
        .operation(OPERATION)
        .key(key.as_str())
        .digest()
        .unwrap()
        .to_string();
    assert_eq!(record["digest"], json!(digest));
    let by_digest = idem(url, &["show", "--digest", &digest, "--json"])
        .with(0)
        .json();
    let by_key = idem(url, &["show", OPERATION, key, "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&by_digest["key"], &by_key["digest"]),
        (&json!(key), &json!(digest))
    );
    assert_eq!(
        (&by_key["outcome"], &by_key["trace"]),
        (&Value::Null, &json!(TRACE))
    );
    let shown = idem(url, &["show", OPERATION, key]).with(0).out;
    assert!(
        shown.contains("abandoned") && shown.contains(TRACE),
        "{shown}"
    );

    let receipt = json!({ "receipt": 7, "note": "paid, says the gateway" });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{receipt}").unwrap();
    let path = file.path().to_str().unwrap();
    let settle = [
        "settle",
        OPERATION,
        key,
        "--value",
        path,
        "--yes",
        "--reason",
        "ticket 12",
    ];
    let settled = idem_logging(url, &settle).with(0);
    assert!(
        settled.out.contains("ada@") && settled.out.contains("ticket 12"),
        "{settled:?}"
    );
    assert_is_reported(&settled, "settled", &digest, "ticket 12");

    assert_eq!(charge(&idempotency, key).await.unwrap(), receipt);
    let shown = idem(url, &["show", OPERATION, key, "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&shown["state"], &shown["outcome"], &shown["attempt"]),
        (&json!("committed"), &receipt, &json!(1))
    );
    assert_eq!(
        (&shown["trace"], &shown["audit"]["reason"]),
        (&json!(TRACE), &json!("ticket 12"))
    );
    assert!(
        shown["audit"]["who"].as_str().unwrap().starts_with("ada@"),
        "{shown}"
    );
    assert!(
        shown["audit"]["age_ms"].as_u64().unwrap() < 60_000,
        "{shown}"
    );
    // The fingerprint is what it was.
    let other = idempotency
        .operation(OPERATION)
        .key(key.as_str())
        .fingerprint(&5);
    let mismatch = other.run(async || Ok::<_, Error>(())).await.unwrap_err();
    assert!(
        matches!(mismatch, Error::FingerprintMismatch { .. }),
        "{mismatch:?}"
    );
    // As long as it would have been protected: for `hold`, which is longer than any `ttl` of this
    // operation.
    assert!(
        shown["expires_in_ms"].as_u64().unwrap() > 29 * 86_400_000,
        "{shown}"
    );
    idem(url, &settle).with(4);
    audit::who_removed_a_record_stays_known(url, key, &digest).await;
}

#[tokio::test]
async fn what_a_killed_worker_left_in_redis_is_found_and_settled_or_runs_again() {
    let server = RedisServer::start().await.unwrap();
    is_found_and_settled(&server.url()).await;
    runs_again(&server.url()).await;
    settle::an_outcome_of_a_later_version_is_replayed_as_it_is(&server.url()).await;
}

/// One server for all: to start one takes seconds.
#[tokio::test]
async fn what_a_killed_worker_left_in_postgres_is_found_and_settled_or_runs_again_among_many() {
    let server = PostgresServer::start_with(&["-c", "fsync=on"])
        .await
        .unwrap();
    doctor::finds_a_postgres_that_forgets_or_has_no_table(&server.url()).await;
    is_found_and_settled(&server.url()).await;
    runs_again(&server.url()).await;
    settle::an_outcome_of_a_later_version_is_replayed_as_it_is(&server.url()).await;
    audit::a_decision_that_was_cut_off_has_no_result(&server.url()).await;
    many::are_listed_by_an_index(&server.url()).await;
}

#[tokio::test]
async fn what_a_killed_worker_left_in_mariadb_is_found_and_settled_or_runs_again() {
    let server = MariaDbServer::start_with(&["--innodb-flush-log-at-trx-commit=1"])
        .await
        .unwrap();
    doctor::finds_a_mariadb_that_forgets_or_has_no_table(&server.url()).await;
    is_found_and_settled(&server.url()).await;
    runs_again(&server.url()).await;
    settle::an_outcome_of_a_later_version_is_replayed_as_it_is(&server.url()).await;
}

#[tokio::test]
async fn what_a_killed_worker_left_in_sqlite_is_found_and_settled_or_runs_again() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    is_found_and_settled(&url).await;
    runs_again(&url).await;
}

#[tokio::test]
async fn what_is_abandoned_in_a_cluster_is_found_on_every_node() {
    // No node counts as dead, however late it answers.
    let cluster = RedisCluster::builder()
        .replicas(0)
        .arg("--cluster-node-timeout")
        .arg("30000")
        .start()
        .await
        .unwrap();
    let url = cluster.url();
    let idempotency = runtime(&url).await;
    for number in 0..30 {
        idempotency
            .operation(OPERATION)
            .key(&number)
            .run(async || Ok::<_, Error>(number))
            .await
            .unwrap();
    }
    let listed = idem(&url, &["list", "--operation", OPERATION, "--json"])
        .with(0)
        .json();
    let records = listed["records"].as_array().unwrap();
    assert_eq!((records.len(), &listed["cursor"]), (30, &Value::Null));
    let is_its_own = |record: &Value| {
        record["outcome"].as_i64().unwrap()
            == record["key"].as_str().unwrap().parse::<i64>().unwrap()
    };
    assert!(records.iter().all(is_its_own));
    let stats = idem(&url, &["stats", "--json"]).with(0).json();
    assert_eq!(stats[0]["committed"], json!(30));
    // A decision's records are on other nodes than the record that it is about.
    for number in ["7", "8", "9"] {
        idem(
            &url,
            &["forget", OPERATION, number, "--yes", "--reason", number],
        )
        .with(0);
    }
    let gone = idem(&url, &["show", OPERATION, "8", "--json"])
        .with(3)
        .json();
    assert_eq!(
        (
            &gone["decisions"][0]["reason"],
            &gone["decisions"][0]["result"]
        ),
        (&json!("8"), &json!("done"))
    );
    assert_eq!(
        idem(&url, &["audit", "--json"]).with(0).json()["decisions"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

/// A released key runs as the next attempt, and a forgotten one as the first.
async fn runs_again(url: &str) {
    let idempotency = runtime(url).await;
    for (command, attempt, action) in [("release", 2, "released"), ("forget", 1, "forgotten")] {
        killed_worker(url, command).await;
        let ended = idem_logging(
            url,
            &[
                command,
                OPERATION,
                command,
                "--yes",
                "--json",
                "--reason",
                "it was not done",
            ],
        );
        let done = ended.with(0);
        let digest = idempotency
            .operation(OPERATION)
            .key(command)
            .digest()
            .unwrap()
            .to_string();
        assert_is_reported(&done, action, &digest, "it was not done");
        let done = done.json();
        assert_eq!(
            (&done["action"], &done["attempt"], &done["outcome"]),
            (&json!(action), &json!(1), &Value::Null)
        );
        assert_eq!(
            charge(&idempotency, command).await.unwrap(),
            json!("charged by the worker")
        );
        let info = idempotency
            .operation(OPERATION)
            .key(command)
            .inspect()
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (info.state, info.attempt),
            (RecordState::Committed, attempt)
        );
    }
}

#[tokio::test]
async fn a_settled_error_is_what_duplicates_get() {
    let dir = folder();
    let url = &format!("sqlite://{}/idem.db", dir.path().display());
    killed_worker(url, "o 1").await;
    // A key of one part may be typed as it is.
    let settle = [
        "settle", OPERATION, "o 1", "--value", "-", "--error", "--yes", "--ttl", "1h",
    ];
    let settled = idem_answering(url, &settle, " {\"code\": 51}\n").with(0);
    assert!(settled.out.contains("o%201"), "{settled:?}");
    let info = runtime(url)
        .await
        .operation(OPERATION)
        .key("o 1")
        .inspect()
        .await
        .unwrap()
        .unwrap();
    assert!(
        info.is_error && info.expires_in.as_secs() <= 3600,
        "{info:?}"
    );
    let shown = idem(url, &["show", OPERATION, "o%201", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&shown["outcome"], &shown["is_error"]),
        (&json!({ "code": 51 }), &json!(true))
    );
}
