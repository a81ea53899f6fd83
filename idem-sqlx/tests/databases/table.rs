//! The table: how it comes about, and what it says to people.

use std::time::{Duration, Instant};

use idem_core::store::record::Removed;
use idem_core::{Error, RecordState, Store as _};
use idem_sqlx::sqlx;
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::{PgConnectOptions, PgPool};
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};
use tokio::sync::Notify;

use crate::{LONG, Server as _, connected, id, order, over_both_servers, refused, runtime, until};

/// A store sweeps by itself after this time at the earliest.
const BACKGROUND: Duration = Duration::from_secs(5);
/// How long a key is remembered that a test waits for.
const REMEMBERED: Duration = Duration::from_secs(4);

over_both_servers! {
    async fn many_migrate_at_once_and_again<S: Server>() {
        let server = S::empty().await;
        let url = server.url();
        let migrations = (0..8).map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let store = S::store_at(&url).await;
                S::migrate(&store).await.unwrap();
            })
        });
        for migration in migrations.collect::<Vec<_>>() {
            migration.await.unwrap();
        }
        order(&runtime(server.store().await), "k", 1).await.unwrap();
    }

    async fn a_table_of_another_name_is_another_set_of_records<S: Server>() {
        let server = S::empty().await;
        let one = server.store().await;
        let two = server.with_table("shop_records").await;
        S::migrate(&two).await.unwrap();
        order(&runtime(one), "k", 1).await.unwrap();
        assert_eq!(order(&runtime(two), "k", 2).await.unwrap().into_inner(), 2);
    }

    async fn what_expired_is_swept_and_nothing_else<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        let idempotency = runtime(store.clone());
        let begun = Instant::now();
        let ms = Duration::from_millis;
        for (key, ttl, remember) in [
            ("short", ms(50), ms(50)),
            ("remembered", ms(50), ms(60_000)),
            ("long", ms(60_000), ms(60_000)),
        ] {
            let call = idempotency
                .operation("orders")
                .key(key)
                .ttl(ttl)
                .remember(remember);
            call.run(async || Ok::<_, idem_core::Error>(1))
                .await
                .unwrap();
        }
        let state = async |key: &str| {
            store
                .inspect(&id(key))
                .await
                .unwrap()
                .map(|info| info.state)
        };
        until("two have expired", async || {
            state("short").await.is_none() && state("remembered").await == Some(RecordState::Done)
        })
        .await;
        let mut swept = 0;
        until("two are swept", async || {
            swept += S::sweep(&store).await;
            let rows = server.number("SELECT count(*) FROM idem_records").await;
            let outcomes = "SELECT count(*) FROM idem_records WHERE outcome IS NOT NULL";
            (rows, server.number(outcomes).await) == (2, 1)
        })
        .await;
        assert!(swept >= 2 || begun.elapsed() > BACKGROUND, "{swept}");
        assert_eq!(S::sweep(&store).await, 0, "there was more");
        assert_eq!(state("remembered").await, Some(RecordState::Done));
        assert_eq!(state("long").await, Some(RecordState::Committed));
        // The row is gone, not only its meaning.
        assert_eq!(store.remove(&id("short")).await.unwrap(), Removed::Nothing);
    }

    /// `sweep_at` is late by an eighth of the time at most.
    async fn an_outcome_and_then_its_row_are_swept_soon_after_their_time<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        let begun = Instant::now();
        let call = runtime(store.clone())
            .operation("orders")
            .key("k")
            .ttl(Duration::from_millis(500))
            .remember(REMEMBERED);
        call.run(async || Ok::<_, idem_core::Error>(1))
            .await
            .unwrap();
        for (time, over, what, state) in [
            (500_i64, "valid_until", "outcome", Some(RecordState::Done)),
            (4_000, "expires_at", "*", None),
        ] {
            let late = if server.url().starts_with("mysql") {
                format!("TIMESTAMPDIFF(MICROSECOND, {over}, sweep_at) DIV 1000")
            } else {
                format!("(extract(epoch FROM sweep_at - {over}) * 1000)::bigint")
            };
            let late = server
                .number(&format!("SELECT COALESCE(MAX({late}), 0) FROM idem_records"))
                .await;
            assert!((0..=time / 8).contains(&late), "{over}: {late} ms");
            let mut swept = 0;
            until("it is swept", async || {
                swept += S::sweep(&store).await;
                let left = format!("SELECT count({what}) FROM idem_records");
                server.number(&left).await == 0
            })
            .await;
            assert!(swept == 1 || begun.elapsed() > BACKGROUND, "{over}: {swept}");
            let took = begun.elapsed().as_millis();
            assert!(took >= u128::from(time.unsigned_abs()), "{over}: {took} ms");
            let info = store.inspect(&id("k")).await.unwrap();
            let is_gone = info.is_none() && begun.elapsed() > REMEMBERED;
            assert!(is_gone || info.map(|info| info.state) == state, "{over}");
            if is_gone {
                // On a busy machine both times are over at once.
                break;
            }
        }
    }

    /// It has the default of the column `sweep_at`, as if it had been due for long.
    async fn a_row_that_was_inserted_by_hand_is_kept_and_looked_at_once<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        let key = if server.url().starts_with("mysql") {
            "`key`"
        } else {
            "key"
        };
        server
            .execute(&format!(
                "INSERT INTO idem_records (operation, {key}, state, attempt, valid_until,                  expires_at, codec, outcome, revision) VALUES                  ('orders', 'committed', 'committed', 1, '2099-01-01', '2099-01-02', 'j', '1', 1),                  ('orders', 'done', 'done', 1, NULL, '2099-01-02', NULL, NULL, 2),                  ('orders', 'expired', 'done', 1, NULL, '2001-01-02', NULL, NULL, 2)"
            ))
            .await;
        assert_eq!(S::sweep(&store).await, 3);
        assert_eq!(S::sweep(&store).await, 0, "rows are looked at again");
        for (key, state) in [
            ("committed", Some(RecordState::Committed)),
            ("done", Some(RecordState::Done)),
            ("expired", None),
        ] {
            let info = store.inspect(&id(key)).await.unwrap();
            assert_eq!(info.map(|info| info.state), state);
        }
        let replay = order(&runtime(store), "committed", 2).await.unwrap();
        assert!(replay.is_replayed(), "the outcome is gone");
    }

    /// More of them than a batch has are due before those that have expired.
    async fn rows_that_have_not_expired_do_not_stop_a_sweep<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        let recursive = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < \
            900) SELECT i FROM n";
        let key = if server.url().starts_with("mysql") {
            "`key`"
        } else {
            "key"
        };
        for (rows, expires_at, sweep_at) in [
            ("i <= 800", "2099-01-01", "2001-01-02"),
            ("i > 800", "2001-01-01", "2001-01-03"),
        ] {
            server
                .execute(&format!(
                    "INSERT INTO idem_records (operation, {key}, state, attempt, expires_at, \
                     sweep_at, revision) SELECT 'orders', i, 'released', 1, '{expires_at}', \
                     '{sweep_at}', 1 FROM ({recursive}) AS n WHERE {rows}"
                ))
                .await;
        }
        assert_eq!(S::sweep(&store).await, 900);
        assert_eq!(S::sweep(&store).await, 0, "rows are looked at again");
        assert_eq!(store.remove(&id("801")).await.unwrap(), Removed::Nothing);
        assert!(store.inspect(&id("800")).await.unwrap().is_some());
    }

    async fn more_than_one_batch_is_swept<S: Server>() {
        let server = S::empty().await;
        let store = server.store().await;
        // By a store that is gone then, and sweeps nothing in the background.
        order(&runtime(server.store().await), "k", 1).await.unwrap();
        let recursive = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < \
            900) SELECT i FROM n";
        let key = if server.url().starts_with("mysql") {
            "`key`"
        } else {
            "key"
        };
        server
            .execute(&format!(
                "INSERT INTO idem_records (operation, {key}, state, attempt, expires_at, revision) \
             SELECT 'old', i, 'released', 1, '2001-01-01', 1 FROM ({recursive}) AS n"
            ))
            .await;
        assert_eq!(S::sweep(&store).await, 900);
        assert!(store.inspect(&id("k")).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_marked_as_another_version_is_refused() {
    let server = PostgresServer::empty().await;
    server.store().await;
    server
        .execute("COMMENT ON TABLE idem_records IS 'idem schema 2'")
        .await;
    let connect = async || idem_sqlx::PostgresStore::connect(server.url()).await;
    let store = connected(connect).await;
    let error = refused(&store).await;
    let said = error.to_string();
    // It would create a table where there is none.
    assert!(
        said.contains("idem schema 2") && !said.contains("migrate"),
        "{said}"
    );
    assert!(store.migrate().await.is_err());

    let server = MariaDbServer::empty().await;
    server.store().await;
    server
        .execute("ALTER TABLE idem_records COMMENT = 'idem schema 2'")
        .await;
    let connect = async || idem_sqlx::MySqlStore::connect(server.url()).await;
    let store = connected(connect).await;
    let error = refused(&store).await;
    let said = error.to_string();
    // It would create a table where there is none.
    assert!(
        said.contains("idem schema 2") && !said.contains("migrate"),
        "{said}"
    );
}

/// In a transaction, the table is looked at before the first claim.
macro_rules! refused_in_a_transaction {
    ($url:expr, $Pool:ty, $Store:ty, $mark:expr) => {
        let pool = <$Pool>::connect($url).await.unwrap();
        crate::connected(async || <$Store>::new(pool.clone()).migrate().await).await;
        for statement in $mark {
            sqlx::raw_sql(statement).execute(&pool).await.unwrap();
        }
        let builder = <$Store>::builder(pool.clone());
        let idempotency = runtime(builder.time_limit(crate::LONG).build());
        let operation = || idempotency.operation("orders").key("k");
        let refused = operation()
            .transaction(&pool, async |_| Ok::<u32, Error>(1))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("idem schema 2"), "{refused}");
        let mut tx = pool.begin().await.unwrap();
        let refused = operation()
            .run_in(&mut tx, async |_| Ok::<u32, Error>(1))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("idem schema 2"), "{refused}");
        // The transaction goes on.
        let rows = sqlx::raw_sql("SELECT * FROM idem_records")
            .fetch_all(&mut *tx)
            .await
            .unwrap();
        assert_eq!(rows.len(), 0);
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_marked_as_another_version_is_refused_in_a_transaction() {
    let postgres = PostgresServer::empty().await;
    let mark = ["COMMENT ON TABLE idem_records IS 'idem schema 2'"];
    refused_in_a_transaction!(&postgres.url(), PgPool, idem_sqlx::PostgresStore, mark);

    let mariadb = MariaDbServer::empty().await;
    let mark = ["ALTER TABLE idem_records COMMENT = 'idem schema 2'"];
    refused_in_a_transaction!(&mariadb.url(), MySqlPool, idem_sqlx::MySqlStore, mark);

    let dir = crate::own::temporary();
    let url = format!("sqlite://{}/shop.db?mode=rwc", dir.path().display());
    let mark = [
        "DROP TABLE idem_records",
        "CREATE TABLE idem_records ( -- idem schema 2\n operation TEXT)",
    ];
    refused_in_a_transaction!(&url, SqlitePool, idem_sqlx::SqliteStore, mark);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_real_mysql_marked_as_another_version_is_refused_in_a_transaction() {
    let mysql = MySqlServer::empty().await;
    let mark = ["ALTER TABLE idem_records COMMENT = 'idem schema 2'"];
    refused_in_a_transaction!(&mysql.url(), MySqlPool, idem_sqlx::MySqlStore, mark);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_in_a_schema_of_postgres() {
    let server = PostgresServer::empty().await;
    server.execute("CREATE SCHEMA shop").await;
    let store = server.with_table("shop.idem_records").await;
    crate::connected(async || store.migrate().await).await;
    order(&runtime(store), "k", 1).await.unwrap();
    // The statements that teams run themselves.
    server.execute(idem_sqlx::PostgresStore::SCHEMA).await;
    let usual = server.with_table("idem_records").await;
    order(&runtime(usual), "k", 2).await.unwrap();
}

/// Rows of several partitions have the same place in their partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_in_partitions_is_swept_of_what_expired_and_of_nothing_else() {
    let server = PostgresServer::empty().await;
    let store = server.store().await;
    server
        .execute(
            "ALTER TABLE idem_records RENAME TO whole; \
         CREATE TABLE idem_records (LIKE whole INCLUDING DEFAULTS, PRIMARY KEY (operation, key)) \
         PARTITION BY HASH (operation, key); \
         COMMENT ON TABLE idem_records IS 'idem schema 1'; \
         CREATE TABLE part_0 PARTITION OF idem_records FOR VALUES WITH (MODULUS 3, REMAINDER 0); \
         CREATE TABLE part_1 PARTITION OF idem_records FOR VALUES WITH (MODULUS 3, REMAINDER 1); \
         CREATE TABLE part_2 PARTITION OF idem_records FOR VALUES WITH (MODULUS 3, REMAINDER 2)",
        )
        .await;
    let idempotency = runtime(store.clone());
    for number in 0..60 {
        let key = number.to_string();
        let lives = number % 2 == 0;
        let kept = Duration::from_millis(if lives { 60_000 } else { 1 });
        let call = idempotency
            .operation("orders")
            .key(&key)
            .ttl(kept)
            .remember(Duration::from_secs(60));
        call.run(async || Ok::<_, idem_core::Error>(number))
            .await
            .unwrap();
    }
    let old = "INSERT INTO idem_records (operation, key, state, attempt, expires_at, revision) \
               SELECT 'old', i, 'released', 1, '2001-01-01', 1 FROM generate_series(1, 60) AS n \
               (i)";
    server.execute(old).await;
    store.sweep().await.unwrap();
    assert_eq!(store.sweep().await.unwrap(), 0, "there was more");
    for number in 0..60 {
        let state = store
            .inspect(&id(&number.to_string()))
            .await
            .unwrap()
            .unwrap()
            .state;
        let expected = if number % 2 == 0 {
            RecordState::Committed
        } else {
            RecordState::Done
        };
        assert_eq!(state, expected, "{number}");
    }
    assert!(order(&idempotency, "0", 99).await.unwrap().is_replayed());
}

/// An index of times is small in the planner's eyes where the statistics are old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_finds_its_row_by_its_key_however_many_are_in_flight() {
    // The sweep in the background uses another index, after five seconds at the earliest.
    until("it is seen before a sweep", async || {
        Box::pin(finds_rows_by_their_keys()).await
    })
    .await;
}

/// Returns whether it was seen before a sweep.
async fn finds_rows_by_their_keys() -> bool {
    let server = PostgresServer::empty().await;
    server.store().await;
    // The statistics stay those of an empty table.
    let in_flight = "ALTER TABLE idem_records SET (autovacuum_enabled = off); \
         INSERT INTO idem_records (operation, key, state, attempt, owner, leased_at, lease_until, \
         expires_at, revision) \
         SELECT 'orders', 'other-' || i, 'in_flight', 1, '\\x01', now(), now() + interval '1 \
         hour', now() + interval '1 day', i \
         FROM generate_series(1, 2000) AS n (i)";
    server.execute(in_flight).await;
    let looking = PgPool::connect(&server.url()).await.unwrap();
    let options: PgConnectOptions = server.url().parse().unwrap();
    let pool = PgPool::connect_with(options.application_name("steps"))
        .await
        .unwrap();
    let begun = Instant::now();
    let idempotency = runtime(
        idem_sqlx::PostgresStore::builder(pool.clone())
            .time_limit(LONG)
            .build(),
    );
    let elsewhere = runtime(
        idem_sqlx::PostgresStore::builder(pool.clone())
            .time_limit(LONG)
            .build(),
    );

    let row = async || -> (i64, bool) {
        let select =
            "SELECT revision, waited FROM idem_records WHERE operation = 'orders' AND key = 'k'";
        sqlx::query_as(select).fetch_one(&looking).await.unwrap()
    };
    let runs = Notify::new();
    let first = idempotency
        .operation("orders")
        .key("k")
        .lease(Duration::from_secs(3))
        .run(async || {
            let claimed = row().await;
            runs.notify_one();
            until("the lease is renewed, and a duplicate waits", async || {
                let now = row().await;
                now.0 != claimed.0 && now.1
            })
            .await;
            Ok::<_, idem_core::Error>(1)
        });
    let duplicate = async {
        runs.notified().await;
        elsewhere
            .operation("orders")
            .key("k")
            .wait(LONG)
            .run(async || Ok::<_, idem_core::Error>(2))
            .await
    };
    let (first, duplicate) = tokio::join!(first, duplicate);
    if matches!(first, Err(idem_core::Error::LeaseLost { .. })) {
        // The machine was too busy to renew it in time.
        return false;
    }
    assert_eq!(
        (first.unwrap().into_inner(), duplicate.unwrap().into_inner()),
        (1, 1)
    );
    let released = idempotency
        .operation("orders")
        .key("l")
        .run(async || Err::<i64, _>("no".into()));
    let _: Box<dyn std::error::Error + Send + Sync> = released.await.unwrap_err();

    // A connection that ends reports what it did. That of the messages ends with its store.
    drop((idempotency, elsewhere));
    if begun.elapsed() > BACKGROUND {
        return false;
    }
    pool.close().await;
    until("the connections have ended", async || {
        let select = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'steps'";
        sqlx::query_scalar::<_, i64>(select)
            .fetch_one(&looking)
            .await
            .unwrap()
            == 0
    })
    .await;
    let select = "SELECT indexrelname::text FROM pg_stat_user_indexes WHERE relname = \
        'idem_records' AND idx_scan > 0";
    until("the steps are counted", async || {
        let used: Vec<String> = sqlx::query_scalar(select)
            .fetch_all(&looking)
            .await
            .unwrap();
        used == ["idem_records_pkey"]
    })
    .await;
    true
}

/// No column with an index changes, so the indexes get no further entries. A row that does not fit
/// on its page any more is the exception.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_updates_a_row_in_place_when_a_call_is_committed() {
    const CALLS: u32 = 200;
    // Transactions in other databases of a server keep its dead rows.
    let server = PostgresServer::start().await.unwrap();
    let idempotency = runtime(server.store().await);
    for number in 0..CALLS {
        order(&idempotency, &number.to_string(), number)
            .await
            .unwrap();
    }
    drop(idempotency);
    let looking = PgPool::connect(&server.url()).await.unwrap();
    let select = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = \
        'idem_records'";
    let mut updates = (0, 0);
    until("the commits are counted", async || {
        updates = sqlx::query_as::<_, (i64, i64)>(select)
            .fetch_one(&looking)
            .await
            .unwrap();
        updates.0 >= i64::from(CALLS)
    })
    .await;
    assert!(updates.1 * 10 >= updates.0 * 9, "{updates:?}");
}

