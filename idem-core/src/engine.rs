//! The one flow of every call, annotated or by hand: claim, then run, wait or replay.
//!
//! At each await here the process may die, the future may be dropped, the reply may be lost, or the
//! lease may expire. In short: the same owner sends a claim of unknown fate once more and, if that
//! fails, undoes it. The lease counts from before the claim was sent. The steps after the claim
//! belong to [`Held`](crate::held::Held).

// `sent` and `seat` are the words of `flight.rs`.
#![allow(clippy::similar_names)]

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::context;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::fingerprint::Fingerprint;
use crate::flight::{Ending, Joined, Seat, Turn};
use crate::held::Owned;
use crate::lease::Term;
use crate::observe::{self, Decision, Observer};
use crate::outcome::Recorded;
use crate::policy::{Abandoned, Duplicate, InFlight, Settings, StoreFailure};
use crate::record::{Claim, Claimed, Encoded, Origin, Owner, RecordId};
use crate::runtime::Runtime;
use crate::token::{Flaw, Submission};
use crate::undo::Orphan;
use crate::versions::Versions;

/// The store's clock and the waiter's may differ a little; a look just before a lease runs out
/// would only have to be repeated.
const PAST_THE_LEASE: Duration = Duration::from_millis(5);
/// How long a waiter that cannot wait at the store sleeps before it asks again.
const WAIT_WITHOUT_STORE: Duration = Duration::from_millis(100);

/// One call: what is claimed, and how.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: RecordId,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// The key is that of a token, and counts only if it was issued.
    pub(crate) submission: Option<Box<Submission>>,
    pub(crate) settings: Settings,
    /// Of the outcome's type. `None`: there is one version.
    pub(crate) versions: Option<Box<Versions>>,
}

/// The next step of a call.
pub(crate) enum Begun {
    /// Run the body, and commit or release.
    Owner(Owned),
    /// Give this outcome.
    Replay(Recorded),
    /// Run the body, unguarded.
    Unguarded,
}

/// The result of a claim.
enum Said {
    /// The call has something to do, or fails.
    Over(Result<Begun, Error>),
    /// Somebody else is the owner, for this long unless the lease is renewed.
    InFlight { attempt: u64, lease_left: Duration, seat: Option<Box<Seat>> },
}

impl Runtime {
    /// Claims the key of a call, waiting and replaying as its settings say.
    ///
    /// The common path is here; waiting has a separate, boxed future.
    pub(crate) async fn begin(self: &Arc<Self>, request: &Request) -> Result<Begun, Error> {
        let began = clock::now();
        if let Some(known) = self.without_the_store(request, began)? {
            return Ok(known);
        }
        let seat = if self.store.is_local() {
            None
        } else {
            match self.flights.join(&request.id, request.fingerprint) {
                Joined::First(seat) => Some(Box::new(seat)),
                Joined::Behind(seat) => return Box::pin(self.share(request, began, Box::new(seat))).await,
            }
        };
        self.lead(request, began, seat).await
    }

    /// What this process knows by itself: a call inside its own body, a token that cannot count, an
    /// outcome in the local cache.
    fn without_the_store(self: &Arc<Self>, request: &Request, began: Instant) -> Result<Option<Begun>, Error> {
        if context::is_reentrant(&request.id, self.identity()) {
            return Err(self.reject(request, &Rejected::Reentrant));
        }
        if let Some(submission) = &request.submission {
            self.admit(request, submission, began)?;
        }
        let found = self.cache.as_ref().and_then(|cache| cache.find(&request.id, request.fingerprint, began));
        found.map(|found| self.replay(request, found)).transpose()
    }

    /// Claims the key of a call that only observes. It does not wait, and shares no flight: if it
    /// does not become the owner, its body runs at once, without a record. The decision of a
    /// guarded call is reported.
    pub(crate) async fn observe(self: &Arc<Self>, request: &Request) -> Begun {
        Box::pin(self.try_to_own(request)).await.unwrap_or(Begun::Unguarded)
    }

    async fn try_to_own(self: &Arc<Self>, request: &Request) -> Result<Begun, Error> {
        let began = clock::now();
        if let Some(known) = self.without_the_store(request, began)? {
            return Ok(known);
        }
        let owner = self.store.owner();
        let answer = self.claim(request, owner).await;
        match self.said(request, owner, began, answer, None) {
            Said::Over(answer) => answer,
            Said::InFlight { lease_left, .. } if request.settings.in_flight == InFlight::Reject => {
                Err(self.reject(request, &Rejected::InFlight(lease_left)))
            }
            Said::InFlight { attempt, .. } => {
                self.reporter(request).decided(Decision::Waited, &request.id, attempt);
                Ok(Begun::Unguarded)
            }
        }
    }

