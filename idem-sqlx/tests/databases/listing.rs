//! How many rows a listing reads: as many as match, or each of them once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use idem_core::RecordState;
use idem_core::store::AdminStore;
use idem_core::store::admin::{KeyFilter, Listing};
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::sqlite::SqlitePoolOptions;
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use crate::{LONG, connected};

/// One statement for every database, but for the words in braces. Twenty rows are of the operation
/// `mails.send`, and two are abandoned.
const FILL: &str = "INSERT INTO idem_records (operation, {key}, state, attempt, owner, origin, \
    leased_at, \
    lease_until, expires_at, codec, outcome, revision, sweep_at) \
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
    SELECT CASE WHEN i % 1000 = 0 THEN 'mails.send' ELSE 'orders.create' END, {text}, \
    CASE WHEN i % 10000 = 0 THEN 'in_flight' ELSE 'committed' END, 1, \
    CASE WHEN i % 10000 = 0 THEN {owner} END, CASE WHEN i % 10000 = 0 THEN 'nothing' END, \
    CASE WHEN i % 10000 = 0 THEN {before} END, CASE WHEN i % 10000 = 0 THEN {before} END, {later}, \
    CASE WHEN i % 10000 <> 0 THEN 'j' END, CASE WHEN i % 10000 <> 0 THEN {outcome} END, i, {later} FROM n";
const ROWS: i64 = 20_000;
/// MySQL counts some hundred rows for the question how many rows were read.
const FEW: i64 = 1000;

fn fill(words: [(&str, &str); 6]) -> AssertSqlSafe<String> {
    let fill = words.iter().fold(FILL.to_owned(), |text, (word, by)| {
        text.replace(&format!("{{{word}}}"), by)
    });
    AssertSqlSafe(fill)
}

/// Goes through every listing, and compares how many rows were read.
async fn reads_few_rows(store: impl AdminStore, rows_read: impl AsyncFn() -> i64) {
    let first = store
        .list(&Listing::all().operation("mails.send").limit(1))
        .await
        .unwrap();
    let digest = first.records[0].id.digest();
    // The numbers in the keys, as the statement makes them.
    let below = |most: i64| {
        let keys = (1..=ROWS).map(|i| i * 7919 % 1_000_003);
        i64::try_from(keys.filter(|number| *number < most).count()).unwrap()
    };
    for (listing, records, most) in [
        (Listing::all().limit(200), ROWS, ROWS * 3 / 2),
        (
            Listing::all().operation("orders.create").limit(1000),
            ROWS - 20,
            6 * ROWS,
        ),
        (Listing::all().operation("mails.send").limit(5), 20, FEW),
        (Listing::all().operation("none.such"), 0, FEW),
        (Listing::all().state(RecordState::Abandoned), 2, 4 * ROWS),
        (
            Listing::all()
                .state(RecordState::Abandoned)
                .operation("mails.send"),
            2,
            FEW,
        ),
        (Listing::all().digest(digest), 1, ROWS * 3 / 2),
        (Listing::all().key("o-0000*"), below(10_000), FEW),
        (Listing::all().key("o-0000*").limit(7), below(10_000), FEW),
        (
            Listing::all().operation("orders.create").key("o-00007919"),
            1,
            FEW,
        ),
        (
            Listing::all().key(KeyFilter::first_part("o-00007919")),
            1,
            FEW,
        ),
        (Listing::all().key("none*"), 0, FEW),
        (Listing::all().key("o-*"), ROWS, ROWS * 3 / 2),
    ] {
        let mut found = 0;
        let mut looked_at = 0;
        let before = rows_read().await;
        let mut page = store.list(&listing).await.unwrap();
        loop {
            found += i64::try_from(page.records.len()).unwrap();
            looked_at += i64::try_from(page.looked_at).unwrap();
            let Some(cursor) = page.next else { break };
            page = store.list(&listing.clone().after(cursor)).await.unwrap();
        }
        let read = rows_read().await - before;
        println!("{read} of {most}: {listing:?}");
        assert_eq!(found, records, "{listing:?}");
        assert!(
            (records..=ROWS).contains(&looked_at),
            "looked at {looked_at}: {listing:?}"
        );
        assert!(
            read <= most,
            "{read} rows were read, and {most} would do: {listing:?}"
        );
    }
}

