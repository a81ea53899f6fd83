//! Connections that the server has ended, and servers that take no statement just now: a step goes
//! on another connection, unnoticed.

use idem_core::store::record::{Claim, Owner, Ownership, Removed, Renewal};
use idem_core::{Error, Store as _};
use idem_sqlx::guard;
use idem_sqlx::sqlx;
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use crate::failed::Failed;
use crate::{LONG, Server, id, order, runtime, until};

/// How many connections are idle at once.
const CONNECTIONS: u32 = 4;

/// How the server comes to end its idle connections.
enum Ends {
    /// By itself, after this statement.
    InTime(&'static str),
    /// By this statement.
    Now(&'static str),
    Restart,
}

macro_rules! over {
    (
        $module:ident, $Server:ty, $Store:ident, $Pool:ident, $PoolOptions:ident,
        others: $others:literal, ends: $ends:expr,
        note: $note:literal, trigger: $trigger:expr, refusals: $refusals:expr,
        tries: $tries:expr, ends_of_tries: $ends_of_tries:expr
    ) => {
        mod $module {
            use super::*;

            async fn pool_of(server: &$Server, connections: u32) -> $Pool {
                let options = $PoolOptions::new()
                    .max_connections(connections)
                    .test_before_acquire(false);
                options.connect(&server.url()).await.unwrap()
            }

            /// Fills the pool with idle connections, and has the server end all of them.
            async fn end_all(server: &$Server, ends: &Ends, admin: &$Pool, pool: &$Pool) {
                let mut all = Vec::new();
                for _ in 0..CONNECTIONS {
                    all.push(pool.acquire().await.unwrap());
                }
                drop(all);
                let are_idle = async || {
                    until("they are idle", async || {
                        pool.num_idle() == CONNECTIONS as usize
                    })
                    .await;
                };
                match ends {
                    Ends::InTime(_) => {}
                    Ends::Now(statement) => {
                        are_idle().await;
                        sqlx::raw_sql(*statement).execute(admin).await.unwrap();
                    }
                    Ends::Restart => {
                        are_idle().await;
                        return server.restart().await.unwrap();
                    }
                }
                let left = async || {
                    sqlx::query_scalar::<_, i64>($others)
                        .fetch_one(admin)
                        .await
                        .unwrap()
                };
                until("the server has ended them", async || left().await == 0).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn calls_do_not_notice_that_the_server_ended_their_connections() {
                for ends in $ends {
                    let server = <$Server>::start().await.unwrap();
                    let admin = pool_of(&server, 1).await;
                    if let Ends::InTime(statement) = ends {
                        sqlx::raw_sql(statement).execute(&admin).await.unwrap();
                    }
                    let pool = pool_of(&server, CONNECTIONS).await;
                    let store = $Store::builder(pool.clone()).time_limit(LONG).build();
                    crate::connected(async || store.migrate().await).await;
                    let idempotency = runtime(store.clone());
                    let again = async || end_all(&server, &ends, &admin, &pool).await;
                    again().await;
                    assert!(!order(&idempotency, "k", 1).await.unwrap().is_replayed());
                    again().await;
                    assert!(order(&idempotency, "k", 2).await.unwrap().is_replayed());
                    again().await;
                    // The first step of a store looks at its table.
                    let fresh = runtime($Store::builder(pool.clone()).time_limit(LONG).build());
                    assert!(order(&fresh, "k", 3).await.unwrap().is_replayed());
                    again().await;
                    assert_eq!(store.remove(&id("k")).await.unwrap(), Removed::Removed);
                    let claim = Claim::new(id("renewed"), Owner::generate(), LONG, LONG);
                    store.claim(&claim).await.unwrap();
                    again().await;
                    let renewal = Renewal::new(claim.id, claim.owner, LONG);
                    let renewed = store.renew(&[renewal]).await;
                    assert!(matches!(renewed[..], [Ok(Ownership::Held)]), "{renewed:?}");
                    again().await;
                    let operation = idempotency.operation("orders").key("k");
                    let transaction = operation.transaction(&pool, async |_| Ok::<_, Failed>(4));
                    assert!(!transaction.await.unwrap().is_replayed());
                    // A connection that is kept between the steps, and whose turn comes again while
                    // the body runs.
                    let own = Server::store(&server).await;
                    let body = async || {
                        again().await;
                        Ok::<_, Error>(5)
                    };
                    let outcome = runtime(own).operation("orders").key("own").run(body).await;
                    assert_eq!(outcome.unwrap().into_inner(), 5);
                    admin.close().await;
                }
            }

            /// A trigger fails as such a server would, for all connections that there are.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_statement_that_the_server_refused_unread_is_sent_again() {
                let server = <$Server>::empty().await;
                let store = server.store().await;
                let idempotency = runtime(store.clone());
                server
                    .execute("CREATE TABLE refused (connection BIGINT)")
                    .await;
                for refusal in $refusals {
                    order(&idempotency, "warm", 1).await.unwrap();
                    server.execute($note).await;
                    for statement in $trigger {
                        server.execute(&statement.replace("REFUSAL", refusal)).await;
                    }
                    let outcome = order(&idempotency, refusal, 2).await;
                    assert!(
                        outcome.as_ref().is_ok_and(|outcome| !outcome.is_replayed()),
                        "{refusal}: {outcome:?}"
                    );
                }
            }

            /// A trigger fails each first try in one way, and the second one in another.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_claim_whose_answer_was_lost_is_unknown_whatever_its_next_try_says() {
                let server = <$Server>::empty().await;
                let store = server.store().await;
                for (first, then, is_unknown) in $ends_of_tries {
                    for statement in $tries {
                        let statement = statement.replace("FIRST", first).replace("THEN_", then);
                        server.execute(&statement).await;
                    }
                    let key = id(&format!("{first}, {then}"));
                    let claim = Claim::new(key, Owner::generate(), LONG, LONG);
                    let error = store.claim(&claim).await.unwrap_err();
                    assert_eq!(error.is_unknown(), is_unknown, "{first}, {then}: {error}");
                }
            }
        }
    };
}

/// Transactions of the application that write nothing by its own doing: its connections are as good
/// as before.
macro_rules! own_doing {
    ($name:ident, $Server:ty, $Store:ident, $PoolOptions:ident, $id:literal, $begins:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let database = <$Server>::empty().await;
            let options = $PoolOptions::new().max_connections(CONNECTIONS);
            let options = options.test_before_acquire(false);
            let pool = options.connect(&database.url()).await.unwrap();
            let store = $Store::builder(pool.clone()).time_limit(LONG).build();
            crate::connected(async || store.migrate().await).await;
            let idempotency = runtime(store);
            let operation = |key| idempotency.operation("orders").key(key);
            let connections = async || {
                let (mut all, mut ids) = (Vec::new(), Vec::new());
                for _ in 0..CONNECTIONS {
                    let mut on = pool.acquire().await.unwrap();
                    let id = sqlx::query_scalar::<_, i64>($id);
                    ids.push(id.fetch_one(&mut *on).await.unwrap());
                    all.push(on);
                }
                for mut on in all {
                    on.return_to_pool().await;
                }
                ids.sort_unstable();
                ids
            };
            let before = connections().await;
            for begin in $begins {
                let mut tx = pool.begin_with(begin).await.unwrap();
                let refused = operation("refused").run_in(&mut tx, async |_| Ok::<_, Failed>(1));
                assert!(refused.await.is_err(), "{begin}");
                tx.rollback().await.unwrap();
            }
            // The body goes on after an error, as only some databases let it.
            let _ = operation("swallowed")
                .transaction(&pool, async |tx| {
                    let wrong = "SELECT no_column FROM idem_records";
                    let _ = sqlx::raw_sql(wrong).execute(&mut **tx).await;
                    Ok::<_, Failed>(1)
                })
                .await;
            for key in 0..2 * CONNECTIONS {
                let operation = idempotency.operation("orders").key(&key);
                let call = operation.transaction(&pool, async |_| Ok::<_, Failed>(1));
                call.await.unwrap();
            }
            assert_eq!(connections().await, before);
        }
    };
}

