//! The state of the caller's connection after a call in a transaction was dropped.

use std::time::Duration;

use idem_core::{Error, Idempotency, InFlight};
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, Connection as _, Sqlite, SqliteTransaction, Transaction};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore, guard};
use idem_testkit::{Gate, MariaDbServer, Mishap, Passing, PostgresServer, Proxy};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use crate::failed::Failed;
use crate::own::Database;
use crate::pools::polled;
use crate::{LONG, Server as _, own, until};

/// How long a dropped call would have waited: the least that each database knows.
const WAIT: Duration = Duration::from_secs(1);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// So many first calls are taken for a habit.
const HABIT: usize = 10;
/// At so many polls: at each of the first, and in the wait.
const POLLS: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, usize::MAX];
/// The same for two connections side by side: a dropped call goes on for as long as it would have
/// waited.
const HALVES: [[usize; 4]; 2] = [[1, 2, 3, 4], [5, 6, 7, usize::MAX]];

/// How often a call is dropped again that ended before, because the machine is busy.
const TRIES: usize = 5;

/// Polls a call so many times, or until it waits, and drops it. Returns `false` if it ended before.
async fn drop_in_call<W: Future<Output = ()> + Send + 'static>(
    call: impl Future,
    polls: usize,
    waits: impl FnOnce(oneshot::Sender<()>) -> W,
) -> bool {
    // A task of its own, because the polls of this one are counted.
    let mut waiting = JoinSet::new();
    let (connected, is_connected) = oneshot::channel();
    waiting.spawn(waits(connected));
    is_connected.await.unwrap();
    tokio::select! {
        ended = polled(call, polls) => !ended,
        waits = waiting.join_next() => {
            waits.unwrap().unwrap();
            true
        }
    }
}

