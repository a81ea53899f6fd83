//! First claims of a key, where nothing is expected at it: their replies are lost, they wait for
//! each other, and a proxy mixes their statements up.

use idem_core::store::Transaction as _;
use idem_core::store::record::Claimed;
use idem_core::{Idempotency, Store};
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlTransaction};
use idem_sqlx::sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Row as _};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, Mishap, MySqlServer, PostgresServer, Proxy};
use tokio::task::JoinSet;

use crate::expected::{AtKey, Found, accustom, claim_of, is_answer, write};
use crate::failed::Failed;
use crate::pools::{insert, on_mariadb, rows};
use crate::{LONG, Server as _, over_both_servers, until};

const WAITERS: usize = 8;

fn has(statement: &[u8], part: &[u8]) -> bool {
    statement.windows(part.len()).any(|window| window == part)
}

/// Whether a statement only inserts, as that of a claim which expects nothing does.
fn only_inserts(words: &[&[u8]]) -> bool {
    words.first().is_some_and(|statement| {
        let reads = [&b"UNION ALL"[..], b"START TRANSACTION"];
        has(statement, b"INSERT") && !reads.iter().any(|part| has(statement, part))
    })
}

over_both_servers! {
    /// Sent again, a claim finds the row that it wrote itself, or that of another one.
    async fn a_first_claim_that_is_sent_again_answers_as_if_it_was_sent_once<S: Server>() {
        let server = S::empty().await;
        let others = server.store().await;
        let proxy = Proxy::start(&server.url()).await.unwrap();
        let inserts = proxy.passing(only_inserts);
        for (at_key, mishap) in [
            (AtKey::Nothing, Mishap::LoseReply),
            (AtKey::Nothing, Mishap::LoseRequest),
            (AtKey::InFlight, Mishap::LoseReply),
            (AtKey::Committed, Mishap::LoseReply),
        ] {
            let name = format!("{at_key:?}, {mishap:?}");
            let url = server.url_through(proxy.address().port());
            let store = S::connect(&url).await.unwrap();
            accustom(&store, &others, Found::Nothing, &name).await;
            let claim = claim_of(&name);
            write(&others, at_key, &claim).await;
            let before = inserts.calls();
            inserts.next(mishap);
            let claimed = store.claim(&claim).await.unwrap();
            assert!(inserts.calls() > before, "{name}: nothing was lost");
            assert!(is_answer(at_key, &claimed), "{name}: {claimed:?}");
            let seen = others.claim(&claim_of(&name)).await.unwrap();
            let is_right = match at_key {
                AtKey::Committed => matches!(seen, Claimed::Committed { .. }),
                _ => matches!(seen, Claimed::InFlight { attempt: 1, .. }),
            };
            assert!(is_right, "{name}: {seen:?}");
        }
    }
}

/// Of several inserts that wait for one row, all but one meet a deadlock when its owner rolls back,
/// unless they queue for a lock of the server. A call in its own transaction does not run again.
async fn waiters_meet_no_deadlock(url: &str) {
    for (level, habit) in [
        ("REPEATABLE READ", 0),
        ("REPEATABLE READ", 10),
        ("READ COMMITTED", 10),
    ] {
        let (pool, idempotency) = on_mariadb(url, level).await;
        let key = format!("{level}, {habit}");
        for first in 0..habit {
            let mut tx = pool.begin().await.unwrap();
            let first = format!("{key}, {first}");
            call(&idempotency, &mut tx, &first).await.unwrap();
            tx.commit().await.unwrap();
        }
        // In another process: a key that this one has claimed is expected to have a record.
        let other = Idempotency::new(MySqlStore::new(pool.clone()));
        let mut owner = pool.begin().await.unwrap();
        call(&other, &mut owner, &key).await.unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let pool = pool.clone();
            let idempotency = idempotency.clone();
            let key = key.clone();
            waiters.spawn(async move {
                let mut tx = pool.begin().await?;
                let is_replayed = call(&idempotency, &mut tx, &key).await?;
                tx.commit().await?;
                Ok::<_, Failed>(is_replayed)
            });
        }
        until("all waiters wait", async || queries(&pool).await >= WAITERS).await;
        owner.rollback().await.unwrap();
        let mut replays = 0;
        for is_replayed in waiters.join_all().await {
            replays += usize::from(is_replayed.unwrap_or_else(|error| panic!("{key}: {error}")));
        }
        assert_eq!(replays, WAITERS - 1, "{key}");
        assert_eq!(rows(&pool, &key).await, 1, "{key}");
    }
}