    /// The target of the decisions that end a guarded call; those of an observing call are only
    /// hypothetical.
    pub(crate) fn reporter(&self, request: &Request) -> Observer {
        self.observer.observing(request.settings.observes)
    }

    /// Refuses a submission with a malformed token, and one of a subject that has sent too many
    /// invalid ones.
    pub(crate) fn admit(&self, request: &Request, submission: &Submission, now: Instant) -> Result<(), Error> {
        if let Some(throttle) = self.throttle.as_ref().filter(|_| !submission.settles)
            && let Some(retry_after) = throttle.check(request.id.operation(), submission.subject, now)
        {
            return Err(self.reject(request, &Rejected::Throttled(retry_after)));
        }
        submission.flaw.map_or(Ok(()), |flaw| Err(self.reject(request, &Rejected::Token(flaw))))
    }

    /// Shares claims, waits and answers with the other calls of this process that have this key.
    async fn share(self: &Arc<Self>, request: &Request, began: Instant, mut seat: Box<Seat>) -> Result<Begun, Error> {
        let wait_until = request.wait_until(began);
        let mut pause = Pause::default();
        loop {
            let entered = clock::now();
            let (turn, has_waited) = seat.turn(request.fingerprint, wait_until).await;
            if has_waited && wait_until.is_some() && !matches!(turn, Turn::Mismatch) {
                self.waited(request, entered);
            }
            let shared = match turn {
                Turn::Ask => Some(seat),
                Turn::Alone | Turn::Answer(Ending::Unshared) => {
                    drop(seat);
                    None
                }
                Turn::Wait { attempt, until: lease_until } => {
                    pause.before_waiting_again(attempt).await;
                    let lease_left = lease_until.saturating_duration_since(clock::now());
                    let until = wait_until.unwrap_or(entered);
                    seat.while_waiting(self.wait_for(request, attempt, until, lease_left)).await;
                    seat.waited();
                    continue;
                }
                Turn::Answer(Ending::Committed { attempt, outcome }) => {
                    return self.replay(request, (attempt, outcome));
                }
                Turn::Answer(Ending::Done) => return Err(self.reject(request, &Rejected::Done)),
                Turn::Answer(Ending::InFlight { until, .. }) => {
                    let left = until.saturating_duration_since(clock::now());
                    return Err(self.reject(request, &Rejected::InFlight(left)));
                }
                Turn::Answer(Ending::Failed(error)) => return self.without_store(request, error),
                Turn::Mismatch => return Err(self.reject(request, &Rejected::Mismatch)),
                Turn::InFlight(left) => return Err(self.reject(request, &Rejected::InFlight(left))),
            };
            let (sent, owner) = (clock::now(), self.store.owner());
            let answer = self.claim(request, owner).await;
            match self.said(request, owner, sent, answer, shared) {
                Said::Over(answer) => return answer,
                Said::InFlight { seat: Some(still), .. } => seat = still,
                Said::InFlight { attempt, lease_left, seat: None } => {
                    return self.stand_in_line(request, began, (attempt, lease_left)).await;
                }
            }
        }
    }