/// Runs both parts of a test, each in a task of its own, because polls are counted.
async fn side_by_side(parts: [impl Future<Output = ()> + 'static; 2]) {
    let tasks = LocalSet::new();
    let parts = parts.map(|part| tasks.spawn_local(part));
    tasks.await;
    for part in parts {
        part.await.unwrap();
    }
}

async fn waits_on_postgres(url: String, connected: oneshot::Sender<()>) {
    let mut on = sqlx::PgConnection::connect(&url).await.unwrap();
    connected.send(()).unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND \
        wait_event_type = 'Lock'";
    while sqlx::query_scalar::<_, i64>(waiting)
        .fetch_one(&mut on)
        .await
        .unwrap()
        == 0
    {
        sleep(LOOK).await;
    }
}

/// A claim waits for a lock of the server or of a row, a guard for one of a row.
async fn waits_on_mariadb(url: String, connected: oneshot::Sender<()>) {
    let mut on = sqlx::MySqlConnection::connect(&url).await.unwrap();
    connected.send(()).unwrap();
    let waiting = "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND \
        id <> CONNECTION_ID() AND (info LIKE '%@idem\\_locked%' OR info LIKE '%dropped\\_rows%')";
    while sqlx::query_scalar::<_, i64>(waiting)
        .fetch_one(&mut on)
        .await
        .unwrap()
        == 0
    {
        sleep(LOOK).await;
    }
}

/// Nobody can see a wait for a file. A call that takes longer to come to it is dropped before.
async fn waits_on_sqlite(_: String, connected: oneshot::Sender<()>) {
    connected.send(()).unwrap();
    sleep(Duration::from_millis(100)).await;
}

/// A pool of three connections, and its URL.
async fn postgres() -> (sqlx::PgPool, String) {
    let url = PostgresServer::empty().await.url();
    let options = PgPoolOptions::new().max_connections(3);
    (options.connect(&url).await.unwrap(), url)
}

async fn mariadb() -> (sqlx::MySqlPool, String) {
    let url = MariaDbServer::empty().await.url();
    let options = MySqlPoolOptions::new().max_connections(3);
    (options.connect(&url).await.unwrap(), url)
}

async fn sqlite() -> (sqlx::SqlitePool, String) {
    (file(3).await, String::new())
}

macro_rules! over {
    (
        $name:ident, $Store:ident, $setup:path, $waits:path, $begin:literal, $set:literal,
        $limit:literal
    ) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            /// Runs the test after so many first calls.
            async fn at(habit: usize) {
                let (pool, url) = $setup().await;
                let store = $Store::builder(pool.clone()).time_limit(LONG).build();
                crate::connected(async || store.migrate().await).await;
                let idempotency = Idempotency::new(store);
                let operation = |key: &str| idempotency.operation("dropped").key(key).wait(WAIT);
                let mut connection = pool.acquire().await.unwrap();
                sqlx::raw_sql($set).execute(&mut *connection).await.unwrap();
                let before: String = sqlx::query_scalar($limit)
                    .fetch_one(&mut *connection)
                    .await
                    .unwrap();
                for polls in POLLS {
                    let key = &format!("{polls}, {habit}");
                    let mut owner = pool.begin_with($begin).await.unwrap();
                    for first in 0..habit {
                        operation(&format!("{key}, {first}"))
                            .run_in(&mut owner, async |_| Ok::<u32, Failed>(1))
                            .await
                            .unwrap();
                    }
                    // Another process: a key that this one has claimed is expected to have a
                    // record.
                    let other =
                        Idempotency::new($Store::builder(pool.clone()).time_limit(LONG).build());
                    let claims = other.operation("dropped").key(key);
                    claims
                        .run_in(&mut owner, async |_| Ok::<u32, Failed>(1))
                        .await
                        .unwrap();
                    let mut is_dropped = false;
                    for _ in 0..TRIES {
                        let mut tx = connection.begin_with("BEGIN").await.unwrap();
                        let call = operation(key).run_in(&mut tx, async |_| Ok::<u32, Failed>(2));
                        let waits = |connected| $waits(url.clone(), connected);
                        is_dropped = drop_in_call(call, polls, waits).await;
                        // May be given the error of the statement that was dropped.
                        let _ = tx.rollback().await;
                        if is_dropped {
                            break;
                        }
                    }
                    assert!(is_dropped, "the call ended before it was dropped");
                    let after: String = sqlx::query_scalar($limit)
                        .fetch_one(&mut *connection)
                        .await
                        .unwrap();
                    assert_eq!(
                        after, before,
                        "dropped at poll {polls}: the limit of the connection"
                    );
                    owner.rollback().await.unwrap();
                    // Nothing of the database's is still held by the connection, which stays open.
                    let mut tx = pool.begin_with($begin).await.unwrap();
                    let next = operation(key).in_flight(InFlight::Reject);
                    let ran = next.run_in(&mut tx, async |_| Ok::<u32, Failed>(3)).await;
                    assert_eq!(ran.unwrap().into_inner(), 3, "dropped at poll {polls}");
                    tx.rollback().await.unwrap();
                }
            }

            side_by_side([0, HABIT].map(at)).await;
        }
    };
}

over!(
    a_dropped_wait_leaves_no_limit_and_no_lock_on_postgres,
    PostgresStore,
    postgres,
    waits_on_postgres,
    "BEGIN",
    "SET lock_timeout = '31s'",
    "SELECT current_setting('lock_timeout')"
);
over!(
    a_dropped_wait_leaves_no_limit_and_no_lock_on_mariadb,
    MySqlStore,
    mariadb,
    waits_on_mariadb,
    "BEGIN",
    "SET SESSION innodb_lock_wait_timeout = 31",
    "SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS CHAR)"
);
over!(
    a_dropped_wait_leaves_no_limit_on_sqlite,
    SqliteStore,
    sqlite,
    waits_on_sqlite,
    "BEGIN IMMEDIATE",
    "PRAGMA busy_timeout = 31000",
    "SELECT CAST(timeout AS TEXT) FROM pragma_busy_timeout"
);

