//! Steps in the caller's own transaction: on its connection, and on no other.

use std::error::Error as StdError;
use std::time::Duration;

use idem_core::store::record::{Claim, Claimed, Commit, OnClaim, Ownership};
use idem_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, timeout};

use self::sqlx::error::DatabaseError;
use self::sqlx::pool::PoolConnection;
use self::sqlx::{Database, Pool, Transaction};
use super::super::{TransactionManager, fixed, sqlx};
use super::clock::DatabaseClock;
use super::core::{CONNECTING, Core};
use super::dialect::{Conn, Dialect, Guard, Inserted, Judgement};
use super::fault::{self, Stopped, contended, judge};
use super::limited::Limited;
use super::steps::{Next, ROUNDS, commit_on, in_flight, next};
use crate::columns::{Columns, FoundRow};

/// The pause in the error of a call whose key another transaction holds. The end of that
/// transaction is unknown.
const SOON: Duration = Duration::from_secs(1);
/// The answer to a claim whose row another transaction has locked for longer than the caller waits.
const LOCKED: Claimed = Claimed::InFlight { attempt: 0, lease_left: SOON };
pub(crate) type Manager<D> = <<D as Dialect>::Db as Database>::TransactionManager;

#[allow(clippy::disallowed_methods, reason = "how long a caller waits, compared with nothing of the database")]
pub(crate) async fn claim<D: Dialect>(
    core: &std::sync::Arc<Core<D>>,
    on: &mut Conn<D>,
    claim: &Claim,
    wait: Duration,
) -> Result<Claimed, StoreError> {
    core.is_valid()?;
    core.keep_swept();
    core.check_within(on).await.map_err(|stopped| match stopped {
        Stopped::Store(error) => error,
        Stopped::Sql(error) | Stopped::Unsent(error) => failed(core, error),
    })?;
    let until = Instant::now().checked_add(wait);
    let mut left = wait;
    loop {
        match claim_on(&core.within, on, &core.clock, claim, left).await {
            // MariaDB says of some statements that it cut off that they were locked.
            Ok(Claimed::InFlight { attempt: 0, .. }) => {}
            Ok(claimed) => return Ok(claimed),
            Err(Stopped::Store(error)) => return Err(error),
            Err(Stopped::Sql(error) | Stopped::Unsent(error)) if is_locked::<D>(&error) => return Ok(LOCKED),
            Err(Stopped::Sql(error) | Stopped::Unsent(error)) if is_cut_off::<D>(&error) => {}
            Err(Stopped::Sql(error) | Stopped::Unsent(error)) => return Err(failed(core, error)),
        }
        // The connection's own limit for statements may be shorter than the wait.
        left = until.map_or(wait, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(LOCKED);
        }
        undo_statement::<D>(on).await.map_err(ended::<D>)?;
    }
}

/// Undoes a statement that failed, where that ends the transaction: the claim's savepoint stays.
async fn undo_statement<D: Dialect>(on: &mut Conn<D>) -> Result<(), sqlx::Error> {
    match Manager::<D>::get_transaction_depth(on) {
        // The name that sqlx gives it.
        depth @ 2.. => D::roll_back_to(on, &format!("_sqlx_savepoint_{}", depth - 1)).await,
        // The library has begun it, with the claim.
        _ => D::restart(on, "SELECT 1").await,
    }
}

