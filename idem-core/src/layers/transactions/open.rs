//! A transaction in which a record is claimed and committed, with the savepoints for that.

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;

use crate::adapter::Backoff;
use crate::adapter::engine::{
    CALLER_DROPPED, Event, Held, MISCONFIGURED, OutcomeWriter, Rejected, Request, Runtime, clock,
};
use crate::layers::transactions::driver::{Began, OwnRow, Transaction};
use crate::layers::transactions::kept_error::{KeptErrors, KeptRecord};
use crate::layers::transactions::run_end::RunBeside;
use crate::policy::InFlight;
use crate::record::{Commit, Origin, Owner, Ownership};
use crate::{Error, Recorded, Store, StoreError, StoreErrorKind};

/// The pauses before a transaction is run again, and between two looks at a key that a lease holds.
pub(crate) const PAUSES: Backoff =
    Backoff::new(Duration::from_millis(4), Duration::from_millis(100));

/// A row that this call has claimed in the transaction.
#[derive(Clone, Copy)]
pub(crate) struct ClaimedRow {
    pub(crate) owner: Owner,
    pub(crate) row: OwnRow,
}

impl<X> Began<X> {
    /// Returns what the owner of the key gets, or why the call is not the owner.
    pub(super) fn unless_rejected(self) -> Result<X, Rejected> {
        let why = match self {
            Self::Owner(owner) => return Ok(owner),
            Self::LeaseHolds { attempt, left } => Rejected::InFlight(Held::new(attempt, left)),
            Self::Answered(claimed) => match Rejected::unless_owned(claimed) {
                Err(why) => why,
                Ok(_) => Rejected::Store(StoreError::new(
                    StoreErrorKind::Refused,
                    "the driver says that the key is owned, and has no row of it",
                )),
            },
        };
        Err(why)
    }
}

/// Notes that a transaction has claimed the row of a call.
pub(super) fn claimed_row(
    runtime: &Runtime,
    request: &Request,
    owner: Owner,
    row: OwnRow,
) -> ClaimedRow {
    if row.from == Origin::Abandoned {
        runtime.took_over(request, row.attempt);
    }
    ClaimedRow { owner, row }
}

/// Returns what a call gets that found another record in its transaction, which is rolled back.
pub(super) fn found_in_transaction(
    runtime: &Runtime,
    request: &Request,
    why: Rejected,
) -> Result<Recorded, Error> {
    let is_recorded = matches!(why, Rejected::Committed { .. } | Rejected::Done);
    if let Some(again) = request.again.as_ref().filter(|_| is_recorded) {
        let observer = runtime.observer;
        observer.decided(MISCONFIGURED, &request.id, 0);
        return Err((**again).clone());
    }
    runtime.replay_or_reject(request, why)
}

/// The error of a call whose runtime has another store than the one of the transaction.
pub(crate) fn other_store<S>(operation: &str) -> Error {
    let name = std::any::type_name::<S>();
    let name = name.rsplit("::").next().unwrap_or(name);
    let reason = format!(
        "this transaction can hold records of a `{name}`, and the runtime has another store; give \
         the runtime a `{name}` of the same database and the same version of its driver, or name \
         such a runtime with `runtime = \"..\"`"
    );
    Error::config(operation, &reason)
}

/// How long a call waits for other transactions and leases that hold its key.
pub(super) fn longest_wait(request: &Request) -> Duration {
    let settings = &request.settings;
    match settings.in_flight {
        InFlight::Wait if !settings.observes => settings.wait(),
        InFlight::Wait | InFlight::Reject => Duration::ZERO,
    }
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
    /// The kept errors, for the code that ends the transaction.
    kept_errors: KeptErrors,
    store: PhantomData<fn() -> S>,
}

impl<'a, X: Transaction<S>, S: Store> OpenTransaction<'a, X, S> {
    pub(crate) fn new(tx: &'a mut X, runtime: &'a Arc<Runtime>, request: &'a Request) -> Self {
        let kept_errors = KeptErrors::collected_in(&*tx);
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

    /// Claims the key, behind a savepoint, so that a call that is not the owner leaves the
    /// transaction as it was. `Err`: what such a call gets.
    pub(crate) async fn claim(&mut self, store: &S) -> Result<ClaimedRow, Result<Recorded, Error>> {
        let (runtime, request) = (self.runtime, self.request);
        let began = clock::now();
        if let Err(why) = runtime.admit_call(request, began) {
            return Err(Err(runtime.reject(request, why)));
        }
        let wait = longest_wait(request);
        let until = clock::after(began, wait);
        let owner = runtime.store.owner(clock::now());
        let claim = request.claim(owner);
        if let Err(error) = self.savepoint().await {
            return Err(Err(self.failed(error).await));
        }
        let mut has_looked = false;
        let mut pauses = PAUSES;
        let answer = loop {
            let left = until.saturating_duration_since(clock::now());
            match self.tx.claim(store, &claim, left).boxed().await {
                Err(error) => return Err(Err(self.failed(error).await)),
                Ok(Began::LeaseHolds { attempt, left }) if clock::now() < until => {
                    if X::HOLDS_UP_OWNERS {
                        let lease = Held::new(attempt, left);
                        return Err(self.unclaimed(Rejected::InFlight(lease)).await);
                    }
                    // Nothing tells this transaction of the lease's end, so it looks again.
                    has_looked = true;
                    let left = left.min(until.saturating_duration_since(clock::now()));
                    tokio::time::sleep(pauses.next_pause().min(left)).await;
                }
                Ok(answer) => break answer.unless_rejected(),
            }
        };
        if has_looked || !wait.is_zero() && is_long_ago(began) {
            runtime.waited(request, began);
        }
        match answer {
            Ok(row) => Ok(claimed_row(runtime, request, owner, row)),
            Err(why) => Err(self.unclaimed(why).await),
        }
    }

    /// Undoes what a claim wrote that is not the owner's, and returns what its call gets.
    async fn unclaimed(&mut self, why: Rejected) -> Result<Recorded, Error> {
        self.roll_back().await;
        // On MySQL with `innodb_rollback_on_timeout`, a lock that was waited for in vain ends the
        // whole transaction. Its caller must not continue as after a rejection.
        if self.is_rollback_forced {
            return Err(self.lost());
        }
        found_in_transaction(self.runtime, self.request, why)
    }

    /// Writes the outcome, ends the run of what is recorded beside this transaction, and ends all
    /// savepoints. `begun`: the run that this attempt has begun.
    pub(crate) async fn commit(
        &mut self,
        store: &S,
        commit: &Commit,
        begun: Option<Owner>,
    ) -> Result<(), Error> {
        let committing = self.run(begun).commit(self.tx, store, commit);
        match committing.boxed().await {
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

    fn run(&self, begun: Option<Owner>) -> RunBeside {
        RunBeside {
            begun,
            end_kept: self.request.settings.run_kept().saturating_mul(2),
        }
    }

    /// Notes that this commit has recorded a kept error in the transaction.
    pub(crate) fn note_kept_error(&self, commit: Commit, begun: Option<Owner>) {
        self.kept_errors.note(|| KeptRecord {
            store: self.runtime.store.clone(),
            claim: self.request.claim(commit.owner),
            commit,
            run: self.run(begun),
            wait: longest_wait(self.request),
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
pub(super) fn is_long_ago(began: Instant) -> bool {
    clock::now().saturating_duration_since(began) > Duration::from_millis(100)
}
