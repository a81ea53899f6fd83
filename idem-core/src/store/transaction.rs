//! What a driver of a database implements, so that a record can be part of the caller's own
//! transaction.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::record::{Claim, Claimed, Commit, Ownership, RecordId, RecordInfo};
use crate::store::Store;

/// An open transaction that can hold records of the store `S`, next to the application's rows.
///
/// `idem-sqlx` implements it for `sqlx::Transaction`. An adapter for another driver implements it
/// for a type of its own around that driver's transaction. `S` is the store that the runtime has:
/// the transaction writes into that store's table. A type implements this for one store only, so
/// that the compiler can infer it.
///
/// # Contract
///
/// - **Savepoints are a stack.** [`release`](Self::release) and [`roll_back`](Self::roll_back) end
///   the innermost one. Their names differ with the depth, because MySQL keeps only one savepoint
///   for each name.
/// - **The database's locks are the lease.** [`claim`](Self::claim) inserts the row in this
///   transaction. A concurrent claim waits for the lock.
/// - **Never a second connection.** Each step uses the connection of this transaction. Otherwise
///   waiters could use up the pool.
/// - **Conflicts are retryable errors.** A serialization failure or a deadlock is a [`StoreError`]
///   of the kind [`Conflict`](crate::StoreErrorKind::Conflict), with the driver's error as its
///   source.
///
/// # Cancellation
///
/// When a future of this trait is dropped, the caller must roll the transaction back.
/// [`roll_back_later`](Self::roll_back_later) covers a caller that does not.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that can hold records",
    label = "not a `sqlx::Transaction` of PostgreSQL, MySQL or SQLite",
    note = "take `tx: &mut sqlx::Transaction<'_, DB>`, from `pool.begin()`; a plain connection has \
        nothing to roll back",
    note = "the features `postgres`, `mysql` and `sqlite` of `idem-rs` each support their \
        database; for another driver, implement `idem::store::Transaction`"
)]
pub trait Transaction<S: Store>: Send {
    /// Whether an open transaction that has met a record in flight keeps its owner from writing: by
    /// a lock on the row, or as the only writer. Then no call waits for a lease in it.
    const HOLDS_UP_OWNERS: bool = false;

    /// Whether nobody else can write while such a transaction is open. Then a
    /// [`step`](crate::step) of its body must be recorded in it.
    const ONE_WRITER: bool = false;