async fn file(connections: u32) -> sqlx::SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(own::folder().join("shop.db"))
        .create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal);
    SqlitePoolOptions::new()
        .max_connections(connections)
        .connect_with(options)
        .await
        .unwrap()
}

/// sqlx counts the transaction that the database has ended, and its roll-back fails then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_dropped_after_the_database_ended_its_transaction_leaves_a_usable_connection_on_sqlite()
 {
    let pool = file(1).await;
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    let idempotency = Idempotency::new(store);
    let ended = Notify::new();
    // As SQLite itself does when the file is full.
    let body = async |tx: &mut SqliteTransaction<'_>| {
        sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await?;
        ended.notify_one();
        std::future::pending::<Result<u32, Failed>>().await
    };
    tokio::select! {
        _ = idempotency.operation("dropped").key("ended").transaction(&pool, body) => {
            panic!("the body does not end")
        }
        () = ended.notified() => {}
    }
    for replayed in [false, true] {
        let again = idempotency.operation("dropped").key("ended");
        let again = again.transaction(&pool, async |_: &mut Transaction<'_, Sqlite>| {
            Ok::<u32, Failed>(1)
        });
        assert_eq!(again.await.unwrap().is_replayed(), replayed);
    }
}

/// A guard sets a limit too, in a savepoint of its own. If that savepoint stayed open, the end of
/// the transaction would be taken for its own, and the connection would stay in the transaction.
macro_rules! guards {
    ($name:ident, $setup:path, $waits:path, $hold:literal) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            const ROWS: guard::Rows = guard::Rows::new("dropped_rows", "id");

            async fn at(polls: [usize; 4]) {
                let (pool, url) = $setup().await;
                let ddl = "CREATE TABLE IF NOT EXISTS dropped_rows (id bigint PRIMARY KEY); DELETE \
                    FROM dropped_rows; INSERT INTO dropped_rows VALUES (1)";
                sqlx::raw_sql(ddl).execute(&pool).await.unwrap();
                let mut owner = pool.begin().await.unwrap();
                sqlx::raw_sql($hold).execute(&mut *owner).await.unwrap();
                let mut connection = pool.acquire().await.unwrap();
                // Prepares the statements. A connection of sqlx to MySQL is of no more use after a
                // future was dropped that prepared one.
                let mut tx = connection.begin().await.unwrap();
                let _ = ROWS.lock(&mut tx, 2_i64, WAIT).await.unwrap();
                tx.rollback().await.unwrap();
                for polls in polls {
                    let mut is_dropped = false;
                    for _ in 0..TRIES {
                        // Refused where a transaction is open.
                        let mut tx = connection.begin_with("BEGIN").await.unwrap();
                        let call = ROWS.lock(&mut tx, 1_i64, WAIT);
                        let waits = |connected| $waits(url.clone(), connected);
                        is_dropped = drop_in_call(call, polls, waits).await;
                        drop(tx);
                        // May be given the error of the statement that was dropped.
                        let _ = connection.ping().await;
                        if is_dropped {
                            break;
                        }
                    }
                    assert!(is_dropped, "the call ended before it was dropped");
                }
                owner.rollback().await.unwrap();
            }

            side_by_side(HALVES.map(at)).await;
        }
    };
}

