//! Records that are listed and removed by their keys: all those of one tenant.

use idem_core::{Idempotency, KeyPart};
use idem_testkit::RedisServer;
use serde_json::{Value, json};

use crate::support::{Ended, folder, idem, idem_answering, runtime};

async fn done<K: KeyPart>(idempotency: &Idempotency, operation: &'static str, key: K) {
    let call = idempotency.operation(operation).key(&key);
    call.run(async || Ok::<_, idem_core::Error>(1))
        .await
        .unwrap();
}

/// Records of tenants in two operations.
async fn fill(url: &str) {
    let idempotency = runtime(url).await;
    for operation in ["orders.create", "mails.send"] {
        for tenant in ["user-7", "user-70", "User-7", "user_7", "0 é*"] {
            for number in 1..=2 {
                done(&idempotency, operation, (tenant, number)).await;
            }
        }
    }
}

/// The keys that a command lists, in order.
fn keys(url: &str, args: &[&str]) -> Vec<String> {
    let args = [&["list", "--json"][..], args].concat();
    let listed = idem(url, &args).with(0).json();
    let keys = listed["records"].as_array().unwrap().iter();
    let mut keys: Vec<String> = keys
        .map(|record| record["key"].as_str().unwrap().to_owned())
        .collect();
    keys.sort();
    keys
}

fn count(url: &str, args: &[&str]) -> usize {
    keys(url, args).len()
}

#[track_caller]
fn has_removed(purged: Ended, records: u64) {
    let purged = purged.with(0).json();
    assert_eq!(
        (&purged["removed"], &purged["kept"]),
        (&json!(records), &json!(0)),
        "{purged}"
    );
}

async fn a_tenant_is_listed_and_erased(url: &str) {
    fill(url).await;
    assert_eq!(
        keys(url, &["--operation", "mails.send", "--key", "user-7*"]),
        ["user-70:1", "user-70:2", "user-7:1", "user-7:2"]
    );
    assert_eq!(count(url, &["--key", "user-7*"]), 8);
    assert_eq!(count(url, &["--key", "user_7*"]), 4);
    assert_eq!(count(url, &["--key", "user-7:2"]), 2);
    assert_eq!(count(url, &["--key", "user-7"]), 0);
    assert_eq!(count(url, &["--key", "0 é**"]), 4);
    assert_eq!(count(url, &["--key", "*r-7*"]), 0);
    assert_eq!(count(url, &["--key", "user-7*", "--state", "released"]), 0);
    assert_eq!(count(url, &["--first-part", "user-7"]), 4);

    let refused = idem_answering(url, &["purge", "--first-part", "user-7"], "n\n").with(4);
    let question = "4 records of every operation with the first part `user-7` of their keys will \
        be removed (4 committed)";
    assert!(refused.err.contains(question), "{refused:?}");
    let purge = ["purge", "--first-part", "user-7", "--yes", "--json"];
    let purged = idem(url, &[&purge[..], &["--reason", "ticket 7"]].concat());
    has_removed(purged, 4);
    assert_eq!(count(url, &["--key", "user-7*"]), 4);
    let purge = [
        "purge",
        "--operation",
        "mails.send",
        "--key",
        "user-7*",
        "--yes",
    ];
    has_removed(idem(url, &[&purge[..], &["--json"]].concat()), 2);
    assert_eq!(
        keys(url, &["--key", "user-7*"]),
        ["user-70:1", "user-70:2"],
        "the other operation has them still"
    );

    // The trail has no key.
    let audit = idem(url, &["audit", "--json"]).with(0);
    assert!(!audit.out.contains("user-7"), "{audit:?}");
    let audit = audit.json();
    let [every, one] = audit["decisions"].as_array().unwrap().as_slice() else {
        panic!("{audit}")
    };
    assert_eq!(
        (&one["operation"], &one["by_key"], &one["records"]),
        (&json!("mails.send"), &json!(true), &json!(2))
    );
    assert_eq!(
        (&every["operation"], &every["reason"], &every["records"]),
        (&json!("*"), &json!("ticket 7"), &json!(4))
    );
    for args in [
        &["audit", "--operation", "orders.create", "--json"][..],
        &["show", "orders.create", "user-7:1", "--json"],
    ] {
        let said = idem(url, args).json();
        let decisions = said["decisions"].as_array().unwrap();
        assert_eq!(decisions.len(), 1, "{said}");
        assert_eq!(decisions[0]["operation"], json!("*"), "{said}");
    }
    // Its keys are digests, which may begin as any number does.
    for beginning in "0123456789abcdef".chars() {
        idem(url, &["purge", "--key", &format!("{beginning}*"), "--yes"]).with(0);
    }
    assert!(count(url, &["--operation", "idem.audit"]) > 4);
}

