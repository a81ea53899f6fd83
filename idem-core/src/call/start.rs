//! How a call claims its key, waits for another call, or replays its outcome.
//!
//! At each await here the process may die, the future may be dropped, the reply may be lost, or the
//! lease may expire. If the result of a claim is unknown, the same owner sends the claim once more
//! and, if that fails too, undoes it. The lease counts from before the claim was sent.
//! [`OwnedRecord`](crate::call::owned_record::OwnedRecord) takes the steps after the claim.

// `sent` and `seat` are the words that the flights use.
#![allow(clippy::similar_names)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;

use crate::base::clock;
use crate::call::owned_record::ClaimedLease;
use crate::call::pending_claim::PendingClaim;
use crate::call::recorded::Recorded;
use crate::call::rejected::{ClaimAnswer, Rejected};
use crate::call::request::Request;
use crate::error::{Error, StoreError};
use crate::lease::term::Term;
use crate::observe::{self, Decision, catch_user_panic};
use crate::policy::settings::{Abandoned, Duplicate, InFlight, StoreFailure};
use crate::record::{Claimed, Encoded, Origin, Owner};
use crate::runtime::Runtime;
use crate::runtime::flight::{FlightSeat, FlightStep, Joined, SharedAnswer};
use crate::runtime::trace;
use crate::task::current;

/// A waiter claims this long after the lease should have expired. Its clock and the store's may
/// differ a little, and a claim just before the end would only have to be repeated.
const PAST_THE_LEASE: Duration = Duration::from_millis(5);
/// A call whose claim got no answer sends it once more if it is younger than this. The stores' time
/// limits are shorter, so that a call fails within two seconds.
const RESENT_WITHIN: Duration = Duration::from_secs(1);
/// How long a waiter that cannot wait at the store sleeps before it asks again.
const WAIT_WITHOUT_STORE: Duration = Duration::from_millis(100);

/// The next step of a call.
pub(crate) enum CallStart {
    /// Run the body, and commit or release.
    Owner(ClaimedLease),
    /// Give this outcome.
    Replay(Recorded),
    /// Run the body, unguarded.
    Unguarded,
}

/// The result of a claim.
enum AfterClaim {
    /// The call has something to do, or fails.
    Over(Result<CallStart, Error>),
    /// Another caller is the owner, for this long unless the lease is renewed.
    InFlight {
        attempt: u64,
        lease_left: Duration,
        seat: Option<Box<FlightSeat>>,
    },
}

impl Runtime {
    /// Claims the key of a call, waiting and replaying as its settings say.
    ///
    /// The future holds only the common path. Waiting has a boxed future of its own, whose type
    /// ends here: types of nested calls must not be too deep for the compiler.
    pub(crate) async fn begin(self: &Arc<Self>, request: &Request) -> Result<CallStart, Error> {
        let began = clock::now();
        if let Some(known) = self.without_the_store(request, began)? {
            return Ok(known);
        }
        let seat = if self.store.is_local() {
            None
        } else {
            match self.flights.join(&request.id, request.fingerprint) {
                Joined::First(seat) => Some(Box::new(seat)),
                Joined::Behind(seat) => {
                    return self.share(request, began, Box::new(seat)).boxed().await;
                }
            }
        };
        let owner = self.store.owner(began);
        let answer = self.claim(request, owner, began).await;
        match self.after_claim(request, owner, began, answer, seat) {
            AfterClaim::Over(answer) => answer,
            AfterClaim::InFlight {
                seat: Some(seat), ..
            } => self.share(request, began, seat).boxed().await,
            AfterClaim::InFlight {
                attempt,
                lease_left,
                seat: None,
            } => {
                self.wait_alone(request, began, (attempt, lease_left))
                    .boxed()
                    .await
            }
        }
    }

    /// Decides what this process can decide by itself: a call inside its own body, an invalid
    /// token, an outcome in the local cache.
    fn without_the_store(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
    ) -> Result<Option<CallStart>, Error> {
        if current::is_reentrant(&request.id, self.identity()) {
            return Err(self.reject(request, &Rejected::Reentrant));
        }
        if let Some(submission) = &request.submission {
            self.admit(request, submission, began)?;
        }
        let found = self
            .cache
            .as_ref()
            .and_then(|cache| cache.find(&request.id, request.fingerprint, began));
        found
            .map(|found| self.replay(request, found).map(CallStart::Replay))
            .transpose()
    }

    /// Claims the key of a call in observe mode. Such a call does not wait, and joins no flight. If
    /// it does not become the owner, its body runs at once, without a record, and the event says
    /// what a guarded call would have done.
    pub(crate) async fn observe(self: &Arc<Self>, request: &Request) -> CallStart {
        self.try_to_own(request)
            .boxed()
            .await
            .unwrap_or(CallStart::Unguarded)
    }

