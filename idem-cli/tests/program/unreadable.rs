//! One record that cannot be read is named, and stops nothing else.

use std::time::Duration;

use idem_core::record::{Issue, RecordId};
use idem_core::{Key, Store as _};
use idem_sqlx::sqlx;
use idem_testkit::RedisServer;
use serde_json::{Value, json};

use crate::many;
use crate::support::{OPERATION, charge, folder, idem, idem_answering, runtime};

/// Damages the outcome of a record, whose head stays as it is.
async fn damage(server: &RedisServer, key: &str) {
    server
        .cli(&["APPEND", &format!("idem:{OPERATION}:{key}"), "x"])
        .await
        .unwrap();
}

fn id(key: &str) -> RecordId {
    RecordId::new(OPERATION, &Key::encode(key).unwrap()).unwrap()
}

#[tokio::test]
async fn an_unreadable_record_is_shown_as_such_by_its_digest_as_by_its_key() {
    let server = RedisServer::start().await.unwrap();
    server
        .cli(&["SET", "idem:payments.charge:o-1", "text of another program"])
        .await
        .unwrap();
    let dir = folder();
    let sqlite = format!("sqlite://{}/idem.db", dir.path().display());
    charge(&runtime(&sqlite).await, "o-1").await.unwrap();
    let pool = sqlx::SqlitePool::connect(&sqlite).await.unwrap();
    sqlx::raw_sql("UPDATE idem_records SET codec = ''")
        .execute(&pool)
        .await
        .unwrap();
    for (url, says) in [
        (server.url(), "not written by idem"),
        (sqlite, "column `codec`"),
    ] {
        for args in [
            &["show", OPERATION, "o-1"][..],
            &["show", "--digest", &id("o-1").digest().to_string()],
        ] {
            let refused = idem(&url, args).with(5);
            assert!(
                refused.err.contains(says) && refused.err.contains("own client"),
                "{args:?}: {refused:?}"
            );
        }
        let by_digest = idem(&url, &["show", "--digest", &id("o-1").digest().to_string()]).with(5);
        assert!(
            by_digest.err.contains("`o-1` of `payments.charge`"),
            "{by_digest:?}"
        );
    }
}

#[tokio::test]
async fn a_listing_as_json_names_a_damaged_outcome_and_has_all_records() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let idempotency = runtime(&url).await;
    for key in ["a", "b", "c"] {
        charge(&idempotency, key).await.unwrap();
    }
    damage(&server, "b").await;
    let listed = idem(&url, &["list", "--json"]).with(0);
    assert!(
        listed
            .err
            .contains("`b` of `payments.charge` cannot be read"),
        "{listed:?}"
    );
    let listed = listed.json();
    let mut records = listed["records"].as_array().unwrap().clone();
    records.sort_by_key(|record| record["key"].as_str().unwrap().to_owned());
    let outcomes: Vec<_> = records
        .iter()
        .map(|record| (&record["state"], &record["outcome"]))
        .collect();
    let committed = json!("committed");
    let charged = json!("charged by the worker");
    assert_eq!(
        outcomes,
        [
            (&committed, &charged),
            (&committed, &Value::Null),
            (&committed, &charged)
        ]
    );
}

#[tokio::test]
async fn a_damaged_entry_of_the_trail_is_named_and_the_others_are_listed() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    for key in ["a", "b"] {
        charge(&runtime(&url).await, key).await.unwrap();
        idem(&url, &["forget", OPERATION, key, "--yes"]).with(0);
    }
    let entry = format!("{}:1", id("a").digest());
    server
        .cli(&["APPEND", &format!("idem:idem.audit:{entry}"), "x"])
        .await
        .unwrap();
    let audit = idem(&url, &["audit", "--json"]).with(0);
    assert!(
        audit
            .err
            .contains(&format!("`{entry}` of `idem.audit` cannot be read")),
        "{audit:?}"
    );
    let listed = audit.json();
    let [left] = listed["decisions"].as_array().unwrap().as_slice() else {
        panic!("{audit:?}")
    };
    assert_eq!(left["digest"], json!(id("b").digest().to_string()));
}

#[tokio::test]
async fn a_purge_names_and_keeps_what_it_cannot_read_and_removes_the_rest() {
    const MANY: usize = 2500;
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let issues: Vec<Issue> = (0..MANY)
        .map(|number| Issue::new(id(&number.to_string()), Duration::from_secs(3600)))
        .collect();
    for issued in many::redis(&url).await.issue(&issues).await {
        issued.unwrap();
    }
    charge(&runtime(&url).await, "damaged").await.unwrap();
    damage(&server, "damaged").await;
    server
        .cli(&[
            "SET",
            "idem:payments.charge:foreign",
            "text of another program",
        ])
        .await
        .unwrap();
    let purged = idem(
        &url,
        &["purge", "--operation", OPERATION, "--yes", "--json"],
    )
    .with(0);
    for key in ["damaged", "foreign"] {
        let says = format!("`{key}` of `payments.charge` cannot be read");
        assert_eq!(purged.err.matches(&says).count(), 1, "{}", purged.err);
    }
    let counted = purged.json();
    assert_eq!(
        (&counted["removed"], &counted["kept"]),
        (&json!(MANY), &json!(2))
    );
    let audit = idem(&url, &["audit", "--json"]).with(0).json();
    let purge = &audit["decisions"][0];
    assert_eq!(
        (&purge["result"], &purge["records"]),
        (&json!("done"), &json!(MANY))
    );
    let again = idem(&url, &["purge", "--operation", OPERATION, "--yes"]).with(0);
    assert!(
        again
            .out
            .contains("0 records of payments.charge removed, 2 kept"),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_purge_that_fails_halfway_says_and_notes_how_many_it_removed() {
    const MANY: u64 = 60;
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    for number in 0..MANY {
        charge(&idempotency, &format!("o-{number:02}"))
            .await
            .unwrap();
    }
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let failing = "CREATE TRIGGER failing BEFORE DELETE ON idem_records WHEN OLD.key = 'o-20' \
        BEGIN SELECT RAISE(ABORT, 'the disk is gone'); END";
    sqlx::raw_sql(failing).execute(&pool).await.unwrap();
    let purged = idem_answering(&url, &["purge", "--operation", OPERATION], "y\n").with(5);
    let left = idem(&url, &["list", "--operation", OPERATION, "--json"])
        .with(0)
        .json();
    let removed = MANY - u64::try_from(left["records"].as_array().unwrap().len()).unwrap();
    assert!((1..MANY - 1).contains(&removed), "{removed}: {purged:?}");
    let says = format!("{removed} records of payments.charge were removed");
    assert!(
        purged.err.contains(&says) && purged.err.contains("the disk is gone"),
        "{purged:?}"
    );
    let audit = idem(&url, &["audit", "--json"]).with(0).json();
    let purge = &audit["decisions"][0];
    assert_eq!(
        (&purge["result"], &purge["records"]),
        (&json!("done"), &json!(removed)),
        "{audit}"
    );
}
