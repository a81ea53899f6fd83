//! Statements with a mistake in them, one at a time: a trial of the conformance suite finds each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mysql;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_core::Key;
use idem_core::store::record::{Claim, InFlight, Origin, Owner, Ownership, RecordId, Renewal};
use idem_testkit::{BoxError, MariaDbServer, PostgresServer, Subject, suite};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use self::sqlx::postgres::{PgPool, PgPoolOptions};
use self::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use crate::v09::driver::dialect::{Dialect, Guard};
use crate::v09::driver::executor::{Executor, Resend, Settings, sweep};
use crate::v09::driver::store::{MySqlStore, PostgresStore, SqliteStore, steps};
use crate::v09::sqlx;

/// One trial stores a mebibyte, and others run at the same time.
const LIMIT: Duration = Duration::from_secs(20);

/// How often a mistake is looked for.
const TRIES: usize = 3;

/// A mutant: what a statement says, what it says instead, and the trial that finds it.
#[derive(Debug, Clone, Copy)]
struct Mutant {
    name: &'static str,
    from: &'static str,
    to: &'static str,
    found_by: &'static str,
}

const fn mutant(
    name: &'static str,
    from: &'static str,
    to: &'static str,
    found_by: &'static str,
) -> Mutant {
    Mutant {
        name,
        from,
        to,
        found_by,
    }
}

impl Mutant {
    /// Makes the mistake.
    fn apply<D: Dialect>(self, dialect: &mut D) {
        let made = AtomicBool::new(false);
        dialect.rewrite(&|text| {
            made.fetch_or(text.contains(self.from), Ordering::Relaxed);
            text.replace(self.from, self.to)
        });
        assert!(
            made.into_inner(),
            "no statement says `{}`: {}",
            self.from,
            self.name
        );
    }
}

/// A database in which mistakes are made.
trait TestDatabase: Clone + Send + Sync + 'static {
    type Subject: Guarding;

    /// Returns another set of records, on statements with this mistake.
    fn subject(&self, number: usize, mutant: Mutant) -> impl Future<Output = Self::Subject> + Send;
}

/// Has each mistake found by its trial, which passes without it.
async fn finds<T: TestDatabase>(database: T, mutants: &'static [Mutant]) {
    let permits = Arc::new(Semaphore::new(6));
    let mut tasks = JoinSet::new();
    for (number, mutant) in mutants.iter().copied().enumerate() {
        let database = database.clone();
        let permits = permits.clone();
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await.unwrap();
            let none = Mutant { from: "", ..mutant };
            let mut wrong = tries(&database, number, mutant).await;
            // A sweep or a moment may pass by unseen on a busy machine.
            for _ in 1..TRIES {
                if wrong.is_ok() {
                    wrong = tries(&database, number, mutant).await;
                }
            }
            let right = tries(&database, number + mutants.len(), none).await;
            let said = format!(
                "{}, by {}: {wrong:?}; without it: {right:?}",
                mutant.name, mutant.found_by
            );
            println!("{said}");
            let is_found = wrong.is_err_and(|said| is_an_answer(&said)) && right.is_ok();
            (!is_found).then_some(said)
        });
    }
    let missed: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Whether a trial failed because of what the store answered. A statement that the database refuses
/// would fail every trial.
fn is_an_answer(said: &str) -> bool {
    !said.contains("panicked")
        && (!said.starts_with("the store failed") || said.contains("(Unreadable)"))
}

/// Runs the trial of a mutant, in a task of its own: one that panics is one result among the
/// others.
async fn tries<T: TestDatabase>(database: &T, number: usize, mutant: Mutant) -> Result<(), String> {
    let database = database.clone();
    let task = tokio::spawn(async move {
        let subject = database.subject(number, mutant).await;
        if mutant.found_by == GUARDS {
            return subject.guards().await;
        }
        let subject = Arc::new(subject);
        let trial = suite::trials()
            .find(|other| other.name() == mutant.found_by)
            .expect("the suite has such a trial");
        trial
            .run(move || Shared(subject.clone()))
            .await
            .map(drop)
            .map_err(|failure| failure.to_string())
    });
    task.await.unwrap_or_else(|panic| Err(panic.to_string()))
}

/// The result of a trial that is a race differs from run to run. So the conditions of writes are
/// also tested separately.
const GUARDS: &str = "the guards";