guards!(
    a_guard_that_is_dropped_leaves_its_transaction_to_its_caller_on_postgres,
    postgres,
    waits_on_postgres,
    "UPDATE dropped_rows SET id = 1"
);
guards!(
    a_guard_that_is_dropped_leaves_its_transaction_to_its_caller_on_mariadb,
    mariadb,
    waits_on_mariadb,
    "SELECT id FROM dropped_rows FOR UPDATE"
);
guards!(
    a_guard_that_is_dropped_leaves_its_transaction_to_its_caller_on_sqlite,
    sqlite,
    waits_on_sqlite,
    "UPDATE dropped_rows SET id = 1"
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_dropped_leaves_no_limit_on_sqlite() {
    const ROWS: guard::Rows = guard::Rows::new("rows", "id");

    async fn at(polls: [usize; 4]) {
        let pool = file(2).await;
        let ddl = "CREATE TABLE rows (id INTEGER PRIMARY KEY); INSERT INTO rows VALUES (1)";
        sqlx::raw_sql(ddl).execute(&pool).await.unwrap();
        let mut connection = pool.acquire().await.unwrap();
        sqlx::raw_sql("PRAGMA busy_timeout = 31000")
            .execute(&mut *connection)
            .await
            .unwrap();
        let owner = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        for polls in polls {
            let mut is_dropped = false;
            for _ in 0..TRIES {
                let mut tx = connection.begin_with("BEGIN").await.unwrap();
                let call = ROWS.lock(&mut tx, 1_i64, WAIT);
                let waits = |connected| waits_on_sqlite(String::new(), connected);
                is_dropped = drop_in_call(call, polls, waits).await;
                drop(tx);
                if is_dropped {
                    break;
                }
            }
            assert!(is_dropped, "the call ended before it was dropped");
            let after: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
                .fetch_one(&mut *connection)
                .await
                .unwrap();
            assert_eq!(after, 31_000, "dropped at poll {polls}");
        }
        owner.rollback().await.unwrap();
    }

    side_by_side(HALVES.map(at)).await;
}

/// The same key again in one transaction, and a transaction that is none any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_comes_twice_in_one_transaction_is_replayed_and_an_ended_one_is_an_error() {
    let pool = file(2).await;
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    let idempotency = Idempotency::new(store);
    let operation = |key: &str| idempotency.operation("dropped").key(key);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    for (key, replayed) in [("a", false), ("b", false), ("a", true), ("b", true)] {
        let outcome = operation(key)
            .run_in(&mut tx, async |_| Ok::<u32, Failed>(1))
            .await
            .unwrap();
        assert_eq!(outcome.is_replayed(), replayed, "{key}");
    }
    tx.commit().await.unwrap();
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let ended = operation("c").run_in(&mut tx, async |tx| {
        sqlx::raw_sql("ROLLBACK").execute(&mut **tx).await?;
        Ok::<u32, Failed>(1)
    });
    assert!(matches!(
        ended.await.unwrap_err(),
        Failed::Idem(Error::Store { .. })
    ));
    let _ = tx.commit().await;
    assert!(operation("c").inspect().await.unwrap().is_none());
    assert!(
        !operation("c")
            .transaction(&pool, async |_| Ok::<u32, Failed>(2))
            .await
            .unwrap()
            .is_replayed()
    );
}