own_doing!(
    postgres_keeps_connections_whose_transaction_is_read_only_or_has_failed,
    PostgresServer,
    PostgresStore,
    PgPoolOptions,
    "SELECT pg_backend_pid()::bigint",
    ["BEGIN READ ONLY", "BEGIN; SET TRANSACTION READ ONLY"]
);
own_doing!(
    mariadb_keeps_connections_whose_transaction_is_read_only_or_has_failed,
    MariaDbServer,
    MySqlStore,
    MySqlPoolOptions,
    "SELECT CAST(CONNECTION_ID() AS SIGNED)",
    ["START TRANSACTION READ ONLY"]
);
own_doing!(
    real_mysql_keeps_connections_whose_transaction_is_read_only_or_has_failed,
    MySqlServer,
    MySqlStore,
    MySqlPoolOptions,
    "SELECT CAST(CONNECTION_ID() AS SIGNED)",
    ["START TRANSACTION READ ONLY"]
);

/// What a connection is left with that then never takes a statement again, and what it does to it.
macro_rules! stale {
    ($name:ident, $Server:ty, $Store:ident, $PoolOptions:ident, $leaves:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let database = <$Server>::empty().await;
            database.store().await;
            for (leaves, alter) in $leaves {
                let options = $PoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .test_before_acquire(false);
                let pool = options.connect(&database.url()).await.unwrap();
                let idempotency = runtime($Store::builder(pool.clone()).time_limit(LONG).build());
                let all = async |leaves: &'static str| {
                    let mut all = Vec::new();
                    for _ in 0..CONNECTIONS {
                        all.push(pool.acquire().await.unwrap());
                    }
                    for mut on in all.drain(..) {
                        let _ = sqlx::raw_sql(leaves).execute(&mut *on).await;
                        on.return_to_pool().await;
                    }
                };
                let name = format!("{leaves}{alter}");
                let key = |n: u32| format!("{name}, {n}");
                let transaction = async |key: &str| {
                    let operation = idempotency.operation("orders").key(key);
                    let call = operation.transaction(&pool, async |_| Ok::<u32, Failed>(4));
                    call.await.map(|outcome| outcome.is_replayed())
                };
                let within = async |key: &str| {
                    let mut tx = pool.begin().await?;
                    let operation = idempotency.operation("orders").key(key);
                    let outcome = operation.run_in(&mut tx, async |_| Ok::<u32, Failed>(4));
                    let is_replayed = outcome.await?.is_replayed();
                    tx.commit().await?;
                    Ok::<_, Failed>(is_replayed)
                };
                // Each connection has its statements prepared.
                for n in 0..12 {
                    order(&idempotency, &key(n), 1).await.unwrap();
                    transaction(&key(n + 100)).await.unwrap();
                    within(&key(n + 200)).await.unwrap();
                }
                all(leaves).await;
                database.execute(alter).await;
                // One step closes all of them.
                order(&idempotency, &key(1000), 1).await.unwrap();
                order(&idempotency, &key(0), 1).await.unwrap();
                all(leaves).await;
                database.execute(alter).await;
                // A call in a transaction may fail once for each connection, and then no more.
                let mut failures = 0;
                for n in 0..3 * CONNECTIONS {
                    match transaction(&key(2000 + n)).await {
                        Ok(is_replayed) => assert!(!is_replayed, "{name}"),
                        Err(Failed::Idem(error)) => {
                            assert!(error.is_retryable(), "{name}: {error}");
                            failures += 1;
                        }
                        Err(error) => panic!("{name}: {error}"),
                    }
                }
                assert!(failures <= CONNECTIONS, "{name}: {failures}");
                assert!(!transaction(&key(3000)).await.unwrap(), "{name}");
                // As does a transaction around a guarded call, or around the application's rows.
                for guarded in [true, false] {
                    all(leaves).await;
                    database.execute(alter).await;
                    let mut failures = 0;
                    for n in 0..3 * CONNECTIONS {
                        let key = key(4000 + n);
                        let called = guard::transaction(&pool, async |tx| {
                            if guarded {
                                let call = idempotency.operation("guarded").key(&key);
                                call.run_in(tx, async |_| Ok::<u32, Failed>(4)).await?;
                            } else {
                                let write = "DELETE FROM idem_records WHERE operation = 'none'";
                                sqlx::raw_sql(write).execute(&mut **tx).await?;
                            }
                            Ok::<_, Failed>(())
                        });
                        failures += u32::from(called.await.is_err());
                    }
                    assert!(failures <= CONNECTIONS, "{name}: {failures}");
                }
                pool.close().await;
            }
        }
    };
}