    async fn try_to_own(self: &Arc<Self>, request: &Request) -> Result<CallStart, Error> {
        let began = clock::now();
        if let Some(known) = self.without_the_store(request, began)? {
            return Ok(known);
        }
        let owner = self.store.owner(began);
        let answer = self.claim(request, owner, began).await;
        match self.after_claim(request, owner, began, answer, None) {
            AfterClaim::Over(answer) => answer,
            AfterClaim::InFlight { lease_left, .. }
                if request.settings.in_flight == InFlight::Reject =>
            {
                Err(self.reject(request, &Rejected::InFlight(lease_left)))
            }
            AfterClaim::InFlight { attempt, .. } => {
                self.reporter(request)
                    .decided(Decision::Waited, &request.id, attempt);
                Ok(CallStart::Unguarded)
            }
        }
    }

    /// Shares claims, waits and answers with the other calls of this process that have this key.
    async fn share(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
        mut seat: Box<FlightSeat>,
    ) -> Result<CallStart, Error> {
        let wait_until = request.wait_until(began);
        let mut pause = Pause::default();
        loop {
            let entered = clock::now();
            let (turn, has_waited) = seat.turn(request.fingerprint, wait_until).await;
            if has_waited && wait_until.is_some() && !matches!(turn, FlightStep::Mismatch) {
                self.waited(request, entered);
            }
            let shared = match turn {
                FlightStep::Ask => Some(seat),
                FlightStep::Alone => {
                    drop(seat);
                    None
                }
                FlightStep::Wait {
                    attempt,
                    until: lease_until,
                } => {
                    pause.before_waiting_again(attempt).await;
                    let lease_left = lease_until.saturating_duration_since(clock::now());
                    let until = wait_until.unwrap_or(entered);
                    seat.while_waiting(self.wait_for(request, attempt, until, lease_left))
                        .await;
                    seat.wait_ended();
                    continue;
                }
                FlightStep::Answer(answer) => {
                    if let Some(start) = self.use_shared(request, answer) {
                        return start;
                    }
                    drop(seat);
                    None
                }
                FlightStep::Mismatch => return Err(self.reject(request, &Rejected::Mismatch)),
                FlightStep::InFlight(left) => {
                    return Err(self.reject(request, &Rejected::InFlight(left)));
                }
            };
            match self.claim_in_flight(request, entered, shared).await {
                AfterClaim::Over(answer) => return answer,
                AfterClaim::InFlight {
                    seat: Some(still), ..
                } => seat = still,
                AfterClaim::InFlight {
                    attempt,
                    lease_left,
                    seat: None,
                } => {
                    return self.wait_alone(request, began, (attempt, lease_left)).await;
                }
            }
        }
    }

    /// Applies an answer that another call got. Returns `None` if each call has to ask for itself.
    fn use_shared(
        self: &Arc<Self>,
        request: &Request,
        answer: SharedAnswer,
    ) -> Option<Result<CallStart, Error>> {
        let why = match answer {
            SharedAnswer::Unshared => return None,
            SharedAnswer::Committed { attempt, outcome } => {
                let replay = self.replay(request, (attempt, outcome));
                return Some(replay.map(CallStart::Replay));
            }
            SharedAnswer::Failed(error) => return Some(self.without_store(request, error)),
            SharedAnswer::Done => Rejected::Done,
            SharedAnswer::InFlight { until, .. } => {
                Rejected::InFlight(until.saturating_duration_since(clock::now()))
            }
        };
        Some(Err(self.reject(request, &why)))
    }

    /// Claims the key for all calls of the flight, or without a seat only for this call, which has
    /// waited for others since `entered`.
    async fn claim_in_flight(
        self: &Arc<Self>,
        request: &Request,
        entered: Instant,
        seat: Option<Box<FlightSeat>>,
    ) -> AfterClaim {
        let sent = clock::now();
        let owner = self.store.owner(sent);
        let claim = self.claim(request, owner, entered);
        let answer = match &seat {
            Some(seat) => seat.while_asking(claim).await,
            None => claim.await,
        };
        self.after_claim(request, owner, sent, answer, seat)
    }

    /// Waits for the owner and claims again, until the call has an answer. Such a call shares
    /// nothing with other calls.
    async fn wait_alone(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
        (mut attempt, mut lease_left): (u64, Duration),
    ) -> Result<CallStart, Error> {
        let wait_until = request.wait_until(began);
        let mut pause = Pause::default();
        loop {
            let Some(until) = wait_until.filter(|until| !has_passed(*until)) else {
                return Err(self.reject(request, &Rejected::InFlight(lease_left)));
            };
            pause.before_waiting_again(attempt).await;
            self.wait_for(request, attempt, until, lease_left).await;
            let sent = clock::now();
            let owner = self.store.owner(sent);
            let answer = self.claim(request, owner, sent).await;
            match self.after_claim(request, owner, sent, answer, None) {
                AfterClaim::Over(answer) => return answer,
                AfterClaim::InFlight {
                    attempt: now,
                    lease_left: left,
                    ..
                } => (attempt, lease_left) = (now, left),
            }
        }
    }

