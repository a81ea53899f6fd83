//! Every step under every setting of a session. A connection gets it before the step, or all
//! connections have it: the step does the same as without it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use idem_core::Store as _;
use idem_core::store::admin::{Counts, Intervened, Intervention, Listing};
use idem_core::store::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Owner, Ownership, RecordState, Release,
    ReleaseTo, Removed, Renewal,
};
use idem_core::store::{AdminStore, CodecId};
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::PostgresServer;

use crate::failed::Failed;
use crate::pools::{mysql_at, over_both_servers, postgres_at};
use crate::server::Server as _;
use crate::{LONG, id, own, runtime};

/// Nothing expires meanwhile.
const HOUR: Duration = Duration::from_secs(3600);

/// What differs from what is expected.
type Differs = Result<(), String>;

#[allow(clippy::needless_pass_by_value, reason = "most are made in the call")]
fn same<T: PartialEq + Debug>(step: &str, is: T, expected: T) -> Differs {
    if is == expected {
        return Ok(());
    }
    Err(format!("{step}: {is:?}, not {expected:?}"))
}

fn failed(step: &'static str) -> impl Fn(idem_core::StoreError) -> String {
    move |error| format!("{step}: {error}")
}

fn commit_of(claim: &Claim) -> Commit {
    let outcome = Encoded::new(CodecId::JSON, Bytes::from_static(b"7"));
    Commit::new(claim.id.clone(), claim.owner, 1, Some(outcome), HOUR)
}

/// Makes each step of a store, and a call whose body comes between its claim and its commit. `set`
/// comes before each of them. Another store looks at what they have done.
#[allow(clippy::too_many_lines, reason = "one step after the other")]
async fn steps<S: AdminStore + Clone>(
    name: &str,
    store: &S,
    other: &S,
    set: impl AsyncFn(),
) -> Differs {
    let bodies = AtomicU32::new(0);
    let body = async || {
        set().await;
        Ok::<u32, Failed>(bodies.fetch_add(1, Ordering::Relaxed))
    };
    for store in [store, other, store] {
        let idempotency = runtime(store.clone());
        let called = idempotency.operation("set").key(name).run(body);
        let called = called.await.map_err(|error| format!("a call: {error}"))?;
        same("a call", called.into_inner(), 0)?;
    }

    let claim_of = |key: &str| {
        let id = id(&format!("{name}, {key}"));
        Claim::new(id, Owner::generate(), HOUR, HOUR * 2)
    };
    let state = async |claim: &Claim| {
        let found = other.inspect(&claim.id).await;
        let found = found.map_err(failed("another store"))?;
        Ok::<_, String>(found.map(|found| found.state))
    };
    let [committed, released, settled] = ["committed", "released", "settled"].map(claim_of);
    for claim in [&committed, &released, &settled] {
        set().await;
        let claimed = store.claim(claim).await.map_err(failed("claim"))?;
        let is_owned = matches!(claimed, Claimed::Owned { attempt: 1, .. });
        same("claim", is_owned, true)?;
        same("claim", state(claim).await?, Some(RecordState::InFlight))?;
    }
    set().await;
    let renewals =
        [&committed, &released].map(|claim| Renewal::new(claim.id.clone(), claim.owner, HOUR * 3));
    for renewed in store.renew(&renewals).await {
        same(
            "renewal",
            renewed.map_err(failed("renewal"))?,
            Ownership::Held,
        )?;
    }
    for claim in [&committed, &released] {
        let found = other
            .inspect(&claim.id)
            .await
            .map_err(failed("another store"))?;
        let left = found.map(|found| found.expires_in);
        same("renewal", left > Some(HOUR * 2), true)?;
    }
    set().await;
    let held = store.commit(&commit_of(&committed)).await;
    same("commit", held.map_err(failed("commit"))?, Ownership::Held)?;
    same(
        "commit",
        state(&committed).await?,
        Some(RecordState::Committed),
    )?;
    set().await;
    let to = ReleaseTo::Released { keep: HOUR };
    let release = Release::new(released.id.clone(), released.owner, to);
    let held = store.release(&release).await;
    same("release", held.map_err(failed("release"))?, Ownership::Held)?;
    same(
        "release",
        state(&released).await?,
        Some(RecordState::Released),
    )?;
    set().await;
    let outcome = Encoded::new(CodecId::JSON, Bytes::from_static(b"7"));
    let settle = Intervention::settle(settled.id.clone(), outcome).force(true);
    let done = store.intervene(&settle).await.map_err(failed("settling"))?;
    same("settling", done, Intervened::Done { attempt: 1 })?;
    same(
        "settling",
        state(&settled).await?,
        Some(RecordState::Committed),
    )?;
    set().await;
    let issue = Issue::new(claim_of("issued").id, HOUR);
    for issued in store.issue(&[issue]).await {
        same("issue", issued.map_err(failed("issue"))?, Issued::Issued)?;
    }

    // What another store reads, this one reads too.
    for claim in [&committed, &released, &settled] {
        set().await;
        let found = store.inspect(&claim.id).await.map_err(failed("read"))?;
        same("read", found.map(|found| found.state), state(claim).await?)?;
    }
    for listing in [
        Listing::all(),
        Listing::all().state(RecordState::Committed),
        Listing::all().operation("orders"),
        Listing::all().operation("orders").key("SET*"),
    ] {
        let of = async |store: &S| {
            let page = store.list(&listing).await.map_err(failed("list"))?;
            let records = page.records.iter();
            let mut listed: Vec<_> = records
                .map(|listed| listed.id.as_str().to_owned())
                .collect();
            listed.sort();
            Ok::<_, String>(listed)
        };
        set().await;
        let listed = of(store).await?;
        same("list", listed, of(other).await?)?;
    }
    set().await;
    let counts = |counts: Option<Counts>| {
        let counts = counts.unwrap().counts.into_iter();
        counts.map(|count| count.records).sum::<u64>()
    };
    let counted = store.count(None).await.map_err(failed("count"))?;
    let expected = other.count(None).await.map_err(failed("count"))?;
    same("count", counts(counted), counts(expected))?;

    // A duplicate, and the removal.
    set().await;
    let duplicate = committed.clone().with_owner(Owner::generate());
    let claimed = store.claim(&duplicate).await.map_err(failed("duplicate"))?;
    same(
        "duplicate",
        matches!(claimed, Claimed::Committed { .. }),
        true,
    )?;
    set().await;
    let removed = store
        .remove(&committed.id)
        .await
        .map_err(failed("removal"))?;
    same("removal", removed, Removed::Removed)?;
    same("removal", state(&committed).await?, None)
}