    /// Asks the store first, and then waits as it says.
    ///
    /// No `async fn`: what it is given would be in its future twice.
    fn lead<'a>(
        self: &'a Arc<Self>,
        request: &'a Request,
        sent: Instant,
        seat: Option<Box<Seat>>,
    ) -> impl Future<Output = Result<Begun, Error>> + use<'a> {
        let owner = self.store.owner();
        async move {
            let answer = self.claim(request, owner).await;
            match self.said(request, owner, sent, answer, seat) {
                Said::Over(answer) => answer,
                Said::InFlight { seat: Some(seat), .. } => Box::pin(self.share(request, sent, seat)).await,
                Said::InFlight { attempt, lease_left, seat: None } => {
                    Box::pin(self.stand_in_line(request, sent, (attempt, lease_left))).await
                }
            }
        }
    }

    /// Waits for the owner, and claims again, until the call has an answer: for a call that shares
    /// with no other.
    async fn stand_in_line(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
        (mut attempt, mut lease_left): (u64, Duration),
    ) -> Result<Begun, Error> {
        let wait_until = request.wait_until(began);
        let mut pause = Pause::default();
        loop {
            let Some(until) = wait_until.filter(|until| !has_passed(*until)) else {
                return Err(self.reject(request, &Rejected::InFlight(lease_left)));
            };
            pause.before_waiting_again(attempt).await;
            self.wait_for(request, attempt, until, lease_left).await;
            let (sent, owner) = (clock::now(), self.store.owner());
            let answer = self.claim(request, owner).await;
            match self.said(request, owner, sent, answer, None) {
                Said::Over(answer) => return answer,
                Said::InFlight { attempt: now, lease_left: left, .. } => (attempt, lease_left) = (now, left),
            }
        }
    }

    /// Applies the store's answer to a claim, for this call and for its followers.
    fn said(
        self: &Arc<Self>,
        request: &Request,
        owner: Owner,
        sent: Instant,
        answer: Result<Claimed, StoreError>,
        mut seat: Option<Box<Seat>>,
    ) -> Said {
        let fingerprint = request.fingerprint;
        let mut tell = |ending| {
            if let Some(seat) = &mut seat {
                seat.answered(fingerprint, ending);
            }
        };
        let (ending, why) = match answer {
            Ok(Claimed::Owned { attempt, from }) => {
                return Said::Over(self.own(request, owner, (attempt, from), sent, seat).map(Begun::Owner));
            }
            Ok(Claimed::InFlight { attempt, lease_left }) => {
                tell(Ending::InFlight { attempt, until: clock::after(clock::now(), lease_left) });
                return Said::InFlight { attempt, lease_left, seat };
            }
            Ok(Claimed::Committed { attempt, outcome }) => {
                tell(Ending::Committed { attempt, outcome: outcome.clone() });
                return Said::Over(self.replay(request, (attempt, outcome)));
            }
            Err(error) => {
                tell(Ending::Failed(error.clone()));
                return Said::Over(self.without_store(request, error));
            }
            Ok(Claimed::Done { .. }) => (Ending::Done, Rejected::Done),
            Ok(Claimed::Mismatch) => (Ending::Unshared, Rejected::Mismatch),
            Ok(Claimed::Abandoned { attempt }) => (Ending::Unshared, Rejected::Abandoned(attempt)),
            Ok(Claimed::Exhausted { attempts }) => (Ending::Unshared, Rejected::Exhausted(attempts)),
            Ok(Claimed::NotIssued) => (Ending::Unshared, Rejected::Token(Flaw::Unknown)),
            Ok(Claimed::IssueExpired) => (Ending::Unshared, Rejected::Token(Flaw::Expired)),
        };
        tell(ending);
        Said::Over(Err(self.reject(request, &why)))
    }

    /// Waits until the record may have changed, the lease may have run out, or the call's own time
    /// is up.
    async fn wait_for(&self, request: &Request, attempt: u64, until: Instant, lease_left: Duration) {
        let entered = clock::now();
        let limit = until.saturating_duration_since(entered).min(lease_left + PAST_THE_LEASE);
        if let Err(error) = self.store.wait(&request.id, attempt, limit).await {
            self.observer.decided_because(Decision::StoreFailed, &request.id, attempt, &error);
            tokio::time::sleep(limit.min(WAIT_WITHOUT_STORE)).await;
        }
        self.waited(request, entered);
    }

    /// Sends a claim; once more if its fate is unknown, as the same owner, who is recognised.
    async fn claim(self: &Arc<Self>, request: &Request, owner: Owner) -> Result<Claimed, StoreError> {
        // Whenever this future ends without a clear answer, dropped included, what it may have
        // claimed is given back.
        let mut orphan = Orphan::new(self, request, owner);
        let mut is_resent = false;
        loop {
            match self.store.claim(request.claim(owner)).await {
                Err(error) if error.is_unknown() && !is_resent => {
                    self.observer.decided_because(Decision::ClaimResent, &request.id, 0, &error);
                    is_resent = true;
                }
                answer => {
                    // Sent twice, only owning it says that neither of the two is on its way yet.
                    if !is_resent || matches!(answer, Ok(Claimed::Owned { .. })) {
                        orphan.is_adopted();
                    }
                    return answer;
                }
            }
        }
    }

    fn own(
        self: &Arc<Self>,
        request: &Request,
        owner: Owner,
        (attempt, from): (u64, Origin),
        sent: Instant,
        seat: Option<Box<Seat>>,
    ) -> Result<Owned, Error> {
        let Settings { lease, .. } = request.settings;
        let term = Term::new(request.id.clone(), owner, attempt, (lease, request.settings.in_flight_expiry()), sent);
        let now = clock::now();
        if term.is_lost_at(now) {
            // The answer took as long as the lease: by now, the key may have another owner.
            drop(Orphan::new(self, request, owner));
            return Err(self.reject(request, &Rejected::TooLate(attempt)));
        }
        self.keepers.round_trips().took(&request.id, attempt, lease, (sent, now));
        if from == Origin::Abandoned {
            self.observer.decided(Decision::TakenOver, &request.id, attempt);
            if request.settings.abandoned == Abandoned::Reject {
                let why = format!(
                    "the key was not settled within its `hold`, {:?}: the call runs although attempt {} was cut off",
                    request.settings.hold(),
                    attempt.saturating_sub(1)
                );
                self.observer.decided_because(Decision::HoldEnded, &request.id, attempt, &why);
            }
        }
        Ok(Owned { enrolled: self.keepers.enrol(term), origin: from, seat })
    }

    fn without_store(&self, request: &Request, error: StoreError) -> Result<Begun, Error> {
        match (self.failed(&request.id, error), request.settings.store_failure) {
            (Error::Store { .. }, StoreFailure::Run) => {
                self.observer.decided(Decision::RanUnguarded, &request.id, 0);
                Ok(Begun::Unguarded)
            }
            (error, _) => {
                if request.settings.observes {
                    let unreadable = matches!(error, Error::Codec { .. });
                    let would = if unreadable { Decision::Unreadable } else { Decision::StoreFailed };
                    self.reporter(request).decided(would, &request.id, 0);
                }
                Err(error)
            }
        }
    }

    /// Reports what the store failed with, and says it to the caller.
    pub(crate) fn failed(&self, id: &RecordId, error: StoreError) -> Error {
        let (operation, key) = (id.operation().into(), id.digest());
        if error.kind() == StoreErrorKind::Unreadable {
            self.observer.decided_because(Decision::Unreadable, id, 0, &error);
            return Error::Codec { operation, key, reason: error.to_string().into() };
        }
        self.observer.decided_because(Decision::StoreFailed, id, 0, &error);
        Error::Store { operation, key, source: error }
    }

    pub(crate) fn replay(&self, request: &Request, (attempt, outcome): (u64, Encoded)) -> Result<Begun, Error> {
        match request.settings.duplicate {
            Duplicate::Reject => Err(self.reject(request, &Rejected::Duplicate)),
            Duplicate::Replay => {
                let observer = self.reporter(request);
                match outcome.metadata.as_ref().and_then(|metadata| metadata.trace.as_ref()) {
                    Some(trace) => {
                        let why = format_args!("the call that ran has the trace {trace}");
                        observer.decided_because(Decision::Replayed, &request.id, 0, &why);
                    }
                    None => observer.decided(Decision::Replayed, &request.id, 0),
                }
                let (id, codec, versions) = (request.id.clone(), self.codec.clone(), request.versions.clone());
                Ok(Begun::Replay(Recorded { id, attempt, outcome, codec, versions, observer }))
            }
        }
    }

    pub(crate) fn waited(&self, request: &Request, since: Instant) {
        self.observer.decided(Decision::Waited, &request.id, 0);
        observe::wait_took(&request.id, clock::now().saturating_duration_since(since));
    }

    pub(crate) fn reject(&self, request: &Request, why: &Rejected) -> Error {
        let (operation, key) = (request.id.operation().into(), request.id.digest());
        let (decision, attempt, error) = match *why {
            Rejected::InFlight(retry_after) => {
                let would_wait = request.settings.observes && request.settings.in_flight == InFlight::Wait;
                let decision = if would_wait { Decision::Waited } else { Decision::RejectedInFlight };
                (decision, 0, Error::InFlight { operation, key, retry_after })
            }
            Rejected::Duplicate => (Decision::RejectedDuplicate, 0, Error::Duplicate { operation, key }),
            Rejected::Done => (Decision::RejectedAlreadyDone, 0, Error::AlreadyDone { operation, key }),
            Rejected::Mismatch => (Decision::RejectedMismatch, 0, Error::FingerprintMismatch { operation, key }),
            Rejected::Abandoned(attempt) => {
                (Decision::RejectedAbandoned, attempt, Error::Abandoned { operation, key, attempt })
            }
            Rejected::Exhausted(attempts) => {
                (Decision::RejectedExhausted, attempts, Error::AttemptsExhausted { operation, key, attempts })
            }
            Rejected::TooLate(attempt) => {
                (Decision::ClaimTooLate, attempt, Error::LeaseLost { operation, key, attempt })
            }
            Rejected::Reentrant => (Decision::RejectedReentrant, 0, Error::Reentrant { operation, key }),
            Rejected::Throttled(retry_after) => {
                (Decision::TokenThrottled, 0, Error::Throttled { operation, key, retry_after })
            }
            Rejected::Token(flaw) => {
                if let (Some(throttle), Some(submission)) = (&self.throttle, &request.submission)
                    && flaw.may_be_guess()
                    && !submission.settles
                {
                    throttle.failed(request.id.operation(), submission.subject, clock::now());
                }
                (flaw.decision(), 0, Error::UnknownToken { operation, key })
            }
        };
        let observer = self.reporter(request);
        if let Some(submission) = &request.submission {
            observer.decided_because(decision, &request.id, attempt, submission);
            return error;
        }
        observer.decided(decision, &request.id, attempt);
        error
    }
}

