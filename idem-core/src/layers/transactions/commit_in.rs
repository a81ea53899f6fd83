//! An outcome that a transaction of the body records.

use std::sync::Arc;

use futures_util::future::FutureExt as _;

use crate::adapter::engine::{COMMIT_REFUSED, Guarded, Term, current};
use crate::api::lease::{Guard, Lease};
use crate::layers::transactions::driver::{RowOwner, Transaction};
use crate::layers::transactions::open::other_store;
use crate::record::{Commit, Encoded, Ownership};
use crate::{Call, Error, Storable, Store};

impl Call {
    /// Records the outcome in a transaction of the body, together with the rows that the body wrote
    /// there. The body then commits, and returns the value.
    ///
    /// Use it for bodies with a lease that also have effects outside the database. When the
    /// transaction commits, the record is committed and waiters are woken. If the transaction is
    /// rolled back, the record is still in flight: return an error then, whose policy decides (by
    /// default it releases the key). After an `Ok` the key would stay in flight until the lease
    /// ends.
    ///
    /// The value is the one that the body returns: a duplicate decodes it as the outcome.
    ///
    /// Commit soon: while the transaction is open, it locks the record, so the lease is not
    /// renewed. After the commit the lease has ended, and the body may go on. If the body runs
    /// unguarded, this does nothing. If the value fails to encode, or the body has called
    /// [`omit_outcome`](Self::omit_outcome), the call is recorded as done, without it.
    ///
    /// In [observe mode](crate::Operation::observe), a call that is not the owner any more writes
    /// nothing, and its transaction stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if another caller is the owner now, and [`Error::Store`] if the
    /// database failed. Then the transaction is rolled back immediately, so nothing of it is
    /// written, nor what is done in it later. [`Error::Config`] if the runtime has another store
    /// than the transaction's database, or if the call is
    /// [in a transaction](crate::Operation::run_in) itself.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, roll the transaction back.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO payments ..").execute(&mut *tx).await?;
    /// idem::current().unwrap().commit_in(&mut tx, &receipt).await?;
    /// tx.commit().await?;
    /// Ok(receipt)
    /// ```
    ///
    /// The [guide on transactions](../idem/guide/transactions/index.html#bodies-with-external-effects)
    /// has a whole function.
    pub async fn commit_in<X, S, T, Via>(&self, tx: &mut X, value: &T) -> Result<(), Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let Some(guarded) = self.held() else {
            return Ok(());
        };
        let Some(term) = guarded.lease() else {
            let why = "the call is in a transaction already, which records its outcome; leave \
                `commit_in` out";
            current::taint();
            return Err(Error::config(self.operation(), why));
        };
        // If a transaction of a call in observe mode has written nothing, the outcome is committed
        // like any other.
        let value = Some(value).filter(|_| !self.has(current::OMITS));
        let is_written = write(guarded, term, tx, value).await?;
        self.note(current::RECORDED, is_written);
        Ok(())
    }
}

impl Lease {
    /// Records the outcome in the caller's transaction, together with its rows. The caller then
    /// commits.
    ///
    /// If the transaction is rolled back, the record is still in flight. Then
    /// [release](Self::release) the key, or drop the lease to abandon the record. Commit soon:
    /// while the transaction is open, it locks the record, so the lease is not renewed. After the
    /// commit the lease has ended, and is never [lost](Self::lost).
    ///
    /// # Errors
    ///
    /// Like [`Call::commit_in`](crate::Call::commit_in).
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, roll the transaction back.
    pub async fn commit_in<X, S, T, Via>(&self, tx: &mut X, value: &T) -> Result<(), Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let Some(guarded) = &self.guarded else {
            return Ok(());
        };
        let mut held = guarded.held.lock().await;
        if write(held.call().guarded(), &guarded.term, tx, Some(value)).await? {
            held.recorded_in_transaction();
            return Ok(());
        }
        let Guard { term, runtime, .. } = &**guarded;
        let why = "its transaction goes on without it: the call only observes";
        runtime
            .observer
            .report(COMMIT_REFUSED, &term.id, term.attempt, Some(&why));
        Ok(())
    }
}

/// Writes the outcome in a transaction, if the owner still owns the record. A value of `None`
/// records that there was an outcome. If the record has another owner, the transaction can only be
/// rolled back. Returns `false` if nothing was written for a call in observe mode, whose transaction
/// is then as it was.
async fn write<X, S, T, Via>(
    guarded: &Guarded,
    term: &Arc<Term>,
    tx: &mut X,
    value: Option<&T>,
) -> Result<bool, Error>
where
    X: Transaction<S>,
    S: Store,
    T: Storable<Via>,
{
    let encoded = value.and_then(|value| guarded.writer().value(value));
    let written = write_encoded(guarded, term, tx, encoded).await;
    written.inspect_err(|_| current::taint())
}

async fn write_encoded<X, S>(
    guarded: &Guarded,
    term: &Arc<Term>,
    tx: &mut X,
    outcome: Option<Encoded>,
) -> Result<bool, Error>
where
    X: Transaction<S>,
    S: Store,
{
    let runtime = &guarded.runtime;
    let Some(store) = runtime.store.downcast::<S>() else {
        if guarded.observes() {
            return Ok(false);
        }
        return Err(other_store::<S>(term.id.name()));
    };
    let commit = guarded
        .request
        .commit(term.owner, term.attempt, outcome, None);
    if guarded.observes() {
        return observe(guarded, term, tx, store, &commit).await;
    }
    match tx.commit(store, &commit, RowOwner::Lease).boxed().await {
        Ok(Ownership::Held) => {
            note_written(term, &commit);
            Ok(true)
        }
        Ok(Ownership::Lost) => {
            // If this fails too, the connection is lost, and the transaction with it.
            let _ = tx.force_rollback().await;
            let why = "the transaction that was to record it is rolled back";
            let observer = runtime.observer;
            observer.report(COMMIT_REFUSED, &term.id, term.attempt, Some(&why));
            Err(term.lost_error())
        }
        Err(error) => {
            let _ = tx.force_rollback().await;
            Err(runtime.failed(&term.id, error))
        }
    }
}

/// Writes the outcome behind a savepoint, and rolls back to the savepoint on failure.
async fn observe<X, S>(
    guarded: &Guarded,
    term: &Term,
    tx: &mut X,
    store: &S,
    commit: &Commit,
) -> Result<bool, Error>
where
    X: Transaction<S>,
    S: Store,
{
    // If the transaction is lost, its caller must not believe that it was committed.
    let lost = |error| guarded.runtime.failed(&term.id, error);
    tx.savepoint().boxed().await.map_err(lost)?;
    let committing = tx.commit(store, commit, RowOwner::Lease);
    if let Ok(Ownership::Held) = committing.boxed().await {
        tx.release().await.map_err(lost)?;
        note_written(term, commit);
        return Ok(true);
    }
    tx.roll_back().boxed().await.map_err(lost)?;
    Ok(false)
}

fn note_written(term: &Term, commit: &Commit) {
    let outcome = commit.outcome.as_ref();
    term.note_recorded_in_transaction(outcome.map(|outcome| outcome.payload.clone()));
}
