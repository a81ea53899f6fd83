//! How a call claims its key, waits for another call, or learns why it is no owner.
//!
//! At each await here the process may die, the future may be dropped, the reply may be lost, or the
//! lease may expire. If the result of a claim is unknown, the same owner sends the claim once more
//! and, if that fails too, undoes it. The lease counts from before the claim was sent.
//! [`Owned`](crate::call::owned::Owned) takes the steps after the claim.

// `sent` and `seat` are the words that the flights use.
#![allow(clippy::similar_names)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;

use crate::base::clock;
use crate::call::owned::ClaimedLease;
use crate::call::recorded::Recorded;
use crate::error::{Error, StoreError};
use crate::lease::term::Term;
use crate::observe::Event;
use crate::policy::settings::InFlight;
use crate::record::{Claimed, Origin, Owner, Renewal};
use crate::runtime::Runtime;
use crate::runtime::flight::{FlightSeat, Turn};
use crate::runtime::rejected::{Held, Rejected, STORE_FAILED};
use crate::runtime::undoing::UnansweredClaim;
use crate::task::request::Request;
use crate::task::waiting::{self, Pause, WAIT_WITHOUT_STORE};

/// A waiter claims this long after the lease should have expired. Its clock and the store's may
/// differ a little, and a claim just before the end would only have to be repeated.
const PAST_THE_LEASE: Duration = Duration::from_millis(5);

/// The next step of a call.
pub(crate) enum CallStart {
    /// Run the body, and commit or release.
    Owner(ClaimedLease),
    /// Give this outcome.
    Replay(Recorded),
    /// Run the body, unguarded. In observe mode, a guarded call would give this outcome.
    Unguarded(Option<Recorded>),
}

impl Runtime {
    /// Claims the key of a call, waiting and replaying as its settings say. In observe mode, a call
    /// does not wait and joins no flight, and is never refused.
    pub(crate) async fn begin(self: &Arc<Self>, request: &Request) -> Result<CallStart, Error> {
        let began = clock::now();
        match self.claim_or_wait(request, began).await {
            Ok(owned) => Ok(CallStart::Owner(owned)),
            Err(why) => self.start_without_claim(request, why),
        }
    }

    /// Decides what this process can decide by itself: a call inside its own body, an invalid
    /// token, an outcome that is known here.
    fn check_locally(self: &Arc<Self>, request: &Request, began: Instant) -> Result<(), Rejected> {
        self.admit_call(request, began)?;
        let found = self.store.known(&request.id, request.fingerprint, began);
        found.map_or(Ok(()), |(attempt, outcome)| {
            Err(Rejected::Committed { attempt, outcome })
        })
    }

    /// Claims the key, or waits for its owner, unless this process knows the answer.
    ///
    /// The future holds only the common path. Waiting has a boxed future of its own, whose type
    /// ends here: types of nested calls must not be too deep for the compiler.
    pub(super) async fn claim_or_wait(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
    ) -> Result<ClaimedLease, Rejected> {
        self.check_locally(request, began)?;
        let observes = request.settings.observes;
        let mut seat = None;
        if !observes && !self.store.is_local() {
            let joined = Box::new(self.flights.join(request.question()));
            if !joined.is_first() {
                let seat = Some(joined);
                return self.wait(request, began, seat, None).boxed().await;
            }
            seat = Some(joined);
        }
        match self.claim(request, began, &mut seat).await {
            Err(Rejected::InFlight(held)) if !observes => {
                self.wait(request, began, seat, Some(held)).boxed().await
            }
            answer => answer,
        }
    }

    /// Waits for the owner and claims again, until the call has an answer. With a seat it shares
    /// claims, waits and answers with the other calls of this process that have this key.
    async fn wait(
        self: &Arc<Self>,
        request: &Request,
        began: Instant,
        mut seat: Option<Box<FlightSeat>>,
        mut held: Option<Held>,
    ) -> Result<ClaimedLease, Rejected> {
        let waits = request.settings.in_flight == InFlight::Wait;
        let longest = waiting::bounded_wait(request.settings.wait());
        let deadline = waits.then(|| clock::after(began, longest));
        let mut pause = Pause::new();
        loop {
            let entered = clock::now();
            let turn = match (&mut seat, held.take()) {
                (Some(seat), _) => {
                    let (turn, has_waited) = seat.turn(deadline).await;
                    if has_waited && deadline.is_some() {
                        self.waited(request, entered);
                    }
                    turn
                }
                (None, Some(held)) if deadline.is_some_and(|deadline| entered < deadline) => {
                    Turn::Wait(held)
                }
                (None, Some(held)) => Turn::Answer(Rejected::InFlight(held)),
                (None, None) => Turn::Ask,
            };
            match turn {
                Turn::Ask => {}
                Turn::Answer(why) => return Err(why),
                Turn::Wait(held) => {
                    pause.before_waiting_again(held.attempt).await;
                    let waiting = self.wait_for(request, held, deadline.unwrap_or(entered));
                    match &seat {
                        Some(seat) => seat.while_waiting(waiting).await,
                        None => waiting.await,
                    }
                    continue;
                }
            }
            match self.claim(request, clock::now(), &mut seat).await {
                Err(Rejected::InFlight(other)) => held = Some(other),
                answer => return answer,
            }
        }
    }

