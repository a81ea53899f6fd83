//! A key that a call of this process owns, from the claim to the commit or release.
//!
//! Dropped while the body runs, it leaves the record as it is: the body was cut somewhere, so the lease has to run out. Dropped while a
//! commit or release is under way, that is carried on in the background, as is one that the store did not take: the body is over, and
//! what it did must not be lost. Between two tries no body runs, and what is left to do is a release.

use std::sync::Arc;
use std::time::Duration;

use crate::background;
use crate::clock;
use crate::codec::CodecFailure;
use crate::engine::Request;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::error_policy::keep_for;
use crate::fingerprint::Fingerprint;
use crate::flight::{Ending, Leader};
use crate::keeper::Enrolled;
use crate::lease::Term;
use crate::local_cache::{LocalCache, Sending};
use crate::observe::Decision;
use crate::policy::{keep_released, seconds};
use crate::record::{AsClaimed, Commit, Encoded, Origin, Owner, Ownership, Release, ReleaseTo};
use crate::runtime::Runtime;

/// The first pause before a commit or release is tried again; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// What a late owner is told.
const NOT_THE_OWNER: &str = "nothing was recorded: somebody else has claimed the key since, or the store has forgotten this claim (restarted without its data, evicted, failed over)";

/// What a claim has brought its owner. [`Held`] has more, which would only be carried along until there is somebody to hold it.
pub(crate) struct Owned {
    pub(crate) enrolled: Enrolled,
    pub(crate) origin: Origin,
    pub(crate) leader: Option<Leader>,
}

/// The owner's end of a record in flight.
pub(crate) struct Held {
    term: Arc<Term>,
    /// `None` only once it was moved to the background.
    parts: Option<Parts>,
}

struct Parts {
    // Before the runtime, so that the last lease is gone when the runtime tells its keepers to end.
    enrolled: Enrolled,
    runtime: Arc<Runtime>,
    leader: Option<Leader>,
    origin: Origin,
    fingerprint: Option<Fingerprint>,
    times: Times,
    /// No record ends before this.
    least_secs: u32,
    step: Step,
    /// Of the first try of a commit: one whose reply was lost has begun the outcome's retention.
    sending: Option<Sending>,
    /// The outcome is not that of a body, but one that somebody knows.
    settles: bool,
    /// It is recorded.
    committed: bool,
    /// A release may have been carried out although no answer came.
    doubtful: bool,
}

/// How long things are kept, from the request's settings: in whole milliseconds, as they are, and in half the room, since this is in the
/// future of every call.
#[derive(Clone, Copy)]
struct Times {
    ttl: u64,
    remember: u64,
}

impl Times {
    fn new(ttl: Duration, remember: Duration) -> Self {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self { ttl: millis(ttl), remember: millis(remember) }
    }

    fn ttl(self) -> Duration {
        Duration::from_millis(self.ttl)
    }

    fn remember(self) -> Duration {
        Duration::from_millis(self.remember)
    }
}

/// Where the owner is.
enum Step {
    /// The body has not ended.
    Running,
    /// The body has ended, and this is to be recorded: `None` for an outcome that cannot be written. With a time of its own, it is kept
    /// and remembered for that.
    Committing { outcome: Option<Encoded>, own: Option<Duration> },
    /// The body has ended, and the key is to be given up: to run again, or left abandoned.
    Releasing { abandoned: bool },
    /// Nothing is left to do.
    Over,
}

/// What became of a step at the store.
enum Tried {
    /// It is over, one way or the other.
    Over(Ownership),
    /// It may be tried again.
    Failed(StoreError),
    /// Somebody else's data stands at the key: there is nothing to try again.
    Hopeless(StoreError),
}

