//! Statements with a mistake in them, one at a time: the conformance suite finds each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_testkit::{BoxError, MariaDbServer, PostgresServer, Subject, suite};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use self::sqlx::postgres::{PgPool, PgPoolOptions};
use self::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use super::super::sqlx;
use super::core::{Core, Settings};
use super::dialect::Dialect;
use super::{MySqlStore, PostgresStore, SqliteStore, sweep};

/// One trial stores a mebibyte, and others run at the same time.
const LIMIT: Duration = Duration::from_secs(20);

/// A mistake: what a statement says, what it says instead, and the trial that finds it.
#[derive(Debug, Clone, Copy)]
struct Mistake {
    name: &'static str,
    from: &'static str,
    to: &'static str,
    found_by: &'static str,
}

const fn mistake(name: &'static str, from: &'static str, to: &'static str, found_by: &'static str) -> Mistake {
    Mistake { name, from, to, found_by }
}

impl Mistake {
    /// Makes it.
    fn make<D: Dialect>(self, dialect: &mut D) {
        let made = AtomicBool::new(false);
        dialect.rewrite(&|text| {
            made.fetch_or(text.contains(self.from), Ordering::Relaxed);
            text.replace(self.from, self.to)
        });
        assert!(made.into_inner() || self.from.is_empty(), "no statement says `{}`: {}", self.from, self.name);
    }
}

/// What a mistake is made in.
trait Place: Clone + Send + Sync + 'static {
    type Subject: Subject;

    /// Another set of records.
    fn another(&self, number: usize, mistake: Mistake) -> impl Future<Output = Self::Subject> + Send;
}

