//! A transaction in which a record is claimed and committed, with the savepoints for that.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::clock;
use crate::call::owned::CALLER_DROPPED;
use crate::call::prepared::MISCONFIGURED;
use crate::call::recorded::Recorded;
use crate::call::start::Pause;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::Event;
use crate::policy::settings::InFlight;
use crate::record::{Claim, Claimed, Commit, Origin, Owner, Ownership};
use crate::runtime::Runtime;
use crate::runtime::rejected::{Held, Rejected};
use crate::store::{KeptErrors, KeptRecord, RunEnd, Store, Transaction, Transactions};
use crate::task::current;
use crate::task::current::Guarded;
use crate::task::outcome_writer::OutcomeWriter;
use crate::task::request::Request;

/// The pauses before a transaction is run again, and between two looks at a key that a lease holds.
pub(crate) const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(4), Duration::from_millis(100));

/// Who commits the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommittedBy {
    Caller,
    /// The library begins and ends the transaction. After an error it rolls back all of it.
    Library {
        /// The database has one writer at a time, so a claim meets no lock.
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
    Owner(ClaimedRow),
    Replay(Recorded),
    /// A lease holds the key. The call may wait until then, but not in this transaction, whose
    /// locks the lease's owner may need.
    Met(Held, Instant),
}

/// A call that met a lease.
pub(crate) struct LeaseMet<'p> {
    pub(crate) runtime: &'p Arc<Runtime>,
    pub(crate) request: &'p Request,
    pub(crate) lease: Held,
    /// Until when the call may wait for it.
    pub(crate) until: Instant,
}

impl LeaseMet<'_> {
    pub(crate) fn reject(&self) -> Error {
        self.runtime
            .reject(self.request, Rejected::InFlight(self.lease))
    }

    /// Waits until the lease may have ended. The caller must have ended its transaction and given
    /// the connection back.
    pub(super) async fn wait(&self, pause: &mut Pause) {
        pause.before_waiting_again(self.lease.attempt).await;
        self.runtime
            .wait_for(self.request, self.lease, self.until)
            .await;
    }
}

/// A row that this call has claimed in the transaction.
pub(crate) struct ClaimedRow {
    pub(crate) attempt: u64,
    pub(crate) owner: Owner,
    pub(crate) from: Origin,
}

/// How a call comes into its transaction.
pub(crate) struct TransactionStart {
    pub(crate) committed_by: CommittedBy,
    /// The end of a wait that an earlier transaction of this call began.
    pub(crate) until: Option<Instant>,
    /// The claim, if it was made when the transaction began.
    pub(crate) begun: Option<BegunClaim>,
}

impl TransactionStart {
    pub(crate) const OF_CALLER: Self = Self {
        committed_by: CommittedBy::Caller,
        until: None,
        begun: None,
    };
}

/// A claim that was made when the transaction began.
pub(crate) struct BegunClaim {
    claimed: Claimed,
    owner: Owner,
}

/// Begins a transaction, and makes the claim of this call in it if that needs no wait.
pub(crate) async fn begin_claiming<S: Store, B: Transactions<S>>(
    begins: &B,
    store: &S,
    claim: &Claim,
) -> Result<(B::Transaction, Option<BegunClaim>), StoreError> {
    let (tx, claimed) = begins.begin_claiming(store, claim).boxed().await?;
    let begun = claimed.map(|claimed| BegunClaim {
        claimed,
        owner: claim.owner,
    });
    Ok((tx, begun))
}

/// How the tries to claim in one transaction ended.
enum ClaimUntil {
    Answered(AnsweredClaim),
    /// A lease holds the key, and this transaction must not wait for it.
    Met(Held),
}

struct AnsweredClaim {
    claimed: Claimed,
    /// The time that was left to wait when the last claim was sent.
    left: Duration,
    /// How often the call looked again.
    looks: u32,
}

/// A transaction in which this call sets savepoints. If it is dropped while one is open, what was
/// done since that savepoint is undone.
pub(crate) struct OpenTransaction<'a, X: Transaction<S>, S: Store> {
    pub(crate) tx: &'a mut X,
    /// How many savepoints of this call are open. The count goes down only after the database has
    /// answered, because sqlx expects a later rollback for a release that was dropped halfway.
    pub(crate) depth: u8,
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) request: &'a Request,
    /// The attempt whose body runs, if one does. It is 0 if the claim comes after the body.
    pub(crate) attempt: Option<u64>,
    /// The transaction can only be rolled back.
    pub(crate) is_rollback_forced: bool,
    /// What whoever ends the transaction collects of it.
    kept_errors: KeptErrors,
    store: PhantomData<fn() -> S>,
}

impl<'a, X: Transaction<S>, S: Store> OpenTransaction<'a, X, S> {
    pub(crate) fn new(tx: &'a mut X, runtime: &'a Arc<Runtime>, request: &'a Request) -> Self {
        let kept_errors = KeptErrors::of(&*tx);
        Self {
            tx,
            depth: 0,
            runtime,
            request,
            attempt: None,
            is_rollback_forced: false,
            kept_errors,
            store: PhantomData,
        }
    }

