//! From hand-written to `idem`: one function twice, over the same database.
//!
//! ```text
//! cargo run --example handwritten --features sqlite
//! ```
//!
//! `handwritten/before.rs` keeps a table of answers by hand, and `handwritten/after.rs` has the
//! attribute. Both are called in the same ways: again, with another request under the same key, and
//! many times at once.

#[path = "handwritten/after.rs"]
mod after;
#[path = "handwritten/before.rs"]
mod before;

use std::error::Error;
use std::time::Duration;

use idem::sqlx::SqlitePool;
use idem::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use idem::{Idempotency, SqliteStore};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

#[derive(Debug, Clone, Serialize)]
struct CreateOrder {
    /// The client's key.
    key: String,
    item: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Receipt {
    order: i64,
}

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("the key was used for another request")]
    OtherRequest,
    #[error(transparent)]
    Database(#[from] idem::sqlx::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

fn order(key: &str, item: &str) -> CreateOrder {
    CreateOrder {
        key: key.to_owned(),
        item: item.to_owned(),
    }
}

/// The task of both: the answers to three questions.
macro_rules! answers {
    ($create:path, $pool:expr) => {{
        let pool: &SqlitePool = $pool;
        let name = stringify!($create);
        let first = $create(pool, &order(&format!("{name} 1"), "tea")).await?;
        let again = $create(pool, &order(&format!("{name} 1"), "tea")).await?;
        let other = $create(pool, &order(&format!("{name} 1"), "cake")).await;
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let pool = pool.clone();
            calls.spawn(async move { $create(&pool, &order(&format!("{name} 2"), "tea")).await });
        }
        let mut receipts = Vec::new();
        while let Some(receipt) = calls.join_next().await {
            receipts.push(receipt??);
        }
        let refused = matches!(
            other,
            Err(OrderError::OtherRequest
                | OrderError::Idempotency(idem::Error::FingerprintMismatch { .. }))
        );
        [
            first == again,
            refused,
            receipts.windows(2).all(|two| two[0] == two[1]),
        ]
    }};
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("idem-handwritten-{}.db", std::process::id()));
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .connect_with(options.journal_mode(SqliteJournalMode::Wal))
        .await?;
    idem::sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        .execute(&pool)
        .await?;
    idem::sqlx::raw_sql(before::TABLE).execute(&pool).await?;
    // Twenty calls at once may take long on a slow disk.
    let store = SqliteStore::builder(pool.clone()).time_limit(Duration::from_secs(15));
    let store = store.build();
    store.migrate().await?;
    idem::install(Idempotency::new(store))?;

    let before = answers!(before::create_order, &pool);
    let after = answers!(after::create_order, &pool);
    before::delete_old_answers(&pool).await?;
    let orders: i64 = idem::sqlx::query_scalar("SELECT count(*) FROM orders")
        .fetch_one(&pool)
        .await?;

    let line =
        |what: &str, before: &str, after: &str| println!("  {what:<52}{before:>8}{after:>8}");
    let mark = |holds: bool| if holds { "✓" } else { "✗" };
    line("", "before", "after");
    let lines = [
        lines(include_str!("handwritten/before.rs"), "before"),
        lines(include_str!("handwritten/after.rs"), "after"),
    ];
    line(
        "lines of code",
        &lines[0].to_string(),
        &lines[1].to_string(),
    );
    let questions = [
        "a duplicate gets the first call's answer",
        "another request under the same key is refused",
        "of twenty calls at once, one writes the order",
    ];
    for (index, question) in questions.iter().enumerate() {
        line(question, mark(before[index]), mark(after[index]));
    }
    for more in [
        "the wait for an open duplicate has a limit",
        "errors are replayed or released, as each says",
        "old answers are deleted by the library",
        "each decision is an event and a metric",
    ] {
        line(more, "", "✓");
    }
    println!("\n  {orders} orders in SQLite: two for each version");
    pool.close().await;
    for suffix in ["", "-wal", "-shm"] {
        let mut name = file.clone().into_os_string();
        name.push(suffix);
        let _ = std::fs::remove_file(name);
    }
    if before.iter().chain(&after).all(|holds| *holds) && orders == 4 {
        Ok(())
    } else {
        Err("the two versions differ".into())
    }
}

/// The lines between the two marks that are neither empty nor comments.
fn lines(source: &str, mark: &str) -> usize {
    let is_mark = |line: &&str, end: &str| line.trim() == format!("// {mark}: {end}");
    source
        .lines()
        .skip_while(|line| !is_mark(line, "begin"))
        .take_while(|line| !is_mark(line, "end"))
        .filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//"))
        .count()
}