/// Makes the steps under each of these settings: on one connection that gets it before each step,
/// and where `everywhere`, on connections that have it from the beginning.
macro_rules! under_each {
    ($Store:ident, $Options:ident, $connect:expr, $other:expr, $everywhere:expr, $sets:expr) => {{
        let mut differ = Vec::new();
        let everywhere: bool = $everywhere;
        for set in $sets {
            let connect = $connect;
            let one = $Options::new().max_connections(1);
            let one = connect(one).await;
            let store = $Store::builder(one.clone()).time_limit(LONG).build();
            let later = steps(set, &store, $other, async || {
                one.execute(sqlx::raw_sql(set)).await.unwrap();
            });
            differ.extend(later.await.err().map(|why| format!("{set}, later: {why}")));
            if !everywhere {
                continue;
            }
            let all = $Options::new()
                .max_connections(4)
                .after_connect(move |on, _| {
                    Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
                });
            let store = $Store::builder(connect(all).await).time_limit(LONG).build();
            let name = format!("{set}, everywhere");
            let from_the_beginning = steps(&name, &store, $other, async || {}).await;
            differ.extend(from_the_beginning.err().map(|why| format!("{name}: {why}")));
        }
        assert!(differ.is_empty(), "{differ:#?}");
    }};
}

over_both_servers! {
    a_setting_that_means_nothing_changes_no_step;
}

