//! Begins transactions, and reads what makes one needless.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::record::{Claim, Claimed, InFlight, RecordId};
use idem_core::store::{Began, Opened, Wish};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use self::sqlx::pool::PoolConnection;
use self::sqlx::{Pool, Transaction};
use super::super::super::{Beginning, TransactionManager, composed, fixed, sqlx};
use super::super::dialect::{Dialect, ErrorClass};
use super::super::executor::duplicates::Expected;
use super::super::executor::errors::classify;
use super::super::executor::{CONNECT_WAIT, Executor, close_idle, errors, has_idle};
use super::super::store::steps::{ClaimStep, claim_step};
use super::{
    Manager, claim_at_once, claim_begun, expects_nothing, failed, is_conflict, is_stale, roll_back,
};
use crate::row::FoundRow;

/// Begins a transaction that may write.
pub(crate) async fn begin<D: Dialect>(
    pool: &Pool<D::Db>,
) -> Result<Began<Opened<Transaction<'static, D::Db>>>, StoreError> {
    let (transaction, row) = (begin_with::<D>(pool, D::BEGIN_AS_WRITER).await?, None);
    Ok(Began::Owner(Opened { transaction, row }))
}

/// As [`begin`], and claims the key of a wish, or finds that it needs no transaction.
pub(crate) async fn begin_claimed<D: Dialect, S>(
    executor: &Arc<Executor<D>>,
    pool: &Pool<D::Db>,
    wish: &Wish<'_, S>,
) -> Result<Began<Opened<Transaction<'static, D::Db>>>, StoreError> {
    let claim = wish.claim;
    if let Some(found) = find_outcome(executor, pool, claim).await? {
        return Ok(Began::Answered(found));
    }
    executor.validate_table_name()?;
    let mut transaction = match expects_nothing(executor, claim) {
        None => begin_for(executor, pool, &claim.id).await?,
        Some(first) => {
            let opened = begin_at_once(executor, pool, claim, &first).await?;
            if opened.row.is_some() {
                return Ok(Began::Owner(opened));
            }
            opened.transaction
        }
    };
    let wait = wish.wait();
    // Nobody else writes, so the claim meets no lock.
    let limit = if D::ONE_WRITER { Duration::MAX } else { wait };
    let claimed = claim_begun(executor, &mut transaction, claim, limit).await;
    if !matches!(claimed, Ok(Began::Owner(_))) {
        let _ = roll_back::<D>(&mut transaction).await;
    }
    Ok(claimed?.map(|row| Opened {
        transaction,
        row: Some(row),
    }))
}

/// As [`begin`], and names the key that the transaction claims, if that can be in one message.
async fn begin_for<D: Dialect>(
    executor: &Executor<D>,
    pool: &Pool<D::Db>,
    id: &RecordId,
) -> Result<Transaction<'static, D::Db>, StoreError> {
    let statement = match executor.within.naming(id) {
        Some(name) => Some(composed(format!("{name}; START TRANSACTION"))),
        None => D::BEGIN_AS_WRITER.map(fixed),
    };
    begin_by(Some(executor), pool, statement).await
}

/// Begins a transaction with a claim that expects nothing and waits for nobody. `None`: it has
/// written nothing. Then whatever it has locked is free again, and the key is named, as by
/// [`begin_for`].
async fn begin_at_once<D: Dialect>(
    executor: &Arc<Executor<D>>,
    pool: &Pool<D::Db>,
    claim: &Claim,
    first: &InFlight,
) -> Result<Opened<Transaction<'static, D::Db>>, StoreError> {
    let mut transaction = begin_by(Some(executor), pool, D::BEGIN_AS_WRITER.map(fixed)).await?;
    match claim_at_once(executor, &mut transaction, claim, first).await {
        Ok(row @ Some(_)) => return Ok(Opened { transaction, row }),
        Err(error) if matches!(classify::<D>(&error), ErrorClass::Refused(_)) => {
            return Err(failed(executor, error));
        }
        // Another error is left to the claim that follows, which meets it too, or another one.
        _ => {}
    }
    let name = executor.within.naming(&claim.id);
    D::restart(&mut transaction, name.as_deref().unwrap_or("SELECT 1"))
        .await
        .map_err(|error| failed(executor, error))?;
    let row = None;
    Ok(Opened { transaction, row })
}

/// Looks for a committed outcome, if the claim is expected to find a record, and is not that of a
/// token. A row that the claim would write over, or that says anything else, is for the transaction.
async fn find_outcome<D: Dialect>(
    executor: &Executor<D>,
    pool: &Pool<D::Db>,
    claim: &Claim,
) -> Result<Option<Claimed>, StoreError> {
    let is_expected = executor.duplicates.expected(&claim.id) == Expected::Record;
    if !is_expected || claim.must_be_issued || !executor.has_passed_check() {
        return Ok(None);
    }
    let place = D::place(&pool.connect_options());
    let wait = executor.connect_wait;
    let mut connection = connected::<D>(pool, &place, wait).await?;
    if Manager::<D>::get_transaction_depth(&connection) > 0 {
        return Ok(None);
    }
    let late = |_| errors::timed_out::<D>(&place, wait).unsent();
    let finding = executor.within.find(&mut connection, &claim.id);
    let found = match D::BEGIN_AS_WRITER {
        Some(_) => finding.await,
        None => timeout(wait, finding).await.map_err(late)?,
    };
    // A read that fails, or cannot be understood, is left to the claim: it meets the same error, or
    // a connection that works.
    let Ok(Some(row)) = found else {
        return Ok(None);
    };
    let Ok(FoundRow {
        record,
        left,
        revision,
        ..
    }) = row.read()
    else {
        return Ok(None);
    };
    match claim_step(claim, record.as_ref(), left, revision) {
        ClaimStep::Answer(claimed @ Claimed::Committed { .. }) => {
            executor.duplicates.note(&claim.id, true);
            Ok(Some(claimed))
        }
        _ => Ok(None),
    }
}