stale!(
    postgres_leaves_connections_that_take_no_statement_again,
    PostgresServer,
    PostgresStore,
    PgPoolOptions,
    [
        ("SET default_transaction_read_only = on", "SELECT 1"),
        ("DEALLOCATE ALL", "SELECT 1"),
        ("BEGIN; SELECT 1 / 0", "SELECT 1"),
        (
            "SELECT 1",
            "ALTER TABLE idem_records ALTER codec TYPE varchar(9)"
        ),
    ]
);
stale!(
    mariadb_leaves_connections_that_take_no_statement_again,
    MariaDbServer,
    MySqlStore,
    MySqlPoolOptions,
    [("SET SESSION TRANSACTION READ ONLY", "SELECT 1")]
);
stale!(
    real_mysql_leaves_connections_that_take_no_statement_again,
    MySqlServer,
    MySqlStore,
    MySqlPoolOptions,
    [("SET SESSION TRANSACTION READ ONLY", "SELECT 1")]
);

/// Counts in a table without transactions.
const MYSQL_TRIES: [&str; 4] = [
    "CREATE TABLE IF NOT EXISTS tries (number BIGINT) ENGINE = MyISAM",
    "INSERT INTO tries SELECT 0 FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM tries)",
    "DROP TRIGGER IF EXISTS refuse",
    "CREATE TRIGGER refuse BEFORE INSERT ON idem_records FOR EACH ROW BEGIN \
       UPDATE tries SET number = number + 1; \
       IF (SELECT number FROM tries) % 2 = 1 \
       THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = FIRST; \
       ELSE SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = THEN_; END IF; END",
];
const MYSQL_ENDS: [(&str, &str, bool); 5] = [
    ("2013", "1205", true),
    ("2013", "1142", true),
    ("2013", "1114", true),
    ("4031", "1205", false),
    ("4031", "1142", false),
];

