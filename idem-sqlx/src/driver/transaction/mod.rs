//! Steps in a caller's transaction, on its connection.

mod beginning;
mod lock_wait;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::{Claim, Claimed, Commit, InFlight, OnClaim, Ownership, RecordId};
use idem_core::store::{Began, CommittedRow, Opened, OwnRow, RowOwner, Wish};
use idem_core::{RecordInfo, StoreError, StoreErrorKind};

use self::lock_wait::LockWait;
use self::sqlx::error::DatabaseError;
use self::sqlx::{Connection as _, Database, Transaction};

pub(crate) use self::beginning::{begin, begin_claimed, begin_with};
use super::super::{TransactionManager, sqlx};
use super::dialect::lock_limit::LockLimit;
use super::dialect::{Conn, Dialect, ErrorClass, Guard, InsertResult};
use super::executor::Executor;
use super::executor::duplicates::Expected;
use super::executor::errors::{self, StepError, classify, contended};
use super::store::steps::{ROUNDS, commit_on, decide, in_flight, outcome_columns};
use crate::row::{Columns, FoundRow};

/// The pause that is suggested to a call whose key another transaction holds, whose end is unknown.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The answer to a claim whose row another transaction has locked for longer than the caller waits.
const LOCKED: Claimed = Claimed::InFlight {
    attempt: 0,
    lease_left: RETRY_PAUSE,
};
pub(crate) type Manager<D> = <<D as Dialect>::Db as Database>::TransactionManager;

pub(crate) async fn claim<D: Dialect>(
    executor: &Arc<Executor<D>>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: Duration,
) -> Result<Began<OwnRow>, StoreError> {
    executor.validate_table_name()?;
    let named = executor.within.name_key(on, &claim.id).await;
    named.map_err(|error| failed(executor, error))?;
    let claimed = claim_named(executor, on, claim, wait).await;
    let claimed = claimed.map_err(|error| stopped(executor, error))?;
    Ok(claimed.into())
}

/// As [`claim`], in a transaction that the library has begun, and that has
/// [named](Dialect::name_key) the key.
async fn claim_begun<D: Dialect>(
    executor: &Arc<Executor<D>>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: Duration,
) -> Result<Began<OwnRow>, StoreError> {
    let claimed = claim_named(executor, on, claim, wait).await;
    // A transaction of the application may be read-only, or have failed, by itself.
    if let Err(StepError::Sql(error)) = &claimed
        && is_stale::<D>(error)
    {
        executor.note_stale();
    }
    let claimed = claimed.map_err(|error| stopped(executor, error))?;
    Ok(claimed.into())
}

/// What a claim writes that is expected to find nothing, if the database has an insert for that
/// which does not wait.
fn expects_nothing<D: Dialect>(executor: &Executor<D>, claim: &Claim) -> Option<InFlight> {
    let is_expected = executor.within.inserts_at_once()
        && executor.duplicates.expected(&claim.id) == Expected::Nothing
        && executor.has_passed_check();
    match claim.on_nothing() {
        OnClaim::Take(first) if is_expected => Some(first),
        _ => None,
    }
}

/// Claims a key that is expected to have no row, without a wait for other transactions, in a
/// transaction with nothing else in it. `None`: nothing is written, and the row may be locked.
async fn claim_at_once<D: Dialect>(
    executor: &Arc<Executor<D>>,
    on: &mut Conn<D>,
    claim: &Claim,
    first: &InFlight,
) -> Result<Option<OwnRow>, sqlx::Error> {
    executor.keep_swept();
    let Executor {
        within, duplicates, ..
    } = &**executor;
    let inserted = within
        .insert_at_once(on, &claim.id, &in_flight(first))
        .await?;
    let Some(is_written) = inserted else {
        return Ok(None);
    };
    // If there is one, the claim that follows does not expect nothing again.
    duplicates.note(&claim.id, !is_written);
    Ok(is_written.then_some(OwnRow {
        attempt: first.attempt,
        from: first.origin,
    }))
}

