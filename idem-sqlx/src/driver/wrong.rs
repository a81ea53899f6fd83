//! Statements with a mistake in them, one at a time: a trial of the conformance suite finds each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
use super::super::sqlx;
use super::core::{Core, Settings};
use super::dialect::{Dialect, Guard};
use super::{MySqlStore, PostgresStore, SqliteStore, steps, sweep};

/// One trial stores a mebibyte, and others run at the same time.
const LIMIT: Duration = Duration::from_secs(20);

/// How often a mistake is looked for.
const TRIES: usize = 3;

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
        assert!(made.into_inner(), "no statement says `{}`: {}", self.from, self.name);
    }
}

/// What a mistake is made in.
trait Venue: Clone + Send + Sync + 'static {
    type Subject: Guarding;

    /// Another set of records.
    fn another(&self, number: usize, mistake: Mistake) -> impl Future<Output = Self::Subject> + Send;
}

/// Has each mistake found by its trial, which passes without it.
async fn finds<P: Venue>(place: P, mistakes: &'static [Mistake]) {
    let places = Arc::new(Semaphore::new(6));
    let mut tasks = JoinSet::new();
    for (number, mistake) in mistakes.iter().copied().enumerate() {
        let (place, places) = (place.clone(), places.clone());
        tasks.spawn(async move {
            let _place = places.acquire_owned().await.unwrap();
            let none = Mistake { from: "", ..mistake };
            let mut wrong = tries(&place, number, mistake).await;
            // A sweep or a moment may pass by unseen on a busy machine.
            for _ in 1..TRIES {
                if wrong.is_ok() {
                    wrong = tries(&place, number, mistake).await;
                }
            }
            let right = tries(&place, number + mistakes.len(), none).await;
            let said = format!("{}, by {}: {wrong:?}; without it: {right:?}", mistake.name, mistake.found_by);
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
    !said.contains("panicked") && (!said.starts_with("the store failed") || said.contains("(Unreadable)"))
}

/// Runs the trial of a mistake, in a task of its own: one that panics is one result among the others.
async fn tries<P: Venue>(place: &P, number: usize, mistake: Mistake) -> Result<(), String> {
    let place = place.clone();
    let task = tokio::spawn(async move {
        let subject = place.another(number, mistake).await;
        if mistake.found_by == GUARDS {
            return subject.guards().await;
        }
        let subject = Arc::new(subject);
        let trial = suite::trials().find(|other| other.name() == mistake.found_by).expect("the suite has such a trial");
        trial.run(move || Shared(subject.clone())).await.map(drop).map_err(|failure| failure.to_string())
    });
    task.await.unwrap_or_else(|panic| Err(panic.to_string()))
}

/// Of the trials that are races the result differs from run to run. So what a write compares is also
/// tried alone.
const GUARDS: &str = "the guards";

trait Guarding: Subject {
    fn guards(&self) -> impl Future<Output = Result<(), String>> + Send;
}

/// Writes over a row and removes it, on conditions that do not hold.
async fn guards<D: Dialect>(core: &Arc<Core<D>>) -> Result<(), String> {
    let id = RecordId::new("orders", &Key::encode("guarded").unwrap()).unwrap();
    let claim = Claim::new(id.clone(), Owner::generate(), LIMIT, LIMIT * 2);
    steps::claim(core, &claim).await.unwrap();
    let revision = read(core, &id).await;
    let renewed = steps::renew(core, &[Renewal::new(id.clone(), claim.owner, LIMIT * 2)]).await;
    assert!(matches!(renewed.as_slice(), [Ok(Ownership::Held)]));
    if put(core, &id, Guard::Revision(revision)).await {
        return Err("a row was written over that had changed since".into());
    }
    if removed(core, &id, revision).await {
        return Err("a row was removed that had changed since".into());
    }
    let revision = read(core, &id).await;
    if put(core, &id, Guard::RanOut(revision)).await {
        return Err("a row was written over whose lease was alive".into());
    }
    if D::ONE_WRITER { Ok(()) } else { renews_past_a_lock(core, &claim, revision).await }
}

/// Renews a lease whose row is locked, together with another one.
async fn renews_past_a_lock<D: Dialect>(core: &Arc<Core<D>>, locked: &Claim, revision: i64) -> Result<(), String> {
    let id = RecordId::new("orders", &Key::encode("free").unwrap()).unwrap();
    let free = Claim::new(id, Owner::generate(), LIMIT, LIMIT * 2);
    steps::claim(core, &free).await.unwrap();
    let mut on = core.pool.begin().await.unwrap();
    let held = InFlight::new(locked.owner, 1, Origin::Nothing, LIMIT, LIMIT * 2);
    assert!(core.dialect.put(&mut on, &locked.id, Guard::Revision(revision), &steps::in_flight(&held)).await.unwrap());
    let renewals = [locked, &free].map(|claim| Renewal::new(claim.id.clone(), claim.owner, LIMIT * 2));
    let renewed = steps::renew(core, &renewals).await;
    on.rollback().await.unwrap();
    match renewed.as_slice() {
        [Err(_), Ok(Ownership::Held)] => Ok(()),
        other => Err(format!("of a locked row and a free one: {other:?}")),
    }
}

async fn read<D: Dialect>(core: &Arc<Core<D>>, id: &RecordId) -> i64 {
    let id = id.clone();
    let step = core.step(false, move |dialect, on| {
        let id = id.clone();
        Box::pin(async move { Ok(dialect.read(on, &id).await?.map(|row| row.revision)) })
    });
    step.await.unwrap().expect("the row is there")
}

async fn put<D: Dialect>(core: &Arc<Core<D>>, id: &RecordId, guard: Guard) -> bool {
    let held = InFlight::new(Owner::generate(), 2, Origin::Abandoned, LIMIT, LIMIT * 2);
    let (id, columns) = (id.clone(), steps::in_flight(&held));
    let step = core.step(false, move |dialect, on| {
        let (id, columns) = (id.clone(), columns.clone());
        Box::pin(async move { Ok(dialect.put(on, &id, guard, &columns).await?) })
    });
    step.await.unwrap()
}

async fn removed<D: Dialect>(core: &Arc<Core<D>>, id: &RecordId, revision: i64) -> bool {
    let id = id.clone();
    let step = core.step(false, move |dialect, on| {
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
    Settings { table: table.to_owned(), limit: LIMIT, ..Settings::default() }
}

/// A core that makes the mistake.
fn core<D: Dialect>(pool: sqlx::Pool<D::Db>, table: &str, mistake: Mistake) -> Arc<Core<D>> {
    let core = Core::changed(pool, &settings(table), |dialect: &mut D| {
        if !mistake.from.is_empty() {
            mistake.make(dialect);
        }
    });
    // Elsewhere a sweep would hide a mistake: it removes the row that should not be found.
    if mistake.name.contains("sweep") {
        keep_sweeping(&core);
    }
    core
}

struct OnSqlite {
    dir: TempDir,
    mistake: Mistake,
}

#[derive(Clone)]
struct Sqlite;

impl Venue for Sqlite {
    type Subject = OnSqlite;

    async fn another(&self, _: usize, mistake: Mistake) -> OnSqlite {
        OnSqlite { dir: tempfile::tempdir().unwrap(), mistake }
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
        let options = SqliteConnectOptions::new().filename(self.dir.path().join("idem.db")).create_if_missing(true);
        let options = options.busy_timeout(LIMIT).journal_mode(SqliteJournalMode::Wal);
        let pool = SqlitePoolOptions::new().max_connections(4).test_before_acquire(false);
        let pool: SqlitePool = pool.connect_with(options).await?;
        SqliteStore(Core::new(pool.clone(), &settings("idem_records"))).migrate().await?;
        Ok(SqliteStore(core(pool, "idem_records", self.mistake)))
    }
}

/// A place on a server, with a table for each mistake.
macro_rules! on_server {
    ($Venue:ident, $Subject:ident, $Server:ty, $Store:ident, $Pool:ident, $PoolOptions:ident) => {
        #[derive(Clone)]
        struct $Venue(Arc<$Server>);

        struct $Subject {
            server: Arc<$Server>,
            table: String,
            mistake: Mistake,
        }

        impl Venue for $Venue {
            type Subject = $Subject;

            async fn another(&self, number: usize, mistake: Mistake) -> $Subject {
                let table = format!("records_{number}");
                let pool = $Pool::connect(&self.0.url()).await.unwrap();
                $Store::builder(pool).table(&table).build().migrate().await.unwrap();
                $Subject { server: self.0.clone(), table, mistake }
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
                let pool = $PoolOptions::new().max_connections(4).test_before_acquire(false);
                Ok($Store(core(pool.connect(&self.server.url()).await?, &self.table, self.mistake)))
            }
        }
    };
}

on_server!(Postgres, OnPostgres, PostgresServer, PostgresStore, PgPool, PgPoolOptions);
on_server!(MariaDb, OnMariaDb, MariaDbServer, MySqlStore, MySqlPool, MySqlPoolOptions);

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
    mistake("a token without its grace", "+ ?9 - ?10, CAST", "+ ?9, CAST", "issue::is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing"),
    mistake("a claim writes over a row", "ON CONFLICT (operation, key) DO NOTHING", "ON CONFLICT (operation, key) DO UPDATE SET state = excluded.state, attempt = excluded.attempt, owner = excluded.owner, origin = excluded.origin, leased_at = excluded.leased_at, lease_until = excluded.lease_until, revision = excluded.revision", "claim::committed_is_left_as_it_is"),
    mistake("a key is that of each operation", "WHERE operation = ?1 AND key = ?2", "WHERE key = ?2", "claim::keys_of_two_operations_do_not_collide"),
    mistake("anybody commits", "owner = ?18 AND expires_at", "?18 IS NOT NULL AND expires_at", "commit::by_a_stranger_is_lost"),
    mistake("a commit after the hold", "AND owner = ?18 AND expires_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND owner = ?18", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a write over what has changed since", "revision = ?18 AND (", "?18 IS NOT NULL AND (", GUARDS),
    mistake("a write over a lease that lives", "(NOT ?19 OR lease_until <= ", "(NOT ?19 OR 0 <= ", GUARDS),
    mistake("a removal of what has changed since", "?2 AND revision = ?3", "?2 AND ?3 IS NOT NULL", GUARDS),
    mistake("anybody renews", "AND owner = ?3 AND expires_at", "AND ?3 IS NOT NULL AND expires_at", "renew::by_a_stranger_is_lost"),
    mistake("a renewal after the hold", "AND owner = ?3 AND expires_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND owner = ?3", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a renewal that leaves the lease", "lease_until = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + lease_until - leased_at", "lease_until = lease_until", "renew::starts_the_lease_anew"),
    mistake("a renewal that leaves the hold", "expires_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?4", "expires_at = coalesce(expires_at, ?4)", "renew::sets_the_expiry_to_the_hold"),
    mistake("a renewal that does not say when", "SET leased_at = CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), lease_until", "SET lease_until", "renew::starts_the_lease_anew"),
    mistake("a renewal that leaves the revision", "+ ?4, revision = ?5", "+ ?4, revision = coalesce(revision, ?5)", GUARDS),
    mistake("an expiry that is set where it should stay", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at)", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + 1)", "release::to_abandoned_keeps_attempt_fingerprint_and_expiry"),
    mistake("an expiry that stays where it should be set", "coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at)", "coalesce(expires_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9)", "commit::sets_ttl_and_remember_in_place_of_the_hold"),
    mistake("no outcome", "outcome = ?14", "outcome = coalesce(outcome, x'6e756c6c')", "outcome::of_every_byte_is_kept"),
    mistake("another codec", "codec = ?13", "codec = coalesce(codec, 'j')", "outcome::keeps_the_name_of_its_codec"),
    mistake("an error that is a value", "is_error = ?12", "is_error = is_error", "outcome::that_is_an_error_stays_one"),
    mistake("the fingerprint of the first", "fingerprint = ?11", "fingerprint = fingerprint", "fingerprint::a_take_over_brings_its_own"),
    mistake("the attempt of the first", "SET state = ?3, attempt = ?4", "SET state = ?3, attempt = attempt", "takeover::is_repeated_with_a_growing_attempt"),
    mistake("the owner of the first", "owner = ?5, origin", "owner = owner, origin", "takeover::the_new_owner_commits"),
    mistake("the origin of the first", "origin = ?6,", "origin = coalesce(origin, 'new'),", "takeover::ones_own_sent_again_is_recognised"),
    mistake("questions that are not counted", "questions = ?15", "questions = questions", "question::is_not_counted_after_a_renewal"),
    mistake("what was taken over is forgotten", "took_over = ?16", "took_over = NULL", "undo::restores_the_fingerprint"),
    mistake("the state stays", "SET state = ?3,", "SET state = state,", "outcome::of_every_byte_is_kept"),
    mistake("an outcome that is kept for as long as it is remembered", "valid_until = coalesce(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) + ?9, expires_at) - ?10", "valid_until = NULL", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("what is left is what there was", "expires_at - CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER), expires_at - valid_until", "expires_at - coalesce(leased_at, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)), expires_at - valid_until", "time::a_claim_finds_a_lease_alive_until_it_has_run_out"),
    mistake("a lease as long as the hold", "lease_until - leased_at, expires_at - leased_at", "expires_at - leased_at, expires_at - leased_at", "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease"),
    mistake("a sweep of all", "WHERE expires_at <= CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) ORDER BY", "ORDER BY", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of all outcomes", "AND valid_until IS NOT NULL AND valid_until <= CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", "AND valid_until IS NOT NULL", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
];

#[rustfmt::skip]
const POSTGRES: &[Mistake] = &[
    mistake("a claim writes over a row", "DO NOTHING RETURNING state", "DO UPDATE SET state = excluded.state, attempt = excluded.attempt, owner = excluded.owner, origin = excluded.origin, leased_at = excluded.leased_at, lease_until = excluded.lease_until, revision = excluded.revision RETURNING state", "claim::committed_is_left_as_it_is"),
    mistake("a token without its grace", "(length - fade)", "length", "issue::is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing"),
    // Without `SET waited = true`, nobody is told of an end; a waiter looks again after a second, so
    // nothing but time is lost.
    mistake("a renewal that leaves the revision", "revision = $5 FROM", "revision = coalesce(r.revision, $5) FROM", GUARDS),
    mistake("a renewal that waits for a locked row", "FOR NO KEY UPDATE OF r SKIP LOCKED", "FOR NO KEY UPDATE OF r", GUARDS),
    mistake("the origin of the first", "origin = $6,", "origin = coalesce(origin, $6, 'nothing'),", "takeover::ones_own_sent_again_is_recognised"),
    mistake("an outcome that is kept for as long as it is remembered", "- $10::bigint * interval '1 millisecond', coalesce", "- nullif($10::bigint, $10::bigint) * interval '1 millisecond', coalesce", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("the state stays", "SET state = $3,", "SET state = coalesce(state, $3),", "outcome::of_every_byte_is_kept"),
    mistake("a key is that of each operation", "WHERE operation = $1 AND key = $2", "WHERE $1::text IS NOT NULL AND key = $2", "claim::keys_of_two_operations_do_not_collide"),
    mistake("anybody commits", "owner = $18 AND state", "$18::bytea IS NOT NULL AND state", "commit::by_a_stranger_is_lost"),
    mistake("a commit after the hold", " AND expires_at - statement_timestamp() > interval '0' RETURNING waited", " RETURNING waited", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a write over what has changed since", "revision = $18 AND (", "$18::bigint IS NOT NULL AND (", GUARDS),
    mistake("a write over a lease that lives", "(NOT $19 OR lease_until <= statement_timestamp())", "(NOT $19 OR true)", GUARDS),
    mistake("a removal of what has changed since", "$2 AND revision = $3", "$2 AND $3::bigint IS NOT NULL", GUARDS),
    mistake("anybody renews", "AND r.owner = renewed.owner", "AND renewed.owner IS NOT NULL", "renew::by_a_stranger_is_lost"),
    mistake("a renewal after the hold", " AND r.expires_at - statement_timestamp() > interval '0' FOR NO KEY", " FOR NO KEY", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a renewal that leaves the lease", "lease_until = statement_timestamp() + (r.lease_until - r.leased_at)", "lease_until = r.lease_until", "renew::starts_the_lease_anew"),
    mistake("a renewal that leaves the hold", "expires_at = statement_timestamp() + free.hold * interval '1 millisecond'", "expires_at = r.expires_at", "renew::sets_the_expiry_to_the_hold"),
    mistake("a renewal that does not say when", "SET leased_at = statement_timestamp(), lease_until", "SET lease_until", "renew::starts_the_lease_anew"),
    mistake("an expiry that is set where it should stay", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', statement_timestamp() + interval '1 millisecond')", "release::to_abandoned_keeps_attempt_fingerprint_and_expiry"),
    mistake("an expiry that stays where it should be set", "coalesce(statement_timestamp() + $9::bigint * interval '1 millisecond', expires_at)", "coalesce(expires_at, statement_timestamp() + $9::bigint * interval '1 millisecond')", "commit::sets_ttl_and_remember_in_place_of_the_hold"),
    mistake("no outcome", "outcome = $14", "outcome = coalesce(outcome, nullif($14, $14), '\\x6e756c6c')", "outcome::of_every_byte_is_kept"),
    mistake("another codec", "codec = $13", "codec = coalesce(codec, nullif($13, $13), 'j')", "outcome::keeps_the_name_of_its_codec"),
    mistake("an error that is a value", "is_error = $12", "is_error = is_error AND $12", "outcome::that_is_an_error_stays_one"),
    mistake("the fingerprint of the first", "fingerprint = $11", "fingerprint = coalesce(fingerprint, nullif($11, $11))", "fingerprint::a_take_over_brings_its_own"),
    mistake("the attempt of the first", "state = $3, attempt = $4", "state = $3, attempt = coalesce(attempt, $4)", "takeover::is_repeated_with_a_growing_attempt"),
    mistake("the owner of the first", "owner = $5, origin", "owner = coalesce(owner, $5), origin", "takeover::the_new_owner_commits"),
    mistake("questions that are not counted", "questions = $15", "questions = coalesce(questions, $15)", "question::is_not_counted_after_a_renewal"),
    mistake("what was taken over is forgotten", "took_over = $16", "took_over = nullif($16, $16)", "undo::restores_the_fingerprint"),
    mistake("what is left is what there was", "ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)", "ceil(extract(epoch FROM expires_at - coalesce(leased_at, statement_timestamp())) * 1000)", "time::a_claim_finds_a_lease_alive_until_it_has_run_out"),
    mistake("a lease as long as the hold", "extract(epoch FROM lease_until - leased_at)", "extract(epoch FROM expires_at - leased_at)", "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease"),
    mistake("a sweep of all", "expires_at <= statement_timestamp()", "expires_at IS NOT NULL", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of all outcomes", "valid_until <= statement_timestamp()", "valid_until IS NOT NULL", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
];

#[rustfmt::skip]
const MYSQL: &[Mistake] = &[
    mistake("a key is that of each operation", "WHERE operation = ? AND `key` = ?", "WHERE ? IS NOT NULL AND `key` = ?", "claim::keys_of_two_operations_do_not_collide"),
    mistake("anybody commits", "owner = ? AND state", "? IS NOT NULL AND state", "commit::by_a_stranger_is_lost"),
    mistake("a commit after the hold", "owner = ? AND state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)", "owner = ? AND state = 'in_flight'", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a write over what has changed since", "revision = ? AND (NOT", "? IS NOT NULL AND (NOT", GUARDS),
    mistake("a write over a lease that lives", "(NOT ? OR lease_until <= UTC_TIMESTAMP(6))", "(NOT ? OR true)", GUARDS),
    mistake("a removal of what has changed since", "` WHERE operation = ? AND `key` = ? AND revision = ?", "` WHERE operation = ? AND `key` = ? AND ? IS NOT NULL", GUARDS),
    mistake("a renewal that leaves the lease", "r.lease_until = UTC_TIMESTAMP(6) + INTERVAL free.lease MICROSECOND", "r.lease_until = r.lease_until", "renew::starts_the_lease_anew"),
    mistake("a renewal that does not say when", "SET r.leased_at = UTC_TIMESTAMP(6), r.lease_until", "SET r.lease_until", "renew::starts_the_lease_anew"),
    mistake("a renewal that leaves the hold", "r.expires_at = UTC_TIMESTAMP(6) + INTERVAL 1000 * free.hold MICROSECOND", "r.expires_at = r.expires_at", "renew::sets_the_expiry_to_the_hold"),
    mistake("a renewal after the hold", "(PRIMARY) WHERE state = 'in_flight' AND expires_at > UTC_TIMESTAMP(6)", "(PRIMARY) WHERE state = 'in_flight'", "time::a_late_owner_finds_nothing_after_the_hold"),
    mistake("a renewal that waits for a locked row", "FOR UPDATE SKIP LOCKED) AS free", "FOR UPDATE) AS free", GUARDS),
    mistake("a renewal of some that is taken for all", "` WHERE revision = ", "` WHERE revision <> ", GUARDS),
    mistake("an expiry that is set where it should stay", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, expires_at)", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, UTC_TIMESTAMP(6) + INTERVAL 1000 MICROSECOND)", "release::to_abandoned_keeps_attempt_fingerprint_and_expiry"),
    mistake("an expiry that stays where it should be set", "expires_at = COALESCE(UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND, expires_at)", "expires_at = COALESCE(expires_at, UTC_TIMESTAMP(6) + INTERVAL ? * 1000 MICROSECOND)", "commit::sets_ttl_and_remember_in_place_of_the_hold"),
    mistake("an error that is a value", "is_error = ?", "is_error = is_error AND ?", "outcome::that_is_an_error_stays_one"),
    mistake("the state stays", "SET state = ?,", "SET state = COALESCE(state, ?),", "outcome::of_every_byte_is_kept"),
    mistake("no outcome", "outcome = ?", "outcome = IF(? IS NULL, NULL, x'6e756c6c')", "outcome::of_every_byte_is_kept"),
    mistake("another codec", "codec = ?", "codec = IF(? IS NULL, NULL, 'j')", "outcome::keeps_the_name_of_its_codec"),
    mistake("the fingerprint of the first", "fingerprint = ?", "fingerprint = IF(? IS NULL, fingerprint, fingerprint)", "fingerprint::a_take_over_brings_its_own"),
    mistake("the origin of the first", "origin = ?,", "origin = COALESCE(origin, ?),", "takeover::ones_own_sent_again_is_recognised"),
    mistake("questions that are not counted", "questions = ?", "questions = COALESCE(questions, ?)", "question::is_not_counted_after_a_renewal"),
    mistake("what was taken over is forgotten", "took_over = ?", "took_over = IF(? IS NULL, NULL, NULL)", "undo::restores_the_fingerprint"),
    mistake("an outcome that is kept for as long as it is remembered", "expires_at) - INTERVAL ? * 1000 MICROSECOND, expires_at", "expires_at) - INTERVAL IF(? IS NULL, NULL, NULL) * 1000 MICROSECOND, expires_at", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a renewal that leaves the revision", "MICROSECOND, r.revision = ", "MICROSECOND, r.revision = r.revision + 0 * ", GUARDS),
    mistake("the attempt of the first", "SET state = ?, attempt = ?", "SET state = ?, attempt = COALESCE(attempt, ?)", "takeover::is_repeated_with_a_growing_attempt"),
    mistake("the owner of the first", "owner = ?, origin", "owner = COALESCE(owner, ?), origin", "takeover::the_new_owner_commits"),
    mistake("what is left is what there was", "(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000", "(TIMESTAMPDIFF(MICROSECOND, COALESCE(leased_at, UTC_TIMESTAMP(6)), expires_at) + 999) DIV 1000", "time::a_claim_finds_a_lease_alive_until_it_has_run_out"),
    mistake("a lease as long as the hold", "TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000", "TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000", "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease"),
    mistake("a sweep of all", "WHERE expires_at <= UTC_TIMESTAMP(6) ORDER BY expires_at", "ORDER BY expires_at", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of all outcomes", "AND valid_until <= UTC_TIMESTAMP(6)", "AND valid_until IS NOT NULL", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
    mistake("a sweep of outcomes that forgets that there was one", "SET state = 'done', valid_until", "SET state = 'released', valid_until", "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing"),
];