/// A store may end a wait for no reason. A waiter that finds the same attempt in flight again at
/// once, and again, slows down.
#[derive(Default)]
struct Pause {
    seen: Option<(u64, Instant)>,
    length: Duration,
}

impl Pause {
    async fn before_waiting_again(&mut self, attempt: u64) {
        const EARLY: Duration = Duration::from_millis(5);
        let early = self.seen.is_some_and(|(seen, at)| seen == attempt && clock::now() < clock::after(at, EARLY));
        if early {
            self.length = (self.length * 2).clamp(EARLY, WAIT_WITHOUT_STORE);
            tokio::time::sleep(self.length).await;
        } else {
            self.length = Duration::ZERO;
        }
        self.seen = Some((attempt, clock::now()));
    }
}

/// Why a call does not run.
pub(crate) enum Rejected {
    InFlight(Duration),
    Duplicate,
    Done,
    Mismatch,
    Abandoned(u64),
    Exhausted(u64),
    TooLate(u64),
    Reentrant,
    Token(Flaw),
    Throttled(Duration),
}

impl Request {
    /// The version of the outcome's type.
    pub(crate) fn outcome_version(&self) -> u32 {
        self.versions.as_ref().map_or(1, |versions| versions.current)
    }

    /// The claim that an owner sends.
    pub(crate) fn claim(&self, owner: Owner) -> Claim {
        Claim {
            id: self.id.clone(),
            owner,
            lease: self.settings.lease,
            hold: self.settings.in_flight_expiry(),
            fingerprint: self.fingerprint,
            take_over: self.settings.abandoned == Abandoned::Rerun,
            take_over_after: self.settings.take_over_after(),
            max_attempts: self.settings.max_attempts(),
            must_be_issued: self.submission.is_some(),
        }
    }

    /// Until when a call that began then waits for another; `None` if it does not.
    fn wait_until(&self, began: Instant) -> Option<Instant> {
        match self.settings.in_flight {
            InFlight::Wait => Some(clock::after(began, context::bounded_wait(self.settings.wait()))),
            InFlight::Reject => None,
        }
    }

    /// Makes it the claim of an operator: it takes an abandoned record over, which stays protected
    /// as before if this goes no further, and does not wait.
    pub(crate) fn by_hand(&mut self) {
        let settings = &mut self.settings;
        settings.reconciles |= settings.abandoned == Abandoned::Reject;
        settings.abandoned = Abandoned::Rerun;
        settings.set_max_attempts(None);
        (settings.in_flight, settings.duplicate) = (InFlight::Reject, Duplicate::Reject);
        settings.store_failure = StoreFailure::Reject;
        if let Some(submission) = &mut self.submission {
            submission.settles = true;
        }
    }

    pub(crate) fn in_flight(&self, retry_after: Duration) -> Error {
        Error::InFlight { operation: self.id.operation().into(), key: self.id.digest(), retry_after }
    }
}

fn has_passed(instant: Instant) -> bool {
    clock::now() >= instant
}
