//! The steps that a body has begun, and what they need of its call.

use std::any::Any;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt as _, Shared, WeakShared};

use super::begun::{BegunSteps, LookForRun};
use super::settings::of_step;
use crate::adapter::engine::{
    AnyStore, Guarded, HeldBy, REJECTED_ABANDONED, Runtime, Settings, Term, clock,
};
use crate::policy::StoreFailure;
use crate::record::{
    Claim, Claimed, Origin, Owner, Ownership, RecordId, RecordInfo, RecordState, Release,
    ReleaseTo, is_step,
};
use crate::{Call, Error, StoreError, StoreErrorKind};

/// How many steps of a call are removed after its outcome. What is left expires.
const MOST_REMOVED: usize = 1000;

/// The event of a step that could not be replayed any more.
const TOO_OLD: &str = "nine tenths of the time have passed for which the steps of a call are kept \
    (30 days, or `hold` if that is longer), so none of them is begun or replayed any more: settle \
    the key of the call, or forget it, which begins a new run";

/// A body that has steps.
pub(super) struct Scope<'a> {
    call: &'a Guarded,
    begun: &'a BegunSteps,
}

impl Deref for Scope<'_> {
    type Target = Guarded;

    fn deref(&self) -> &Guarded {
        self.call
    }
}

impl<'a> Scope<'a> {
    /// `None`: nothing is recorded of the body, or another layer has the place of its steps.
    pub(super) fn in_body_of(call: &'a Call) -> Option<Self> {
        let call = call.held()?;
        let companion = call.companion.get_or_init(|| Box::<BegunSteps>::default());
        let begun = (&**companion as &dyn Any).downcast_ref()?;
        Some(Self { call, begun })
    }

    /// The claim found a record of an earlier attempt.
    fn goes_on(&self) -> bool {
        matches!(self.origin(), Origin::Released | Origin::Abandoned)
    }

    /// Whether nothing can be recorded beside the transaction of the body: nobody else can write, or
    /// the row is that of a step, which has no record beside it.
    pub(super) fn must_be_inside(&self) -> bool {
        match self.held_by {
            HeldBy::Row { is_only_writer, .. } => is_only_writer || is_step(self.id().operation()),
            _ => false,
        }
    }

    /// Whether this is the transaction that has the record of the call.
    pub(super) fn is_in<X>(&self, tx: &X) -> bool {
        let here = std::ptr::from_ref(tx).addr();
        matches!(self.held_by, HeldBy::Row { address, .. } if address == here)
    }

    /// Returns the settings of a step of the body.
    pub(super) fn settings_of_step(&self, lease: Option<Duration>) -> Settings {
        let call = &self.request.settings;
        let mut settings = of_step(call, &self.runtime.settings, lease.unwrap_or(call.lease));
        if self.lease().is_none() {
            // The transaction needs the store in any case.
            settings.store_failure = StoreFailure::Reject;
        }
        settings
    }

    /// Begins a step. `false`: this try of the body has begun it before.
    ///
    /// One beside the transaction of its call is not removed after the outcome. Nothing stops a body
    /// whose transaction the database has ended, so it must find what another attempt has recorded.
    pub(super) fn begin_step(&self, step: &RecordId, is_inside: bool) -> bool {
        let is_removed = is_inside || self.lease().is_some();
        let mut names = self.begun.names();
        let tries = names.tries;
        let before = names.steps.insert(step.digest(), tries);
        if before.is_none() && is_removed && names.ids.len() < MOST_REMOVED {
            names.ids.push(step.clone());
        }
        before != Some(tries)
    }

    /// Returns the run that the steps of the body belong to, and makes sure that its record stays
    /// as long as they do. In a transaction of the caller's, the record can perhaps not be renewed
    /// beside it, so the next renewal of the lease does that.
    ///
    /// # Errors
    ///
    /// The store did not answer, another caller owns the record, or the run is too old.
    pub(super) async fn run_of_steps(&self, in_transaction: bool) -> Result<Owner, Error> {
        let begun = self.begun;
        let stays = in_transaction || begun.stays.load(Ordering::Relaxed);
        let run = match (begun.run.get(), self.lease()) {
            (Some(run), _) if stays => *run,
            // In a box, so that the future of each step has no room for it.
            (_, Some(term)) => {
                let found = self.run_of_lease(begun, term, in_transaction);
                found.boxed().await?
            }
            (_, None) => {
                let run = self.look_beside(begun).await?;
                begun.stays.store(true, Ordering::Relaxed);
                *begun.run.get_or_init(|| run)
            }
        };
        self.checked(run)
    }