/// Claims a key that the transaction has [named](Dialect::name_key).
async fn claim_named<D: Dialect>(
    executor: &Arc<Executor<D>>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: Duration,
) -> Result<Claimed, StepError> {
    executor.keep_swept();
    executor.check_table_within(on).await?;
    let wait = LockWait::new(wait);
    let mut was_stale = false;
    loop {
        match claim_on(executor, on, claim, &wait).await {
            // MariaDB reports some statements that it has interrupted as locked.
            Ok(Claimed::InFlight { attempt: 0, .. }) => {}
            Err(StepError::Sql(error))
                if is_statement_timeout::<D>(&error)
                    || is_lock_timeout::<D>(&error) && !wait.is_refused::<D>() => {}
            Err(StepError::Sql(error)) if is_stale::<D>(&error) && !was_stale => {
                was_stale = true;
                let _ = on.clear_cached_statements().await;
                undo_statement::<D>(on).await.map_err(ended::<D>)?;
                continue;
            }
            claimed => return claimed,
        }
        // A statement may be given less time than the wait.
        if wait.left().is_zero() {
            return Ok(LOCKED);
        }
        undo_statement::<D>(on).await.map_err(ended::<D>)?;
    }
}

/// Undoes a failed statement, which may have ended the transaction. The claim's savepoint stays.
async fn undo_statement<D: Dialect>(on: &mut Conn<D>) -> Result<(), sqlx::Error> {
    match Manager::<D>::get_transaction_depth(on) {
        // The name of sqlx for it.
        depth @ 2.. => D::roll_back_to(on, &format!("_sqlx_savepoint_{}", depth - 1)).await,
        // The library has begun the transaction with the claim.
        _ => D::restart(on, "SELECT 1").await,
    }
}

/// Claims as a separate step does, except that a statement waits for a lock no longer than `wait`.
async fn claim_on<D: Dialect>(
    executor: &Executor<D>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: &LockWait,
) -> Result<Claimed, StepError> {
    let duplicates = &executor.duplicates;
    if duplicates.expected(&claim.id) == Expected::Nothing
        && let Some(claimed) = insert_new_within(&executor.within, on, claim, wait.limit()).await?
    {
        duplicates.note(&claim.id, false);
        return Ok(claimed);
    }
    for _ in 0..ROUNDS {
        if let Some(claimed) = claim_once(executor, on, claim, wait).await? {
            return Ok(claimed);
        }
    }
    Err(contended(ROUNDS).into())
}

/// Claims by what the row says now. `None`: another transaction has changed it since it was read.
async fn claim_once<D: Dialect>(
    executor: &Executor<D>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: &LockWait,
) -> Result<Option<Claimed>, StepError> {
    let Executor {
        within: dialect,
        clock,
        duplicates,
        ..
    } = executor;
    let row = if let OnClaim::Take(first) = claim.on_nothing() {
        let first = in_flight(&first);
        match insert_within(dialect, on, claim, &first, wait.limit()).await? {
            InsertResult::Row(row) => {
                duplicates.note(&claim.id, row.revision != first.revision);
                *row
            }
            InsertResult::Locked => return Ok(Some(LOCKED)),
            // Written by a transaction that has ended since: the next statement sees it.
            InsertResult::NotVisible => return Ok(None),
        }
    } else {
        let limit = wait.limit().unwrap_or(Duration::MAX);
        match dialect.read_within(on, &claim.id, limit).await? {
            InsertResult::Row(row) => *row,
            InsertResult::Locked => return Ok(Some(LOCKED)),
            InsertResult::NotVisible => return Ok(Some(Claimed::NotIssued)),
        }
    };
    let (next, guard) = match decide(dialect, on, clock, claim, row).await? {
        Ok(over) => over,
        Err(claimed) => return Ok(Some(claimed)),
    };
    let is_written = put_within(dialect, on, claim, guard, &in_flight(&next), wait.limit()).await?;
    Ok(is_written.then_some(Claimed::Owned {
        attempt: next.attempt,
        from: next.origin,
    }))
}

