//! Settings of a session that change what a statement means: they change no answer, or are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use idem_core::Store as _;
use idem_core::store::AdminStore;
use idem_core::store::admin::Listing;
use idem_core::store::record::{Claim, Commit, Owner, Ownership, Renewal};
use idem_core::{Begin, Error, Idempotency, Lookup, StoreError, StoreErrorKind};
use idem_sqlx::sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::sqlx::{self, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::PostgresServer;

use crate::failed::Failed;
use crate::pools::{mysql_at, over_both_servers, postgres_at};
use crate::{LONG, Server as _, connected, id, order, runtime, until};

over_both_servers! {
    a_key_is_one_whatever_a_session_speaks;
    what_would_change_the_statements_is_refused;
    a_later_setting_is_refused_too;
    a_store_records_where_it_has_claimed;
}

const KEYS: [&str; 6] = ["plain", "é", "Ключ", "日本", "🦀", "[{|}~\\"];

async fn with(url: &str, set: &'static str) -> MySqlPool {
    let options = MySqlPoolOptions::new()
        .max_connections(4)
        .after_connect(move |on, _| {
            Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
        });
    options.connect(url).await.unwrap()
}

/// Makes the calls that each write a record in a way of their own, and each of them twice: through
/// one store, and then through another one.
macro_rules! runs_each_body_once {
    ($name:ident, $Pool:ty, $Store:ty) => {
        async fn $name(name: &str, [(one_pool, one), (other_pool, other)]: [(&$Pool, $Store); 2]) {
            let stores = [(one_pool, runtime(one)), (other_pool, runtime(other))];
            for key in KEYS {
                let name = format!("{name}: {key}");
                let bodies = AtomicU32::new(0);
                let body = async || Ok::<u32, Failed>(bodies.fetch_add(1, Ordering::Relaxed));
                for (pool, idempotency) in [0, 1, 0].map(|index: usize| &stores[index]) {
                    let pool: &$Pool = pool;
                    let operation = |way| idempotency.operation(way).key(key);
                    let called = operation("names.é").run(body).await;
                    assert_eq!(called.unwrap().into_inner(), 0, "{name}");
                    let called = operation("begun").transaction(pool, async |_| body().await);
                    assert_eq!(called.await.unwrap().into_inner(), 1, "{name}");
                    let mut tx = pool.begin().await.unwrap();
                    let called = operation("within").run_in(&mut tx, async |_| body().await);
                    assert_eq!(called.await.unwrap().into_inner(), 2, "{name}");
                    tx.commit().await.unwrap();
                    if let Begin::Execute(lease) = operation("leased").begin().await.unwrap() {
                        let mut tx = pool.begin().await.unwrap();
                        lease
                            .commit_in(&mut tx, &body().await.unwrap())
                            .await
                            .unwrap();
                        tx.commit().await.unwrap();
                    }
                    let looked = operation("leased").lookup::<u32>().await.unwrap();
                    assert!(matches!(looked, Lookup::Outcome(3)), "{name}: {looked:?}");
                    assert_eq!(bodies.load(Ordering::Relaxed), 4, "{name}");
                }
                let [(_, one), (_, other)] = &stores;
                // Written by one, and ended by the other.
                let failed = one.operation("released").key(key);
                let failed = failed.run(async || Err::<u32, _>(Failed::Down));
                failed.await.unwrap_err();
                let again = other.operation("released").key(key).run(body).await;
                assert_eq!(again.unwrap().into_inner(), 4, "{name}");
                assert!(one.operation("released").key(key).forget().await.unwrap());
                let looked = other.operation("released").key(key).lookup::<u32>().await;
                assert!(matches!(looked.unwrap(), Lookup::Unknown), "{name}");
                let token = one.operation("token").issue(key, LONG).await.unwrap();
                let submitted = other.operation("token").token(&token, key).run(body).await;
                assert_eq!(submitted.unwrap().into_inner(), 5, "{name}");
            }
        }
    };
}
runs_each_body_once!(runs_each_body_once, MySqlPool, MySqlStore);
runs_each_body_once!(runs_each_body_of_postgres_once, PgPool, PostgresStore);

/// Renews leases, and deletes rows that have expired.
async fn renews_and_sweeps(set: &str, store: &MySqlStore, pool: &MySqlPool) {
    let mut leases = Vec::new();
    for key in ["a", "b"] {
        let claim = Claim::new(id(key), Owner::generate(), LONG, LONG * 2);
        store.claim(&claim).await.unwrap();
        leases.push(Renewal::new(claim.id, claim.owner, LONG * 3));
    }
    for renewed in store.renew(&leases).await {
        assert_eq!(renewed.unwrap(), Ownership::Held, "{set}");
    }
    for lease in leases {
        let expire = "UPDATE idem_records SET expires_at = '2001-01-01', sweep_at = '2001-01-01' \
                      WHERE operation = 'orders' AND `key` = ?";
        sqlx::query(expire)
            .bind(lease.id.key())
            .execute(pool)
            .await
            .unwrap();
    }
    until("what has expired is swept", async || {
        store.sweep().await.unwrap();
        let left = "SELECT count(*) FROM idem_records WHERE operation = 'orders'";
        sqlx::query_scalar::<_, i64>(left)
            .fetch_one(pool)
            .await
            .unwrap()
            == 0
    })
    .await;
}

async fn listed(store: &impl AdminStore) -> Vec<String> {
    let page = store.list(&Listing::all().limit(100)).await.unwrap();
    let listed = page.records.iter();
    listed.map(|listed| listed.id.as_str().to_owned()).collect()
}

async fn a_key_is_one_whatever_a_session_speaks(url: &str) {
    let plain = mysql_at(url).await;
    for set in [
        "SET NAMES latin1",
        "SET NAMES cp1251",
        "SET NAMES gbk",
        "SET NAMES sjis",
        "SET NAMES utf8mb3",
        "SET NAMES utf8mb4 COLLATE utf8mb4_unicode_ci",
        "SET NAMES swe7",
        "SET NAMES binary",
        "SET character_set_client = latin1",
        "SET character_set_results = latin1",
        "SET collation_connection = ucs2_general_ci",
        "SET sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE')",
        "SET sql_mode = ''",
        "SET sql_safe_updates = 1",
        "SET time_zone = '+13:00'",
    ] {
        sqlx::raw_sql("DELETE FROM idem_records")
            .execute(&plain.0)
            .await
            .unwrap();
        let pool = with(url, set).await;
        let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
        store
            .migrate()
            .await
            .unwrap_or_else(|error| panic!("{set}: {error}"));
        let two = [(&pool, store.clone()), (&plain.0, plain.1.clone())];
        runs_each_body_once(set, two).await;
        renews_and_sweeps(set, &store, &plain.0).await;
        let all = listed(&plain.1).await;
        assert_eq!(all.len(), 5 * KEYS.len(), "{set}");
        assert_eq!(listed(&store).await, all, "{set}");
    }
    // The other way round, and by the settings of sqlx.
    for charset in ["latin1", "cp1251"] {
        sqlx::raw_sql("DELETE FROM idem_records")
            .execute(&plain.0)
            .await
            .unwrap();
        let options = url.parse::<MySqlConnectOptions>().unwrap().charset(charset);
        let pool = MySqlPool::connect_with(options).await.unwrap();
        let url = format!("{url}?charset={charset}");
        let own = connected(async || MySqlStore::connect(&url).await).await;
        runs_each_body_once(charset, [(&plain.0, plain.1.clone()), (&pool, own)]).await;
    }
}

/// Says why `migrate` and the first step are refused.
async fn is_refused(store: impl Fn() -> MySqlStore, because: &str) {
    let why = |error: StoreError| {
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(because), "{error}");
    };
    why(store().migrate().await.unwrap_err());
    let error = order(&Idempotency::new(store()), "k", 1).await.unwrap_err();
    assert!(
        error.to_string().contains(because) && !error.is_retryable(),
        "{error}"
    );
}

