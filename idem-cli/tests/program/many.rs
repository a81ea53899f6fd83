//! Ten thousand records: in pages, and gone in batches.

use std::collections::HashSet;
use std::time::Duration;

use idem_core::record::{Issue, RecordId};
use idem_core::{Key, Store};
use idem_redis::RedisStore;
use idem_sqlx::PostgresStore;
use idem_testkit::{RedisServer, Reply};
use serde_json::json;

use crate::support::idem;

const MANY: usize = 10_000;

async fn fill(store: &impl Store) {
    let issue = |number: usize| {
        let id = RecordId::new("forms.order", &Key::encode(&number).unwrap()).unwrap();
        Issue::new(id, Duration::from_secs(3600))
    };
    let issues: Vec<Issue> = (0..MANY).map(issue).collect();
    for answer in store.issue(&issues).await {
        answer.unwrap();
    }
}

/// Every record once, over pages of a size; and how many pages that took.
fn listed(url: &str, limit: &str) -> (HashSet<String>, usize) {
    let (mut found, mut cursor, mut pages) = (HashSet::new(), None::<String>, 0);
    loop {
        let mut args = vec!["list", "--operation", "forms.order", "--json", "--limit", limit];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let page = idem(url, &args).with(0).json();
        pages += 1;
        let keys = page["records"].as_array().unwrap().iter().map(|record| record["key"].as_str().unwrap().to_owned());
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
    fill(&RedisStore::connect(&url).await.unwrap()).await;
    let (found, pages) = listed(&url, "3000");
    assert_eq!(found.len(), MANY);
    assert!(pages >= 4, "{pages}");
    // No command looks at all keys, and each scan at a bounded number of them.
    let Reply::Value(stats) = server.cli(&["INFO", "commandstats"]).await.unwrap() else { panic!() };
    let stats = String::from_utf8(stats).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_scan:calls=")).unwrap();
    let calls: usize = calls.split(',').next().unwrap().parse().unwrap();
    assert!(calls >= MANY / 1100 && !stats.contains("cmdstat_keys"), "{stats}");
    let counted = idem(&url, &["stats", "--json"]).with(0).json();
    assert_eq!(counted[0]["issued"], json!(MANY));
    let purged = idem(&url, &["purge", "--operation", "forms.order", "--state", "issued", "--yes", "--json"]).with(0);
    assert_eq!(purged.json()["removed"], json!(MANY));
    assert!(purged.err.contains("removed"), "{purged:?}");
    assert_eq!(idem(&url, &["list", "--json"]).with(0).json()["records"], json!([]));
}

pub(crate) async fn are_listed_by_an_index(url: &str) {
    fill(&PostgresStore::connect(url).await.unwrap()).await;
    let (found, pages) = listed(url, "2500");
    assert_eq!((found.len(), pages), (MANY, 5));
}