/// Claims a key that is expected to have no row. `None`: it has one, or another transaction has
/// locked it. Then nothing is written.
async fn insert_new_within<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: Option<Duration>,
) -> Result<Option<Claimed>, sqlx::Error> {
    let OnClaim::Take(first) = claim.on_nothing() else {
        return Ok(None);
    };
    let columns = in_flight(&first);
    let is_written = match wait {
        Some(wait) => {
            dialect
                .insert_new_within(on, &claim.id, &columns, wait)
                .await?
        }
        None => dialect.insert_new(on, &claim.id, &columns).await?,
    };
    Ok(is_written.then_some(Claimed::Owned {
        attempt: first.attempt,
        from: first.origin,
    }))
}

async fn insert_within<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
    columns: &Columns,
    wait: Option<Duration>,
) -> Result<InsertResult, sqlx::Error> {
    let Some(wait) = wait else {
        let row = dialect.insert(on, &claim.id, columns).await?;
        return Ok(row.map_or(InsertResult::NotVisible, |row| {
            InsertResult::Row(Box::new(row))
        }));
    };
    dialect.insert_within(on, &claim.id, columns, wait).await
}

async fn put_within<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
    guard: Guard,
    columns: &Columns,
    wait: Option<Duration>,
) -> Result<bool, sqlx::Error> {
    let Some(wait) = wait else {
        return dialect.put(on, &claim.id, guard, columns).await;
    };
    let mut limited = LockLimit::<D>::set(on, wait).await?;
    match dialect
        .put(limited.connection(), &claim.id, guard, columns)
        .await
    {
        Ok(put) => limited.restore().await.map(|()| put),
        Err(error) => {
            // In PostgreSQL, the roll-back that follows restores the limit.
            let _ = limited.restore().await;
            Err(error)
        }
    }
}

pub(crate) async fn commit<D: Dialect>(
    executor: &Executor<D>,
    on: &mut Conn<D>,
    commit: &Commit,
    row: RowOwner,
) -> Result<Ownership, StoreError> {
    executor.validate_table_name()?;
    let guard = match row {
        RowOwner::ThisTransaction => Guard::Claimed(commit.owner),
        RowOwner::Lease => Guard::Owner(commit.owner),
    };
    let mut committed = commit_on(&executor.within, on, commit, guard).await;
    // The claim of a lease was a separate step, perhaps in another schema than this connection's.
    if let (Guard::Owner(_), Ok(Ownership::Lost), Some(of_leases)) =
        (guard, &committed, executor.of_leases())
    {
        committed = commit_on(of_leases, on, commit, guard).await;
    }
    match committed {
        Ok(committed) => Ok(committed),
        Err(error) => Err(not_committed(executor, on, error).await),
    }
}

/// As [`commit`], of a row that this transaction has claimed, and looks for one beside it.
pub(crate) async fn commit_and_look<D: Dialect>(
    executor: &Executor<D>,
    on: &mut Conn<D>,
    outcome: &Commit,
    beside: &RecordId,
) -> Result<CommittedRow, StoreError> {
    executor.validate_table_name()?;
    let mut has_beside = None;
    if let Some(columns) = outcome_columns(outcome) {
        let Commit { id, owner, .. } = outcome;
        let dialect = &executor.within;
        let putting = dialect.put_and_look(on, id, *owner, &columns, beside).await;
        has_beside = match putting {
            Ok(has_beside) => has_beside,
            Err(error) => return Err(not_committed(executor, on, error.into()).await),
        };
    }
    let ownership = match has_beside {
        Some(_) => Ownership::Held,
        // The database has ended the transaction that claimed it.
        None => commit(executor, on, outcome, RowOwner::ThisTransaction).await?,
    };
    Ok(CommittedRow {
        ownership,
        has_beside: has_beside.unwrap_or(false),
    })
}

async fn not_committed<D: Dialect>(
    executor: &Executor<D>,
    on: &mut Conn<D>,
    error: StepError,
) -> StoreError {
    if let StepError::Sql(error) = &error
        && is_stale::<D>(error)
    {
        let _ = on.clear_cached_statements().await;
    }
    stopped(executor, error)
}

