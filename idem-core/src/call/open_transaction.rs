//! A transaction with savepoints of ours, in which a record is claimed and committed.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock;
use crate::call::recorded::Recorded;
use crate::call::rejected::Rejected;
use crate::call::request::Request;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::Decision;
use crate::policy::settings::InFlight;
use crate::record::{Claimed, Commit, Origin, Owner, Ownership};
use crate::runtime::Runtime;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::store::{Store, Transaction};
use crate::task::current;
use crate::token::Flaw;

/// The longest pause before a transaction is run again, and between two looks at a key that a lease
/// holds.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Who commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommittedBy {
    Caller,
    /// After an error, all of the transaction is rolled back.
    Library {
        /// A claim meets no lock.
        one_writer: bool,
    },
}

impl CommittedBy {
    pub(crate) fn is_caller(self) -> bool {
        self == Self::Caller
    }
}

/// The result of a claim.
pub(crate) enum TransactionClaim {
    Owner {
        attempt: u64,
        owner: Owner,
        from: Origin,
    },
    Replay(Recorded),
    /// A lease holds the key. The call may wait until then, but not in this transaction, which may
    /// hold what the lease's owner needs.
    Met {
        attempt: u64,
        left: Duration,
        until: Instant,
    },
}

/// A transaction with savepoints of ours. Dropped with one, it undoes what was done since.
pub(crate) struct OpenTransaction<'a, X: Transaction<S>, S: Store> {
    pub(crate) tx: &'a mut X,
    /// How many savepoints of ours there are. Counted down only after the database has answered:
    /// sqlx expects a later roll-back for a release that was dropped halfway.
    pub(crate) depth: u8,
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) request: &'a Request,
    /// The attempt whose body runs, if one does. It is 0 where the claim comes after the body.
    pub(crate) attempt: Option<u64>,
    /// Nothing of the transaction is ever written.
    pub(crate) is_rollback_forced: bool,
    store: PhantomData<fn() -> S>,
}

impl<'a, X: Transaction<S>, S: Store> OpenTransaction<'a, X, S> {
    pub(crate) fn new(tx: &'a mut X, runtime: &'a Arc<Runtime>, request: &'a Request) -> Self {
        Self {
            tx,
            depth: 0,
            runtime,
            request,
            attempt: None,
            is_rollback_forced: false,
            store: PhantomData,
        }
    }