#[tokio::test]
async fn a_listing_of_sqlite_reads_each_row_once_or_fewer() {
    let dir = crate::own::temporary();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    connected(async || SqliteStore::connect(&url).await).await;
    // A row takes about a hundred instructions.
    let hundreds = Arc::new(AtomicI64::new(0));
    let counted = hundreds.clone();
    let pool = SqlitePoolOptions::new().after_connect(move |connection, _| {
        let counted = counted.clone();
        Box::pin(async move {
            connection
                .lock_handle()
                .await?
                .set_progress_handler(100, move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                    true
                });
            Ok(())
        })
    });
    let pool = pool.connect(&url).await.unwrap();
    let words = [
        ("key", "key"),
        ("text", "printf('o-%08d', i * 7919 % 1000003)"),
        ("owner", "randomblob(16)"),
        ("before", "unixepoch() * 1000 - 5000"),
        ("later", "unixepoch() * 1000 + 86400000 + i"),
        ("outcome", "CAST('7' AS BLOB)"),
    ];
    sqlx::raw_sql(fill(words)).execute(&pool).await.unwrap();
    reads_few_rows(
        SqliteStore::builder(pool).time_limit(LONG).build(),
        async || hundreds.load(Ordering::Relaxed),
    )
    .await;
}

#[tokio::test]
async fn a_listing_of_postgres_reads_each_row_once_or_fewer() {
    // Transactions in other databases of a server keep rows from being visible to all.
    let server = PostgresServer::start().await.unwrap();
    // One connection, so that what it read can be asked on it.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect(&server.url())
        .await
        .unwrap();
    let store = PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
    crate::connected(async || store.migrate().await).await;
    let words = [
        ("key", "key"),
        (
            "text",
            "'o-' || lpad((i::bigint * 7919 % 1000003)::text, 8, '0')",
        ),
        ("owner", "decode(md5(i::text), 'hex')"),
        ("before", "now() - interval '5 s'"),
        (
            "later",
            "now() + interval '1 day' + i * interval '1 millisecond'",
        ),
        ("outcome", "'7'::bytea"),
    ];
    sqlx::raw_sql(fill(words)).execute(&pool).await.unwrap();
    sqlx::raw_sql("VACUUM ANALYZE idem_records")
        .execute(&pool)
        .await
        .unwrap();
    reads_few_rows(store, async || {
        sqlx::raw_sql("SELECT pg_stat_force_next_flush()")
            .execute(&pool)
            .await
            .unwrap();
        let rows = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = \
            'idem_records'";
        sqlx::query_scalar(rows).fetch_one(&pool).await.unwrap()
    })
    .await;
}

async fn reads_few_rows_of_mysql(url: &str, recursion: &'static str) {
    let pool = MySqlPool::connect(url).await.unwrap();
    let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    let words = [
        ("key", "`key`"),
        ("text", "CONCAT('o-', LPAD(i * 7919 % 1000003, 8, '0'))"),
        ("owner", "UNHEX(LPAD(i, 32, '0'))"),
        ("before", "UTC_TIMESTAMP(6) - INTERVAL 5 SECOND"),
        (
            "later",
            "UTC_TIMESTAMP(6) + INTERVAL 1 DAY + INTERVAL 1000 * i MICROSECOND",
        ),
        ("outcome", "'7'"),
    ];
    let mut connection = pool.acquire().await.unwrap();
    sqlx::raw_sql(recursion)
        .execute(&mut *connection)
        .await
        .unwrap();
    sqlx::raw_sql(fill(words))
        .execute(&mut *connection)
        .await
        .unwrap();
    // With and without statistics, plans differ. The server collects them when it likes.
    sqlx::raw_sql("ANALYZE TABLE idem_records")
        .execute(&mut *connection)
        .await
        .unwrap();
    drop(connection);
    reads_few_rows(store, async || {
        let counters: Vec<(String, String)> =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
                .fetch_all(&pool)
                .await
                .unwrap();
        counters
            .iter()
            .map(|(_, count)| count.parse::<i64>().unwrap())
            .sum()
    })
    .await;
}

#[tokio::test]
async fn a_listing_of_mariadb_reads_each_row_once_or_fewer() {
    let server = MariaDbServer::start().await.unwrap();
    reads_few_rows_of_mysql(&server.url(), "SET max_recursive_iterations = 100000").await;
}

#[tokio::test]
async fn a_listing_of_real_mysql_reads_each_row_once_or_fewer() {
    let server = MySqlServer::start().await.unwrap();
    reads_few_rows_of_mysql(&server.url(), "SET cte_max_recursion_depth = 100000").await;
}
