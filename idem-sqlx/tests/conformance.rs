//! The conformance suite over each store, on a real server. One test for each: they start a server,
//! which takes longer than most trials.
// Of the subjects: a test stops where it cannot go on.
#![allow(clippy::unwrap_used)]
#![cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::RecordId;
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, MySqlPool, PgPool, SqlitePool};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{BoxError, MariaDbServer, MySqlServer, PostgresServer, Subject, suite};
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// One trial stores a mebibyte, and others run at the same time.
const LIMIT: Duration = Duration::from_secs(20);

const COLUMNS: &str = "operation, key, state, attempt, expires_at, outcome, revision";

/// Each handle has a pool of its own, as each process has.
#[derive(Clone)]
struct OnPostgres {
    server: Arc<PostgresServer>,
    /// Planted through this one.
    pool: PgPool,
}

impl Subject for OnPostgres {
    type Store = PostgresStore;

    async fn store(&self) -> Result<PostgresStore, BoxError> {
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false)
            .connect(&self.server.url())
            .await?;
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
        query.execute(&self.pool).await?;
        Ok(true)
    }
}

async fn conforms_on_postgres(args: &[&str]) {
    let server = Arc::new(PostgresServer::start_with(args).await.unwrap());
    let pool = PgPool::connect(&server.url()).await.unwrap();
    PostgresStore::new(pool.clone()).migrate().await.unwrap();
    let subject = OnPostgres { server, pool };
    let subject = move || subject.clone();
    suite::run_all(subject.clone()).await.assert_passed();
    suite::run_all_admin(subject).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    conforms_on_postgres(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms_where_transactions_are_serializable() {
    conforms_on_postgres(&["-c", "default_transaction_isolation=serializable"]).await;
}

/// On MariaDB and on MySQL.
#[derive(Clone)]
struct OnMySql {
    url: String,
    pool: MySqlPool,
    _server: Arc<dyn Any + Send + Sync>,
}

impl Subject for OnMySql {
    type Store = MySqlStore;

    async fn store(&self) -> Result<MySqlStore, BoxError> {
        let pool = MySqlPoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false)
            .connect(&self.url)
            .await?;
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
        query.execute(&self.pool).await?;
        Ok(true)
    }
}

async fn conforms_on_mysql(url: String, server: impl Any + Send + Sync) {
    let pool = MySqlPool::connect(&url).await.unwrap();
    MySqlStore::new(pool.clone()).migrate().await.unwrap();
    let subject = OnMySql {
        url,
        pool,
        _server: Arc::new(server),
    };
    let subject = move || subject.clone();
    suite::run_all(subject.clone()).await.assert_passed();
    suite::run_all_admin(subject).await.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_conforms() {
    let server = MariaDbServer::start().await.unwrap();
    conforms_on_mysql(server.url(), server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_conforms_where_transactions_are_serializable() {
    let server = MariaDbServer::start_with(&["--transaction-isolation=SERIALIZABLE"])
        .await
        .unwrap();
    conforms_on_mysql(server.url(), server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_mysql_conforms() {
    let server = MySqlServer::start().await.unwrap();
    conforms_on_mysql(server.url(), server).await;
}

#[derive(Clone)]
struct OnSqlite {
    dir: Arc<TempDir>,
    planting: Arc<OnceCell<SqlitePool>>,
}

impl OnSqlite {
    fn url(&self) -> String {
        format!("sqlite://{}/idem.db", self.dir.path().display())
    }
}

impl Subject for OnSqlite {
    type Store = SqliteStore;

    async fn store(&self) -> Result<SqliteStore, BoxError> {
        let options: SqliteConnectOptions = self.url().parse()?;
        let options = options
            .create_if_missing(true)
            .busy_timeout(LIMIT)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        let store = SqliteStore::builder(pool).time_limit(LIMIT).build();
        store.migrate().await?;
        Ok(store)
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let pool = self
            .planting
            .get_or_try_init(|| SqlitePool::connect_with(self.url().parse().unwrap()))
            .await?;
        let text =
            format!("INSERT INTO idem_records ({COLUMNS}) VALUES (?, ?, 'x', 1, 1e15, ?, 1)");
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(id.operation())
            .bind(id.key())
            .bind(value);
        query.execute(pool).await?;
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms() {
    // Trials share nothing, so that they do not wait for each other's disk.
    let subject = || OnSqlite {
        dir: Arc::new(tempfile::tempdir().unwrap()),
        planting: Arc::default(),
    };
    suite::run_all(subject).await.assert_passed();
    suite::run_all_admin(subject).await.assert_passed();
}

#[cfg(feature = "sqlx-08")]
mod on_sqlx_0_8 {
    use idem_sqlx::v08::sqlx::mysql::MySqlPoolOptions;
    use idem_sqlx::v08::sqlx::postgres::PgPoolOptions;
    use idem_sqlx::v08::{MySqlStore, PostgresStore, SqliteStore};
    use idem_testkit::Connections;

    use super::{Arc, BoxError, LIMIT, MariaDbServer, PostgresServer, suite};

    macro_rules! conforms {
        ($test:ident, $Server:ty, $Store:ident, $PoolOptions:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let server = Arc::new(<$Server>::start().await.unwrap());
                let store = $Store::connect(server.url()).await.unwrap();
                store.migrate().await.unwrap();
                let connect = move || {
                    let url = server.url();
                    async move {
                        let pool = $PoolOptions::new()
                            .max_connections(4)
                            .test_before_acquire(false)
                            .connect(&url)
                            .await?;
                        Ok::<_, BoxError>($Store::builder(pool).time_limit(LIMIT).build())
                    }
                };
                suite::run_all(move || Connections::by(connect.clone()))
                    .await
                    .assert_passed();
            }
        };
    }

    conforms!(
        postgres_conforms,
        PostgresServer,
        PostgresStore,
        PgPoolOptions
    );
    conforms!(
        mariadb_conforms,
        MariaDbServer,
        MySqlStore,
        MySqlPoolOptions
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_record_of_one_version_of_sqlx_is_one_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/idem.db", dir.path().display());
        let old = idem_core::Idempotency::new(SqliteStore::connect(&url).await.unwrap());
        let new = idem_core::Idempotency::new(idem_sqlx::SqliteStore::connect(&url).await.unwrap());
        for (number, idempotency) in [(1, &old), (2, &new), (3, &old)] {
            let call = idempotency
                .operation("orders")
                .key("k")
                .run(async || Ok::<_, idem_core::Error>(number));
            assert_eq!(call.await.unwrap().into_inner(), 1);
        }
    }
}
