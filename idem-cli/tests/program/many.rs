//! Ten thousand records: in pages, and gone in batches.

use std::collections::HashSet;
use std::io::{BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_core::record::{Issue, RecordId};
use idem_core::{Key, Store};
use idem_redis::RedisStore;
use idem_sqlx::{PostgresStore, sqlx};
use idem_testkit::{RedisServer, Reply};
use serde_json::json;

use crate::support::{LIMIT, command, idem};

const MANY: usize = 10_000;

pub(crate) async fn fill(store: &impl Store, many: usize) {
    let issue = |number: usize| {
        let id = RecordId::new("forms.order", &Key::encode(&number).unwrap()).unwrap();
        Issue::new(id, Duration::from_secs(3600))
    };
    let issues: Vec<Issue> = (0..many).map(issue).collect();
    for answer in store.issue(&issues).await {
        answer.unwrap();
    }
}

/// With time enough for a machine under load.
pub(crate) async fn redis(url: &str) -> RedisStore {
    RedisStore::builder()
        .url(url)
        .time_limit(LIMIT)
        .connect_time_limit(LIMIT)
        .connect()
        .await
        .unwrap()
}

/// Every record once, over pages of a size; and how many pages that took.
fn listed(url: &str, limit: &str) -> (HashSet<String>, usize) {
    let mut found = HashSet::new();
    let mut cursor = None::<String>;
    let mut pages = 0;
    loop {
        let mut args = vec![
            "list",
            "--operation",
            "forms.order",
            "--json",
            "--limit",
            limit,
        ];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let page = idem(url, &args).with(0).json();
        pages += 1;
        let keys = page["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["key"].as_str().unwrap().to_owned());
        found.extend(keys);
        cursor = page["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return (found, pages);
        }
    }
}

#[tokio::test]
async fn ten_thousand_records_in_redis_are_listed_by_scans_and_purged() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    fill(&redis(&url).await, MANY).await;
    let (found, pages) = listed(&url, "3000");
    assert_eq!(found.len(), MANY);
    assert!(pages >= 4, "{pages}");
    // No command looks at all keys, and each scan at a bounded number of them.
    assert!(calls(&server, "scan").await >= MANY / 1100);
    assert_eq!(calls(&server, "keys").await, 0);
    let counted = idem(&url, &["stats", "--json"]).with(0).json();
    assert_eq!(counted[0]["issued"], json!(MANY));
    let purged = idem(
        &url,
        &[
            "purge",
            "--operation",
            "forms.order",
            "--state",
            "issued",
            "--yes",
            "--json",
        ],
    )
    .with(0);
    assert_eq!(purged.json()["removed"], json!(MANY));
    assert!(purged.err.contains("removed"), "{purged:?}");
    assert_eq!(
        idem(&url, &["list", "--json"]).with(0).json()["records"],
        json!([])
    );
}

/// How often a command was carried out.
async fn calls(server: &RedisServer, command: &str) -> usize {
    let Reply::Value(stats) = server.cli(&["INFO", "commandstats"]).await.unwrap() else {
        panic!()
    };
    let stats = String::from_utf8(stats).unwrap();
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn redis_is_asked_for_many_records_at_a_time_and_the_cursor_is_short() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    fill(&redis(&url).await, MANY).await;
    for args in [
        &["list", "--state", "abandoned"][..],
        &["list", "--digest", "0123456789abcdef"],
        &["stats"],
    ] {
        server.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
        idem(&url, args).with(0);
        let scans = calls(&server, "scan").await;
        let scripts = calls(&server, "evalsha").await;
        assert!(
            scans <= 2 * MANY / 1000 && scripts <= 2 * MANY / 100,
            "{scans} {scripts} {args:?}"
        );
    }
    for limit in ["1", "7", "100", "3000"] {
        let page = idem(&url, &["list", "--limit", limit, "--json"])
            .with(0)
            .json();
        let cursor = page["cursor"].as_str().unwrap();
        assert!(cursor.len() <= 300, "{limit}: {cursor}");
    }
}

#[tokio::test]
async fn records_are_printed_before_the_last_of_them_is_read() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let many = 2 * MANY;
    fill(&redis(&url).await, many).await;
    for format in [&[][..], &["--json"]] {
        server.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
        let mut command = command(&url, &["list", "--limit", "1000000"]);
        let mut child = command.args(format).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = vec![0; 1000];
        // No more fits into a pipe than a few hundred records.
        out.read_exact(&mut text).unwrap();
        assert!(
            calls(&server, "scan").await <= many / 1000 * 3 / 4,
            "{format:?}"
        );
        out.read_to_end(&mut text).unwrap();
        assert!(child.wait().unwrap().success());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches("forms.order").count(), many, "{format:?}");
        if !format.is_empty() {
            let listed: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(listed["records"].as_array().unwrap().len(), many);
        }
    }
}

#[tokio::test]
async fn progress_is_shown_at_a_terminal_and_nowhere_else() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    fill(&redis(&url).await, MANY).await;
    for args in [
        &["stats"][..],
        &["list", "--state", "abandoned"],
        &["show", "--digest", "0123456789abcdef"],
    ] {
        let silent = idem(&url, args);
        assert!(!silent.err.contains("looked at"), "{silent:?}");
        // A terminal of its own.
        let program = [env!("CARGO_BIN_EXE_idem"), &args.join(" ")].join(" ");
        let shown = Command::new("script")
            .args(["-qec", &program, "/dev/null"])
            .env("IDEM_STORE", &url)
            .output();
        let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
        assert!(
            shown.contains("10000 records looked at\r\u{1b}[K"),
            "{args:?}: {shown:?}"
        );
    }
}

pub(crate) async fn are_listed_by_an_index(url: &str) {
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let store = PostgresStore::builder(pool).time_limit(LIMIT).build();
    fill(&store, MANY).await;
    let (found, pages) = listed(url, "2500");
    assert_eq!((found.len(), pages), (MANY, 5));
}