/// As the claim of a step of its own, but each statement that may meet a lock waits for it no
/// longer than `wait`.
#[allow(clippy::disallowed_methods, reason = "how long a caller waits, compared with nothing of the database")]
async fn claim_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    claim: &Claim,
    wait: Duration,
) -> Result<Claimed, Stopped> {
    let until = Instant::now().checked_add(wait);
    // `None`: no other transaction can hold a lock.
    let left =
        || (wait < Duration::MAX).then(|| until.map_or(wait, |until| until.saturating_duration_since(Instant::now())));
    for _ in 0..ROUNDS {
        let found = match claim.on_nothing() {
            OnClaim::Take(first) => match insert_within(dialect, on, claim, &in_flight(&first), left()).await? {
                Inserted::Stands(row) => Some(*row),
                Inserted::Locked => return Ok(LOCKED),
                // Written by a transaction that has ended since: the next statement sees it.
                Inserted::Gone => continue,
            },
            _ => dialect.read_within(on, &claim.id, left().unwrap_or(Duration::MAX)).await?,
        };
        let Some(row) = found else { return Ok(Claimed::NotIssued) };
        let FoundRow { record, left: valid, revision, .. } = row.found()?;
        let (then, guard) = match next(claim, record.as_ref(), valid, revision) {
            Next::Answer(claimed) => return Ok(claimed),
            Next::Put(then, guard) => (then, guard),
            Next::IfLapsed(lapsed, then) => match (clock.doubt(dialect, on, lapsed).await?, then) {
                (Some(doubt), _) => return Ok(lapsed.answer(doubt)),
                (None, Ok(over)) => over,
                (None, Err(claimed)) => return Ok(claimed),
            },
        };
        let attempt = then.attempt;
        let from = then.origin;
        if put_within(dialect, on, claim, guard, &in_flight(&then), left()).await? {
            return Ok(Claimed::Owned { attempt, from });
        }
    }
    Err(contended(ROUNDS).into())
}

async fn insert_within<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    claim: &Claim,
    columns: &Columns,
    wait: Option<Duration>,
) -> Result<Inserted, sqlx::Error> {
    let Some(wait) = wait else {
        let row = dialect.insert(on, &claim.id, columns).await?;
        return Ok(row.map_or(Inserted::Gone, |row| Inserted::Stands(Box::new(row))));
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
    let Some(wait) = wait else { return dialect.put(on, &claim.id, guard, columns).await };
    let mut limited = Limited::<D>::new(on, wait).await?;
    match dialect.put(limited.connection(), &claim.id, guard, columns).await {
        Ok(put) => limited.end().await.map(|()| put),
        Err(error) => {
            // In PostgreSQL, the roll-back that follows restores the limit.
            let _ = limited.end().await;
            Err(error)
        }
    }
}

pub(crate) async fn commit<D: Dialect>(
    core: &Core<D>,
    on: &mut Conn<D>,
    commit: &Commit,
) -> Result<Ownership, StoreError> {
    core.is_valid()?;
    match commit_on(&core.within, on, commit).await {
        Ok(ownership) => Ok(ownership),
        Err(Stopped::Store(error)) => Err(error),
        Err(Stopped::Sql(error) | Stopped::Unsent(error)) => Err(failed(core, error)),
    }
}

pub(crate) async fn savepoint<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    Manager::<D>::begin(on, None).await.map_err(ended::<D>)
}

pub(crate) async fn release<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    Manager::<D>::commit(on).await.map_err(ended::<D>)
}

/// Ends a savepoint. If the database has ended the whole transaction, with its savepoints, that is
/// an error, and sqlx counts one savepoint less all the same: else the caller's own roll-back would
/// fail, and the pool would lend the connection with a transaction that it does not have.
pub(crate) async fn roll_back<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    let rolled_back = Manager::<D>::rollback(on).await;
    if rolled_back.is_err() {
        // The names that sqlx gives them: of the one that ends here, the depth below it.
        let depth = Manager::<D>::get_transaction_depth(on);
        if depth > 1 && D::restart_lost(on, &format!("SAVEPOINT _sqlx_savepoint_{}", depth - 1)).await.is_ok() {
            let _ = Manager::<D>::rollback(on).await;
        }
    }
    rolled_back.map_err(ended::<D>)
}

/// Ends all of a transaction. If the database has ended it (a full file), that is an error, and
/// sqlx counts it all the same: the next caller of this connection could begin none.
pub(crate) async fn roll_back_all<D: Dialect>(on: &mut Conn<D>) {
    if Manager::<D>::rollback(on).await.is_err() && D::restart(on, "SELECT 1").await.is_ok() {
        // If this fails too, the connection is lost, and with it the transaction.
        let _ = Manager::<D>::rollback(on).await;
    }
}