#[tokio::test]
async fn a_tenant_is_listed_and_erased_in_redis() {
    let server = RedisServer::start().await.unwrap();
    a_tenant_is_listed_and_erased(&server.url()).await;
}

#[tokio::test]
async fn a_tenant_is_listed_and_erased_in_sqlite() {
    let dir = folder();
    a_tenant_is_listed_and_erased(&format!("sqlite://{}/idem.db", dir.path().display())).await;
}

#[tokio::test]
async fn a_filter_that_has_every_key_asks_whatever_the_arguments_say() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    fill(&url).await;
    for args in [
        &["purge", "--key", "*", "--yes"][..],
        &["purge", "--key", "*", "--yes", "--force"],
        &["purge", "--key", "*", "--operation", "mails.send", "--yes"],
    ] {
        for answer in ["", "n\n"] {
            let refused = idem_answering(&url, args, answer).with(4);
            assert!(refused.err.contains("EVERY key"), "{refused:?}");
            assert!(refused.err.contains("leave `--key` out"), "{refused:?}");
        }
    }
    for args in [
        &["purge", "--key", "", "--yes"][..],
        &["purge", "--first-part", "", "--yes"],
        &["purge", "--key", "a*", "--first-part", "a", "--yes"],
        &["list", "--key", ""],
        &["purge", "--state", "done", "--yes"],
    ] {
        idem(&url, args).with(2);
    }
    assert_eq!(count(&url, &["--key", "*"]), 20);
    let purged = idem_answering(&url, &["purge", "--key", "*", "--yes", "--json"], "y\n");
    has_removed(purged, 20);
    assert_eq!(count(&url, &[]), 0);
}

#[tokio::test]
async fn keys_that_no_filter_sees_are_named_where_they_are_passed_over() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    let long = format!("user-7-{}", "k".repeat(300));
    done(&idempotency, "orders.create", &long).await;
    for args in [
        &["list", "--key", "user-7*"][..],
        &["list", "--key", "user-7*", "--json"],
        &["list", "--first-part", "user-7"],
        &["purge", "--key", "user-7*", "--yes"],
        &["purge", "--key", "user-7*", "--yes", "--json"],
    ] {
        let passed_over = idem(&url, args).with(0);
        assert!(
            passed_over.err.contains("stored as digests"),
            "{passed_over:?}"
        );
    }
    // The whole key finds it.
    let listed = idem(&url, &["list", "--key", &long, "--json"]).with(0);
    assert_eq!(listed.json()["records"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed.err, "");
    has_removed(idem(&url, &["purge", "--key", &long, "--yes", "--json"]), 1);
    let none = idem(&url, &["list", "--key", "user-7*", "--json"]).with(0);
    assert_eq!(none.json()["records"], Value::Array(Vec::new()));
    assert_eq!(none.err, "");
}