async fn what_would_change_the_statements_is_refused(url: &str) {
    let (pool, store) = mysql_at(url).await;
    let looked_at = runtime(store);
    for n in 0..9 {
        // After so many, a claim expects to find nothing.
        let claimed = looked_at.operation("begun").key(&n);
        let called = claimed.transaction(&pool, async |_| Ok::<_, Failed>(1));
        called.await.unwrap();
        order(&looked_at, &format!("{n}"), 1).await.unwrap();
    }
    for (set, because) in [
        ("SET autocommit = 0", "`autocommit`"),
        ("SET completion_type = CHAIN", "`completion_type`"),
        ("SET completion_type = 'RELEASE'", "`completion_type`"),
        ("SET sql_select_limit = 1", "`sql_select_limit`"),
        ("SET timestamp = 1700000000", "`timestamp`"),
        ("SET sql_mode = 'ORACLE'", "`sql_mode`"),
        ("SET sql_mode = 'EMPTY_STRING_IS_NULL'", "`sql_mode`"),
    ] {
        let server = "SELECT VERSION()";
        let server: String = sqlx::query_scalar(server).fetch_one(&pool).await.unwrap();
        // MySQL has none of these modes.
        if because == "`sql_mode`" && !server.contains("MariaDB") {
            continue;
        }
        let bad = with(url, set).await;
        is_refused(
            || MySqlStore::builder(bad.clone()).time_limit(LONG).build(),
            because,
        )
        .await;
        // The first is no matter in a transaction, and the other has no `BEGIN`.
        if ["SET autocommit = 0", "SET sql_mode = 'ORACLE'"].contains(&set) {
            continue;
        }
        // Where the transaction is what looks first.
        let called = Idempotency::new(MySqlStore::builder(bad.clone()).time_limit(LONG).build());
        let mut tx = bad.begin().await.unwrap();
        let called = called.operation("tx").key("k");
        let error = called.run_in(&mut tx, async |_| Ok::<_, Failed>(1)).await;
        let error = error.unwrap_err();
        assert!(error.to_string().contains(because), "{error}");
        // Where a store has looked at other connections; the last has been called.
        for (operation, key) in [("begun", set), ("new", set), ("begun", "0")] {
            let called = looked_at.operation(operation).key(key);
            let called = called.transaction(&bad, async |_| Err::<u32, _>(Failed::Down));
            let error = called.await.unwrap_err();
            assert!(error.to_string().contains(because), "{error}");
        }
        let mut tx = bad.begin().await.unwrap();
        let called = looked_at.operation("begun").key(set);
        let called = called.run_in(&mut tx, async |_| Err::<u32, _>(Failed::Down));
        let error = called.await.unwrap_err();
        assert!(error.to_string().contains(because), "{error}");
        drop(tx);
        let Begin::Execute(lease) = looked_at
            .operation("leased")
            .key(set)
            .begin()
            .await
            .unwrap()
        else {
            panic!("{set}: the key is taken")
        };
        let mut tx = bad.begin().await.unwrap();
        let error = lease.commit_in(&mut tx, &1).await.unwrap_err();
        assert!(error.to_string().contains(because), "{error}");
    }
}

