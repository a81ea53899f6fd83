//! The record of `settle`: the version of the outcome, and how long it is kept.

use std::future::pending;

use idem_core::{Abandoned, Begin, Error, RecordState, Storable};
use idem_sqlx::sqlx;
use serde_json::json;
use tokio::sync::oneshot;

use crate::support::{
    Ended, LEASE, OPERATION, charge, folder, idem, idem_answering, killed_worker, runtime, until,
};

/// The operation's type was in euros, and is in cents since version 2.
pub(crate) async fn an_outcome_of_a_later_version_is_replayed_as_it_is(url: &str) {
    let idempotency = runtime(url).await;
    for (key, option, replayed) in [
        ("v1", None, 199_900),
        ("v2", Some("--outcome-version=2"), 1999),
    ] {
        killed_worker(url, key).await;
        let mut settle = vec!["settle", OPERATION, key, "--value", "-", "--yes"];
        settle.extend(option);
        // PowerShell writes a byte order mark and a line break.
        idem_answering(url, &settle, "\u{feff}1999\r\n").with(0);
        let call = idempotency
            .operation(OPERATION)
            .key(key)
            .fingerprint(&1999)
            .outcome_version(2);
        let call = call.upgrade(1, |euros: u64| euros * 100);
        assert_eq!(
            call.run(async || Ok::<u64, Error>(0))
                .await
                .unwrap()
                .into_inner(),
            replayed,
            "{key}"
        );
    }
    let shown = idem(url, &["show", OPERATION, "v2", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&shown["outcome"], &shown["outcome_version"]),
        (&json!(1999), &json!(2))
    );
    assert!(
        shown["audit"]["who"].as_str().unwrap().starts_with("ada@"),
        "{shown}"
    );
    let text = idem(url, &["show", OPERATION, "v2"]).with(0).out;
    assert!(text.contains("version      2"), "{text}");
}

fn url_in(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}/idem.db", dir.path().display())
}

#[tokio::test]
async fn an_outcome_of_a_later_version_is_settled_in_sqlite_and_replayed_as_it_is() {
    let dir = folder();
    an_outcome_of_a_later_version_is_replayed_as_it_is(&url_in(&dir)).await;
}