#[tokio::test]
async fn a_key_is_purged_by_its_text_and_not_by_the_text_that_a_listing_shows() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    for key in ["user 7", "a:b", "100%"] {
        done(&idempotency, "orders.create", key).await;
    }
    done(&idempotency, "orders.create", ("user 7", "o 1")).await;
    let purge = |key: &str, records| {
        has_removed(
            idem(&url, &["purge", "--key", key, "--yes", "--json"]),
            records,
        );
    };
    for shown in ["user%207", "a%3Ab", "100%25", "user%207:o%201"] {
        assert_eq!(count(&url, &["--key", shown]), 0, "{shown}");
        purge(shown, 0);
        // The arguments of a single record are what a listing shows.
        idem(&url, &["show", "orders.create", shown]).with(0);
    }
    for written in ["user 7", "a:b", "100%", "user 7:o 1"] {
        purge(written, 1);
    }
    assert_eq!(count(&url, &[]), 0);
}

#[tokio::test]
async fn a_key_is_typed_as_it_is_shown_and_json_hides_none_of_it() {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    let typed = [
        ("a\u{200b}b", "a\\u{200b}b"),
        ("e\u{301}", "e\\u{301}"),
        ("\u{202e}:x", "\\u{202e}%3Ax"),
        ("-5", "-5"),
        ("-", "-"),
        ("--json", "--json"),
        ("--yes", "--yes"),
        ("-x=y", "-x=y"),
        ("\\u{41}", "%5Cu%7B41%7D"),
    ];
    for (key, shown) in typed {
        done(&idempotency, "orders.create", key).await;
        assert!(idem(&url, &["list"]).with(0).out.contains(shown), "{shown}");
        let found = idem(&url, &["show", "--json", "orders.create", "--", shown]).with(0);
        assert!(found.out.is_ascii(), "{found:?}");
        assert_eq!(found.json()["operation"], "orders.create");
        // Without `--`, unless it is an option.
        let is_option = ["--json", "--yes"].contains(&shown);
        if !is_option {
            idem(&url, &["show", "orders.create", shown]).with(0);
        }
        if !shown.contains('%') {
            assert_eq!(count(&url, &["--key", shown]), 1, "{shown}");
            assert_eq!(count(&url, &["--first-part", shown]), 1, "{shown}");
        }
        let reason = ["forget", "--reason", "-5 refunds", "--yes"];
        idem(
            &url,
            &[&reason[..], &["orders.create", "--", shown]].concat(),
        )
        .with(0);
    }
    // Two keys: a character, and the text that stands for it.
    for key in ["\u{200b}", "\\u{200b}"] {
        done(&idempotency, "orders.create", key).await;
    }
    for typed in ["\\u{5c}u{200b}", "\\u{200b}"] {
        assert_eq!(count(&url, &["--key", typed]), 1, "{typed}");
        let unconfirmed = idem(&url, &["purge", "--key", typed]).with(4);
        assert!(
            unconfirmed.err.contains(&format!("`{typed}`")),
            "{unconfirmed:?}"
        );
        idem(&url, &["forget", "--yes", "orders.create", typed]).with(0);
        assert_eq!(count(&url, &["--key", typed]), 0, "{typed}");
    }
    for mistyped in [
        &["show", "orders.create", "k", "--jsn"][..],
        &["list", "--jsn"],
    ] {
        idem(&url, mistyped).with(2);
    }
    let call = idempotency.operation("orders.create").key("k");
    let text = "a\u{7f}\u{85}\u{2028}\u{202e}\u{e0041}";
    let body = async || Ok::<_, idem_core::Error>(text.to_owned());
    call.run(body).await.unwrap();
    for args in [
        &["list", "--json"][..],
        &["show", "--json", "orders.create", "k"],
    ] {
        let shown = idem(&url, args).with(0);
        let is_plain = |c: char| matches!(c, ' '..='~' | '\n');
        assert!(shown.out.chars().all(is_plain), "{shown:?}");
        let record = shown.json();
        let record = record["records"].get(0).unwrap_or(&record);
        assert_eq!(record["outcome"], text, "{record}");
    }
}