impl Held {
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, owned: Owned) -> Self {
        let Owned { enrolled, origin, leader } = owned;
        if let Some(leader) = &leader {
            leader.owns(enrolled.term.clone());
        }
        let settings = &request.settings;
        let parts = Parts {
            runtime: runtime.clone(),
            enrolled,
            leader,
            origin,
            fingerprint: request.fingerprint,
            times: Times::new(settings.ttl, settings.remember()),
            least_secs: settings.least_secs,
            step: Step::Running,
            sending: None,
            settles: false,
            committed: false,
            doubtful: false,
        };
        Self { term: parts.enrolled.term.clone(), parts: Some(parts) }
    }

    pub(crate) fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// Whether the attempt before was cut off.
    pub(crate) fn after_abandoned(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.origin == Origin::Abandoned)
    }

    /// The body has ended, and this is its outcome.
    pub(crate) fn commits(&mut self, outcome: Result<Encoded, CodecFailure>) {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Committing { outcome: parts.encoded(outcome), own: None };
        }
    }

    /// The body has ended, and it is recorded that it did, without an outcome.
    pub(crate) fn commits_without_outcome(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Committing { outcome: None, own: None };
        }
    }

    /// The body has ended, and its error is the outcome, for a time of its own if it has one.
    pub(crate) fn keeps(&mut self, error: Encoded, ttl: Option<Duration>) {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Committing { outcome: Some(error), own: ttl.map(keep_for) };
        }
    }

    /// The body has ended, and the key is given up. If it is to run again, and this call goes no further, that is what is left to do.
    pub(crate) fn releases(&mut self, abandoned: bool) {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Releasing { abandoned };
        }
    }

    /// The body runs again.
    pub(crate) fn goes_on(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Running;
        }
    }

    /// Tries once what is left to do. If it fails, or this call goes no further meanwhile, it goes on in the background.
    pub(crate) async fn carry_out(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        match parts.try_step().await {
            Tried::Over(ownership) => parts.finish(ownership),
            // Dropped, this sees that a step is left.
            Tried::Failed(error) => parts.delayed(&error),
            Tried::Hopeless(error) => parts.give_up(&error),
        }
    }

    /// The body was stopped because the lease was lost.
    pub(crate) fn lost(&mut self) -> Error {
        if let Some(parts) = &mut self.parts {
            parts.step = Step::Over;
            let (observer, term) = (parts.runtime.observer, &self.term);
            observer.decided_because(Decision::LeaseLost, &term.id, term.attempt, &term.why_lost());
        }
        self.term.lost_error()
    }

    /// Tries what is left to do, for leases that are held by hand: a failure is the caller's, who may try again.
    pub(crate) async fn try_out(&mut self) -> Result<(), Error> {
        match &mut self.parts {
            Some(parts) => parts.try_by_hand().await,
            None => Ok(()),
        }
    }

    /// Records an outcome that somebody knows although no body of this call has run.
    pub(crate) async fn settle(mut self, outcome: Encoded) -> Result<(), Error> {
        if let Some(parts) = &mut self.parts {
            parts.settles = true;
        }
        self.commits(Ok(outcome));
        self.try_out().await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        match parts.step {
            Step::Over => {}
            Step::Running => {
                let term = &parts.enrolled.term;
                parts.runtime.observer.decided(Decision::CallerDropped, &term.id, term.attempt);
            }
            Step::Committing { .. } | Step::Releasing { .. } => parts.carry_on(),
        }
    }
}

impl Parts {
    fn encoded(&self, outcome: Result<Encoded, CodecFailure>) -> Option<Encoded> {
        outcome
            .map_err(|error| {
                let term = &self.enrolled.term;
                self.runtime.observer.decided_because(Decision::NotEncoded, &term.id, term.attempt, &error);
            })
            .ok()
    }

    async fn try_step(&mut self) -> Tried {
        let term = &*self.enrolled.term;
        let (id, owner, attempt, store) = (term.id.clone(), term.owner, term.attempt, &self.runtime.store);
        if self.sending.is_none() {
            self.sending = self.runtime.cache.as_ref().map(LocalCache::sending);
        }
        let answer = match &self.step {
            Step::Committing { outcome, own } => {
                let (outcome, fingerprint) = (outcome.clone(), self.fingerprint);
                let times = self.times_with(*own);
                let (ttl, remember) = (times.ttl(), times.remember());
                let as_claimed = Some(AsClaimed { origin: self.origin, lease: term.length(), hold: term.hold() });
                store.commit(Commit { id, owner, attempt, fingerprint, outcome, ttl, remember, as_claimed })
            }
            Step::Releasing { abandoned: true } => store.release(Release { id, owner, to: ReleaseTo::Abandoned }),
            Step::Releasing { abandoned: false } => {
                let keep = keep_released(self.times.ttl(), term.length(), self.least_secs);
                store.release(Release { id, owner, to: ReleaseTo::Released { keep } })
            }
            Step::Running | Step::Over => return Tried::Over(Ownership::Held),
        };
        match answer.await {
            Ok(ownership) => {
                if ownership == Ownership::Held {
                    self.cache();
                }
                Tried::Over(ownership)
            }
            Err(error) if error.kind() == StoreErrorKind::Unreadable => Tried::Hopeless(error),
            Err(error) => Tried::Failed(error),
        }
    }