/// The one connection of a pool gets a setting, and every connection that replaces it. So does the
/// connection of a transaction, between its claim and its commit.
async fn a_later_setting_is_refused_too(url: &str) {
    let (plain, looked_at) = mysql_at(url).await;
    let looked_at = runtime(looked_at);
    for (set, because) in [
        ("SET autocommit = 0", "`autocommit`"),
        ("SET completion_type = CHAIN", "`completion_type`"),
        ("SET sql_select_limit = 1", "`sql_select_limit`"),
        ("SET timestamp = 1700000000", "`timestamp`"),
        ("SET timestamp = 2000000000", "`timestamp`"),
    ] {
        let is_later = Arc::new(AtomicBool::new(false));
        let later = is_later.clone();
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .after_connect(move |on, _| {
                let is_later = later.load(Ordering::Relaxed);
                Box::pin(async move {
                    if is_later {
                        on.execute(sqlx::raw_sql(set)).await?;
                    }
                    Ok(())
                })
            });
        let pool = pool.connect(url).await.unwrap();
        let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
        let idempotency = runtime(store.clone());
        order(&idempotency, "looked at", 1).await.unwrap();
        let held = Claim::new(id(set), Owner::generate(), LONG, LONG * 2);
        store.claim(&held).await.unwrap();
        is_later.store(true, Ordering::Relaxed);
        sqlx::raw_sql(set).execute(&pool).await.unwrap();
        let error = order(&idempotency, &format!("{set}, new"), 1)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(because), "{set}: {error}");
        let refused = |step: &str, error: StoreError| {
            assert!(
                error.to_string().contains(because),
                "{set}, {step}: {error}"
            );
        };
        let renewal = Renewal::new(held.id.clone(), held.owner, LONG * 2);
        let renewed = store.renew(&[renewal]).await.remove(0);
        refused("renewal", renewed.unwrap_err());
        refused("sweep", store.sweep().await.unwrap_err());
        refused("read", store.inspect(&held.id).await.unwrap_err());
        refused("read", store.inspect(&id("nothing")).await.unwrap_err());
        refused("removal", store.remove(&held.id).await.unwrap_err());
        let all = store.list(&Listing::all()).await;
        refused("list", all.unwrap_err());
        // A commit counts from the lease if the session is in the past.
        let commit = Commit::new(held.id.clone(), held.owner, 1, None, LONG);
        match store.commit(&commit).await {
            Err(error) => refused("commit", error),
            Ok(held) => assert_eq!((set, held), ("SET timestamp = 1700000000", Ownership::Held)),
        }
        // A transaction that commits by itself whatever `autocommit` is.
        if because == "`autocommit`" {
            continue;
        }
        let application = MySqlPool::connect(url).await.unwrap();
        for outcome in ["", &"large".repeat(10_000)] {
            let key = format!("{set}, {}", outcome.len());
            let mut tx = application.begin().await.unwrap();
            let call = looked_at.operation("tx").key(&key);
            let called = call.run_in(&mut tx, async |tx| {
                sqlx::raw_sql(set).execute(&mut **tx).await?;
                Ok::<_, Failed>(outcome.to_owned())
            });
            let error = called.await.unwrap_err();
            assert!(error.to_string().contains(because), "{set}: {error}");
            tx.rollback().await.unwrap();
        }
    }
    let all = "SELECT count(*) FROM idem_records WHERE operation = 'orders'";
    let all: i64 = sqlx::query_scalar(all).fetch_one(&plain).await.unwrap();
    assert_eq!(all, 1 + 5);
}