    /// Encodes the outcome of an attempt.
    pub(crate) fn writer(&self, attempt: u64) -> OutcomeWriter<'_> {
        OutcomeWriter {
            runtime: self.runtime,
            request: self.request,
            attempt,
            label: self.request.type_label(),
        }
    }

    pub(crate) fn report(&self, event: Event, attempt: u64, why: Option<&dyn Display>) {
        let observer = self.runtime.observer;
        observer.report(event, &self.request.id, attempt, why);
    }

    pub(crate) async fn savepoint(&mut self) -> Result<(), StoreError> {
        self.tx.savepoint().boxed().await?;
        if self.depth == 0 {
            self.kept_errors.savepoint();
        }
        self.depth += 1;
        Ok(())
    }

    /// Claims the key. If the caller ends the transaction, sets a savepoint first, so that a failed
    /// call leaves the transaction as it was.
    pub(crate) async fn claim(
        &mut self,
        store: &S,
        start: TransactionStart,
    ) -> Result<TransactionClaim, Error> {
        let TransactionStart {
            committed_by,
            until,
            begun,
        } = start;
        if let Some(BegunClaim { claimed, owner }) = begun {
            return self.after_claim(claimed, owner).await;
        }
        let runtime = self.runtime;
        let request = self.request;
        let began = clock::now();
        if current::is_reentrant(&request.id, runtime.identity()) {
            return Err(runtime.reject(request, Rejected::Reentrant));
        }
        if let Some(submission) = &request.submission {
            let admitted = runtime.admit(request, submission, began);
            admitted.map_err(|why| runtime.reject(request, why))?;
        }
        let wait = self.wait();
        let until = until.unwrap_or_else(|| clock::after(began, wait));
        let owner = runtime.store.owner(clock::now());
        let claim = request.claim(owner);
        if committed_by.is_caller()
            && let Err(error) = self.savepoint().await
        {
            return Err(self.failed(error).await);
        }
        let answered = match self.claim_until(store, &claim, committed_by, until).await? {
            ClaimUntil::Answered(answered) => answered,
            ClaimUntil::Met(lease) => return Ok(TransactionClaim::Met(lease, until)),
        };
        let left = answered.left;
        if answered.looks > 0 || (wait > left && !wait.is_zero() && has_waited(began)) {
            runtime.waited(request, began);
        }
        self.after_claim(answered.claimed, owner).await
    }

    /// How long a claim of this call waits for other transactions and leases that hold the key.
    fn wait(&self) -> Duration {
        let settings = &self.request.settings;
        match settings.in_flight {
            InFlight::Wait if !settings.observes => settings.wait(),
            InFlight::Wait | InFlight::Reject => Duration::ZERO,
        }
    }

    /// Claims until the database answers that no lease holds the key, or `until` has passed.
    async fn claim_until(
        &mut self,
        store: &S,
        claim: &Claim,
        committed_by: CommittedBy,
        until: Instant,
    ) -> Result<ClaimUntil, Error> {
        let one_writer = committed_by == CommittedBy::Library { one_writer: true };
        let mut looks = 0;
        let mut pauses = PAUSES;
        loop {
            let left = until.saturating_duration_since(clock::now());
            let limit = if one_writer { Duration::MAX } else { left };
            let answer = if committed_by.is_caller() || looks > 0 {
                self.tx.claim(store, claim, limit).boxed().await
            } else {
                self.tx.claim_begun(store, claim, limit).boxed().await
            };
            match answer {
                Err(error) => return Err(self.failed(error).await),
                Ok(Claimed::InFlight {
                    attempt,
                    lease_left: left,
                }) if clock::now() < until => {
                    if !committed_by.is_caller() || X::HOLDS_UP_OWNERS {
                        self.roll_back().await;
                        return Ok(ClaimUntil::Met(Held::new(attempt, left)));
                    }
                    // Nothing tells this transaction of the lease's end, so it looks again.
                    looks += 1;
                    let left = left.min(until.saturating_duration_since(clock::now()));
                    tokio::time::sleep(pauses.next_pause().min(left)).await;
                }
                Ok(claimed) => {
                    return Ok(ClaimUntil::Answered(AnsweredClaim {
                        claimed,
                        left,
                        looks,
                    }));
                }
            }
        }
    }

    /// Applies the answer to a claim. Unless the call is the owner, undoes what the claim wrote.
    async fn after_claim(
        &mut self,
        claimed: Claimed,
        owner: Owner,
    ) -> Result<TransactionClaim, Error> {
        let runtime = self.runtime;
        let request = self.request;
        let why = match Rejected::unless_owned(claimed) {
            Ok((attempt, from)) => {
                if from == Origin::Abandoned {
                    runtime.took_over(request, attempt);
                }
                return Ok(TransactionClaim::Owner(ClaimedRow {
                    attempt,
                    owner,
                    from,
                }));
            }
            Err(why) => why,
        };
        self.roll_back().await;
        // On MySQL with `innodb_rollback_on_timeout`, a lock that was waited for in vain ends the
        // whole transaction. Its caller must not continue as after a rejection.
        if self.is_rollback_forced {
            return Err(self.lost());
        }
        let is_recorded = matches!(why, Rejected::Committed { .. } | Rejected::Done);
        if let Some(again) = request.again.as_ref().filter(|_| is_recorded) {
            let observer = runtime.observer;
            observer.decided(MISCONFIGURED, &request.id, 0);
            return Err((**again).clone());
        }
        let replayed = runtime.replay_or_reject(request, why);
        replayed.map(TransactionClaim::Replay)
    }

    /// Ends the run of the steps beside this transaction, if there are any.
    pub(crate) async fn end_steps(
        &mut self,
        store: &S,
        owner: Owner,
        steps: &Guarded,
    ) -> Result<(), Error> {
        let Some(end) = steps.run_end() else {
            return Ok(());
        };
        // In a box: few calls come here, and the future of each would have room for it.
        let ended = end.write_in(self.tx, store, owner).boxed().await;
        match ended {
            Ok(Ownership::Held) => Ok(()),
            Ok(Ownership::Lost) => {
                self.force_rollback().await;
                Err(self.lost())
            }
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Writes the outcome, and ends all savepoints.
    pub(crate) async fn commit(&mut self, store: &S, commit: &Commit) -> Result<(), Error> {
        match self.tx.commit_claimed(store, commit).boxed().await {
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

    /// Notes that this commit has recorded a kept error in the transaction.
    pub(crate) fn note_kept_error(&self, commit: Commit, run_end: Option<RunEnd>) {
        self.kept_errors.note(|| KeptRecord {
            store: self.runtime.store.clone(),
            claim: self.request.claim(commit.owner),
            commit,
            run_end,
            wait: self.wait(),
        });
    }

    /// Forgets the kept errors since the savepoints of this call, which are to be rolled back.
    fn forget_kept_errors(&self) {
        if self.depth > 0 {
            self.kept_errors.roll_back();
        }
    }

    /// Undoes what the body did, and keeps the claim.
    pub(crate) async fn roll_back_body(&mut self) -> Result<(), Error> {
        self.forget_kept_errors();
        let rolled_back = self.tx.roll_back().boxed().await;
        self.depth -= 1;
        if let Err(error) = rolled_back {
            self.force_rollback().await;
            return Err(self.runtime.failed(&self.request.id, error));
        }
        Ok(())
    }

    /// Releases all savepoints, and keeps what was done since.
    pub(crate) async fn release_all(&mut self) -> Result<(), Error> {
        while self.depth > 0 {
            if let Err(error) = self.tx.release().boxed().await {
                self.force_rollback().await;
                return Err(self.runtime.failed(&self.request.id, error));
            }
            self.depth -= 1;
        }
        Ok(())
    }

    /// Undoes everything, the claim included. If that fails, the transaction can only be rolled
    /// back as a whole.
    pub(crate) async fn roll_back(&mut self) {
        self.forget_kept_errors();
        while self.depth > 0 {
            let rolled_back = self.tx.roll_back().boxed().await;
            self.depth -= 1;
            if rolled_back.is_err() {
                return self.force_rollback().await;
            }
        }
    }

    /// Returns the error of a transaction that the database or the body has ended.
    pub(crate) fn lost(&self) -> Error {
        let lost = StoreError::new(
            StoreErrorKind::Unavailable,
            "the record is no longer in this transaction: the database ended the transaction (a \
             deadlock, a lock that was waited for in vain), or the body did; begin it again",
        );
        self.runtime.failed(&self.request.id, lost)
    }

    pub(crate) async fn force_rollback(&mut self) {
        self.is_rollback_forced = true;
        self.forget_kept_errors();
        // The driver counts its savepoints. Without this, it would take the caller's next rollback
        // for that of a savepoint.
        while self.depth > 0 {
            let _ = self.tx.roll_back().boxed().await;
            self.depth -= 1;
        }
        // If this fails too, the connection is lost, and the transaction with it.
        let _ = self.tx.force_rollback().boxed().await;
    }

    pub(crate) async fn failed(&mut self, error: StoreError) -> Error {
        self.roll_back().await;
        self.runtime.failed(&self.request.id, error)
    }
}

impl<X: Transaction<S>, S: Store> Drop for OpenTransaction<'_, X, S> {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt {
            // The rollback to the savepoint undoes the claim.
            self.report(CALLER_DROPPED, attempt, None);
        }
        self.forget_kept_errors();
        for _ in 0..self.depth {
            self.tx.roll_back_later();
        }
    }
}

/// Whether so much time has passed that a step must have waited.
fn has_waited(began: Instant) -> bool {
    clock::now().saturating_duration_since(began) > Duration::from_millis(100)
}