/// A call that is dropped while its first statement is on its way to the server, where it arrives
/// later. Before, connections are not tested, so that this statement is the first.
macro_rules! unanswered {
    (
        $name:ident, $Server:ident, $Options:ident, $Connection:ty, $Store:ident, $ends:literal
    ) => {
        mod $name {
            use idem_sqlx::sqlx::Connection as _;

            use super::*;

            struct World {
                _proxy: Proxy,
                statements: Passing,
                pool: sqlx::Pool<<$Connection as sqlx::Connection>::Database>,
                idempotency: Idempotency,
                /// What others see.
                other: $Connection,
            }

            impl World {
                async fn new() -> Self {
                    Self::with(false).await
                }

                /// With a pool that ends each transaction that a connection comes back with.
                async fn with(ends_all: bool) -> Self {
                    let database: Database<$Server> = Database::create().await;
                    let proxy = Proxy::start(&database.url()).await.unwrap();
                    // As the guide on transactions advises.
                    let options = $Options::new().after_release(|connection, _| {
                        Box::pin(async move {
                            sqlx::raw_sql($ends).execute(connection).await?;
                            Ok(true)
                        })
                    });
                    let options = if ends_all { options } else { $Options::new() };
                    let options = options.max_connections(1).test_before_acquire(false);
                    let through = database.url_through(proxy.address().port());
                    let pool = options.connect(&through).await.unwrap();
                    let store = $Store::builder(pool.clone()).time_limit(LONG).build();
                    crate::connected(async || store.migrate().await).await;
                    sqlx::raw_sql("CREATE TABLE written (what VARCHAR(20))")
                        .execute(&pool)
                        .await
                        .unwrap();
                    until("the connection is idle", async || pool.num_idle() == 1).await;
                    Self {
                        other: <$Connection>::connect(&database.url()).await.unwrap(),
                        idempotency: Idempotency::new(store),
                        statements: proxy.passing(|_| true),
                        _proxy: proxy,
                        pool,
                    }
                }

                async fn drop_unanswered(&self, call: impl Future) {
                    let gate = Gate::new();
                    self.statements.next(Mishap::Hang(gate.clone()));
                    tokio::select! {
                        _ = call => panic!("the server has no statement"),
                        () = gate.reached() => {}
                    }
                    gate.open();
                }

                async fn written(&mut self) -> String {
                    let rows: Vec<String> =
                        sqlx::query_scalar("SELECT what FROM written ORDER BY what")
                            .fetch_all(&mut self.other)
                            .await
                            .unwrap();
                    rows.join(", ")
                }
            }

            const BEFORE: &str = "INSERT INTO written VALUES ('before')";
            const AFTER: &str = "INSERT INTO written VALUES ('after')";

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_transaction_that_is_dropped_in_its_begin_holds_no_statement_of_others() {
                let mut world = World::new().await;
                let operation = world.idempotency.operation("dropped").key("begin");
                let call = operation.transaction(&world.pool, async |_| Ok::<u32, Failed>(1));
                world.drop_unanswered(call).await;
                sqlx::raw_sql(AFTER).execute(&world.pool).await.unwrap();
                assert_eq!(world.written().await, "after");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_guarded_transaction_that_is_dropped_in_its_begin_holds_no_statement_of_others()
             {
                let mut world = World::new().await;
                let guarded = guard::transaction(&world.pool, async |_| Ok::<u32, Failed>(1));
                world.drop_unanswered(guarded).await;
                sqlx::raw_sql(AFTER).execute(&world.pool).await.unwrap();
                assert_eq!(world.written().await, "after");
            }

            /// sqlx counts no transaction whose `BEGIN` was not answered.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_begin_of_the_application_that_is_dropped_is_ended_by_the_hook_of_the_guide() {
                let mut world = World::with(true).await;
                world.drop_unanswered(world.pool.begin()).await;
                sqlx::raw_sql(AFTER).execute(&world.pool).await.unwrap();
                assert_eq!(world.written().await, "after");
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_call_that_is_dropped_in_its_savepoint_leaves_the_callers_transaction_open() {
                let mut world = World::new().await;
                let mut tx = world.pool.begin().await.unwrap();
                sqlx::raw_sql(BEFORE).execute(&mut *tx).await.unwrap();
                let operation = world.idempotency.operation("dropped").key("savepoint");
                let call = operation.run_in(&mut tx, async |_| Ok::<u32, Failed>(1));
                world.drop_unanswered(call).await;
                sqlx::raw_sql(AFTER).execute(&mut *tx).await.unwrap();
                assert_eq!(world.written().await, "");
                tx.commit().await.unwrap();
                assert_eq!(world.written().await, "after, before");
            }
        }
    };
}

unanswered!(
    unanswered_postgres,
    PostgresServer,
    PgPoolOptions,
    sqlx::PgConnection,
    PostgresStore,
    "BEGIN; ROLLBACK"
);
unanswered!(
    unanswered_mariadb,
    MariaDbServer,
    MySqlPoolOptions,
    sqlx::MySqlConnection,
    MySqlStore,
    "ROLLBACK"
);