    /// Applies the store's answer to a claim, for this call and for those that wait for it.
    fn after_claim(
        self: &Arc<Self>,
        request: &Request,
        owner: Owner,
        sent: Instant,
        answer: Result<Claimed, StoreError>,
        mut seat: Option<Box<FlightSeat>>,
    ) -> AfterClaim {
        let fingerprint = request.fingerprint;
        let mut tell = |answer| {
            if let Some(seat) = &mut seat {
                seat.claim_answered(fingerprint, answer);
            }
        };
        let claimed = match answer {
            Ok(claimed) => claimed,
            Err(error) => {
                tell(SharedAnswer::Failed(error.clone()));
                return AfterClaim::Over(self.without_store(request, error));
            }
        };
        match ClaimAnswer::from(claimed) {
            ClaimAnswer::Owned { attempt, from } => AfterClaim::Over(
                self.own(request, owner, (attempt, from), sent, seat)
                    .map(CallStart::Owner),
            ),
            ClaimAnswer::InFlight {
                attempt,
                lease_left,
            } => {
                tell(SharedAnswer::InFlight {
                    attempt,
                    until: clock::after(clock::now(), lease_left),
                });
                AfterClaim::InFlight {
                    attempt,
                    lease_left,
                    seat,
                }
            }
            ClaimAnswer::Committed { attempt, outcome } => {
                tell(SharedAnswer::Committed {
                    attempt,
                    outcome: outcome.clone(),
                });
                AfterClaim::Over(
                    self.replay(request, (attempt, outcome))
                        .map(CallStart::Replay),
                )
            }
            ClaimAnswer::Rejected(why) => {
                // All other rejections depend on what this call asked for.
                tell(match why {
                    Rejected::Done => SharedAnswer::Done,
                    _ => SharedAnswer::Unshared,
                });
                AfterClaim::Over(Err(self.reject(request, &why)))
            }
        }
    }

    /// Waits until the record may have changed, the lease may have expired, or the call's own time
    /// is up.
    pub(super) async fn wait_for(
        &self,
        request: &Request,
        attempt: u64,
        until: Instant,
        lease_left: Duration,
    ) {
        let entered = clock::now();
        let limit = until
            .saturating_duration_since(entered)
            .min(lease_left + PAST_THE_LEASE);
        if let Err(error) = self.store.wait(&request.id, attempt, limit).await {
            self.observer
                .decided_because(Decision::StoreFailed, &request.id, attempt, &error);
            tokio::time::sleep(limit.min(WAIT_WITHOUT_STORE)).await;
        }
        self.waited(request, entered);
    }