over!(
    on_postgres, PostgresServer, PostgresStore, PgPool, PgPoolOptions,
    others: "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid \
        <> pg_backend_pid()",
    ends: [
        Ends::InTime("ALTER DATABASE postgres SET idle_session_timeout = '1s'"),
        Ends::Now("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> \
            pg_backend_pid()"),
        Ends::Restart,
    ],
    note: "INSERT INTO refused SELECT pid FROM pg_stat_activity",
    trigger: [
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF EXISTS (SELECT FROM refused WHERE connection = pg_backend_pid()) \
           THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'REFUSAL'; END IF; RETURN NEW; END $$",
        "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON idem_records FOR EACH ROW EXECUTE \
         FUNCTION refuse()",
    ],
    refusals: [
        "57P05", "57P01", "57P02", "57P04", "25P04", "25006", "0A000", "26000", "42P05", "25P02",
        "42501",
    ],
    tries: [
        "CREATE SEQUENCE IF NOT EXISTS tries",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF nextval('tries') % 2 = 1 THEN RAISE EXCEPTION 'first' USING ERRCODE = 'FIRST'; END IF; \
           RAISE EXCEPTION 'then' USING ERRCODE = 'THEN_'; END $$",
        "CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON idem_records FOR EACH ROW EXECUTE \
         FUNCTION refuse()",
    ],
    ends_of_tries: [
        ("57P01", "55P03", true),
        ("57P01", "42804", true),
        ("57P01", "53100", true),
        ("57P05", "55P03", false),
        ("57P05", "42804", false),
    ]
);
over!(
    on_mariadb, MariaDbServer, MySqlStore, MySqlPool, MySqlPoolOptions,
    others: "SELECT count(*) FROM information_schema.processlist WHERE user = 'idem' AND id <> \
        CONNECTION_ID()",
    ends: [Ends::InTime("SET GLOBAL wait_timeout = 4"), Ends::Restart],
    note: "INSERT INTO refused SELECT CONNECTION_ID()",
    trigger: [
        "DROP TRIGGER IF EXISTS refuse",
        "CREATE TRIGGER refuse BEFORE INSERT ON idem_records FOR EACH ROW \
           IF CONNECTION_ID() < (SELECT MAX(connection) FROM refused) AND NOT @refused <=> REFUSAL \
           THEN \
           SET @refused = REFUSAL; SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = REFUSAL; END IF",
    ],
    refusals: [
        "1047", "1053", "1412", "1927", "2006", "2013", "3101", "3169", "4031", "1290", "1792",
        "1836", "1243", "1615",
    ],
    tries: MYSQL_TRIES, ends_of_tries: MYSQL_ENDS
);
over!(
    real_mysql, MySqlServer, MySqlStore, MySqlPool, MySqlPoolOptions,
    others: "SELECT count(*) FROM information_schema.processlist WHERE user = 'idem' AND id <> \
        CONNECTION_ID()",
    ends: [Ends::InTime("SET GLOBAL wait_timeout = 4"), Ends::Restart],
    note: "INSERT INTO refused SELECT CONNECTION_ID()",
    trigger: [
        "DROP TRIGGER IF EXISTS refuse",
        "CREATE TRIGGER refuse BEFORE INSERT ON idem_records FOR EACH ROW \
           IF CONNECTION_ID() < (SELECT MAX(connection) FROM refused) AND NOT @refused <=> REFUSAL \
           THEN \
           SET @refused = REFUSAL; SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = REFUSAL; END IF",
    ],
    refusals: [
        "1047", "1053", "1412", "1927", "2006", "2013", "3101", "3169", "4031", "1290", "1792",
        "1836", "1243", "1615",
    ],
    tries: MYSQL_TRIES, ends_of_tries: MYSQL_ENDS
);