trait Guarding: Subject {
    fn guards(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Writes over a row and removes it, on conditions that do not hold.
async fn guards<D: Dialect>(executor: &Arc<Executor<D>>) -> Result<(), String> {
    let id = RecordId::new("orders", &Key::encode("guarded").unwrap()).unwrap();
    let claim = Claim::new(id.clone(), Owner::generate(), LIMIT, LIMIT * 2);
    steps::claim(executor, &claim).await.unwrap();
    let revision = read(executor, &id).await;
    if insert(executor, &id).await != Some(revision) || read(executor, &id).await != revision {
        return Err("a claim wrote over a row".into());
    }
    let renewed = steps::renew(
        executor,
        &[Renewal::new(id.clone(), claim.owner, LIMIT * 2)],
    )
    .await;
    assert!(matches!(renewed.as_slice(), [Ok(Ownership::Held)]));
    if put(executor, &id, Guard::Revision(revision)).await {
        return Err("a row was written over that had changed since".into());
    }
    if removed(executor, &id, revision).await {
        return Err("a row was removed that had changed since".into());
    }
    let revision = read(executor, &id).await;
    if put(executor, &id, Guard::RanOut(revision)).await {
        return Err("a row was written over whose lease was alive".into());
    }
    if D::ONE_WRITER {
        Ok(())
    } else {
        renews_past_a_lock(executor, &claim, revision).await
    }
}

/// Renews a lease whose row is locked, together with another one.
async fn renews_past_a_lock<D: Dialect>(
    executor: &Arc<Executor<D>>,
    locked: &Claim,
    revision: i64,
) -> Result<(), String> {
    let id = RecordId::new("orders", &Key::encode("free").unwrap()).unwrap();
    let free = Claim::new(id, Owner::generate(), LIMIT, LIMIT * 2);
    steps::claim(executor, &free).await.unwrap();
    let mut on = executor.connections.pool.begin().await.unwrap();
    let held = InFlight::new(locked.owner, 1, Origin::Nothing, LIMIT, LIMIT * 2);
    assert!(
        executor
            .dialect()
            .put(
                &mut on,
                &locked.id,
                Guard::Revision(revision),
                &steps::in_flight(&held)
            )
            .await
            .unwrap()
    );
    let renewals =
        [locked, &free].map(|claim| Renewal::new(claim.id.clone(), claim.owner, LIMIT * 2));
    let renewed = steps::renew(executor, &renewals).await;
    on.rollback().await.unwrap();
    match renewed.as_slice() {
        [Err(_), Ok(Ownership::Held)] => Ok(()),
        other => Err(format!("of a locked row and a free one: {other:?}")),
    }
}

async fn read<D: Dialect>(executor: &Arc<Executor<D>>, id: &RecordId) -> i64 {
    let id = id.clone();
    let step = executor.step(Resend::Never, move |dialect, on| {
        let id = id.clone();
        Box::pin(async move { Ok(dialect.read(on, &id).await?.map(|row| row.revision)) })
    });
    step.await.unwrap().expect("the row is there")
}

/// The revision of the row that another claim finds.
async fn insert<D: Dialect>(executor: &Arc<Executor<D>>, id: &RecordId) -> Option<i64> {
    let held = InFlight::new(Owner::generate(), 1, Origin::Nothing, LIMIT, LIMIT * 2);
    let id = id.clone();
    let columns = steps::in_flight(&held);
    let step = executor.step(Resend::Never, move |dialect, on| {
        let id = id.clone();
        let columns = columns.clone();
        Box::pin(async move { Ok(dialect.insert(on, &id, &columns).await?) })
    });
    step.await.unwrap().map(|row| row.revision)
}

async fn put<D: Dialect>(executor: &Arc<Executor<D>>, id: &RecordId, guard: Guard) -> bool {
    let held = InFlight::new(Owner::generate(), 2, Origin::Abandoned, LIMIT, LIMIT * 2);
    let id = id.clone();
    let columns = steps::in_flight(&held);
    let step = executor.step(Resend::Never, move |dialect, on| {
        let id = id.clone();
        let columns = columns.clone();
        Box::pin(async move { Ok(dialect.put(on, &id, guard, &columns).await?) })
    });
    step.await.unwrap()
}

async fn removed<D: Dialect>(executor: &Arc<Executor<D>>, id: &RecordId, revision: i64) -> bool {
    let id = id.clone();
    let step = executor.step(Resend::Never, move |dialect, on| {
        let id = id.clone();
        Box::pin(async move { Ok(dialect.remove(on, &id, revision).await?) })
    });
    step.await.unwrap()
}

/// One set of records for all handles of a trial.
struct Shared<S>(Arc<S>);

impl<S: Subject> Subject for Shared<S> {
    type Store = S::Store;

    async fn store(&self) -> Result<S::Store, BoxError> {
        self.0.store().await
    }
}

/// Sweeps all the time, which must not change what a caller sees.
fn keep_sweeping<D: Dialect>(executor: &Arc<Executor<D>>) {
    let executor = Arc::downgrade(executor);
    tokio::spawn(async move {
        while let Some(executor) = executor.upgrade() {
            let _ = sweep::sweep(&executor).await;
            drop(executor);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

fn settings(table: &str) -> Settings {
    Settings {
        table: table.to_owned(),
        limit: LIMIT,
        ..Settings::default()
    }
}

/// Returns an executor whose statements have the mistake.
fn executor<D: Dialect>(pool: sqlx::Pool<D::Db>, table: &str, mutant: Mutant) -> Arc<Executor<D>> {
    let executor = Executor::with_dialect(pool, &settings(table), move |dialect: &mut D| {
        if !mutant.from.is_empty() {
            mutant.apply(dialect);
        }
    });
    // Elsewhere a sweep would hide a mutant: it removes the row that should not be found.
    if mutant.name.contains("sweep") {
        keep_sweeping(&executor);
    }
    executor
}

struct OnSqlite {
    dir: TempDir,
    mutant: Mutant,
}

#[derive(Clone)]
struct Sqlite;

impl TestDatabase for Sqlite {
    type Subject = OnSqlite;

    async fn subject(&self, _: usize, mutant: Mutant) -> OnSqlite {
        OnSqlite {
            dir: tempfile::tempdir().unwrap(),
            mutant,
        }
    }
}

impl Guarding for OnSqlite {
    async fn guards(&self) -> Result<(), String> {
        guards(&self.store().await.unwrap().0).await
    }
}

impl Subject for OnSqlite {
    type Store = SqliteStore;

    async fn store(&self) -> Result<SqliteStore, BoxError> {
        let options = SqliteConnectOptions::new()
            .filename(self.dir.path().join("idem.db"))
            .create_if_missing(true);
        let options = options
            .busy_timeout(LIMIT)
            .journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .test_before_acquire(false);
        let pool: SqlitePool = pool.connect_with(options).await?;
        SqliteStore(Executor::new(pool.clone(), &settings("idem_records")))
            .migrate()
            .await?;
        Ok(SqliteStore(executor(pool, "idem_records", self.mutant)))
    }
}

/// A server, with a table for each mistake.
macro_rules! on_server {
    (
        $TestDatabase:ident, $Subject:ident, $Server:ty, $Store:ident, $Pool:ident,
        $PoolOptions:ident
    ) => {
        #[derive(Clone)]
        struct $TestDatabase(Arc<$Server>);

        struct $Subject {
            server: Arc<$Server>,
            table: String,
            mutant: Mutant,
        }

        impl TestDatabase for $TestDatabase {
            type Subject = $Subject;

            async fn subject(&self, number: usize, mutant: Mutant) -> $Subject {
                let table = format!("records_{number}");
                let pool = $Pool::connect(&self.0.url()).await.unwrap();
                $Store::builder(pool)
                    .table(&table)
                    .build()
                    .migrate()
                    .await
                    .unwrap();
                $Subject {
                    server: self.0.clone(),
                    table,
                    mutant,
                }
            }
        }

        impl Guarding for $Subject {
            async fn guards(&self) -> Result<(), String> {
                guards(&self.store().await.unwrap().0).await
            }
        }

        impl Subject for $Subject {
            type Store = $Store;

            async fn store(&self) -> Result<$Store, BoxError> {
                let pool = $PoolOptions::new()
                    .max_connections(4)
                    .test_before_acquire(false);
                Ok($Store(executor(
                    pool.connect(&self.server.url()).await?,
                    &self.table,
                    self.mutant,
                )))
            }
        }
    };
}

on_server!(
    Postgres,
    OnPostgres,
    PostgresServer,
    PostgresStore,
    PgPool,
    PgPoolOptions
);
on_server!(
    MariaDb,
    OnMariaDb,
    MariaDbServer,
    MySqlStore,
    MySqlPool,
    MySqlPoolOptions
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_sqlite_is_found() {
    finds(Sqlite, sqlite::MUTANTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_postgres_is_found() {
    finds(
        Postgres(Arc::new(PostgresServer::start().await.unwrap())),
        postgres::MUTANTS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_mysql_is_found() {
    finds(
        MariaDb(Arc::new(MariaDbServer::start().await.unwrap())),
        mysql::MUTANTS,
    )
    .await;
}