/// The connection that records the outcome would find another table by the name.
macro_rules! records_where_it_has_claimed {
    ($name:ident, $Pool:ident, $PoolOptions:ident, $Store:ident, $elsewhere:literal) => {
        async fn $name(plain: &$Pool, create: &'static str) {
            sqlx::raw_sql(create).execute(plain).await.unwrap();
            let elsewhere = $Store::builder(plain.clone()).table("elsewhere.idem_records");
            elsewhere.time_limit(LONG).build().migrate().await.unwrap();
            let options = (*plain.connect_options()).clone();
            let pool = $PoolOptions::new().max_connections(1);
            let pool = pool.connect_with(options).await.unwrap();
            let idempotency = runtime($Store::builder(pool.clone()).time_limit(LONG).build());
            for key in ["a", "b"] {
                let bodies = AtomicU32::new(0);
                for _ in 0..2 {
                    let body = async || {
                        sqlx::raw_sql($elsewhere).execute(&pool).await?;
                        Ok::<u32, Failed>(bodies.fetch_add(1, Ordering::Relaxed))
                    };
                    let called = idempotency.operation("moved").key(key).run(body).await;
                    assert_eq!(called.unwrap().into_inner(), 0);
                }
                let operation = || idempotency.operation("leased").key(key);
                let Begin::Execute(lease) = operation().begin().await.unwrap() else {
                    panic!("{key} is taken")
                };
                let mut tx = pool.begin().await.unwrap();
                lease.commit_in(&mut tx, &7).await.unwrap();
                tx.commit().await.unwrap();
                let looked = operation().lookup::<u32>().await.unwrap();
                assert!(matches!(looked, Lookup::Outcome(7)), "{looked:?}");
            }
        }
    };
}
records_where_it_has_claimed!(
    postgres_records_where_it_has_claimed,
    PgPool,
    PgPoolOptions,
    PostgresStore,
    "SET search_path = elsewhere"
);
records_where_it_has_claimed!(
    mysql_records_where_it_has_claimed,
    MySqlPool,
    MySqlPoolOptions,
    MySqlStore,
    "USE elsewhere"
);