/// After a long outage all records have expired, and the statistics are from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_a_sweep_reads_its_own_rows_however_many_have_expired() {
    const ROWS: i64 = 5_000;
    // Transactions in other databases of a server keep its dead rows.
    let server = PostgresServer::start().await.unwrap();
    server.store().await;
    let rows = format!(
        "ALTER TABLE idem_records SET (autovacuum_enabled = off); \
         INSERT INTO idem_records (operation, key, state, attempt, valid_until, expires_at, \
         revision, sweep_at) \
         SELECT 'orders', i, CASE WHEN i % 2 = 0 THEN 'committed' ELSE 'done' END, 1, CASE WHEN i \
         % 2 = 0 THEN now() + interval '1 day' END, \
         now() + interval '2 days', i, now() + interval '3 days' FROM generate_series(1, {ROWS}) AS n (i); \
         ANALYZE idem_records"
    );
    server.execute(&rows).await;
    let looking = PgPool::connect(&server.url()).await.unwrap();
    let read = async || -> i64 {
        let select = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = \
            'idem_records_sweep_at'";
        sqlx::query_scalar(select)
            .fetch_one(&looking)
            .await
            .unwrap()
    };
    for time in ["valid_until", "expires_at"] {
        server
            .execute(&format!(
                "UPDATE idem_records SET {time} = now(), sweep_at = now() WHERE {time} IS NOT NULL"
            ))
            .await;
        let before = read().await;
        let pool = PgPool::connect(&server.url()).await.unwrap();
        idem_sqlx::PostgresStore::builder(pool.clone())
            .time_limit(LONG)
            .build()
            .sweep()
            .await
            .unwrap();
        pool.close().await;
        until("the sweep is counted", async || {
            read().await - before >= ROWS / 2
        })
        .await;
        // A row that is gone may be read once more before its entry is marked.
        let all = read().await - before;
        assert!(all <= ROWS * 3, "{time}: {all}");
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM idem_records")
        .fetch_one(&looking)
        .await
        .unwrap();
    assert_eq!(left, 0);
}
