//! The trail of decisions: it outlives the records, and claims nothing that did not happen.

use std::process::Stdio;

use idem_core::record::RecordId;
use idem_core::store::trail::Trail;
use idem_core::{Error, Key, KeyDigest};
use idem_sqlx::sqlx;
use idem_testkit::RedisServer;
use serde_json::{Value, json};

use crate::support::{
    Ended, LIMIT, OPERATION, Started, charge, command, folder, idem, idem_answering, runtime, until,
};

async fn sqlite() -> (tempfile::TempDir, String) {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    charge(&runtime(&url).await, "k").await.unwrap();
    (dir, url)
}

/// The output of `audit`, the oldest entry first: decision, result, and whether it was refused.
fn listed(url: &str) -> Vec<Value> {
    idem(url, &["audit", "--json"]).with(0).json()["decisions"]
        .as_array()
        .unwrap()
        .clone()
}

/// After a record was settled for "ticket 12": it is removed, and who did both stays known.
pub(crate) async fn who_removed_a_record_stays_known(url: &str, key: &str, digest: &str) {
    idem(
        url,
        &[
            "forget",
            OPERATION,
            key,
            "--yes",
            "--reason",
            "ticket 13: the wrong receipt",
        ],
    )
    .with(0);
    for args in [
        &["show", OPERATION, key, "--json"][..],
        &["show", "--digest", digest, "--json"],
    ] {
        let gone = idem(url, args).with(3).json();
        assert_eq!(
            (&gone["digest"], &gone["state"], &gone["outcome"]),
            (&json!(digest), &Value::Null, &Value::Null)
        );
        let [forgotten, settled] = gone["decisions"].as_array().unwrap().as_slice() else {
            panic!("{gone}")
        };
        for (entry, decision, found, reason) in [
            (settled, "settled", "abandoned", "ticket 12"),
            (
                forgotten,
                "forgotten",
                "committed",
                "ticket 13: the wrong receipt",
            ),
        ] {
            let text = |name: &str| entry[name].as_str().unwrap();
            assert_eq!(
                (text("decision"), text("found"), text("reason")),
                (decision, found, reason),
                "{entry}"
            );
            assert_eq!(
                (text("operation"), text("digest"), text("result")),
                (OPERATION, digest, "done"),
                "{entry}"
            );
            assert_eq!(
                (&entry["attempt"], &entry["force"]),
                (&json!(1), &json!(false))
            );
            assert!(
                text("who").starts_with("ada@") && entry["age_ms"].as_u64().unwrap() < 60_000,
                "{entry}"
            );
        }
    }
    let text = idem(url, &["show", OPERATION, key]).with(3);
    assert!(
        text.out.contains("there is no record") && text.out.contains("ticket 13"),
        "{text:?}"
    );
    assert!(text.err.contains("no record of"), "{text:?}");
    let all = idem(url, &["audit", "--digest", digest, "--json"])
        .with(0)
        .json();
    let names: Vec<_> = all["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["decision"])
        .collect();
    assert_eq!(
        (names, &all["cursor"]),
        (vec![&json!("settled"), &json!("forgotten")], &Value::Null)
    );
    let table = idem(url, &["audit", "--operation", OPERATION]).with(0).out;
    assert!(
        table.starts_with("AGE") && table.contains("ticket 12") && table.contains(digest),
        "{table}"
    );
    // The trail is in the way of no other command.
    let hidden = idem(url, &["list"]).with(0).out + &idem(url, &["stats"]).with(0).out;
    assert!(!hidden.contains("idem.audit"), "{hidden}");
    let records = idem(url, &["list", "--operation", "idem.audit", "--json"])
        .with(0)
        .json();
    assert!(
        records["records"].as_array().unwrap().len() >= 4,
        "{records}"
    );
    // The next record at the key has the same past.
    charge(&runtime(url).await, key).await.unwrap();
    let again = idem(url, &["show", OPERATION, key, "--json"])
        .with(0)
        .json();
    assert_eq!(
        (
            &again["state"],
            again["decisions"].as_array().unwrap().len()
        ),
        (&json!("committed"), 2)
    );
}

#[tokio::test]
async fn the_trail_is_not_changed_by_hand() {
    let (_dir, url) = sqlite().await;
    idem(&url, &["forget", OPERATION, "k", "--yes"]).with(0);
    let records = idem(&url, &["list", "--operation", "idem.audit", "--json"])
        .with(0)
        .json();
    for record in records["records"].as_array().unwrap() {
        let key = record["key"].as_str().unwrap();
        for change in ["forget", "release"] {
            let refused = idem(
                &url,
                &[change, "idem.audit", key, "--yes", "--force", "--no-audit"],
            )
            .with(4);
            assert!(refused.err.contains("audit trail"), "{refused:?}");
        }
        idem_answering(
            &url,
            &["settle", "idem.audit", key, "--value", "-", "--yes"],
            "1",
        )
        .with(4);
    }
    idem(
        &url,
        &[
            "purge",
            "--operation",
            "idem.audit",
            "--yes",
            "--force",
            "--no-audit",
        ],
    )
    .with(4);
    assert_eq!(listed(&url).len(), 1);
    // Nor by a call.
    let call = runtime(&url)
        .await
        .operation("idem.audit")
        .key("k")
        .forget()
        .await
        .unwrap_err();
    assert!(
        matches!(call, Error::Config { .. }) && call.to_string().contains("reserved"),
        "{call}"
    );
}

#[tokio::test]
async fn a_purge_has_one_entry_which_those_find_who_ask_for_a_record_that_went_with_it() {
    let (_dir, url) = sqlite().await;
    let idempotency = runtime(&url).await;
    for key in ["a", "b"] {
        charge(&idempotency, key).await.unwrap();
    }
    let purge = [
        "purge",
        "--operation",
        OPERATION,
        "--state",
        "committed",
        "--yes",
        "--reason",
        "a test run",
    ];
    idem(&url, &purge).with(0);
    let [purged] = &listed(&url)[..] else {
        panic!()
    };
    let said = ["decision", "found", "records", "digest", "reason"].map(|name| &purged[name]);
    assert_eq!(
        said,
        [
            &json!("purged"),
            &json!("committed"),
            &json!(3),
            &Value::Null,
            &json!("a test run")
        ]
    );
    let gone = idem(&url, &["show", OPERATION, "a"]).with(3);
    assert!(
        gone.out.contains("purged") && gone.out.contains("3 removed: a test run"),
        "{gone:?}"
    );
}

#[tokio::test]
async fn of_two_operators_at_once_each_has_an_entry_and_one_has_done_it() {
    let (_dir, url) = sqlite().await;
    for round in 1..=3 {
        charge(&runtime(&url).await, "k").await.unwrap();
        let forget = || {
            let mut command = command(&url, &["forget", OPERATION, "k", "--yes"]);
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut operators = [forget(), forget(), forget()];
        let codes = operators
            .each_mut()
            .map(|operator| operator.wait().unwrap().code().unwrap());
        let done = codes.iter().filter(|code| **code == 0).count();
        assert!(
            done == 1 && codes.iter().all(|code| [0, 3, 4].contains(code)),
            "{codes:?}"
        );
        let entries = listed(&url);
        let results = |result: &str| {
            entries
                .iter()
                .filter(|entry| entry["result"] == json!(result))
                .count()
        };
        assert_eq!(
            (results("done"), results("done") + results("refused")),
            (round, entries.len()),
            "{entries:?}"
        );
    }
}

/// The program is killed after it wrote the entry, and before the record is removed.
pub(crate) async fn a_decision_that_was_cut_off_has_no_result(url: &str) {
    let idempotency = runtime(url).await;
    charge(&idempotency, "cut").await.unwrap();
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM idem_records WHERE key = 'cut' FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let operator = command(
        url,
        &["forget", OPERATION, "cut", "--yes", "--reason", "ticket 14"],
    )
    .stdout(Stdio::null())
    .spawn()
    .unwrap();
    let mut operator = Started(operator);
    let digest = idempotency
        .operation(OPERATION)
        .key("cut")
        .digest()
        .unwrap();
    let store = idem_sqlx::PostgresStore::builder(pool.clone());
    let store = store.time_limit(LIMIT).build();
    let entries = async |digest: KeyDigest| Trail::new(&store).of_digest(digest, 10).await.unwrap();
    until("the entry is written", async || {
        !entries(digest).await.is_empty()
    })
    .await;
    operator.assert_runs("the entry was not written before the step");
    drop(operator);
    let shown = idem(url, &["show", OPERATION, "cut", "--json"])
        .with(0)
        .json();
    let [entry] = shown["decisions"].as_array().unwrap().as_slice() else {
        panic!("{shown}")
    };
    assert_eq!(
        (&shown["state"], &entry["decision"]),
        (&json!("committed"), &json!("forgotten"))
    );
    assert_eq!(
        (&entry["result"], &entry["reason"]),
        (&Value::Null, &json!("ticket 14"))
    );
    let text = idem(url, &["show", OPERATION, "cut"]).with(0).out;
    assert!(text.contains("not noted"), "{text}");
    held.rollback().await.unwrap();
}

#[tokio::test]
async fn a_store_without_room_for_an_entry_changes_nothing_unless_the_operator_says_so() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    charge(&runtime(&url).await, "k").await.unwrap();
    server
        .cli(&["CONFIG", "SET", "maxmemory", "1"])
        .await
        .unwrap();
    let purge = ["purge", "--operation", OPERATION, "--yes"];
    for args in [&["forget", OPERATION, "k", "--yes"][..], &purge] {
        let refused = idem(&url, args).with(5);
        assert!(
            refused.err.contains("--no-audit") && refused.err.contains("idem.audit"),
            "{refused:?}"
        );
    }
    idem(&url, &["show", OPERATION, "k"]).with(0);
    let forced: Ended = idem(&url, &["forget", OPERATION, "k", "--yes", "--no-audit"]).with(0);
    assert!(forced.out.contains("forgotten"), "{forced:?}");
    idem(&url, &["show", OPERATION, "k"]).with(3);
    assert_eq!(listed(&url), [] as [Value; 0]);
}

#[tokio::test]
async fn a_decision_is_kept_for_as_long_as_it_is_said() {
    let (_dir, url) = sqlite().await;
    idem(
        &url,
        &["forget", OPERATION, "k", "--yes", "--audit-ttl", "1h"],
    )
    .with(0);
    let id = RecordId::new(OPERATION, &Key::encode("k").unwrap()).unwrap();
    let entry = format!("{}:1", id.digest());
    let shown = idem(&url, &["show", "idem.audit", &entry, "--json"])
        .with(0)
        .json();
    let left = shown["expires_in_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&left), "{shown}");
    for length in ["0s", "401d", "soon"] {
        let wrong = idem(
            &url,
            &["forget", OPERATION, "k", "--yes", "--audit-ttl", length],
        )
        .with(2);
        assert!(wrong.err.contains("--audit-ttl"), "{wrong:?}");
    }
}
