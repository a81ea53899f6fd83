//! What `settle` records: the version of the outcome, and how long it is kept.

use idem_core::Error;
use idem_sqlx::sqlx;
use serde_json::json;

use crate::support::{OPERATION, idem, idem_answering, killed_worker, runtime};

/// The operation's type was in euros, and is in cents since version 2.
pub(crate) async fn an_outcome_of_a_later_version_is_replayed_as_it_is(url: &str) {
    let idempotency = runtime(url).await;
    for (key, option, replayed) in [("v1", None, 199_900), ("v2", Some("--outcome-version=2"), 1999)] {
        killed_worker(url, key).await;
        let mut settle = vec!["settle", OPERATION, key, "--value", "-", "--yes"];
        settle.extend(option);
        idem_answering(url, &settle, "1999").with(0);
        let call = idempotency.operation(OPERATION).key(key).fingerprint(&1999).outcome_version(2);
        let call = call.upgrade(1, |euros: u64| euros * 100);
        assert_eq!(call.run(async || Ok::<u64, Error>(0)).await.unwrap().into_inner(), replayed, "{key}");
    }
    let shown = idem(url, &["show", OPERATION, "v2", "--json"]).with(0).json();
    assert_eq!((&shown["outcome"], &shown["outcome_version"]), (&json!(1999), &json!(2)));
    assert!(shown["audit"]["who"].as_str().unwrap().starts_with("ada@"), "{shown}");
    let text = idem(url, &["show", OPERATION, "v2"]).with(0).out;
    assert!(text.contains("version      2"), "{text}");
}

fn url_in(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}/idem.db", dir.path().display())
}

#[tokio::test]
async fn an_outcome_of_a_later_version_is_settled_in_sqlite_and_replayed_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    an_outcome_of_a_later_version_is_replayed_as_it_is(&url_in(&dir)).await;
}

#[tokio::test]
async fn the_question_of_settle_says_the_version_and_an_error_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1999").unwrap();
    let asked = |options: &[&str]| {
        let settle = ["settle", OPERATION, "k", "--value", file.path().to_str().unwrap()];
        idem_answering(&url, &[&settle[..], options].concat(), "n\n")
    };
    for (options, says) in [
        (&[][..], "the value 1999 (outcome version 1)."),
        (&["--outcome-version", "3"], "the value 1999 (outcome version 3)."),
        (&["--error"], "the error 1999."),
    ] {
        let asked = asked(options).with(4);
        assert!(asked.err.contains(says), "{asked:?}");
    }
    for options in [&["--outcome-version", "0"][..], &["--outcome-version=-1"], &["--outcome-version", "2", "--error"]]
    {
        let wrong = asked(options).with(2);
        assert!(wrong.err.contains("--outcome-version"), "{wrong:?}");
    }
}

#[tokio::test]
async fn an_outcome_that_would_be_gone_at_once_is_not_settled() {
    let dir = tempfile::tempdir().unwrap();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    for length in ["0s", "1us", "999us", "101y", "soon"] {
        let settle = ["settle", OPERATION, "k", "--value", "-", "--yes", "--ttl", length];
        let wrong = idem_answering(&url, &settle, "1").with(2);
        assert!(wrong.err.contains("--ttl"), "{wrong:?}");
    }
    let shown = idem(&url, &["show", OPERATION, "k", "--json"]).with(0).json();
    assert_eq!(shown["state"], json!("abandoned"));
}

#[tokio::test]
async fn a_change_that_was_made_ends_with_0_even_if_its_record_cannot_be_read_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let url = url_in(&dir);
    killed_worker(&url, "k").await;
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let damage = "CREATE TRIGGER damage AFTER UPDATE OF state ON idem_records WHEN NEW.state = 'committed' AND NEW.operation = 'payments.charge' BEGIN UPDATE idem_records SET codec = '' WHERE operation = NEW.operation AND key = NEW.key; END";
    sqlx::raw_sql(damage).execute(&pool).await.unwrap();
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes", "--json"];
    let settled = idem_answering(&url, &settle, "1").with(0);
    assert!(settled.err.contains("was settled") && settled.err.contains("codec"), "{settled:?}");
    let done = settled.json();
    assert_eq!(
        (&done["action"], &done["state"], &done["attempt"]),
        (&json!("settled"), &json!("committed"), &json!(1))
    );
    let audit = idem(&url, &["audit", "--json"]).with(0).json();
    assert_eq!(audit["decisions"][0]["result"], json!("done"));
}