    /// Whether the record of the lease has to tell the run.
    pub(super) fn is_run_unknown(&self) -> bool {
        self.lease().is_some() && self.begun.run.get().is_none()
    }

    /// Returns the run that the record of the lease tells, as a transaction of the body sees it.
    /// `None`: it is not that of this attempt.
    pub(super) fn run_of_record(&self, record: Option<RecordInfo>) -> Option<Result<Owner, Error>> {
        let run = self.found(self.begun, self.lease()?, record)?;
        Some(self.checked(run))
    }

    /// Returns the run of a step in the transaction that has the record of the call, with which the
    /// step is rolled back. `None`: the record has to tell it.
    pub(super) fn run_inside(&self) -> Option<Result<Owner, Error>> {
        match self.held_by {
            HeldBy::Row { owner, .. } if !self.goes_on() => Some(Ok(owner)),
            _ => {
                let run = self.begun.run_inside.get();
                run.map(|run| self.checked(*run))
            }
        }
    }

    /// Like [`run_inside`](Self::run_inside), by the record that this transaction sees.
    pub(super) fn run_inside_by(&self, record: Option<RecordInfo>) -> Result<Owner, Error> {
        let Some(run) = record.and_then(|record| record.run) else {
            let gone = "the record is no longer in this transaction: begin it again";
            let gone = StoreError::new(StoreErrorKind::Conflict, gone);
            return Err(self.runtime.failed(self.id(), gone));
        };
        // If a step that runs at the same time was first, it has found the same.
        self.checked(*self.begun.run_inside.get_or_init(|| run))
    }

    /// In a later attempt the record tells the run. No other caller can end the run meanwhile, as
    /// long as the lease is held, and the body is not polled after that. Steps that run at the same
    /// time ask each for itself, so that none waits for another that is not polled.
    async fn run_of_lease(
        &self,
        begun: &BegunSteps,
        term: &Term,
        in_transaction: bool,
    ) -> Result<Owner, Error> {
        let store = &self.runtime.store;
        let failed = |error| self.runtime.failed(self.id(), error);
        let kept = self.request.settings.run_kept();
        // In a later attempt, an earlier one may have begun the same step, and what has recorded
        // the outcome has ended its run.
        let is_known = begun.run.get().is_some() || !self.goes_on();
        if is_known && !in_transaction && term.may_be_recorded() {
            let found = self.runtime.inspect(self.id()).await?;
            if found.is_some_and(|found| term.recorded(&found)) {
                // No later attempt goes on with what is begun now.
                begun.stays.store(true, Ordering::Relaxed);
                return Ok(*begun.run.get_or_init(|| term.owner));
            }
        }
        let run = match begun.run.get() {
            Some(run) => *run,
            None if self.goes_on() => {
                let found = self.runtime.inspect(self.id()).await?;
                let run = self.found(begun, term, found);
                run.ok_or_else(|| term.lost_error())?
            }
            None => {
                // Before the run is known: after that, it may have been raised.
                begun.stays.fetch_or(term.hold() >= kept, Ordering::Relaxed);
                *begun.run.get_or_init(|| term.owner)
            }
        };
        if begun.stays.load(Ordering::Relaxed) {
            return Ok(run);
        }
        term.raise_hold(kept);
        if !in_transaction {
            let sent = clock::now();
            match store.renew(&[term.renewal()]).await.pop() {
                Some(Ok(Ownership::Held)) => term.renewed(sent),
                Some(Err(error)) => return Err(failed(error)),
                Some(Ok(Ownership::Lost)) | None => return Err(term.lost_error()),
            }
            begun.stays.store(true, Ordering::Relaxed);
        }
        Ok(run)
    }

    /// Takes the run from the record of this attempt, if that was found.
    fn found(&self, begun: &BegunSteps, term: &Term, found: Option<RecordInfo>) -> Option<Owner> {
        let found = found.filter(|found| found.attempt == term.attempt)?;
        let whole = found.lease_age?.saturating_add(found.expires_in);
        let run = found.run?;
        let kept = self.request.settings.run_kept();
        begun.stays.fetch_or(whole >= kept, Ordering::Relaxed);
        // The next renewal carries it, or a release.
        term.raise_hold(kept);
        Some(*begun.run.get_or_init(|| run))
    }

    fn look_for_run_beside(&self) -> Shared<LookForRun> {
        let runtime = Arc::clone(&self.runtime);
        let id = self.id().clone();
        let kept = self.request.settings.run_kept();
        let looking = run_beside(runtime.clone(), id.clone(), self.goes_on(), kept);
        // A panic of the store counts as no answer, for all that wait.
        AssertUnwindSafe(looking)
            .catch_unwind()
            .map(move |found| {
                found.unwrap_or_else(|_| Err(runtime.failed(&id, StoreError::panicked())))
            })
            .boxed()
            .shared()
    }