/// Begins a transaction with this statement, or with the database's own.
pub(crate) async fn begin_with<D: Dialect>(
    pool: &Pool<D::Db>,
    statement: Option<&'static str>,
) -> Result<Transaction<'static, D::Db>, StoreError> {
    begin_by::<D>(None, pool, statement.map(fixed)).await
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long a caller waited, compared with nothing of the database"
)]
async fn begin_by<D: Dialect>(
    executor: Option<&Executor<D>>,
    pool: &Pool<D::Db>,
    statement: Option<Beginning>,
) -> Result<Transaction<'static, D::Db>, StoreError> {
    let is_used_once = executor.is_some_and(|executor| executor.close_stale(pool));
    let wait = executor.map_or(CONNECT_WAIT, |executor| executor.connect_wait);
    let place = D::place(&pool.connect_options());
    let late = |_| errors::timed_out::<D>(&place, wait).unsent();
    // After a restart of the server, each idle connection of the pool is lost.
    let mut losses = pool.options().get_max_connections().saturating_add(1);
    loop {
        let mut connection = connected::<D>(pool, &place, wait).await?;
        // If a future was dropped when the database had ended its transaction, sqlx still counts
        // it.
        if Manager::<D>::get_transaction_depth(&connection) > 0 {
            let _ = roll_back::<D>(&mut connection).await;
        }
        if is_used_once {
            connection.close_on_drop();
        }
        let asked = Instant::now();
        let beginning = Transaction::begin(connection, statement.clone());
        let begun = match D::BEGIN_AS_WRITER {
            // A writer waits for the others as long as its connection says. SQLite rolls back what
            // nobody waits for; a task would keep the writer until its runtime is driven again.
            Some(_) => beginning.await,
            None => timeout(wait, ToItsEnd::new(beginning))
                .await
                .map_err(late)?,
        };
        match begun {
            Ok(transaction) => return Ok(transaction),
            Err(error) if errors::breaks_connection::<D>(&error) && losses > 0 => losses -= 1,
            Err(error) if is_stale::<D>(&error) && losses > 0 => {
                losses -= 1;
                close_idle(pool);
            }
            Err(error) => return Err(not_begun::<D>(&place, asked.elapsed(), error)),
        }
    }
}

/// A BEGIN that somebody sees to its end: the caller, or else a task. sqlx counts a transaction when
/// its BEGIN is answered, and rolls back only what it counts. So if a BEGIN were dropped before, the
/// pool would lend out a connection in a transaction that nobody commits.
struct ToItsEnd<T: Send + 'static> {
    /// `None`: it has ended.
    beginning: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> ToItsEnd<T> {
    fn new(beginning: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        Self {
            beginning: Some(beginning),
            runtime: Handle::try_current().ok(),
        }
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(beginning) = &mut self.beginning else {
            return Poll::Pending;
        };
        let begun = ready!(beginning.as_mut().poll(context));
        self.beginning = None;
        Poll::Ready(begun)
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let (Some(beginning), Some(runtime)) = (self.beginning.take(), &self.runtime) {
            // If this runtime has ended, the connection is closed here, and sqlx asks for one.
            let _entered = runtime.enter();
            // A transaction that begins is rolled back when the task drops it.
            runtime.spawn(beginning);
        }
    }
}

/// The error of a transaction that did not begin, after this wait.
fn not_begun<D: Dialect>(place: &str, waited: Duration, error: sqlx::Error) -> StoreError {
    if D::BEGIN_AS_WRITER.is_none() || !is_conflict::<D>(&error) {
        return errors::unconnected::<D>(place, error).unsent();
    }
    let held = errors::no_writer::<D>(place, waited, &error).unsent();
    // The library runs a transaction again because of this source. After a long wait, the caller
    // decides.
    if waited < CONNECT_WAIT {
        held.with_source(error)
    } else {
        held
    }
}

/// Waits for a connection as long as the pool is configured to, unless the database is unreachable:
/// then for `wait`. It is taken for reachable if this call first has to wait for its turn.
async fn connected<D: Dialect>(
    pool: &Pool<D::Db>,
    place: &str,
    wait: Duration,
) -> Result<PoolConnection<D::Db>, StoreError> {
    let has_room = || pool.size() < pool.options().get_max_connections();
    let failed = |error| errors::unconnected::<D>(place, error).unsent();
    let (may_open, may_test, idle) = (has_room(), has_idle(pool), pool.num_idle());
    let mut acquiring = pin!(pool.acquire());
    let first = poll_fn(|context| Poll::Ready(acquiring.as_mut().poll(context))).await;
    if let Poll::Ready(acquired) = first {
        return acquired.map_err(failed);
    }
    // It opens a connection, or tests one that was idle. One that still is idle belongs to another
    // call, whose turn came before.
    let has_turn = may_open || may_test && pool.num_idle() < idle;
    loop {
        if let Ok(acquired) = timeout(wait, acquiring.as_mut()).await {
            return acquired.map_err(failed);
        }
        if has_turn || has_room() {
            return Err(errors::unconnected_in_time::<D>(place, wait, false).unsent());
        }
    }
}