pub(crate) fn roll_back_later<D: Dialect>(on: &mut Conn<D>) {
    Manager::<D>::start_rollback(on);
}

pub(crate) async fn doom<D: Dialect>(on: &mut Conn<D>) -> Result<(), StoreError> {
    D::doom(on).await.map_err(ended::<D>)
}

/// Begins a transaction that may write.
#[allow(clippy::disallowed_methods, reason = "how long a caller waited, compared with nothing of the database")]
pub(crate) async fn begin<D: Dialect>(pool: &Pool<D::Db>) -> Result<Transaction<'static, D::Db>, StoreError> {
    let place = D::place(&pool.connect_options());
    let begun_as_writer = D::BEGIN_AS_WRITER.map(fixed);
    // After a restart of the server, each idle connection of the pool is lost.
    let mut losses = pool.options().get_max_connections().saturating_add(1);
    loop {
        let mut connection = connected::<D>(pool, &place).await.map_err(StoreError::unsent)?;
        // sqlx counts a transaction that the database has ended, if its future was dropped then.
        if Manager::<D>::get_transaction_depth(&connection) > 0 {
            roll_back_all::<D>(&mut connection).await;
        }
        let asked = Instant::now();
        let beginning = Transaction::begin(connection, begun_as_writer.clone());
        // A writer waits for the others as long as its connection says.
        let begun = match D::BEGIN_AS_WRITER {
            Some(_) => beginning.await,
            None => match timeout(CONNECTING, beginning).await {
                Ok(begun) => begun,
                Err(_) => return Err(fault::timed_out::<D>(&place, CONNECTING).unsent()),
            },
        };
        match begun {
            Ok(transaction) => return Ok(transaction),
            Err(error) if fault::breaks_connection::<D>(&error) && losses > 0 => losses -= 1,
            Err(error) => return Err(not_begun::<D>(&place, asked.elapsed(), error)),
        }
    }
}

/// The error of a transaction that did not begin, after this wait.
fn not_begun<D: Dialect>(place: &str, waited: Duration, error: sqlx::Error) -> StoreError {
    if D::BEGIN_AS_WRITER.is_none() || !is_conflict::<D>(&error) {
        return fault::unconnected::<D>(place, error).unsent();
    }
    let held = fault::no_writer::<D>(place, waited, &error).unsent();
    // Its source is what makes the library run the transaction again. A caller that has waited this
    // long decides for itself.
    if waited < CONNECTING { held.with_source(error) } else { held }
}

/// Waits for a connection as long as the pool says, but not for an unreachable database.
async fn connected<D: Dialect>(pool: &Pool<D::Db>, place: &str) -> Result<PoolConnection<D::Db>, StoreError> {
    let is_exhausted = || pool.size() >= pool.options().get_max_connections() && pool.num_idle() == 0;
    // If the pool has room, this call opens the connection itself, and then counts as one that is
    // in use.
    let opens = !is_exhausted();
    let mut acquiring = std::pin::pin!(pool.acquire());
    loop {
        match timeout(CONNECTING, acquiring.as_mut()).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => return Err(fault::unconnected::<D>(place, error)),
            Err(_) if opens || !is_exhausted() => {
                return Err(fault::unconnected_in_time::<D>(place, CONNECTING, false));
            }
            Err(_) => {}
        }
    }
}

pub(crate) async fn commit_all<D: Dialect>(transaction: Transaction<'static, D::Db>) -> Result<(), StoreError> {
    transaction.commit().await.map_err(ended::<D>)
}

pub(crate) fn is_conflict<D: Dialect>(error: &(dyn StdError + 'static)) -> bool {
    of_database(error).is_some_and(D::is_conflict)
}

/// The database's error, if this is one. Under `#[error(transparent)]`, the sources of an error are
/// those of the `sqlx::Error` inside, so it comes without that one around it.
pub(super) fn of_database<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e dyn DatabaseError> {
    if let Some(sqlx::Error::Database(error)) = error.downcast_ref::<sqlx::Error>() {
        return Some(&**error);
    }
    error.downcast_ref::<Box<dyn DatabaseError>>().map(|error| &**error)
}

fn is_locked<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if D::is_locked(&**error))
}

