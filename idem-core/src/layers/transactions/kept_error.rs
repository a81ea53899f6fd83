//! The records of errors that calls in one transaction keep: what is written if that transaction is
//! rolled back.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::adapter::engine::clock;
use crate::layers::transactions::driver::{Began, OwnRow, Transaction};
use crate::layers::transactions::run_end::RunBeside;
use crate::record::{Claim, Commit, Ownership, RecordId};
use crate::store::{AnyStore, Store};
use crate::{StoreError, StoreErrorKind};

tokio::task_local! {
    /// The innermost transaction whose kept errors are collected.
    static COLLECTOR: Arc<Collector>;
}

/// Identifies an open transaction by its place in memory, as long as it is not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionAddress(usize);

impl TransactionAddress {
    /// Returns the address of a transaction: of the value that its calls are given. Its type must
    /// not be zero-sized.
    pub fn of<X>(tx: &X) -> Self {
        Self(std::ptr::from_ref(tx).addr())
    }
}

/// The record of an error that a call in a transaction kept.
///
/// It holds what the transaction itself recorded, so that another transaction can record it if the
/// first one is rolled back. From [`collect_kept_errors`].
#[derive(Clone)]
pub struct KeptRecord {
    pub(crate) store: AnyStore,
    pub(crate) claim: Claim,
    pub(crate) commit: Commit,
    /// Of the steps beside the first transaction.
    pub(super) run: RunBeside,
    /// How long the claim may wait for other transactions that hold the key.
    pub(crate) wait: Duration,
}

/// The answer to [`KeptRecord::write_in`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a key that is taken has no record of this call"]
pub enum Written {
    /// The record is in the transaction: commit it.
    Recorded,
    /// Another caller has claimed the key, or recorded an outcome, since the first transaction was
    /// rolled back. Roll this one back. A new call finds out what the record says.
    KeyTaken,
}

/// Runs the body of a transaction, and collects the records of the errors that calls in it kept.
///
/// A driver uses it where it begins and ends transactions around calls by
/// [`run_in`](crate::Operation::run_in), if it rolls back whenever the body fails. A kept error is
/// an outcome, and its record would be lost with the body's rows. So the driver writes these
/// records in a fresh transaction ([`KeptRecord::write_in`]), and commits it before it returns the
/// body's error.
///
/// `address` is that of the transaction which the body borrows. Calls in other transactions do not
/// count. Neither do calls whose own savepoint was rolled back again by a guarded call around them,
/// replays, calls that are only observed, calls in a nested transaction of the driver (a savepoint
/// with a value of its own), and calls in a task that the body spawns. Collections may be nested.
///
/// # Cancellation safety
///
/// The same as that of the body. If it is dropped, the records are lost with its transaction.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::store::{Store, Transaction, TransactionAddress, Transactions};
/// use idem::store::{Written, collect_kept_errors};
/// use idem::{StoreError, StoreErrorKind};
///
/// /// Commits what a body did, or nothing but the kept errors in it.
/// async fn in_transaction<S: Store, B: Transactions<S>, T, E: From<StoreError>>(
///     pool: &B,
///     body: impl AsyncFnOnce(&mut B::Transaction) -> Result<T, E>,
/// ) -> Result<T, E> {
///     let mut tx = pool.begin(None).await?.without_claim()?;
///     let address = TransactionAddress::of(&tx);
///     let (result, kept) = collect_kept_errors(address, body(&mut tx)).await;
///     if result.is_ok() {
///         B::commit(tx).await?;
///         return result;
///     }
///     let _ = tx.roll_back().await;
///     drop(tx);
///     if kept.is_empty() {
///         return result;
///     }
///     let mut tx = pool.begin(None).await?.without_claim()?;
///     for record in &kept {
///         if record.write_in(&mut tx).await? == Written::KeyTaken {
///             let _ = tx.roll_back().await;
///             let taken =
///                 StoreError::new(StoreErrorKind::Conflict, "the key is taken: run again");
///             return Err(taken.into());
///         }
///     }
///     B::commit(tx).await?;
///     result
/// }
/// ```
pub async fn collect_kept_errors<F: Future>(
    address: TransactionAddress,
    body: F,
) -> (F::Output, Vec<KeptRecord>) {
    let collector = Arc::new(Collector {
        address,
        records: Mutex::new(Vec::new()),
        outer: COLLECTOR.try_with(Arc::clone).ok(),
    });
    let output = COLLECTOR.scope(Arc::clone(&collector), body).await;
    let records = std::mem::take(&mut *collector.records());
    (output, records)
}

