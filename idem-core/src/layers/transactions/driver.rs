//! The traits that a driver of a database implements, so that a record can be part of the caller's
//! own transaction. Public in [`store`](crate::store).

use std::error::Error;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::adapter::engine::clock;
use crate::record::{Claim, Claimed, Commit, Origin, Ownership, RecordId, RecordInfo};
use crate::{Store, StoreError, StoreErrorKind};

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
///   for each name. The transaction itself is the bottom of the stack.
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
    ///
    /// Without a savepoint, rolls all of the transaction back. That is the last step of a transaction
    /// that [`Transactions::begin`] has begun, and its error changes nothing: such a transaction is
    /// never committed.
    fn roll_back(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Like [`roll_back`](Self::roll_back), from a `Drop`: carried out before the next statement or
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
    /// After the limit, the answer is [`Claimed::InFlight`], of attempt 0, and the caller then calls
    /// [`roll_back`](Self::roll_back), or rolls all of the transaction back. `Duration::MAX` is no
    /// limit.
    ///
    /// A record in flight that is visible belongs to a lease. The answer is
    /// [`Began::LeaseHolds`] at once. The caller asks again, or ends the transaction first
    /// ([`HOLDS_UP_OWNERS`](Self::HOLDS_UP_OWNERS)).
    fn claim(
        &mut self,
        store: &S,
        claim: &Claim,
        wait: Duration,
    ) -> impl Future<Output = Result<Began<OwnRow>, StoreError>> + Send;

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
            )
            .with_source(NoInspect))
        }
    }

    /// Writes the outcome, as [`Store::commit`] does, in this transaction. [`Ownership::Lost`] if
    /// another caller owns the record now.
    fn commit(
        &mut self,
        store: &S,
        commit: &Commit,
        row: RowOwner,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Like [`commit`](Self::commit), of a row that this transaction has claimed. Also looks for
    /// the record [`beside`](RecordId::beside) it, which other connections write: without a lock,
    /// and no earlier than the body has ended, because others begin [steps](crate::step) until
    /// then. Few calls have such a record, so a driver looks in the message that writes. If there
    /// is one, [`inspect`](Self::inspect) is asked for it.
    ///
    /// The default commits and inspects, which is a message more. If `inspect` is not implemented,
    /// it finds nothing: then an outcome does not end the steps of an earlier attempt, unless its
    /// own attempt has some.
    fn commit_and_look(
        &mut self,
        store: &S,
        commit: &Commit,
        beside: &RecordId,
    ) -> impl Future<Output = Result<CommittedRow, StoreError>> + Send {
        async move {
            let row = RowOwner::ThisTransaction;
            let ownership = self.commit(store, commit, row).await?;
            let has_beside = match self.inspect(store, beside).await {
                Ok(found) => found.is_some(),
                Err(error) if error.source().is_some_and(<dyn Error>::is::<NoInspect>) => false,
                Err(error) => return Err(error),
            };
            Ok(CommittedRow {
                ownership,
                has_beside,
            })
        }
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

    /// Begins a transaction, in SQLite one that may write (`BEGIN IMMEDIATE`), and claims the key of
    /// a wish in it.
    ///
    /// The answer to a wish is that of [`Transaction::claim`]. Only the owner of the key gets a
    /// transaction. With any other answer, none is open any more. An outcome that is committed
    /// already needs none: it may be read before, if nothing that is uncommitted is seen, and the
    /// read begins after this was called. [`Transaction::claim`] claims the key next if
    /// [`Opened::row`] is `None`, as it is without a wish.
    ///
    /// After an error, no transaction is open either.
    fn begin(
        &self,
        wish: Option<&Wish<'_, S>>,
    ) -> impl Future<Output = Result<Began<Opened<Self::Transaction>>, StoreError>> + Send;

    /// Commits. An error says whether the transaction may have been committed all the same
    /// ([`StoreError::is_unknown`]).
    fn commit(
        transaction: Self::Transaction,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns whether this error is the driver's, for a transaction that met another one, so that
    /// all of it may run again: a serialization failure, a deadlock, a busy database. Asked of each
    /// error in a chain of sources.
    ///
    /// An error type with `#[error(transparent)]` has the sources of the driver's error, but not
    /// that error itself. So recognise the driver's error and its source.
    fn is_conflict(error: &(dyn Error + 'static)) -> bool;
}

/// The claim of a call that [begins](Transactions::begin) a transaction for its key.
#[derive(Debug)]
pub struct Wish<'a, S> {
    /// The store of the runtime.
    pub store: &'a S,
    /// The claim.
    pub claim: &'a Claim,
    /// The limit of the wait, from when it begins.
    limit: Duration,
    /// The end of a wait that an earlier transaction of this call began.
    until: Option<Instant>,
    /// When the claim was about to be sent.
    began: OnceLock<Instant>,
}

impl<'a, S> Wish<'a, S> {
    pub(crate) fn new(
        store: &'a S,
        claim: &'a Claim,
        limit: Duration,
        until: Option<Instant>,
    ) -> Self {
        Self {
            store,
            claim,
            limit,
            until,
            began: OnceLock::new(),
        }
    }

    /// Returns how long the claim may wait for other transactions. The time counts from the first
    /// time that this is called: call it when the transaction has begun.
    pub fn wait(&self) -> Duration {
        let now = clock::now();
        self.began.get_or_init(|| now);
        self.until().saturating_duration_since(now)
    }

    /// Until when the call waits for the key.
    pub(crate) fn until(&self) -> Instant {
        let began = *self.began.get_or_init(clock::now);
        self.until
            .unwrap_or_else(|| clock::after(began, self.limit))
    }

    /// When the wait began, unless the driver sent no claim that waits.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }
}

/// The answer to a claim in a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Began<X> {
    /// The claim owns the key.
    Owner(X),
    /// It does not. [`Claimed::InFlight`]: another transaction holds the key, and this one has waited
    /// for it as long as it may.
    Answered(Claimed),
    /// The lease of another call holds the key.
    LeaseHolds {
        /// The attempt of that call.
        attempt: u64,
        /// The time until the lease expires, unless it is renewed.
        left: Duration,
    },
}

impl<X> Began<X> {
    /// Changes what the owner gets.
    pub fn map<Y>(self, change: impl FnOnce(X) -> Y) -> Began<Y> {
        match self {
            Self::Owner(owner) => Began::Owner(change(owner)),
            Self::Answered(claimed) => Began::Answered(claimed),
            Self::LeaseHolds { attempt, left } => Began::LeaseHolds { attempt, left },
        }
    }
}

impl<X> Began<Opened<X>> {
    /// Returns the transaction that was begun without a [`Wish`].
    ///
    /// # Errors
    ///
    /// If the driver answered a claim that nobody has asked for.
    pub fn without_claim(self) -> Result<X, StoreError> {
        match self {
            Self::Owner(opened) => Ok(opened.transaction),
            Self::Answered(_) | Self::LeaseHolds { .. } => Err(StoreError::new(
                StoreErrorKind::Refused,
                "the driver has begun no transaction, though no key was to be claimed in it",
            )),
        }
    }
}

/// By what [`Store::claim`] would answer. A record in flight has an attempt of 1 or more, so attempt
/// 0 is a lock that was waited for in vain.
impl From<Claimed> for Began<OwnRow> {
    fn from(claimed: Claimed) -> Self {
        match claimed {
            Claimed::Owned { attempt, from } => Self::Owner(OwnRow { attempt, from }),
            Claimed::InFlight {
                attempt: attempt @ 1..,
                lease_left: left,
            } => Self::LeaseHolds { attempt, left },
            claimed => Self::Answered(claimed),
        }
    }
}

/// A transaction that has [begun](Transactions::begin).
#[derive(Debug)]
pub struct Opened<X> {
    /// The transaction.
    pub transaction: X,
    /// The row that it has claimed. `None`: it has claimed nothing.
    pub row: Option<OwnRow>,
}

/// The row of a key that a transaction has claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRow {
    /// The attempt of the claim.
    pub attempt: u64,
    /// The record that the claim found.
    pub from: Origin,
}

/// The source of the error of a [`Transaction::inspect`] that is not implemented.
#[derive(Debug)]
struct NoInspect;

impl std::fmt::Display for NoInspect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it is not implemented")
    }
}