async fn a_setting_that_means_nothing_changes_no_step(url: &str) {
    let (_, other) = mysql_at(url).await;
    under_each!(
        MySqlStore,
        MySqlPoolOptions,
        async |options: MySqlPoolOptions| options.connect(url).await.unwrap(),
        &other,
        true,
        [
            "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "SET NAMES latin1",
            "SET time_zone = '-11:00'",
            "SET sql_mode = 'ANSI,STRICT_ALL_TABLES,NO_ZERO_DATE,HIGH_NOT_PRECEDENCE'",
            "SET sql_mode = ''",
            "SET /*M! sql_mode = CONCAT(@@sql_mode, ',SIMULTANEOUS_ASSIGNMENT'), */ @idem_a = 1",
            "SET sql_safe_updates = 1, max_join_size = 1000000",
            "SET sql_auto_is_null = 1",
            "SET foreign_key_checks = 0, unique_checks = 0",
            "SET div_precision_increment = 0",
            "SET lc_time_names = 'de_DE'",
            "SET innodb_lock_wait_timeout = 1",
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_of_postgres_that_means_nothing_changes_no_step() {
    let url = PostgresServer::empty().await.url();
    let (plain, other) = postgres_at(&url).await;
    let create = "CREATE SCHEMA elsewhere";
    plain.execute(sqlx::raw_sql(create)).await.unwrap();
    under_each!(
        PostgresStore,
        PgPoolOptions,
        async |options: PgPoolOptions| options.connect(&url).await.unwrap(),
        &other,
        true,
        [
            "SET client_encoding = 'LATIN1'",
            "SET DateStyle = 'SQL, DMY'",
            "SET IntervalStyle = 'sql_standard'",
            "SET TimeZone = 'Pacific/Auckland'",
            "SET standard_conforming_strings = off",
            "SET bytea_output = 'escape'",
            "SET default_transaction_isolation = 'read uncommitted'",
            "SET default_transaction_isolation = 'repeatable read'",
            "SET default_transaction_isolation = 'serializable'",
            "SET default_transaction_deferrable = on",
            "SET row_security = off",
            "SET statement_timeout = '20s'",
            "SET lock_timeout = '1ms'",
            "SET idle_in_transaction_session_timeout = '1ms'",
            "SET extra_float_digits = -15",
            "SET plan_cache_mode = force_generic_plan",
            "SET plan_cache_mode = force_custom_plan",
            "SET transform_null_equals = on",
            "SET array_nulls = off",
            "SET session_replication_role = replica",
            "SET synchronous_commit = off",
            "SET enable_indexscan = off; SET enable_bitmapscan = off",
            "SET xmloption = document",
        ]
    );
    under_each!(
        PostgresStore,
        PgPoolOptions,
        async |options: PgPoolOptions| options.connect(&url).await.unwrap(),
        &other,
        false,
        [
            "SET default_transaction_read_only = on",
            "SET search_path = elsewhere",
            "SET ROLE pg_monitor",
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pragma_that_means_nothing_changes_no_step() {
    for mode in [SqliteJournalMode::Delete, SqliteJournalMode::Wal] {
        let (options, other) = file(mode).await;
        under_each!(
            SqliteStore,
            SqlitePoolOptions,
            async |pool: SqlitePoolOptions| pool.connect_with(options.clone()).await.unwrap(),
            &other,
            true,
            [
                "PRAGMA encoding = 'UTF-16'",
                "PRAGMA case_sensitive_like = on",
                "PRAGMA recursive_triggers = on",
                "PRAGMA reverse_unordered_selects = on",
                "PRAGMA read_uncommitted = on",
                "PRAGMA foreign_keys = off",
                "PRAGMA defer_foreign_keys = on",
                "PRAGMA ignore_check_constraints = on",
                "PRAGMA synchronous = off",
                "PRAGMA busy_timeout = 10000",
                "PRAGMA legacy_alter_table = on",
                "PRAGMA writable_schema = on",
                "PRAGMA short_column_names = off; PRAGMA full_column_names = on",
                "PRAGMA empty_result_callbacks = on",
                "PRAGMA cell_size_check = on",
                "PRAGMA trusted_schema = off",
                "PRAGMA secure_delete = on",
                "PRAGMA auto_vacuum = full",
                "PRAGMA temp_store = memory",
                "PRAGMA automatic_index = off",
            ]
        );
    }
    let (options, other) = file(SqliteJournalMode::Delete).await;
    under_each!(
        SqliteStore,
        SqlitePoolOptions,
        async |pool: SqlitePoolOptions| pool.connect_with(options.clone()).await.unwrap(),
        &other,
        true,
        [
            "PRAGMA journal_mode = truncate",
            "PRAGMA journal_mode = memory",
            "PRAGMA journal_mode = off",
        ]
    );
}

/// A store on a new file, and how to open it.
async fn file(mode: SqliteJournalMode) -> (SqliteConnectOptions, SqliteStore) {
    let options = SqliteConnectOptions::new()
        .filename(own::folder().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(mode)
        .busy_timeout(LONG);
    let pool = SqlitePoolOptions::new().connect_with(options.clone());
    let store = SqliteStore::builder(pool.await.unwrap()).time_limit(LONG);
    let store = store.build();
    crate::connected(async || store.migrate().await).await;
    (options, store)
}

/// Nobody else reads the file then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_locks_its_file_for_good_changes_no_step() {
    for mode in [SqliteJournalMode::Delete, SqliteJournalMode::Wal] {
        let options = SqliteConnectOptions::new()
            .filename(own::folder().join("shop.db"))
            .create_if_missing(true)
            .journal_mode(mode);
        let pool = SqlitePoolOptions::new().max_connections(1);
        let pool = pool.connect_with(options).await.unwrap();
        let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
        crate::connected(async || store.migrate().await).await;
        let set = "PRAGMA locking_mode = exclusive";
        let all = steps(set, &store, &store, async || {
            pool.execute(sqlx::raw_sql(set)).await.unwrap();
        });
        assert_eq!(all.await, Ok(()), "{mode:?}");
    }
}

#[tokio::test]
async fn a_connection_that_only_reads_is_refused_where_a_step_writes() {
    let (options, other) = file(SqliteJournalMode::Wal).await;
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with(options).await.unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    let claim = Claim::new(id("k"), Owner::generate(), LONG, LONG);
    store.claim(&claim).await.unwrap();
    let set = async |set| {
        pool.execute(sqlx::raw_sql(set)).await.unwrap();
    };
    set("PRAGMA query_only = on").await;
    let error = store.commit(&commit_of(&claim)).await.unwrap_err();
    assert!(error.to_string().contains("`query_only`"), "{error}");
    let found = store.inspect(&claim.id).await.unwrap().unwrap();
    assert_eq!(found.state, RecordState::InFlight);
    set("PRAGMA query_only = off").await;
    let held = store.commit(&commit_of(&claim)).await;
    assert_eq!(held.unwrap(), Ownership::Held);
    let found = other.inspect(&claim.id).await.unwrap().unwrap();
    assert_eq!(found.state, RecordState::Committed);
}