    /// Encodes the outcome of an attempt.
    pub(crate) fn writer(&self, attempt: u64) -> OutcomeWriter<'_> {
        OutcomeWriter {
            runtime: self.runtime,
            id: &self.request.id,
            attempt,
            label: self.request.type_label(),
            trace: self.request.trace.as_ref(),
        }
    }

    pub(crate) fn report(&self, decision: Decision, attempt: u64, why: Option<&dyn Display>) {
        let observer = self.runtime.observer;
        match why {
            Some(why) => observer.decided_because(decision, &self.request.id, attempt, &why),
            None => observer.decided(decision, &self.request.id, attempt),
        }
    }

    pub(crate) async fn savepoint(&mut self) -> Result<(), StoreError> {
        self.tx.savepoint().await?;
        self.depth += 1;
        Ok(())
    }

    /// Claims the key. Where the caller ends the transaction, a savepoint is set first: a call that
    /// fails leaves that transaction as it was. With `until`, the call has waited before.
    pub(crate) async fn claim(
        &mut self,
        store: &S,
        committed_by: CommittedBy,
        until: Option<Instant>,
    ) -> Result<TransactionClaim, Error> {
        let runtime = self.runtime;
        let request = self.request;
        let began = clock::now();
        if current::is_reentrant(&request.id, runtime.identity()) {
            return Err(runtime.reject(request, &Rejected::Reentrant));
        }
        if let Some(submission) = &request.submission {
            runtime.admit(request, submission, began)?;
        }
        let wait = match request.settings.in_flight {
            InFlight::Wait if !request.settings.observes => request.settings.wait(),
            InFlight::Wait | InFlight::Reject => Duration::ZERO,
        };
        let until = until.unwrap_or_else(|| clock::after(began, wait));
        let owner = runtime.store.owner();
        let claim = request.claim(owner);
        if committed_by.is_caller()
            && let Err(error) = self.savepoint().await
        {
            return Err(self.failed(error).await);
        }
        let one_writer = committed_by == CommittedBy::Library { one_writer: true };
        let mut pause = Backoff::default();
        let (claimed, left) = loop {
            let left = until.saturating_duration_since(clock::now());
            match self
                .tx
                .claim(store, &claim, if one_writer { Duration::MAX } else { left })
                .await
            {
                Err(error) => return Err(self.failed(error).await),
                // A lease holds the key.
                Ok(Claimed::InFlight {
                    attempt,
                    lease_left: left,
                }) if clock::now() < until => {
                    if !committed_by.is_caller() || X::HOLDS_UP_OWNERS {
                        self.roll_back().await;
                        return Ok(TransactionClaim::Met {
                            attempt,
                            left,
                            until,
                        });
                    }
                    // Nobody can tell this transaction of the lease's end, so it looks.
                    pause.rounds += 1;
                    pause
                        .take_within(left.min(until.saturating_duration_since(clock::now())))
                        .await;
                }
                Ok(claimed) => break (claimed, left),
            }
        };
        if pause.rounds > 0 || (wait > left && !wait.is_zero() && has_waited(began)) {
            runtime.waited(request, began);
        }
        let why = match claimed {
            Claimed::Owned { attempt, from } => {
                if from == Origin::Abandoned {
                    runtime.took_over(request, attempt);
                }
                return Ok(TransactionClaim::Owner {
                    attempt,
                    owner,
                    from,
                });
            }
            Claimed::Committed { attempt, outcome } => {
                self.roll_back().await;
                if self.is_rollback_forced {
                    return Err(self.lost());
                }
                return runtime
                    .replay(request, (attempt, outcome))
                    .map(TransactionClaim::Replay);
            }
            Claimed::InFlight { lease_left, .. } => Rejected::InFlight(lease_left),
            Claimed::Done { .. } => Rejected::Done,
            Claimed::Mismatch => Rejected::Mismatch,
            Claimed::Abandoned { attempt } => Rejected::Abandoned(attempt),
            Claimed::Exhausted { attempts } => Rejected::Exhausted(attempts),
            Claimed::NotIssued => Rejected::Token(Flaw::Unknown),
            Claimed::IssueExpired => Rejected::Token(Flaw::Expired),
        };
        self.roll_back().await;
        // A lock that was waited for in vain may have cost all of the transaction (MySQL with
        // `innodb_rollback_on_timeout`): its caller must not go on as after a rejection.
        if self.is_rollback_forced {
            return Err(self.lost());
        }
        Err(runtime.reject(request, &why))
    }

    /// Writes the outcome, and ends all savepoints.
    pub(crate) async fn commit(&mut self, store: &S, commit: &Commit) -> Result<(), Error> {
        match self.tx.commit(store, commit).await {
            Ok(Ownership::Held) => {}
            Ok(Ownership::Lost) => {
                if self.request.settings.observes {
                    self.roll_back().await;
                } else {
                    self.force_rollback().await;
                }
                return Err(self.lost());
            }
            Err(error) => return Err(self.failed(error).await),
        }
        self.release_all().await
    }

    /// Undoes what the body did, but for the claim.
    pub(crate) async fn roll_back_body(&mut self) -> Result<(), Error> {
        let rolled_back = self.tx.roll_back().await;
        self.depth -= 1;
        if let Err(error) = rolled_back {
            self.force_rollback().await;
            return Err(self.runtime.failed(&self.request.id, error));
        }
        Ok(())
    }

    /// `CommittedBy` all savepoints, and keeps what was done since.
    pub(crate) async fn release_all(&mut self) -> Result<(), Error> {
        while self.depth > 0 {
            if let Err(error) = self.tx.release().await {
                self.force_rollback().await;
                return Err(self.runtime.failed(&self.request.id, error));
            }
            self.depth -= 1;
        }
        Ok(())
    }

    /// Undoes everything, the claim included. Where that cannot be done, nothing of the transaction
    /// is ever written.
    pub(crate) async fn roll_back(&mut self) {
        while self.depth > 0 {
            let rolled_back = self.tx.roll_back().await;
            self.depth -= 1;
            if rolled_back.is_err() {
                return self.force_rollback().await;
            }
        }
    }

    /// The error of a transaction that is none any more.
    pub(crate) fn lost(&self) -> Error {
        let lost = StoreError::new(
            StoreErrorKind::Unavailable,
            "the record is no longer in this transaction: the database ended the transaction (a deadlock, a lock that was waited for in vain), or the body did; begin it again",
        );
        self.runtime.failed(&self.request.id, lost)
    }

    pub(crate) async fn force_rollback(&mut self) {
        self.is_rollback_forced = true;
        // The driver counts its savepoints. Without this, it would take the next roll-back of the
        // caller for that of a savepoint.
        while self.depth > 0 {
            let _ = self.tx.roll_back().await;
            self.depth -= 1;
        }
        // If this fails too, the connection is lost, and with it the transaction.
        let _ = self.tx.force_rollback().await;
    }

    pub(crate) async fn failed(&mut self, error: StoreError) -> Error {
        self.roll_back().await;
        self.runtime.failed(&self.request.id, error)
    }
}

impl<X: Transaction<S>, S: Store> Drop for OpenTransaction<'_, X, S> {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt {
            // The claim is undone with the savepoint.
            self.report(Decision::CallerDropped, attempt, None);
        }
        for _ in 0..self.depth {
            self.tx.roll_back_later();
        }
    }
}

/// Whether more time has passed than a step takes that does not wait.
fn has_waited(began: Instant) -> bool {
    clock::now().saturating_duration_since(began) > Duration::from_millis(100)
}

/// Pauses that double, each spread at random.
#[derive(Default)]
pub(crate) struct Backoff {
    pub(crate) rounds: u32,
}

impl Backoff {
    pub(crate) async fn take(&self) {
        self.take_within(LONGEST_PAUSE).await;
    }

    async fn take_within(&self, most: Duration) {
        let length = Duration::from_millis(2)
            .saturating_mul(1 << self.rounds.min(6))
            .min(LONGEST_PAUSE);
        tokio::time::sleep(length.mul_f64(0.5 + fastrand::f64()).min(most)).await;
    }
}