impl Error for NoInspect {}

/// The answer to [`Transaction::commit_and_look`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommittedRow {
    /// The same as of [`Transaction::commit`].
    pub ownership: Ownership,
    /// Whether there is a record beside the one that was committed.
    pub has_beside: bool,
}

/// The call that has claimed the row of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOwner {
    /// This transaction, so that no other one can hold a lock on the row.
    ThisTransaction,
    /// A lease, or that is not known: the commit waits for others that hold a lock on the row.
    Lease,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_in_flight_that_is_visible_is_a_lease() {
        let in_flight = |attempt| Claimed::InFlight {
            attempt,
            lease_left: Duration::from_secs(1),
        };
        let lease = Began::LeaseHolds {
            attempt: 1,
            left: Duration::from_secs(1),
        };
        assert_eq!(Began::from(in_flight(1)), lease);
        assert_eq!(
            Began::from(in_flight(0)),
            Began::Answered(in_flight(0)),
            "a lock that was waited for in vain"
        );
        let from = Origin::Released;
        let owned = Claimed::Owned { attempt: 2, from };
        assert_eq!(
            Began::from(owned),
            Began::Owner(OwnRow { attempt: 2, from })
        );
        let abandoned = Claimed::Abandoned { attempt: 1 };
        assert_eq!(Began::from(abandoned.clone()), Began::Answered(abandoned));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_waits_from_when_its_claim_is_sent_or_until_an_earlier_end() {
        let second = Duration::from_secs(1);
        let id = RecordId::new("o", &crate::Key::encode("k").unwrap()).unwrap();
        let claim = Claim::new(id, crate::record::Owner::generate(), second, second);
        let wish = Wish::new(&(), &claim, second * 5, None);
        tokio::time::advance(second * 3).await;
        assert_eq!((wish.began(), wish.wait()), (None, second * 5));
        tokio::time::advance(second).await;
        assert_eq!(wish.wait(), second * 4);
        assert_eq!(wish.until(), clock::now() + second * 4);

        let until = Some(clock::now() + second * 2);
        let wish = Wish::new(&(), &claim, second * 5, until);
        tokio::time::advance(second).await;
        assert_eq!(wish.wait(), second);
    }
}