    /// Claims the key by a message that is sent now, for this call and for those that wait for it.
    async fn claim(
        self: &Arc<Self>,
        request: &Request,
        sent: Instant,
        seat: &mut Option<Box<FlightSeat>>,
    ) -> Result<ClaimedLease, Rejected> {
        let owner = self.store.owner(sent);
        let claimed = match seat.as_deref() {
            // In a box, because the future of every call would have room for it.
            Some(seat) if !seat.is_first() => {
                let until = seat.resends_until(sent);
                let sending = self.send_claim(request, owner, until);
                seat.while_asking(sending).boxed().await?
            }
            _ => self.send_claim(request, owner, None).await,
        };
        let claimed = claimed.map_err(Rejected::Store);
        let (attempt, origin) = match claimed.and_then(Rejected::unless_owned) {
            Ok(owned) => owned,
            Err(why) => {
                if let Some(seat) = seat {
                    seat.share(why.clone());
                }
                return Err(why);
            }
        };
        let lease = request.settings.lease;
        let hold = request.settings.in_flight_expiry();
        let renewal = Renewal::new(request.id.clone(), owner, hold);
        let term = Term::new(renewal, attempt, lease, sent);
        let now = clock::now();
        if term.is_lost_at(now) {
            // The answer took nearly as long as the lease, so the key may soon have another owner.
            self.undo(request, owner);
            return Err(Rejected::TooLate(attempt));
        }
        self.keepers
            .round_trips()
            .took(&request.id, attempt, lease, sent..now);
        if origin == Origin::Abandoned {
            self.took_over(request, attempt);
        }
        Ok(ClaimedLease {
            enrolled: self.keepers.enrol(term),
            origin,
            seat: seat.take(),
        })
    }

    /// Waits until the record may have changed, the lease may have expired, or the call's own time
    /// is up.
    pub(crate) async fn wait_for(&self, request: &Request, held: Held, until: Instant) {
        let entered = clock::now();
        let limit = until
            .saturating_duration_since(entered)
            .min(held.left() + PAST_THE_LEASE);
        let attempt = held.attempt;
        if let Err(error) = self.store.wait(&request.id, attempt, limit).await {
            self.observer
                .report(STORE_FAILED, &request.id, attempt, Some(&error));
            tokio::time::sleep(limit.min(WAIT_WITHOUT_STORE)).await;
        }
        self.waited(request, entered);
    }

    /// Sends a claim. If its result is unknown, sends it once more; the store recognises the owner.
    /// With `resends_until`, not after that.
    async fn send_claim(
        self: &Arc<Self>,
        request: &Request,
        owner: Owner,
        resends_until: Option<Instant>,
    ) -> Result<Claimed, StoreError> {
        let mut pending = PendingClaim {
            runtime: self,
            request,
            owner,
            is_settled: false,
        };
        let mut may_resend = true;
        let mut is_unknown = false;
        loop {
            let answer = self.store.claim(request.claim(owner)).await;
            is_unknown |= answer.as_ref().is_err_and(StoreError::is_unknown);
            match answer {
                Err(error)
                    if is_unknown
                        && may_resend
                        && resends_until.is_none_or(|until| clock::now() < until) =>
                {
                    self.observer
                        .report(Event::info("claim_resent"), &request.id, 0, Some(&error));
                    may_resend = false;
                }
                answer => {
                    // Sent twice, and one of the two owns the key: the other one, if it comes late,
                    // finds that record or a later one. With any other answer, the first message
                    // may arrive after this call has ended, and claim the key then.
                    pending.is_settled = !is_unknown || matches!(answer, Ok(Claimed::Owned { .. }));
                    return answer;
                }
            }
        }
    }

    /// Undoes in the background what a claim may have claimed.
    fn undo(self: &Arc<Self>, request: &Request, owner: Owner) {
        let settings = &request.settings;
        let now = clock::now();
        let claim = UnansweredClaim::new(
            request.id.clone(),
            owner,
            settings.remember().max(settings.lease.saturating_mul(10)),
            clock::after(now, settings.lease),
            self.background.undo(),
        );
        self.undoing.add(claim, now, &self.keepers);
    }
}

/// A claim on its way. If it is dropped without a clear answer, what may have been claimed is
/// undone.
struct PendingClaim<'a> {
    runtime: &'a Arc<Runtime>,
    request: &'a Request,
    owner: Owner,
    /// No message of the claim can arrive any more and claim the key, or the call owns it.
    is_settled: bool,
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.runtime.undo(self.request, self.owner);
        }
    }
}