    /// With a time of its own, an outcome is remembered for no longer.
    fn times_with(&self, own: Option<Duration>) -> Times {
        own.map_or(self.times, |own| Times::new(own, own.max(seconds(self.least_secs))))
    }

    /// Keeps the outcome, if this was a commit, for duplicates that come to this process.
    fn cache(&self) {
        if let (Some(cache), Some(sending), Step::Committing { outcome: Some(outcome), own }) =
            (&self.runtime.cache, self.sending, &self.step)
        {
            let id = &self.enrolled.term.id;
            cache.committed(sending, id, self.fingerprint, outcome, self.times_with(*own).ttl());
        }
    }

    async fn try_by_hand(&mut self) -> Result<(), Error> {
        match self.try_step().await {
            Tried::Over(ownership) => {
                self.finish(ownership);
                match ownership {
                    Ownership::Held => Ok(()),
                    Ownership::Lost => Err(self.enrolled.term.lost_error()),
                }
            }
            Tried::Failed(error) => {
                self.delayed(&error);
                let term = &self.enrolled.term;
                Err(Error::Store { operation: term.id.operation().into(), key: term.id.digest(), source: error })
            }
            Tried::Hopeless(error) => {
                self.give_up(&error);
                let (operation, key) = (self.enrolled.term.id.operation().into(), self.enrolled.term.id.digest());
                Err(Error::Codec { operation, key, reason: error.to_string().into() })
            }
        }
    }

    /// Reports what the store said of the step, and tells those who follow.
    fn finish(&mut self, ownership: Ownership) {
        let term = &self.enrolled.term;
        let (decision, ending) = match (std::mem::replace(&mut self.step, Step::Over), ownership) {
            (Step::Committing { .. }, Ownership::Held) if self.committed => return,
            (Step::Committing { outcome, .. }, Ownership::Held) => {
                self.committed = true;
                let decision = match &outcome {
                    _ if self.settles => Decision::Settled,
                    Some(outcome) if outcome.is_error => Decision::ErrorKept,
                    _ => Decision::Executed,
                };
                (decision, outcome.map_or(Ending::Done, Ending::Committed))
            }
            (Step::Committing { .. }, Ownership::Lost) => (Decision::CommitRefused, Ending::Gone),
            (Step::Releasing { .. }, Ownership::Lost) if !self.doubtful => (Decision::ReleaseRefused, Ending::Gone),
            // Or it was before, when its reply was lost.
            (Step::Releasing { abandoned: true }, _) => (Decision::Abandoned, Ending::Gone),
            (Step::Releasing { .. }, _) => (Decision::Released, Ending::Gone),
            (Step::Running | Step::Over, _) => return,
        };
        // Nothing is left to renew, nor to lose.
        term.end();
        self.enrolled.stop();
        let (observer, term) = (self.runtime.observer, &self.enrolled.term);
        match decision {
            Decision::CommitRefused | Decision::ReleaseRefused => {
                observer.decided_because(decision, &term.id, term.attempt, &NOT_THE_OWNER);
            }
            Decision::Settled if self.origin == Origin::Nothing => {
                observer.decided_because(decision, &term.id, term.attempt, &"there was no record of this key");
            }
            _ => observer.decided(decision, &term.id, term.attempt),
        }
        if let Some(leader) = self.leader.take() {
            leader.end(ending);
        }
    }

    /// Carries the step on in a task of its own.
    fn carry_on(mut self) {
        let bytes = match &self.step {
            Step::Committing { outcome: Some(outcome), .. } => outcome.payload.len(),
            _ => 0,
        };
        let (Some(counted), Ok(handle)) = (self.runtime.background.step(bytes), tokio::runtime::Handle::try_current())
        else {
            return self.give_up(
                &"too many others are being tried again (10,000, or 64 MiB of outcomes), or there is no tokio runtime to do it on",
            );
        };
        handle.spawn(async move {
            Retrying { parts: Some(self) }.run().await;
            drop(counted);
        });
    }