/// Has each mistake found, and none where there is none.
async fn finds<P: Place>(place: P, mistakes: &'static [Mistake]) {
    let places = Arc::new(Semaphore::new(6));
    let mut tasks = JoinSet::new();
    for (number, mistake) in mistakes.iter().copied().enumerate() {
        let (place, places) = (place.clone(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let subject = Arc::new(place.another(number, mistake).await);
            let none = mistake_of_none(mistake);
            let right = Arc::new(place.another(number + 1000, none).await);
            if mistake.found_by.is_empty() {
                let report = suite::run_all({
                    let subject = subject.clone();
                    move || Shared(subject.clone())
                })
                .await;
                return Some(format!(
                    "{}: {:?}",
                    mistake.name,
                    report.failures().map(|(name, _)| name).collect::<Vec<_>>()
                ));
            }
            let trial = suite::trials().find(|trial| trial.name() == mistake.found_by).expect(mistake.found_by);
            let wrong = trial.run(move || Shared(subject.clone())).await;
            let right = trial.run(move || Shared(right.clone())).await;
            match (wrong, right) {
                (Err(_), Ok(_)) => None,
                (wrong, right) => Some(format!("{}: {wrong:?}; without it: {right:?}", mistake.name)),
            }
        });
    }
    let missed: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn mistake_of_none(mistake: Mistake) -> Mistake {
    Mistake { from: "", to: "", ..mistake }
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
fn keep_sweeping<D: Dialect>(core: &Arc<Core<D>>) {
    let core = Arc::downgrade(core);
    tokio::spawn(async move {
        while let Some(core) = core.upgrade() {
            let _ = sweep::sweep(&core).await;
            drop(core);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

fn settings(table: &str) -> Settings {
    Settings { table: table.to_owned(), limit: LIMIT }
}

/// A core that makes the mistake.
fn core<D: Dialect>(pool: sqlx::Pool<D::Db>, table: &str, mistake: Mistake) -> Arc<Core<D>> {
    let core = Core::changed(pool, &settings(table), |dialect: &mut D| {
        if !mistake.from.is_empty() {
            mistake.make(dialect);
        }
    });
    keep_sweeping(&core);
    core
}

struct OnSqlite {
    dir: TempDir,
    mistake: Mistake,
}

#[derive(Clone)]
struct Sqlite;

impl Place for Sqlite {
    type Subject = OnSqlite;

    async fn another(&self, _: usize, mistake: Mistake) -> OnSqlite {
        OnSqlite { dir: tempfile::tempdir().unwrap(), mistake }
    }
}

impl Subject for OnSqlite {
    type Store = SqliteStore;

    async fn store(&self) -> Result<SqliteStore, BoxError> {
        let options = SqliteConnectOptions::new().filename(self.dir.path().join("idem.db")).create_if_missing(true);
        let options = options.busy_timeout(LIMIT).journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(4).test_before_acquire(false);
        let pool: SqlitePool = pool.connect_with(options).await?;
        SqliteStore(Core::new(pool.clone(), &settings("idem_records"))).migrate().await?;
        Ok(SqliteStore(core(pool, "idem_records", self.mistake)))
    }
}

#[derive(Clone)]
struct Postgres(Arc<PostgresServer>);

struct OnPostgres {
    server: Arc<PostgresServer>,
    table: String,
    mistake: Mistake,
}

impl Place for Postgres {
    type Subject = OnPostgres;

    async fn another(&self, number: usize, mistake: Mistake) -> OnPostgres {
        let table = format!("records_{number}");
        let pool = PgPool::connect(&self.0.url()).await.unwrap();
        PostgresStore::builder(pool).table(&table).build().migrate().await.unwrap();
        OnPostgres { server: self.0.clone(), table, mistake }
    }
}

impl Subject for OnPostgres {
    type Store = PostgresStore;

    async fn store(&self) -> Result<PostgresStore, BoxError> {
        let pool = PgPoolOptions::new().max_connections(4).test_before_acquire(false);
        Ok(PostgresStore(core(pool.connect(&self.server.url()).await?, &self.table, self.mistake)))
    }
}

#[derive(Clone)]
struct MariaDb(Arc<MariaDbServer>);

struct OnMariaDb {
    server: Arc<MariaDbServer>,
    table: String,
    mistake: Mistake,
}

impl Place for MariaDb {
    type Subject = OnMariaDb;

    async fn another(&self, number: usize, mistake: Mistake) -> OnMariaDb {
        let table = format!("records_{number}");
        let pool = MySqlPool::connect(&self.0.url()).await.unwrap();
        MySqlStore::builder(pool).table(&table).build().migrate().await.unwrap();
        OnMariaDb { server: self.0.clone(), table, mistake }
    }
}

impl Subject for OnMariaDb {
    type Store = MySqlStore;

    async fn store(&self) -> Result<MySqlStore, BoxError> {
        let pool = MySqlPoolOptions::new().max_connections(4).test_before_acquire(false);
        Ok(MySqlStore(core(pool.connect(&self.server.url()).await?, &self.table, self.mistake)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_sqlite_is_found() {
    finds(Sqlite, SQLITE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_postgres_is_found() {
    finds(Postgres(Arc::new(PostgresServer::start().await.unwrap())), POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_statement_of_mysql_is_found() {
    finds(MariaDb(Arc::new(MariaDbServer::start().await.unwrap())), MYSQL).await;
}

#[rustfmt::skip]
const SQLITE: &[Mistake] = &[
    mistake("a claim writes over a row", "ON CONFLICT (operation, key) DO NOTHING", "ON CONFLICT (operation, key) DO UPDATE SET state = excluded.state, attempt = excluded.attempt, owner = excluded.owner, revision = excluded.revision", ""),
    mistake("a key is that of each operation", "WHERE operation = ?1 AND key = ?2", "WHERE key = ?2", ""),
    mistake("anybody commits", "owner = ?18 AND expires_at", "?18 IS NOT NULL AND expires_at", ""),
    mistake("a commit after the hold", "AND owner = ?18 AND expires_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND owner = ?18", ""),
    mistake("a write over what has changed since", "revision = ?18 AND (", "?18 IS NOT NULL AND (", ""),
    mistake("a removal of what has changed since", "?2 AND revision = ?3", "?2 AND ?3 IS NOT NULL", ""),
    mistake("anybody renews", "AND owner = ?3 AND expires_at", "AND ?3 IS NOT NULL AND expires_at", ""),
    mistake("a renewal after the hold", "AND owner = ?3 AND expires_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND owner = ?3", ""),
    mistake("a renewal that leaves the lease", "lease_until = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + lease_until - leased_at", "lease_until = lease_until", ""),
    mistake("a renewal that leaves the hold", "expires_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?4", "expires_at = coalesce(expires_at, ?4)", ""),
    mistake("a renewal that does not say when", "SET leased_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), lease_until", "SET lease_until", ""),
    mistake("a renewal that leaves the revision", "+ ?4, revision = ?5", "+ ?4, revision = coalesce(revision, ?5)", ""),
    mistake("an expiry that is set where it should stay", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at)", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + 1)", ""),
    mistake("an expiry that stays where it should be set", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at)", "coalesce(expires_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9)", ""),
    mistake("no outcome", "outcome = ?14", "outcome = coalesce(outcome, x'6e756c6c')", ""),
    mistake("another codec", "codec = ?13", "codec = coalesce(codec, 'j')", ""),
    mistake("an error that is a value", "is_error = ?12", "is_error = is_error", ""),
    mistake("the fingerprint of the first", "fingerprint = ?11", "fingerprint = fingerprint", ""),
    mistake("the attempt of the first", "SET state = ?3, attempt = ?4", "SET state = ?3, attempt = attempt", ""),
    mistake("the owner of the first", "owner = ?5, origin", "owner = owner, origin", ""),
    mistake("the origin of the first", "origin = ?6,", "origin = coalesce(origin, 'new'),", ""),
    mistake("questions that are not counted", "questions = ?15", "questions = questions", ""),
    mistake("what was taken over is forgotten", "took_over = ?16", "took_over = NULL", ""),
    mistake("the state stays", "SET state = ?3,", "SET state = state,", ""),
    mistake("an outcome that is kept for as long as it is remembered", "valid_until = coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at) - ?10", "valid_until = NULL", ""),
    mistake("what is left is what there was", "expires_at - CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), expires_at - valid_until", "expires_at - coalesce(leased_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)), expires_at - valid_until", ""),
    mistake("a lease as long as the hold", "lease_until - leased_at, expires_at - leased_at", "expires_at - leased_at, expires_at - leased_at", ""),
    mistake("a sweep of all", "WHERE expires_at <= CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) ORDER BY", "ORDER BY", ""),
    mistake("a sweep of all outcomes", "AND valid_until IS NOT NULL AND valid_until <= CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND valid_until IS NOT NULL", ""),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", ""),
];

#[rustfmt::skip]
const POSTGRES: &[Mistake] = &[
    mistake("a key is that of each operation", "WHERE operation = $1 AND key = $2", "WHERE $1::text IS NOT NULL AND key = $2", ""),
    mistake("anybody commits", "owner = $18 AND expires_at", "$18::bytea IS NOT NULL AND expires_at", ""),
    mistake("a commit after the hold", "owner = $18 AND expires_at > statement_timestamp()", "owner = $18", ""),
    mistake("a write over what has changed since", "revision = $18 AND (", "$18::bigint IS NOT NULL AND (", ""),
    mistake("a removal of what has changed since", "$2 AND revision = $3", "$2 AND $3::bigint IS NOT NULL", ""),
    mistake("anybody renews", "AND r.owner = renewed.owner", "AND renewed.owner IS NOT NULL", ""),
    mistake("a renewal after the hold", " AND r.expires_at > statement_timestamp() RETURNING", " RETURNING", ""),
    mistake("a renewal that leaves the lease", "lease_until = statement_timestamp() + (r.lease_until - r.leased_at)", "lease_until = r.lease_until", ""),
    mistake("a renewal that leaves the hold", "expires_at = statement_timestamp() + renewed.hold * interval '1 millisecond'", "expires_at = r.expires_at", ""),
    mistake("a renewal that does not say when", "SET leased_at = statement_timestamp(), lease_until", "SET lease_until", ""),
    mistake("an expiry that is set where it should stay", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', statement_timestamp() + interval '1 millisecond')", ""),
    mistake("an expiry that stays where it should be set", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)", "coalesce(expires_at, statement_timestamp() + $9::bigint * interval '1 millisecond')", ""),
    mistake("no outcome", "outcome = $14", "outcome = coalesce(outcome, nullif($14, $14), '\\x6e756c6c')", ""),
    mistake("another codec", "codec = $13", "codec = coalesce(codec, nullif($13, $13), 'j')", ""),
    mistake("an error that is a value", "is_error = $12", "is_error = is_error AND $12", ""),
    mistake("the fingerprint of the first", "fingerprint = $11", "fingerprint = coalesce(fingerprint, nullif($11, $11))", ""),
    mistake("the attempt of the first", "state = $3, attempt = $4", "state = $3, attempt = coalesce(attempt, $4)", ""),
    mistake("the owner of the first", "owner = $5, origin", "owner = coalesce(owner, $5), origin", ""),
    mistake("questions that are not counted", "questions = $15", "questions = coalesce(questions, $15)", ""),
    mistake("what was taken over is forgotten", "took_over = $16", "took_over = nullif($16, $16)", ""),
    mistake("what is left is what there was", "ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)", "ceil(extract(epoch FROM expires_at - coalesce(leased_at, statement_timestamp())) * 1000)", ""),
    mistake("a lease as long as the hold", "extract(epoch FROM lease_until - leased_at)", "extract(epoch FROM expires_at - leased_at)", ""),
    mistake("a sweep of all", "expires_at <= statement_timestamp()", "expires_at IS NOT NULL", ""),
    mistake("a sweep of all outcomes", "valid_until <= statement_timestamp()", "valid_until IS NOT NULL", ""),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", ""),
];

#[rustfmt::skip]
const MYSQL: &[Mistake] = &[
    mistake("a key is that of each operation", "WHERE operation = ? AND `key` = ?", "WHERE ? IS NOT NULL AND `key` = ?", ""),
    mistake("anybody commits", "owner = ? AND state", "? IS NOT NULL AND state", ""),
    mistake("a commit after the hold", "owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)", "owner = ? AND state = 'in_flight'", ""),
    mistake("a write over what has changed since", "revision = ? AND (NOT", "? IS NOT NULL AND (NOT", ""),
    mistake("a removal of what has changed since", "`key` = ? AND revision = ?", "`key` = ? AND ? IS NOT NULL", ""),
    mistake("a renewal that leaves the lease", "lease_until = UTC_TIMESTAMP(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) MICROSECOND", "lease_until = lease_until", ""),
    mistake("a renewal that does not say when", "leased_at = UTC_TIMESTAMP(6), revision = ", "revision = ", ""),
    mistake("an expiry that is set where it should stay", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, expires_at)", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, UTC_TIMESTAMP(6) + INTERVAL 1000 MICROSECOND)", ""),
    mistake("an expiry that stays where it should be set", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, expires_at)", "expires_at = COALESCE(expires_at, UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND)", ""),
    mistake("an error that is a value", "is_error = ?", "is_error = is_error AND ?", ""),
    mistake("the attempt of the first", "SET state = ?, attempt = ?", "SET state = ?, attempt = COALESCE(attempt, ?)", ""),
    mistake("the owner of the first", "owner = ?, origin", "owner = COALESCE(owner, ?), origin", ""),
    mistake("what is left is what there was", "(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000", "(TIMESTAMPDIFF(MICROSECOND, COALESCE(leased_at, UTC_TIMESTAMP(6)), expires_at) + 999) DIV 1000", ""),
    mistake("a lease as long as the hold", "TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000", "TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000", ""),
    mistake("a sweep of all", "WHERE expires_at <= UTC_TIMESTAMP(6) ORDER BY expires_at", "ORDER BY expires_at", ""),
    mistake("a sweep of all outcomes", "AND valid_until <= UTC_TIMESTAMP(6)", "AND valid_until IS NOT NULL", ""),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", ""),
];