    async fn look_beside(&self, begun: &BegunSteps) -> Result<Owner, Error> {
        let looking = {
            let mut beside = begun.beside.lock().unwrap_or_else(PoisonError::into_inner);
            let looking = beside.as_ref().and_then(WeakShared::upgrade);
            let looking = looking.unwrap_or_else(|| self.look_for_run_beside());
            *beside = looking.downgrade();
            looking
        };
        let found = looking.await;
        if found.is_err() {
            *begun.beside.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        found
    }

    fn checked(&self, run: Owner) -> Result<Owner, Error> {
        let most = self.request.settings.run_kept() / 10 * 9;
        if run.age().is_none_or(|age| age < most) {
            return Ok(run);
        }
        let id = self.id();
        self.runtime
            .observer
            .report(REJECTED_ABANDONED, id, self.attempt(), Some(&TOO_OLD));
        Err(Error::Abandoned {
            operation: id.name().into(),
            key: id.digest(),
            // None was cut off.
            attempt: 0,
        })
    }
}

/// The run of a call whose record is a row of a transaction: of the record that is there without
/// this transaction, or else of a record beside it, which a rollback leaves as it is.
async fn run_beside(
    runtime: Arc<Runtime>,
    call: RecordId,
    goes_on: bool,
    kept: Duration,
) -> Result<Owner, Error> {
    let store = &runtime.store;
    let failed = |error| runtime.failed(&call, error);
    if goes_on {
        let found = found_beside(store, &call).await.map_err(failed)?;
        if let Some(run) = found.and_then(|found| found.run) {
            return Ok(run);
        }
    }
    let id = call.beside();
    // The first round may find a run that has ended.
    for _ in 0..2 {
        // Nobody else owns the row of the call, so this needs no lease.
        let owner = store.owner(clock::now());
        let claim = Claim::new(id.clone(), owner, Duration::ZERO, kept);
        let Claimed::Owned { from, .. } = store.claim(claim).await.map_err(failed)? else {
            break;
        };
        let run = if from == Origin::Nothing {
            Some(owner)
        } else {
            let found = store.inspect(&id).await.map_err(failed)?;
            found.and_then(|found| found.run)
        };
        let keep = ReleaseTo::Released { keep: kept };
        let release = Release::new(id.clone(), owner, keep).with_run(true);
        let released = store.release(release).await.map_err(failed)?;
        let (Some(run), Ownership::Held) = (run, released) else {
            break;
        };
        if from == Origin::Nothing {
            return Ok(run);
        }
        let end = store.inspect(&id.end_of(run)).await.map_err(failed)?;
        if end.is_none() {
            return Ok(run);
        }
        // A new run would do everything again, so this transaction must still have the row.
        found_beside(store, &call).await.map_err(failed)?;
        store.remove(&id).await.map_err(failed)?;
    }
    Err(failed(ended()))
}

/// Returns the record that is there without this transaction. If it has an outcome, the database has
/// ended this transaction, and another one has recorded that since.
async fn found_beside(store: &AnyStore, call: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
    let found = store.inspect(call).await?;
    let is_over =
        |found: &RecordInfo| matches!(found.state, RecordState::Committed | RecordState::Done);
    if found.as_ref().is_some_and(is_over) {
        return Err(ended());
    }
    Ok(found)
}

fn ended() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "another transaction has the record of this call: this one has ended; begin it again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::engine::Companion;
    use crate::{Idempotency, MemoryStore};

    struct OfAnotherLayer;

    impl Companion for OfAnotherLayer {
        fn begin_try(&self) {}
        fn run(&self) -> Option<Owner> {
            None
        }
        fn stays(&self) -> bool {
            true
        }
        fn recorded(&self, _: &Arc<Runtime>, _: &RecordId, _: u64) {}
    }

    #[tokio::test]
    async fn a_step_beside_the_records_of_another_layer_is_refused_and_does_not_run() {
        let idempotency = Idempotency::new(MemoryStore::new());
        let call = idempotency.operation("orders.place").key("k");
        let placed = call.run(|| async {
            let call = crate::current().unwrap();
            let companion = &call.guarded().companion;
            assert!(companion.set(Box::new(OfAnotherLayer)).is_ok());
            crate::step("charge", || async { Ok::<_, Error>(1) }).await
        });
        let refused = placed.await.unwrap_err();
        assert!(matches!(refused, Error::Config { .. }), "{refused}");
    }
}