fn is_cut_off<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(error) if D::is_cut_off(&**error))
}

fn failed<D: Dialect>(core: &Core<D>, error: sqlx::Error) -> StoreError {
    if is_conflict::<D>(&error) {
        return conflict::<D>(error);
    }
    if matches!(judge::<D>(&error), Judgement::Schema) {
        let (name, table) = (D::NAME, core.table());
        let message = format!(
            "{name}: {error}; does this database have the table `{table}`? Call `migrate()` once at start-up, or run the statements of `SCHEMA`"
        );
        return StoreError::new(StoreErrorKind::Refused, message).with_source(error);
    }
    fault::failed::<D>(core.place(), error)
}

fn ended<D: Dialect>(error: sqlx::Error) -> StoreError {
    if is_conflict::<D>(&error) { conflict::<D>(error) } else { fault::failed::<D>("in a transaction", error) }
}

fn conflict<D: Dialect>(error: sqlx::Error) -> StoreError {
    let message = format!("{}: {error}; roll back, and run the whole transaction again", D::NAME);
    StoreError::new(StoreErrorKind::Conflict, message).with_source(error)
}

/// Lets transactions of a database hold the records of a store.
macro_rules! transaction {
    ($Store:ident, $Dialect:ty, $Db:ty) => {
        impl idem_core::store::Transaction<$Store> for super::super::sqlx::Transaction<'_, $Db> {
            const HOLDS_UP_OWNERS: bool = <$Dialect as super::dialect::Dialect>::HOLDS_UP_OWNERS;

            async fn savepoint(&mut self) -> Result<(), idem_core::StoreError> {
                super::transaction::savepoint::<$Dialect>(&mut **self).await
            }

            async fn release(&mut self) -> Result<(), idem_core::StoreError> {
                super::transaction::release::<$Dialect>(&mut **self).await
            }

            async fn roll_back(&mut self) -> Result<(), idem_core::StoreError> {
                super::transaction::roll_back::<$Dialect>(&mut **self).await
            }

            fn roll_back_later(&mut self) {
                super::transaction::roll_back_later::<$Dialect>(&mut **self);
            }

            async fn doom(&mut self) -> Result<(), idem_core::StoreError> {
                super::transaction::doom::<$Dialect>(&mut **self).await
            }

            async fn claim(
                &mut self,
                store: &$Store,
                claim: &idem_core::store::record::Claim,
                wait: std::time::Duration,
            ) -> Result<idem_core::store::record::Claimed, idem_core::StoreError> {
                super::transaction::claim(&store.0, &mut **self, claim, wait).await
            }

            async fn commit(
                &mut self,
                store: &$Store,
                commit: &idem_core::store::record::Commit,
            ) -> Result<idem_core::store::record::Ownership, idem_core::StoreError> {
                super::transaction::commit(&store.0, &mut **self, commit).await
            }
        }

        impl idem_core::store::Transactions<$Store> for super::super::sqlx::Pool<$Db> {
            type Transaction = super::super::sqlx::Transaction<'static, $Db>;

            const ONE_WRITER: bool = <$Dialect as super::dialect::Dialect>::ONE_WRITER;

            async fn begin(&self) -> Result<Self::Transaction, idem_core::StoreError> {
                super::transaction::begin::<$Dialect>(self).await
            }

            async fn commit(transaction: Self::Transaction) -> Result<(), idem_core::StoreError> {
                super::transaction::commit_all::<$Dialect>(transaction).await
            }

            async fn roll_back(mut transaction: Self::Transaction) {
                super::transaction::roll_back_all::<$Dialect>(&mut transaction).await;
            }

            fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
                super::transaction::is_conflict::<$Dialect>(error)
            }
        }
    };
}
pub(super) use transaction;
