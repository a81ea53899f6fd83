//! The conformance suite over each store, on a real database.

mod in_ci;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_core::store::AdminStore;
use idem_core::store::record::RecordId;
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use idem_sqlx::sqlx::{self, MySqlPool, PgPool, SqlitePool};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{BoxError, MariaDbServer, PostgresServer, Subject, suite};
use tempfile::TempDir;
use tokio::sync::{Mutex, OnceCell};

use crate::Server as _;

/// One trial stores a mebibyte, and others run at the same time.
const LIMIT: Duration = Duration::from_secs(20);
/// The connections of each of the two pools. Trials that run at the same time share them.
const CONNECTIONS: u32 = 40;

const COLUMNS: &str = "operation, key, state, attempt, expires_at, outcome, revision";

/// Held by the suite that runs. Each keeps the machine busy, and the records of a trial live for a
/// minute.
static TURN: Mutex<()> = Mutex::const_new(());

/// Runs the whole suite.
async fn conforms<S: Subject<Store: AdminStore>>(
    subject: impl Fn() -> S + Clone + Send + Sync + 'static,
) {
    let _turn = TURN.lock().await;
    suite::run_all(subject.clone()).await.assert_passed();
    suite::run_all_admin(subject).await.assert_passed();
}

/// Two pools, as two processes have them. The handles of a trial, which has a clone of this, are on
/// one and the other in turn.
struct Pools<P> {
    both: [P; 2],
    taken: AtomicUsize,
}

impl<P: Clone> Clone for Pools<P> {
    fn clone(&self) -> Self {
        Self::of(self.both.clone())
    }
}

impl<P> Pools<P> {
    fn of(both: [P; 2]) -> Self {
        let taken = AtomicUsize::new(0);
        Self { both, taken }
    }

    /// The pool of the next handle.
    fn next(&self) -> &P {
        &self.both[self.taken.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[derive(Clone)]
struct OnPostgres(Pools<PgPool>);

impl OnPostgres {
    async fn at(url: &str) -> Self {
        let pool = || {
            PgPoolOptions::new()
                .max_connections(CONNECTIONS)
                .test_before_acquire(false)
                .connect(url)
        };
        let both = [pool().await.unwrap(), pool().await.unwrap()];
        crate::connected(async || PostgresStore::new(both[0].clone()).migrate().await).await;
        Self(Pools::of(both))
    }
}

impl Subject for OnPostgres {
    type Store = PostgresStore;

    async fn store(&self) -> Result<PostgresStore, BoxError> {
        let pool = self.0.next().clone();
        Ok(PostgresStore::builder(pool).time_limit(LIMIT).build())
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let text = format!(
            "INSERT INTO idem_records ({COLUMNS}) \
             VALUES ($1, $2, 'x', 1, now() + interval '1 hour', $3, 1)"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id.operation())
            .bind(id.key())
            .bind(value);
        query.execute(self.0.next()).await?;
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let subject = OnPostgres::at(&PostgresServer::empty().await.url()).await;
    conforms(move || subject.clone()).await;
}

/// On MariaDB and on MySQL.
#[derive(Clone)]
struct OnMySql(Pools<MySqlPool>);

impl OnMySql {
    async fn at(url: &str) -> Self {
        let pool = || {
            MySqlPoolOptions::new()
                .max_connections(CONNECTIONS)
                .test_before_acquire(false)
                .connect(url)
        };
        let both = [pool().await.unwrap(), pool().await.unwrap()];
        crate::connected(async || MySqlStore::new(both[0].clone()).migrate().await).await;
        Self(Pools::of(both))
    }
}

impl Subject for OnMySql {
    type Store = MySqlStore;

    async fn store(&self) -> Result<MySqlStore, BoxError> {
        let pool = self.0.next().clone();
        Ok(MySqlStore::builder(pool).time_limit(LIMIT).build())
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let columns = COLUMNS.replace("key", "`key`");
        let text = format!(
            "INSERT INTO idem_records ({columns}) \
             VALUES (?, ?, 'x', 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, ?, 1)"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id.operation())
            .bind(id.key())
            .bind(value);
        query.execute(self.0.next()).await?;
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_conforms() {
    let subject = OnMySql::at(&MariaDbServer::empty().await.url()).await;
    conforms(move || subject.clone()).await;
}

/// A file for each trial: there is one writer, so trials on one file would wait for each other.
struct OnSqlite {
    dir: TempDir,
    /// The bytes of a file whose table is there.
    migrated: Arc<Vec<u8>>,
    opened: OnceCell<Pools<SqlitePool>>,
}

impl OnSqlite {
    async fn pools(&self) -> Result<&Pools<SqlitePool>, BoxError> {
        let open = async || {
            let file = self.dir.path().join("idem.db");
            std::fs::write(&file, &*self.migrated)?;
            let options = SqliteConnectOptions::new()
                .filename(file)
                .busy_timeout(LIMIT)
                // Nobody turns the machine off.
                .synchronous(SqliteSynchronous::Off)
                .journal_mode(SqliteJournalMode::Wal);
            let pool = || {
                SqlitePoolOptions::new()
                    .max_connections(4)
                    .test_before_acquire(false)
                    .connect_lazy_with(options.clone())
            };
            Ok(Pools::of([pool(), pool()]))
        };
        self.opened.get_or_try_init(open).await
    }
}

impl Subject for OnSqlite {
    type Store = SqliteStore;

    async fn store(&self) -> Result<SqliteStore, BoxError> {
        let pool = self.pools().await?.next().clone();
        Ok(SqliteStore::builder(pool).time_limit(LIMIT).build())
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let text =
            format!("INSERT INTO idem_records ({COLUMNS}) VALUES (?, ?, 'x', 1, 1e15, ?, 1)");
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id.operation())
            .bind(id.key())
            .bind(value);
        query.execute(self.pools().await?.next()).await?;
        Ok(true)
    }
}

/// Returns a file with the table, and nothing in it. It is in WAL mode already: SQLite does not wait
/// for its `busy_timeout` while several connections switch to it at once.
async fn migrated() -> Vec<u8> {
    let dir = crate::own::temporary();
    let file = dir.path().join("idem.db");
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .journal_mode(SqliteJournalMode::Wal)
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    crate::connected(async || SqliteStore::new(pool.clone()).migrate().await).await;
    pool.close().await;
    std::fs::read(&file).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms() {
    let migrated = Arc::new(migrated().await);
    conforms(move || OnSqlite {
        dir: crate::own::temporary(),
        migrated: migrated.clone(),
        opened: OnceCell::new(),
    })
    .await;
}