async fn a_store_records_where_it_has_claimed(url: &str) {
    let (plain, _) = mysql_at(url).await;
    let create = "CREATE DATABASE IF NOT EXISTS elsewhere";
    mysql_records_where_it_has_claimed(&plain, create).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_postgres_records_where_it_has_claimed() {
    let (plain, _) = postgres_at(&PostgresServer::empty().await.url()).await;
    postgres_records_where_it_has_claimed(&plain, "CREATE SCHEMA elsewhere").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_postgres_that_cannot_store_each_key_is_refused() {
    let server = PostgresServer::shared().await.unwrap();
    let create = "CREATE DATABASE in_latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    PostgresServer::execute_at(&server.url(), create).await;
    let (host, _) = server
        .url()
        .rsplit_once('/')
        .map(|(host, name)| (host.to_owned(), name.to_owned()))
        .unwrap();
    let latin1 = format!("{host}/in_latin1");
    let says_so = |error: StoreError| {
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("ENCODING 'UTF8'"), "{error}");
    };
    says_so(PostgresStore::connect(&latin1).await.unwrap_err());
    let pool = PgPoolOptions::new().connect(&latin1).await.unwrap();
    let of_pool = || {
        PostgresStore::builder(pool.clone())
            .time_limit(LONG)
            .build()
    };
    says_so(of_pool().migrate().await.unwrap_err());
    // As a team does that runs its own migrations: the first step may be any.
    let create = sqlx::AssertSqlSafe(PostgresStore::SCHEMA);
    sqlx::raw_sql(create).execute(&pool).await.unwrap();
    says_so(of_pool().inspect(&id("k")).await.unwrap_err());
    let refused = |error: Failed| match error {
        Failed::Idem(Error::Store { source, .. }) => says_so(source),
        error => panic!("{error}"),
    };
    for key in ["plain", "é", "Ключ"] {
        let body = async || -> Result<u32, Failed> { panic!("{key}: the body ran") };
        let idempotency = || runtime(of_pool());
        let called = idempotency().operation("orders").key(key).run(body).await;
        refused(called.unwrap_err());
        let called = idempotency();
        let called = called.operation("orders").key(key);
        let called = called.transaction(&pool, async |_| body().await).await;
        refused(called.unwrap_err());
        let mut tx = pool.begin().await.unwrap();
        let called = idempotency();
        let called = called.operation("orders").key(key);
        let called = called.run_in(&mut tx, async |_| body().await).await;
        refused(called.unwrap_err());
    }
    pool.close().await;
    PostgresServer::execute_at(&server.url(), "DROP DATABASE in_latin1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_postgres_is_one_whatever_a_session_speaks() {
    let server = PostgresServer::empty().await;
    let store = server.store().await;
    let plain = PgPool::connect(&server.url()).await.unwrap();
    for set in [
        "SET client_encoding = 'LATIN1'",
        "SET client_encoding = 'WIN1251'",
        "SET client_encoding = 'SJIS'",
        "SET client_encoding = 'SQL_ASCII'",
    ] {
        let options = PgPoolOptions::new().max_connections(4);
        let options = options.after_connect(move |on, _| {
            Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
        });
        let pool = options.connect(&server.url()).await.unwrap();
        // Its own connections, and those of the application with its own store.
        for other in [
            store.clone(),
            PostgresStore::builder(pool.clone())
                .time_limit(LONG)
                .build(),
        ] {
            let truncate = "TRUNCATE idem_records";
            sqlx::raw_sql(truncate).execute(&plain).await.unwrap();
            let two = [(&pool, other.clone()), (&plain, store.clone())];
            runs_each_body_of_postgres_once(set, two).await;
            let all = listed(&store).await;
            assert_eq!(all.len(), 5 * KEYS.len(), "{set}");
            assert_eq!(listed(&other).await, all, "{set}");
        }
    }
}