    fn delayed(&mut self, error: &StoreError) {
        let decision = if let Step::Committing { .. } = self.step {
            Decision::CommitDelayed
        } else {
            self.doubtful |= error.is_unknown();
            Decision::ReleaseDelayed
        };
        let term = &self.enrolled.term;
        self.runtime.observer.decided_because(decision, &term.id, term.attempt, error);
    }

    /// Leaves the step, and says so.
    fn give_up(&mut self, why: &dyn std::fmt::Display) {
        let decision = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Committing { .. } => Decision::NotRecorded,
            Step::Releasing { .. } => Decision::NotReleased,
            Step::Running | Step::Over => return,
        };
        let term = &self.enrolled.term;
        self.runtime.observer.decided_because(decision, &term.id, term.attempt, why);
    }
}

/// A step that is tried again in the background until the store takes it, or it makes no sense any more.
struct Retrying {
    parts: Option<Parts>,
}

impl Retrying {
    async fn run(mut self) {
        let Some(parts) = &mut self.parts else { return };
        // A commit is accepted from the last owner even after its lease ran out, so it is worth more than a lease of trying. A release
        // is worth no more than what it would shorten.
        let patience = if matches!(parts.step, Step::Committing { .. }) {
            parts.enrolled.term.length().saturating_mul(10)
        } else {
            parts.enrolled.stop();
            parts.enrolled.term.length()
        };
        let until = clock::after(clock::now(), patience);
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match parts.try_step().await {
                Tried::Over(ownership) => {
                    parts.finish(ownership);
                    break;
                }
                Tried::Hopeless(error) => {
                    parts.give_up(&error);
                    break;
                }
                Tried::Failed(error) => error,
            };
            if clock::now() >= until {
                parts.give_up(&error);
                break;
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        self.parts = None;
    }
}

impl Drop for Retrying {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            parts.give_up(&"its tokio runtime was shut down first");
        }
    }
}

/// A claim whose fate is unknown. Unless it is adopted by a clear answer, it is undone in the background: it may have been carried out, or
/// may yet be, and nobody would be there to run the body.
pub(crate) struct Orphan<'a> {
    runtime: &'a Arc<Runtime>,
    request: &'a Request,
    owner: Owner,
    adopted: bool,
}

impl<'a> Orphan<'a> {
    pub(crate) fn new(runtime: &'a Arc<Runtime>, request: &'a Request, owner: Owner) -> Self {
        Self { runtime, request, owner, adopted: false }
    }

    /// There was a clear answer.
    pub(crate) fn is_adopted(&mut self) {
        self.adopted = true;
    }
}

impl Drop for Orphan<'_> {
    fn drop(&mut self) {
        if self.adopted {
            return;
        }
        let Self { runtime, request, owner, .. } = *self;
        let (hold, lease) = (request.settings.hold(), request.settings.lease);
        let to = ReleaseTo::Undone { keep: hold.max(lease.saturating_mul(10)) };
        let (runtime, release) = (runtime.clone(), Release { id: request.id.clone(), owner, to });
        let (Some(counted), Ok(handle)) = (runtime.background.undo(), tokio::runtime::Handle::try_current()) else {
            return runtime.observer.decided(Decision::NotReleased, &release.id, 0);
        };
        handle.spawn(async move {
            undo(&runtime, release, lease, counted).await;
        });
    }
}

/// Undoes a claim that was, or may yet be, carried out: tries for as long as the lease would lock others out.
async fn undo(runtime: &Runtime, release: Release, lease: Duration, mut counted: background::Undo) {
    let until = clock::after(clock::now(), lease);
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = runtime.store.release(release.clone()).await;
        if let Ok(Ownership::Held) = answer {
            return runtime.observer.decided(Decision::GivenBack, &release.id, 0);
        }
        if answer.is_ok() {
            counted.heard();
        }
        let left = until.saturating_duration_since(clock::now());
        if left.is_zero() {
            if let Err(error) = answer {
                runtime.observer.decided_because(Decision::NotReleased, &release.id, 0, &error);
            }
            return;
        }
        // Not there: the claim may still be on its way. The pause grows with no bound but the lease, so this is a handful of looks.
        tokio::time::sleep(jittered(pause).min(left)).await;
        pause *= 2;
    }
}

/// Between half of a pause and the whole, so that those who failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