    /// Sends a claim. If its result is unknown, sends it once more; the store recognises the owner.
    /// Not if the call has taken a second by then, since `began`: with the wait for other claims
    /// of its process, it is to fail in time.
    async fn claim(
        self: &Arc<Self>,
        request: &Request,
        owner: Owner,
        began: Instant,
    ) -> Result<Claimed, StoreError> {
        // If this future ends without a clear answer, or is dropped, what may have been claimed is
        // undone.
        let mut claim = PendingClaim::new(self, request, owner);
        let mut is_unknown = false;
        loop {
            let answer = self.store.claim(request.claim(owner)).await;
            let is_resent = is_unknown;
            is_unknown |= answer.as_ref().is_err_and(StoreError::is_unknown);
            match answer {
                Err(error)
                    if is_unknown
                        && !is_resent
                        && clock::now().saturating_duration_since(began) < RESENT_WITHIN =>
                {
                    self.observer
                        .decided_because(Decision::ClaimResent, &request.id, 0, &error);
                }
                answer => {
                    // Sent twice, and one of the two owns the key: the other one, if it comes late,
                    // finds that record or a later one. With any other answer, the first message
                    // may arrive after this call has ended, and claim the key then.
                    if !is_unknown || matches!(answer, Ok(Claimed::Owned { .. })) {
                        claim.answered();
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
        seat: Option<Box<FlightSeat>>,
    ) -> Result<ClaimedLease, Error> {
        let lease = request.settings.lease;
        let term = Term::new(
            request.id.clone(),
            owner,
            attempt,
            (lease, request.settings.in_flight_expiry()),
            sent,
        );
        let now = clock::now();
        if term.is_lost_at(now) {
            // The answer took as long as the lease, so the key may have another owner by now.
            drop(PendingClaim::new(self, request, owner));
            return Err(self.reject(request, &Rejected::TooLate(attempt)));
        }
        self.keepers
            .round_trips()
            .took(&request.id, attempt, lease, (sent, now));
        if from == Origin::Abandoned {
            self.took_over(request, attempt);
        }
        Ok(ClaimedLease {
            enrolled: self.keepers.enrol(term),
            origin: from,
            seat,
        })
    }

    /// Reports that this attempt took over the record of one that was cut off.
    pub(crate) fn took_over(&self, request: &Request, attempt: u64) {
        self.observer
            .decided(Decision::TakenOver, &request.id, attempt);
        if request.settings.abandoned == Abandoned::Reject {
            let why = format!(
                "the key was not settled within its `hold`, {:?}: the call runs although attempt \
                 {} was cut off",
                request.settings.hold(),
                attempt.saturating_sub(1)
            );
            self.observer
                .decided_because(Decision::HoldEnded, &request.id, attempt, &why);
        }
    }

    fn without_store(&self, request: &Request, error: StoreError) -> Result<CallStart, Error> {
        match (
            self.failed(&request.id, error),
            request.settings.store_failure,
        ) {
            (Error::Store { .. }, StoreFailure::Run) => {
                self.observer
                    .decided(Decision::RanUnguarded, &request.id, 0);
                Ok(CallStart::Unguarded)
            }
            (error, _) => {
                if request.settings.observes {
                    let unreadable = matches!(error, Error::Codec { .. });
                    let would = if unreadable {
                        Decision::Unreadable
                    } else {
                        Decision::StoreFailed
                    };
                    self.reporter(request).decided(would, &request.id, 0);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn replay(
        &self,
        request: &Request,
        (attempt, outcome): (u64, Encoded),
    ) -> Result<Recorded, Error> {
        match request.settings.duplicate {
            Duplicate::Reject => Err(self.reject(request, &Rejected::Duplicate)),
            Duplicate::Replay => {
                let observer = self.reporter(request);
                match outcome
                    .metadata
                    .as_ref()
                    .and_then(|metadata| metadata.trace.as_ref())
                {
                    Some(trace) => {
                        if !request.settings.observes {
                            catch_user_panic(|| trace::link(trace));
                        }
                        // `format_args!` stays inside the call: Rust 1.88 cannot bind it to a
                        // variable.
                        observer.decided_because(
                            Decision::Replayed,
                            &request.id,
                            0,
                            &format_args!("the call that ran has the trace {trace}"),
                        );
                    }
                    None => observer.decided(Decision::Replayed, &request.id, 0),
                }
                Ok(Recorded {
                    id: request.id.clone(),
                    attempt,
                    outcome,
                    codec: self.config.codec.clone(),
                    versions: request.versions.clone(),
                    observer,
                })
            }
        }
    }

    pub(crate) fn waited(&self, request: &Request, since: Instant) {
        self.observer.decided(Decision::Waited, &request.id, 0);
        observe::wait_took(&request.id, clock::now().saturating_duration_since(since));
    }
}

/// Slows a waiter down. A store may end a wait for no reason; a waiter that then finds the same
/// attempt in flight would claim in a busy loop.
#[derive(Default)]
pub(super) struct Pause {
    seen: Option<(u64, Instant)>,
    length: Duration,
}

impl Pause {
    pub(super) async fn before_waiting_again(&mut self, attempt: u64) {
        const EARLY: Duration = Duration::from_millis(5);
        let early = self
            .seen
            .is_some_and(|(seen, at)| seen == attempt && clock::now() < clock::after(at, EARLY));
        if early {
            self.length = (self.length * 2).clamp(EARLY, WAIT_WITHOUT_STORE);
            tokio::time::sleep(self.length).await;
        } else {
            self.length = Duration::ZERO;
        }
        self.seen = Some((attempt, clock::now()));
    }
}

fn has_passed(instant: Instant) -> bool {
    clock::now() >= instant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_finds_the_same_attempt_at_once_again_and_again_slows_down() {
        let mut pause = Pause::default();
        for (attempt, millis) in [
            (1, 0),
            (1, 5),
            (1, 10),
            (1, 20),
            (1, 40),
            (1, 80),
            (1, 100),
            (1, 100),
            (2, 0),
            (2, 5),
        ] {
            let before = clock::now();
            pause.before_waiting_again(attempt).await;
            let took = clock::now().saturating_duration_since(before).as_millis();
            // Timers may be a millisecond late.
            assert!(
                (millis..=millis + 1).contains(&took),
                "{took} ms, not {millis}"
            );
        }
        // A wait that lasted longer did not end without a reason.
        tokio::time::advance(Duration::from_millis(5)).await;
        let before = clock::now();
        pause.before_waiting_again(2).await;
        assert_eq!(clock::now(), before);
    }
}
