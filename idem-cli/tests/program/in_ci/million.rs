//! Each command on a million records of each store. It prints times for a person to judge, so that
//! nothing runs it by itself: `cargo test --release -p idem-cli --test program million -- --ignored
//! --nocapture --test-threads=1`

use std::time::{Duration, Instant};

use idem_core::Abandoned;
use idem_sqlx::sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool, raw_sql};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, RedisServer, Reply};

use crate::support::{OPERATION, charge, idem, runtime};

/// Of them, 1000 are of this operation, and 50 of those are abandoned.
const MILLION: u32 = 1_000_000;
const RARE: &str = "mails.send";
/// One statement for every database, but for the words in braces.
const FILL: &str = "INSERT INTO idem_records (operation, {key}, state, attempt, owner, origin, \
    leased_at, lease_until, expires_at, codec, outcome, revision, sweep_at) WITH RECURSIVE n(i) AS (SELECT 1 \
    UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT CASE WHEN i % 1000 = 0 THEN \
    'mails.send' WHEN i % 3 = 0 THEN 'orders.create' ELSE 'payments.charge' END, {text}, CASE WHEN \
    i % 20000 = 0 THEN 'in_flight' ELSE 'committed' END, 1, CASE WHEN i % 20000 = 0 THEN {owner} \
    END, CASE WHEN i % 20000 = 0 THEN 'nothing' END, CASE WHEN i % 20000 = 0 THEN {before} END, \
    CASE WHEN i % 20000 = 0 THEN {before} END, {later}, CASE WHEN i % 20000 <> 0 THEN 'j' END, \
    CASE WHEN i % 20000 <> 0 THEN {outcome} END, i, {later} FROM n";

fn fill(words: &[(&str, &str)]) -> AssertSqlSafe<String> {
    let fill = words.iter().fold(FILL.to_owned(), |text, (word, by)| {
        text.replace(&format!("{{{word}}}"), by)
    });
    AssertSqlSafe(fill)
}

/// Runs each command, and prints how long it took, and the processor's time of the program.
fn judge(store: &str, url: &str) {
    let key = |number: u32| format!("o-{number:08}");
    let digest = idem(
        url,
        &["list", "--state", "abandoned", "--limit", "1", "--json"],
    )
    .with(0)
    .json();
    let digest = digest["records"][0]["digest"].as_str().unwrap().to_owned();
    let all = &MILLION.to_string();
    let commands: &[&[&str]] = &[
        &["list"],
        &["list", "--operation", RARE],
        &["list", "--operation", OPERATION],
        &["list", "--operation", "none.such"],
        &["list", "--state", "abandoned"],
        &["list", "--state", "released"],
        &["list", "--state", "committed"],
        &["list", "--older-than", "1s"],
        &["list", "--digest", &digest],
        &["list", "--digest", "0123456789abcdef"],
        &["list", "--limit", all],
        &["stats"],
        &["audit"],
        &["show", "--digest", &digest],
        &["show", OPERATION, &key(1)],
        &["forget", OPERATION, &key(2), "--yes", "--no-audit"],
        &[
            "purge",
            "--operation",
            RARE,
            "--state",
            "abandoned",
            "--yes",
        ],
        &["purge", "--operation", RARE, "--yes"],
    ];
    for command in commands {
        let begun = Instant::now();
        let before = processor_time();
        let ended = idem(url, command);
        let took = begun.elapsed();
        let used = processor_time().saturating_sub(before);
        println!(
            "{store:<10} {took:>8.2?} {used:>8.2?} code {} {}",
            ended.code,
            command.join(" ")
        );
    }
}

/// That the processes took that this one has waited for.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(13)
        .take(2);
    Duration::from_millis(ticks.map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum())
}

#[tokio::test]
#[ignore = "prints times"]
async fn of_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    runtime(&url).await;
    let words = [
        ("key", "key"),
        ("text", "printf('o-%08d', i * 7919 % 1000003)"),
        ("owner", "randomblob(16)"),
        ("before", "unixepoch() * 1000 - 5000"),
        ("later", "unixepoch() * 1000 + 86400000 + i"),
        ("outcome", "CAST('7' AS BLOB)"),
    ];
    raw_sql(fill(&words))
        .execute(&SqlitePool::connect(&url).await.unwrap())
        .await
        .unwrap();
    judge("SQLite", &url);
}

#[tokio::test]
#[ignore = "prints times"]
async fn of_postgres() {
    let server = PostgresServer::start().await.unwrap();
    let url = server.url();
    runtime(&url).await;
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
    let pool = PgPool::connect(&url).await.unwrap();
    raw_sql(fill(&words)).execute(&pool).await.unwrap();
    // Autovacuum does this within a minute of the insert. Without it, this would time plans that
    // were made without statistics.
    raw_sql("VACUUM ANALYZE idem_records")
        .execute(&pool)
        .await
        .unwrap();
    judge("PostgreSQL", &url);
}

async fn of_mysql_at(store: &str, url: &str, recursion: &'static str) {
    runtime(url).await;
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
    let mut connection = MySqlPool::connect(url)
        .await
        .unwrap()
        .acquire()
        .await
        .unwrap();
    raw_sql(recursion).execute(&mut *connection).await.unwrap();
    // A server has its tables in memory. With the 32 MB of a test, this would time the disk.
    raw_sql("SET GLOBAL innodb_buffer_pool_size = 1073741824")
        .execute(&mut *connection)
        .await
        .unwrap();
    raw_sql(fill(&words))
        .execute(&mut *connection)
        .await
        .unwrap();
    judge(store, url);
}

#[tokio::test]
#[ignore = "prints times"]
async fn of_mariadb() {
    let server = MariaDbServer::start().await.unwrap();
    of_mysql_at(
        "MariaDB",
        &server.url(),
        "SET max_recursive_iterations = 1000000",
    )
    .await;
}

#[tokio::test]
#[ignore = "prints times"]
async fn of_mysql() {
    let server = MySqlServer::start().await.unwrap();
    of_mysql_at(
        "MySQL",
        &server.url(),
        "SET cte_max_recursion_depth = 1000000",
    )
    .await;
}

#[tokio::test]
#[ignore = "prints times"]
async fn of_redis() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let idempotency = runtime(&url).await;
    charge(&idempotency, "committed").await.unwrap();
    let lease = idempotency
        .operation(OPERATION)
        .key("in_flight")
        .lease(Duration::from_secs(1));
    let lease = lease.abandoned(Abandoned::Reject).begin().await.unwrap();
    let read = async |key: &str| match server
        .cli(&["GET", &format!("idem:{OPERATION}:{key}")])
        .await
        .unwrap()
    {
        Reply::Value(value) => value,
        other => panic!("{other:?}"),
    };
    let committed = read("committed").await;
    let in_flight = read("in_flight").await;
    let script = b"for i = ARGV[1], ARGV[1] + 9999 do \
        local operation = i % 1000 == 0 and 'mails.send' or i % 3 == 0 and 'orders.create' or 'payments.charge' \
        local value = i % 20000 == 0 and ARGV[3] or ARGV[2] \
        redis.call('SET', 'idem:' .. operation .. string.format(':o-%08d', i), value, 'EX', 86400) end";
    for first in (0..MILLION).step_by(10_000) {
        let first = (first + 1).to_string();
        server
            .cli(&[
                &b"EVAL"[..],
                script,
                b"0",
                first.as_bytes(),
                &committed,
                &in_flight,
            ])
            .await
            .unwrap();
    }
    judge("Redis", &url);
    drop(lease);
}