#[tokio::test]
async fn the_question_of_settle_says_the_version_and_an_error_has_none() {
    let dir = folder();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1999").unwrap();
    let asked = |options: &[&str]| {
        let settle = [
            "settle",
            OPERATION,
            "k",
            "--value",
            file.path().to_str().unwrap(),
        ];
        idem_answering(&url, &[&settle[..], options].concat(), "n\n")
    };
    for (options, says) in [
        (&[][..], "the value 1999 (outcome version 1)."),
        (
            &["--outcome-version", "3"],
            "the value 1999 (outcome version 3).",
        ),
        (&["--error"], "the error 1999."),
    ] {
        let asked = asked(options).with(4);
        assert!(asked.err.contains(says), "{asked:?}");
    }
    for options in [
        &["--outcome-version", "0"][..],
        &["--outcome-version=-1"],
        &["--outcome-version", "2", "--error"],
    ] {
        let wrong = asked(options).with(2);
        assert!(wrong.err.contains("--outcome-version"), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_outcome_that_would_be_gone_at_once_is_not_settled() {
    let dir = folder();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    for length in ["0s", "1us", "999us", "101y", "soon"] {
        let settle = [
            "settle", OPERATION, "k", "--value", "-", "--yes", "--ttl", length,
        ];
        let wrong = idem_answering(&url, &settle, "1").with(2);
        assert!(wrong.err.contains("--ttl"), "{wrong:?}");
    }
    let shown = idem(&url, &["show", OPERATION, "k", "--json"])
        .with(0)
        .json();
    assert_eq!(shown["state"], json!("abandoned"));
}

#[tokio::test]
async fn a_change_that_was_made_ends_with_0_even_if_its_record_cannot_be_read_afterwards() {
    let dir = folder();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let damage = "CREATE TRIGGER damage AFTER UPDATE OF state ON idem_records WHEN NEW.state = \
        'committed' AND NEW.operation = 'payments.charge' BEGIN UPDATE idem_records SET codec = '' \
        WHERE operation = NEW.operation AND key = NEW.key; END";
    sqlx::raw_sql(damage).execute(&pool).await.unwrap();
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes", "--json"];
    let settled = idem_answering(&url, &settle, "1").with(0);
    assert!(
        settled.err.contains("was settled") && settled.err.contains("codec"),
        "{settled:?}"
    );
    let done = settled.json();
    assert_eq!(
        (&done["action"], &done["state"], &done["attempt"]),
        (&json!("settled"), &json!("committed"), &json!(1))
    );
    let audit = idem(&url, &["audit", "--json"]).with(0).json();
    assert_eq!(audit["decisions"][0]["result"], json!("done"));
}

#[tokio::test]
async fn an_outcome_of_another_shape_is_settled_only_with_consent() {
    let dir = folder();
    let url = url_in(&dir);
    let idempotency = runtime(&url).await;
    // The first outcome of an operation has nothing to be compared with.
    killed_worker(&url, "first").await;
    let first = ["settle", OPERATION, "first", "--value", "-", "--yes"];
    let first = idem_answering(&url, &first, "\"by hand\"").with(0);
    for says in [
        "the shape of this outcome was not checked",
        "check yourself",
    ] {
        assert!(first.err.contains(says), "{first:?}");
    }
    let call = idempotency
        .operation(OPERATION)
        .key("charged")
        .abandoned(Abandoned::Reject);
    call.run(async || Ok::<_, Error>("receipt 1".to_owned()))
        .await
        .unwrap();
    killed_worker(&url, "k").await;
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes"];
    let refused = idem_answering(&url, &settle, "{\"receipt\":7}").with(4);
    for says in [
        "is an object, and others have a string",
        "a `String`",
        "show --pattern",
        "--other-shape",
    ] {
        assert!(refused.err.contains(says), "{says}: {refused:?}");
    }
    let shown = idem(&url, &["show", OPERATION, "k", "--pattern"])
        .with(0)
        .out;
    assert!(
        shown.contains("pattern      \"receipt 1\" (of charged, a `String`)"),
        "{shown}"
    );
    let shown = idem(&url, &["show", OPERATION, "k", "--pattern", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&shown["state"], &shown["pattern"]["key"]),
        (&json!("abandoned"), &json!("charged"))
    );
    assert_eq!(shown["pattern"]["outcome_type"], json!("String"));
    let shown = idem(&url, &["show", OPERATION, "charged"]).with(0).out;
    assert!(shown.contains("type         String"), "{shown}");
    // No such error is recorded, so nothing differs from it.
    idem_answering(&url, &[&settle[..], &["--error"]].concat(), "7").with(0);
    killed_worker(&url, "other").await;
    let other = [
        "settle",
        OPERATION,
        "other",
        "--value",
        "-",
        "--yes",
        "--other-shape",
    ];
    idem_answering(&url, &other, "{\"receipt\":7}").with(0);
    assert_eq!(
        charge(&idempotency, "other").await.unwrap(),
        json!({ "receipt": 7 })
    );
}

#[tokio::test]
async fn the_first_outcome_of_an_operation_is_of_the_type_that_the_call_would_have_returned() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Receipt(u64);
    /// A call that a deployment cuts off.
    async fn cut_off<T: Storable<Via>, Via>(url: &str, key: &str) {
        let idempotency = runtime(url).await;
        let call = idempotency.operation(OPERATION).key(key);
        let call = call.lease(LEASE).abandoned(Abandoned::Reject);
        let (claimed, is_claimed) = oneshot::channel();
        let call = call.run(async || {
            claimed.send(()).unwrap();
            pending::<Result<T, Error>>().await
        });
        tokio::select! {
            _ = call => panic!("the body does not end"),
            claimed = is_claimed => claimed.unwrap(),
        }
        let info = async || idempotency.operation(OPERATION).key(key).inspect().await;
        until("the key is abandoned", async || {
            info().await.unwrap().unwrap().state == RecordState::Abandoned
        })
        .await;
    }

    let dir = folder();
    let url = url_in(&dir);
    cut_off::<Option<u32>, _>(&url, "number").await;
    let shown = idem(&url, &["show", OPERATION, "number"]).with(0).out;
    assert!(shown.contains("type         Option<u32>"), "{shown}");
    let settle = ["settle", OPERATION, "number", "--value", "-", "--yes"];
    let refused = idem_answering(&url, &settle, "\"7\"").with(4);
    assert!(
        refused.err.contains("returned a `Option<u32>`") && refused.err.contains("--other-shape"),
        "{refused:?}"
    );
    let settled = idem_answering(&url, &settle, "7").with(0);
    assert!(!settled.err.contains("check yourself"), "{settled:?}");
    cut_off::<Receipt, _>(&url, "receipt").await;
    let settle = ["settle", OPERATION, "receipt", "--value", "-", "--yes"];
    let settled = idem_answering(&url, &settle, "8").with(0);
    let says = |ended: &Ended| {
        ended
            .err
            .contains("the shape of this outcome was not checked")
            && ended.err.contains("as a `Receipt`")
    };
    assert!(says(&settled), "{settled:?}");
    // A person sees it before the question.
    cut_off::<Receipt, _>(&url, "asked").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"id\":8}").unwrap();
    let path = file.path().to_str().unwrap();
    let asked = idem_answering(
        &url,
        &["settle", OPERATION, "asked", "--value", path],
        "n\n",
    );
    let asked = asked.with(4);
    assert!(says(&asked), "{asked:?}");
}

#[tokio::test]
async fn an_outcome_of_null_is_no_pattern_for_others() {
    let dir = folder();
    let url = url_in(&dir);
    let idempotency = runtime(&url).await;
    let call = idempotency.operation(OPERATION).key("none");
    call.run(async || Ok::<_, Error>(None::<u32>))
        .await
        .unwrap();
    killed_worker(&url, "k").await;
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes"];
    let settled = idem_answering(&url, &settle, "{\"receipt\":7}").with(0);
    assert!(settled.err.contains("was not checked"), "{settled:?}");
}

#[tokio::test]
async fn an_outcome_in_json_is_not_settled_among_those_of_another_codec() {
    let dir = folder();
    let url = url_in(&dir);
    charge(&runtime(&url).await, "charged").await.unwrap();
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::raw_sql("UPDATE idem_records SET codec = 'x'")
        .execute(&pool)
        .await
        .unwrap();
    killed_worker(&url, "k").await;
    let refused = idem_answering(
        &url,
        &["settle", OPERATION, "k", "--value", "-", "--yes"],
        "\"r\"",
    )
    .with(4);
    assert!(
        refused.err.contains("in the codec `x`") && refused.err.contains("--other-shape"),
        "{refused:?}"
    );
    let shown = idem(&url, &["show", OPERATION, "k", "--pattern"]).with(0);
    assert!(
        shown.err.contains("in the codec `x`") && !shown.out.contains("pattern"),
        "{shown:?}"
    );
}

#[tokio::test]
async fn an_outcome_that_was_settled_by_hand_is_replaced_and_no_other() {
    let dir = folder();
    let url = url_in(&dir);
    let idempotency = runtime(&url).await;
    killed_worker(&url, "k").await;
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes"];
    let replace = |key| {
        [
            "settle",
            OPERATION,
            key,
            "--value",
            "-",
            "--yes",
            "--replace",
        ]
    };
    let early = idem_answering(&url, &replace("k"), "\"wrong\"").with(4);
    assert!(
        early.err.contains("abandoned") && early.err.contains("without `--replace`"),
        "{early:?}"
    );
    idem_answering(&url, &settle, "\"wrong\"").with(0);
    let again = idem_answering(&url, &settle, "\"right\"").with(4);
    assert!(
        again.err.contains("settle --replace") && again.err.contains("runs the body again"),
        "{again:?}"
    );
    let before = idem(&url, &["show", OPERATION, "k", "--json"])
        .with(0)
        .json();
    let replaced = idem_answering(&url, &replace("k"), "\"right\"").with(0);
    assert!(replaced.out.starts_with("replaced "), "{replaced:?}");
    assert_eq!(charge(&idempotency, "k").await.unwrap(), json!("right"));
    let shown = idem(&url, &["show", OPERATION, "k", "--json"])
        .with(0)
        .json();
    assert!(
        shown["expires_in_ms"].as_u64() <= before["expires_in_ms"].as_u64(),
        "{before} {shown}"
    );
    let decisions = shown["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["decision"].as_str().unwrap());
    assert_eq!(decisions.collect::<Vec<_>>(), ["replaced", "settled"]);
    idem_answering(&url, &[&replace("k")[..], &["--ttl", "1h"]].concat(), "1").with(2);

    charge(&idempotency, "charged").await.unwrap();
    let refused = idem_answering(&url, &replace("charged"), "\"right\"").with(4);
    assert!(refused.err.contains("by the function"), "{refused:?}");
    assert_eq!(
        charge(&idempotency, "charged").await.unwrap(),
        json!("charged by the worker")
    );
}

#[tokio::test]
async fn work_that_was_done_after_all_is_recorded_when_no_attempt_is_left() {
    let dir = folder();
    let url = url_in(&dir);
    let idempotency = runtime(&url).await;
    let call = || idempotency.operation(OPERATION).key("k").max_attempts(1);
    let Begin::Execute(lease) = call().begin().await.unwrap() else {
        panic!()
    };
    lease.release().await.unwrap();
    let exhausted = call()
        .run(async || Ok::<_, Error>("again".to_owned()))
        .await
        .unwrap_err();
    assert!(
        matches!(exhausted, Error::AttemptsExhausted { .. }),
        "{exhausted:?}"
    );
    let listed = idem(&url, &["list", "--state", "released", "--json"])
        .with(0)
        .json();
    assert_eq!(listed["records"][0]["key"], json!("k"));
    idem_answering(
        &url,
        &["settle", OPERATION, "k", "--value", "-", "--yes"],
        "\"charged\"",
    )
    .with(0);
    let replayed = call()
        .run(async || Ok::<_, Error>("again".to_owned()))
        .await
        .unwrap();
    assert_eq!(replayed.into_inner(), "charged");
}