impl KeptRecord {
    /// Returns the record that is written.
    pub fn id(&self) -> &RecordId {
        &self.commit.id
    }

    /// Claims the key and records the error, in a transaction that has begun after the first one
    /// was rolled back. Waits for other transactions that hold the key as long as the call itself
    /// would.
    ///
    /// The record is written only if the key is as the call found it. Otherwise another caller has
    /// claimed it in between.
    ///
    /// # Errors
    ///
    /// If the database fails, or the runtime of the call has another store than an `S`. Then
    /// nothing may be committed.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, roll the transaction back.
    ///
    /// # Examples
    ///
    /// See [`collect_kept_errors`].
    pub async fn write_in<S: Store, X: Transaction<S>>(
        &self,
        tx: &mut X,
    ) -> Result<Written, StoreError> {
        let Some(store) = self.store.downcast::<S>() else {
            return Err(StoreError::new(
                StoreErrorKind::Refused,
                "this record belongs to another store than the transaction's",
            ));
        };
        // Not the owner of the first claim: nothing of that transaction may count as this one's.
        let owner = self.store.owner(clock::now());
        let claim = Claim {
            owner,
            ..self.claim.clone()
        };
        match tx.claim(store, &claim, self.wait).await? {
            // The outcome may be bound to its attempt, as encryption does.
            Began::Owner(OwnRow { attempt, .. }) if attempt == self.commit.attempt => {}
            _ => return Ok(Written::KeyTaken),
        }
        let commit = Commit {
            owner,
            ..self.commit.clone()
        };
        match self.run.commit(tx, store, &commit).await? {
            Ownership::Held => Ok(Written::Recorded),
            Ownership::Lost => Ok(Written::KeyTaken),
        }
    }
}

impl std::fmt::Debug for KeptRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptRecord")
            .field("id", self.id())
            .field("attempt", &self.commit.attempt)
            .finish_non_exhaustive()
    }
}

/// The list of the kept errors of one transaction.
struct Collector {
    address: TransactionAddress,
    records: Mutex<Vec<KeptRecord>>,
    outer: Option<Arc<Self>>,
}

impl Collector {
    fn records(&self) -> MutexGuard<'_, Vec<KeptRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kept errors of a transaction, as one call in it sees them.
pub(crate) struct KeptErrors {
    /// `None`: they are not collected.
    collector: Option<Arc<Collector>>,
    /// How many there were when this call began, or at its first savepoint.
    before: usize,
}

impl KeptErrors {
    pub(crate) fn collected_in<X>(tx: &X) -> Self {
        let address = TransactionAddress::of(tx);
        let innermost = COLLECTOR.try_with(Arc::clone).ok();
        let mut around = std::iter::successors(innermost, |inner| inner.outer.clone());
        let mut kept = Self {
            collector: around.find(|collector| collector.address == address),
            before: 0,
        };
        kept.savepoint();
        kept
    }

    /// Remembers the place of a savepoint.
    pub(crate) fn savepoint(&mut self) {
        if let Some(collector) = &self.collector {
            self.before = collector.records().len();
        }
    }

    /// Forgets what was noted since the savepoint: it is rolled back, and the records with it.
    pub(crate) fn roll_back(&self) {
        if let Some(collector) = &self.collector {
            collector.records().truncate(self.before);
        }
    }

    /// Notes the record of an error that this call has kept.
    pub(crate) fn note(&self, record: impl FnOnce() -> KeptRecord) {
        if let Some(collector) = &self.collector {
            collector.records().push(record());
        }
    }
}
