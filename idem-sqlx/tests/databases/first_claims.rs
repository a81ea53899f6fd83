//! First claims of a key, where nothing is expected at it: their replies are lost, and a proxy
//! mixes their statements up.

use idem_core::Store;
use idem_core::store::record::Claimed;
use idem_core::store::{Began, Transaction as _};
use idem_sqlx::PostgresStore;
use idem_sqlx::sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Row as _};
use idem_testkit::{Mishap, PostgresServer, Proxy};

use crate::expected::{AtKey, Found, accustom, claim_of, is_answer, write};
use crate::{LONG, Server as _, over_both_servers};

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
            let store = S::store_at(&url).await;
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
    let others = PostgresStore::builder(PgPool::connect(&url).await.unwrap())
        .time_limit(LONG)
        .build();
    crate::connected(async || others.migrate().await).await;
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect(&url).await.unwrap();
    let store = PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
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
    let others = PostgresStore::builder(PgPool::connect(&url).await.unwrap())
        .time_limit(LONG)
        .build();
    crate::connected(async || others.migrate().await).await;
    let one = PgPoolOptions::new().max_connections(1);
    let pool = one.connect(&url).await.unwrap();
    let store = PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
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
    assert!(!matches!(claimed, Ok(Began::Owner(_))), "{claimed:?}");
}