fn stopped<D: Dialect>(executor: &Executor<D>, error: StepError) -> StoreError {
    match error {
        StepError::Store(error) => error,
        StepError::Sql(error) | StepError::Unsent(error) => failed(executor, error),
    }
}

pub(crate) async fn savepoint<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    D::savepoint(on).await.map_err(ended::<D>)
}

pub(crate) async fn release<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    Manager::<D>::commit(on).await.map_err(ended::<D>)
}

/// Ends a savepoint, or the transaction if there is none. If the database has ended the whole
/// transaction (a deadlock, a full file), that is an error. Then sqlx must still count one savepoint
/// or transaction less. Otherwise the caller's own roll-back would fail, and the pool would lend out
/// a connection for which sqlx counts a transaction that does not exist.
pub(crate) async fn roll_back<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    let rolled_back = Manager::<D>::rollback(on).await;
    if rolled_back.is_err() {
        let restarted = match Manager::<D>::get_transaction_depth(on) {
            // sqlx names a savepoint after the depth below it.
            depth @ 2.. => {
                D::restart_lost(on, &format!("SAVEPOINT _sqlx_savepoint_{}", depth - 1)).await
            }
            _ => D::restart(on, "SELECT 1").await,
        };
        // If this fails too, the connection is lost, and with it the transaction.
        if restarted.is_ok() {
            let _ = Manager::<D>::rollback(on).await;
        }
    }
    rolled_back.map_err(ended::<D>)
}

pub(crate) fn roll_back_later<D: Dialect>(on: &mut Conn<D>) {
    Manager::<D>::start_rollback(on);
}

pub(crate) async fn force_rollback<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    D::force_rollback(on).await.map_err(ended::<D>)
}

pub(crate) async fn commit_all<D: Dialect>(
    transaction: Transaction<'static, D::Db>,
) -> Result<(), StoreError> {
    transaction.commit().await.map_err(ended::<D>)
}

pub(crate) fn is_conflict<D: Dialect>(error: &(dyn StdError + 'static)) -> bool {
    of_database(error).is_some_and(D::is_conflict)
}

/// This error, and its sources.
pub(super) fn sources<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    /// No chain of sources is longer, but for one that is a circle.
    const LONGEST: usize = 100;
    std::iter::successors(Some(error), |error| (*error).source()).take(LONGEST)
}

/// Returns the database's error, if this is one. With `#[error(transparent)]`, the source of an
/// error is the database's error without the `sqlx::Error` around it.
pub(super) fn of_database<'e>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e dyn DatabaseError> {
    if let Some(sqlx::Error::Database(error)) = error.downcast_ref::<sqlx::Error>() {
        return Some(&**error);
    }
    error
        .downcast_ref::<Box<dyn DatabaseError>>()
        .map(|error| &**error)
}

fn is_lock_timeout<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if D::is_lock_timeout(&**error))
}

fn is_statement_timeout<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if D::is_statement_timeout(&**error))
}

fn is_stale<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(classify::<D>(error), ErrorClass::Stale(..))
}

fn failed<D: Dialect>(executor: &Executor<D>, error: sqlx::Error) -> StoreError {
    if is_conflict::<D>(&error) {
        return conflict::<D>(error);
    }
    if matches!(classify::<D>(&error), ErrorClass::Schema) {
        let name = D::NAME;
        let table = executor.table();
        let message = format!(
            "{name}: {error}; does this database have the table `{table}`? Call `migrate()` once \
             at start-up, or run the statements of `SCHEMA`"
        );
        return StoreError::new(StoreErrorKind::Refused, message).with_source(error);
    }
    errors::failed::<D>(executor.place(), error)
}

fn ended<D: Dialect>(error: sqlx::Error) -> StoreError {
    if is_conflict::<D>(&error) {
        conflict::<D>(error)
    } else {
        errors::failed::<D>("in a transaction", error)
    }
}

fn conflict<D: Dialect>(error: sqlx::Error) -> StoreError {
    let message = format!(
        "{}: {error}; roll back, and run the whole transaction again",
        D::NAME
    );
    StoreError::new(StoreErrorKind::Conflict, message).with_source(error)
}