async fn call(
    idempotency: &Idempotency,
    tx: &mut MySqlTransaction<'_>,
    key: &str,
) -> Result<bool, Failed> {
    let operation = idempotency.operation("tx").key(key).wait(LONG);
    let body = async |tx: &mut MySqlTransaction<'_>| {
        sqlx::raw_sql(insert(key)).execute(&mut **tx).await?;
        Ok::<_, Failed>(7_u32)
    };
    Ok(operation.run_in(tx, body).await?.is_replayed())
}

/// How many other connections to this database carry a statement out.
async fn queries(pool: &MySqlPool) -> usize {
    let text = "SELECT COUNT(*) FROM information_schema.processlist \
        WHERE command = 'Query' AND db = DATABASE() AND id <> CONNECTION_ID()";
    let count: i64 = sqlx::query_scalar(text).fetch_one(pool).await.unwrap();
    usize::try_from(count).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_mariadb_meet_no_deadlock_when_the_owner_rolls_back() {
    let server = MariaDbServer::empty().await;
    waiters_meet_no_deadlock(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_real_mysql_meet_no_deadlock_when_the_owner_rolls_back() {
    let server = MySqlServer::empty().await;
    waiters_meet_no_deadlock(&server.url()).await;
}

/// Prepares, under the name of the statement that only inserts, the one that also reads the row.
async fn mix_up(on: &mut PgConnection, inserts: &str, reads: &str) {
    let all = sqlx::query(
        "SELECT name, statement, array_to_string(parameter_types, ', ') AS types \
         FROM pg_prepared_statements WHERE statement LIKE '%idem_records%'",
    )
    .persistent(false)
    .fetch_all(&mut *on)
    .await
    .unwrap();
    let find = |beginning: &str, has_union: bool| {
        all.iter()
            .find(|row| {
                let statement: String = row.get("statement");
                statement.starts_with(beginning) && statement.contains("UNION ALL") == has_union
            })
            .unwrap_or_else(|| panic!("`{beginning}..` was not prepared"))
    };
    let name: String = find(inserts, false).get("name");
    let other = find(reads, true);
    let types: String = other.get("types");
    let statement: String = other.get("statement");
    let text = format!("DEALLOCATE {name}; PREPARE {name} ({types}) AS {statement}");
    sqlx::raw_sql(AssertSqlSafe(text))
        .execute(on)
        .await
        .unwrap();
}

/// As a proxy does that keeps no track of prepared statements: the statement that is carried out is
/// another one with as many parameters, and returns a row of another process.
#[tokio::test]
async fn no_row_that_a_mixed_up_statement_of_postgres_returns_is_taken_for_an_own_one() {
    let url = PostgresServer::empty().await.url();
    let others = PostgresStore::new(PgPool::connect(&url).await.unwrap());
    others.migrate().await.unwrap();
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect(&url).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    accustom(&store, &others, Found::Nothing, "mixed up").await;
    let claim = claim_of("mixed up");
    write(&others, AtKey::InFlight, &claim).await;
    let mut on = pool.acquire().await.unwrap();
    mix_up(&mut on, "INSERT INTO", "WITH written AS").await;
    drop(on);
    let claimed = store.claim(&claim).await;
    assert!(!matches!(claimed, Ok(Claimed::Owned { .. })), "{claimed:?}");
}

#[tokio::test]
async fn no_row_that_a_mixed_up_statement_in_a_transaction_returns_is_taken_for_an_own_one() {
    let url = PostgresServer::empty().await.url();
    let others = PostgresStore::new(PgPool::connect(&url).await.unwrap());
    others.migrate().await.unwrap();
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect(&url).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    for number in 0..10 {
        let mut tx = pool.begin().await.unwrap();
        let first = claim_of(&format!("mixed up within, {number}"));
        tx.claim(&store, &first, LONG).await.unwrap();
        tx.commit().await.unwrap();
    }
    let claim = claim_of("mixed up within");
    write(&others, AtKey::InFlight, &claim).await;
    let mut tx = pool.begin().await.unwrap();
    let limited = "WITH limited AS";
    mix_up(&mut tx, limited, limited).await;
    let claimed = tx.claim(&store, &claim, LONG).await;
    assert!(!matches!(claimed, Ok(Claimed::Owned { .. })), "{claimed:?}");
}