    /// Sets a savepoint inside of the innermost one.
    fn savepoint(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends the innermost savepoint, and keeps what was done since.
    fn release(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes all since the innermost savepoint, and ends it, also if an error has made the
    /// transaction unusable since then. If this fails, the savepoint counts as ended: the database
    /// has ended the transaction, or the connection is lost.
    fn roll_back(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// As [`roll_back`](Self::roll_back), from a `Drop`: carried out before the next statement or
    /// `COMMIT` of this transaction.
    fn roll_back_later(&mut self);

    /// Makes sure that nothing of this transaction is ever written: neither what it has done so
    /// far, nor what its caller does in it from now on.
    fn force_rollback(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Claims the key, as [`Store::claim`] does, in this transaction.
    ///
    /// If another open transaction has claimed the key, this waits for its end, for at least
    /// `wait`. Round up: PostgreSQL takes no second claim after a limit that has ended. Zero means
    /// not at all. The limit holds only for this step, and the transaction keeps its own settings.
    /// After the limit, the answer is [`Claimed::InFlight`], and the caller then calls
    /// [`roll_back`](Self::roll_back), or rolls all of the transaction back. `Duration::MAX` is no
    /// limit.
    ///
    /// A record in flight that is visible belongs to a lease. The answer is [`Claimed::InFlight`]
    /// at once. The caller asks again, or ends the transaction first
    /// ([`HOLDS_UP_OWNERS`](Self::HOLDS_UP_OWNERS)).
    fn claim(
        &mut self,
        store: &S,
        claim: &Claim,
        wait: Duration,
    ) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// As [`claim`](Self::claim), directly after [`Transactions::begin_for`] has begun this
    /// transaction for the same key.
    fn claim_begun(
        &mut self,
        store: &S,
        claim: &Claim,
        wait: Duration,
    ) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        self.claim(store, claim, wait)
    }

    /// Describes the record that this transaction sees, as [`Store::inspect`] does, without a lock.
    /// It is asked once, for a body that has [steps](crate::step) in this transaction, after a claim
    /// that went on with an earlier attempt.
    ///
    /// The default is an error, which such a step then gets.
    fn inspect(
        &mut self,
        store: &S,
        id: &RecordId,
    ) -> impl Future<Output = Result<Option<RecordInfo>, StoreError>> + Send {
        let _ = (store, id);
        async {
            Err(StoreError::new(
                StoreErrorKind::Refused,
                "this driver does not implement `Transaction::inspect`, so a step in the \
                 transaction of its call cannot tell what an earlier attempt has done; leave \
                 `run_in` out of the step, or implement it",
            ))
        }
    }

    /// Writes the outcome, as [`Store::commit`] does, in this transaction. [`Ownership::Lost`] if
    /// another caller owns the record now.
    fn commit(
        &mut self,
        store: &S,
        commit: &Commit,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// As [`commit`](Self::commit), of a record that this transaction has claimed itself, so that
    /// no other one can hold a lock on it.
    fn commit_claimed(
        &mut self,
        store: &S,
        commit: &Commit,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        self.commit(store, commit)
    }
}

/// A pool, which begins transactions for [`Operation::transaction`](crate::Operation::transaction).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not begin transactions that can hold records",
    label = "not a pool of PostgreSQL, MySQL or SQLite",
    note = "pass a `sqlx::Pool`, such as `&PgPool`; for another driver, implement \
        `idem::store::Transactions`"
)]
pub trait Transactions<S: Store>: Sync {
    /// The transactions that it begins.
    type Transaction: Transaction<S>;

    /// Whether no other transaction can write while one of these is open. Then a claim meets no
    /// lock, and is given no limit for its wait.
    const ONE_WRITER: bool = false;

    /// Looks for a committed outcome, outside of any transaction, where this claim is likely to
    /// find one: then the call needs no transaction. [`Claimed::Committed`], by a read that began
    /// after this was called and sees nothing that is uncommitted, or `None` for anything else. It
    /// writes nothing. An error is that of [`begin`](Self::begin): there is no connection.
    fn find_outcome(
        &self,
        store: &S,
        claim: &Claim,
    ) -> impl Future<Output = Result<Option<Claimed>, StoreError>> + Send {
        let _ = (store, claim);
        async { Ok(None) }
    }

    /// Begins a transaction. In SQLite one that may write (`BEGIN IMMEDIATE`).
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, StoreError>> + Send;

    /// As [`begin`](Self::begin), for a transaction whose first step claims this key
    /// ([`Transaction::claim_begun`]).
    fn begin_for(
        &self,
        store: &S,
        id: &RecordId,
    ) -> impl Future<Output = Result<Self::Transaction, StoreError>> + Send {
        let _ = (store, id);
        self.begin()
    }

    /// As [`begin_for`](Self::begin_for), and makes the claim as well, if that is likely to find no
    /// record, and needs no wait for another transaction: then the answer is [`Claimed::Owned`].
    /// `None`: it has claimed nothing, for whatever reason, and [`Transaction::claim_begun`] claims
    /// next.
    fn begin_claiming(
        &self,
        store: &S,
        claim: &Claim,
    ) -> impl Future<Output = Result<(Self::Transaction, Option<Claimed>), StoreError>> + Send {
        async { Ok((self.begin_for(store, &claim.id).await?, None)) }
    }

    /// Commits. An error says whether the transaction may have been committed all the same
    /// ([`StoreError::is_unknown`]).
    fn commit(
        transaction: Self::Transaction,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls all of it back.
    fn roll_back(transaction: Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Returns whether this error is the driver's, for a transaction that met another one, so that
    /// all of it may run again: a serialization failure, a deadlock, a busy database. Asked of each
    /// error in a chain of sources.
    ///
    /// An error type with `#[error(transparent)]` has the sources of the driver's error, but not
    /// that error itself. So recognise the driver's error and its source.
    fn is_conflict(error: &(dyn Error + 'static)) -> bool;
}