/// Describes the record that this transaction sees.
pub(crate) async fn inspect<D: Dialect>(
    executor: &Arc<Executor<D>>,
    on: &mut Conn<D>,
    id: &RecordId,
) -> Result<Option<RecordInfo>, StoreError> {
    let read = executor.within.read(on, id).await;
    let Some(row) = read.map_err(|error| failed(executor, error))? else {
        return Ok(None);
    };
    let FoundRow { record, left, .. } = row.read()?;
    Ok(record.map(|record| RecordInfo::new(&record, left)))
}

/// Implements steps in a transaction for a store.
macro_rules! transaction {
    ($Store:ty, $Dialect:ty, $Db:ty) => {
        impl idem_core::store::Transaction<$Store> for sqlx::Transaction<'_, $Db> {
            const HOLDS_UP_OWNERS: bool = <$Dialect as Dialect>::HOLDS_UP_OWNERS;
            const ONE_WRITER: bool = <$Dialect as Dialect>::ONE_WRITER;

            async fn savepoint(&mut self) -> Result<(), StoreError> {
                self::savepoint::<$Dialect>(&mut **self).await
            }

            async fn release(&mut self) -> Result<(), StoreError> {
                self::release::<$Dialect>(&mut **self).await
            }

            async fn roll_back(&mut self) -> Result<(), StoreError> {
                self::roll_back::<$Dialect>(&mut **self).await
            }

            fn roll_back_later(&mut self) {
                self::roll_back_later::<$Dialect>(&mut **self);
            }

            async fn force_rollback(&mut self) -> Result<(), StoreError> {
                self::force_rollback::<$Dialect>(&mut **self).await
            }

            async fn claim(
                &mut self,
                store: &$Store,
                claim: &Claim,
                wait: Duration,
            ) -> Result<Began<OwnRow>, StoreError> {
                self::claim(&store.0, &mut **self, claim, wait).await
            }

            async fn inspect(
                &mut self,
                store: &$Store,
                id: &RecordId,
            ) -> Result<Option<RecordInfo>, StoreError> {
                self::inspect(&store.0, &mut **self, id).await
            }

            async fn commit(
                &mut self,
                store: &$Store,
                commit: &Commit,
                row: RowOwner,
            ) -> Result<Ownership, StoreError> {
                self::commit(&store.0, &mut **self, commit, row).await
            }

            async fn commit_and_look(
                &mut self,
                store: &$Store,
                commit: &Commit,
                beside: &RecordId,
            ) -> Result<CommittedRow, StoreError> {
                self::commit_and_look(&store.0, &mut **self, commit, beside).await
            }
        }

        impl idem_core::store::Transactions<$Store> for sqlx::Pool<$Db> {
            type Transaction = sqlx::Transaction<'static, $Db>;

            async fn begin(
                &self,
                wish: Option<&Wish<'_, $Store>>,
            ) -> Result<Began<Opened<Self::Transaction>>, StoreError> {
                match wish {
                    Some(wish) => self::begin_claimed(&wish.store.0, self, wish).await,
                    None => self::begin::<$Dialect>(self).await,
                }
            }

            async fn commit(transaction: Self::Transaction) -> Result<(), StoreError> {
                self::commit_all::<$Dialect>(transaction).await
            }

            fn is_conflict(error: &(dyn StdError + 'static)) -> bool {
                self::is_conflict::<$Dialect>(error)
            }
        }
    };
}

#[cfg(feature = "postgres")]
transaction!(
    super::store::PostgresStore,
    super::dialect::postgres::Postgresql,
    sqlx::Postgres
);
#[cfg(feature = "mysql")]
transaction!(
    super::store::MySqlStore,
    super::dialect::mysql::Mysql,
    sqlx::MySql
);
#[cfg(feature = "sqlite")]
transaction!(
    super::store::SqliteStore,
    super::dialect::sqlite::SqliteFile,
    sqlx::Sqlite
);
