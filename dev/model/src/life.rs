//! The steps of the world: what can happen in a state, and what becomes of it.

use idem_core::Key;
use idem_core::record::RecordId;

use crate::bounds::{Bounds, Network};
use crate::caller::{Caller, Ended, Id, Phase, Reply, Request, Wire};
use crate::mutant::Mutant;
use crate::operator::Decision;
use crate::promise::Promise;
use crate::state::State;
use crate::store::Store;

/// The life of one record, with three callers.
#[derive(Debug, Clone)]
pub struct Life {
    pub(crate) store: Store,
    pub(crate) bounds: Bounds,
    mutant: Option<Mutant>,
    /// After how many ticks an owner stops.
    stops_after: u8,
    /// Whether callers are put in order, so that worlds that differ in their names alone are one.
    pub(crate) in_order: bool,
}

/// Something that happens. The number is the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A tick of the store's clock. Whoever does nothing meanwhile is slow, or stopped.
    Tick,
    /// A caller sends a claim, with a fingerprint, or 0.
    Claims(usize, u8),
    /// The store carries out the step under way. Unless that is a claim that becomes the owner, the
    /// reply is received at once. A later reply is like a step that is carried out later, and a
    /// lost reply like a timeout of a request that strays.
    CarriedOut(usize),
    /// The reply to a claim is received: the caller owns the key.
    Receives(usize),
    /// The step stays without an answer.
    TimesOut(usize, Fate),
    /// The time for undoing a claim has passed.
    GivesUp(usize),
    /// A renewal is sent.
    Renews(usize),
    /// The store carries it out.
    RenewalCarriedOut(usize),
    /// The reply to it is received.
    RenewalReceived(usize),
    /// It stays without an answer.
    RenewalTimesOut(usize, Fate),
    /// The store carries out a request that its sender gave up on.
    StrayCarriedOut(usize, usize),
    /// The deadline is looked at, and then the body is polled.
    Polls(usize, Poll),
    /// The deadline is looked at, and has passed.
    Stops(usize),
    /// The caller's future is dropped; its process goes on.
    Dropped(usize),
    /// The caller's process dies. Its next call is one of another process.
    Crashes(usize),
    /// The store carries out what an operator has decided.
    Intervenes(Decision),
}

/// The fate of a request whose sender gave up on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is not carried out, or its reply is lost.
    Lost,
    /// It may be carried out later.
    Strays,
}

/// The result of a poll of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Nothing yet.
    Pending,
    /// A value, or an error that is kept.
    Value,
    /// An error that releases, or a panic.
    Error,
    /// An error that abandons.
    Abandons,
    /// The body has asked, and got no answer: it does not begin.
    Unanswered,
}

impl Life {
    /// The code as it is, or with a deviation. (`None` only where `idem_core` takes no key `k`.)
    pub fn new(bounds: Bounds, mutant: Option<Mutant>) -> Option<Self> {
        let id = RecordId::new("model", &Key::encode("k")?)?;
        let store = Store { id, bounds, mutant };
        Some(Self {
            store,
            bounds,
            mutant,
            stops_after: bounds.stops_after(mutant == Some(Mutant::LeaseToItsEnd)),
            in_order: true,
        })
    }

    /// With callers that keep their numbers: for traces that can be read.
    #[must_use]
    pub fn with_names(self) -> Self {
        Self {
            in_order: false,
            ..self
        }
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether a caller's step has to wait for an earlier claim that is still on its way.
    fn must_wait(&self, caller: &Caller, call: u8) -> bool {
        self.bounds.network == Network::ClaimsInOrder && caller.has_stray_claim(call)
    }

    pub(crate) fn acts_of(
        &self,
        at: usize,
        caller: &Caller,
        faults_left: bool,
        acts: &mut Vec<Act>,
    ) {
        let times_out = |act: fn(usize, Fate) -> Act, acts: &mut Vec<Act>| {
            if faults_left {
                acts.extend([Fate::Lost, Fate::Strays].map(|fate| act(at, fate)));
            }
        };
        for (place, stray) in caller.strays.iter().enumerate() {
            if stray.is_some_and(|stray| {
                matches!(stray.request, Request::Claim { .. })
                    || !self.must_wait(caller, stray.call)
            }) {
                acts.push(Act::StrayCarriedOut(at, place));
            }
        }
        match caller.wire {
            Wire::Free => {}
            Wire::Sent => {
                if !self.must_wait(caller, caller.call) {
                    acts.push(Act::CarriedOut(at));
                }
                times_out(Act::TimesOut, acts);
            }
            Wire::Reply(_) => {
                acts.push(Act::Receives(at));
                if faults_left {
                    acts.push(Act::TimesOut(at, Fate::Lost));
                }
            }
        }
        match caller.renewal {
            Wire::Free if self.may_renew(caller) => acts.push(Act::Renews(at)),
            Wire::Free => {}
            Wire::Sent => {
                if !self.must_wait(caller, caller.call) {
                    acts.push(Act::RenewalCarriedOut(at));
                }
                times_out(Act::RenewalTimesOut, acts);
            }
            Wire::Reply(_) => acts.push(Act::RenewalReceived(at)),
        }
        match caller.phase {
            Phase::Idle if caller.call < self.bounds.calls => {
                let prints: &[u8] = if self.bounds.prints { &[1, 2] } else { &[0] };
                acts.extend(prints.iter().map(|print| Act::Claims(at, *print)));
            }
            Phase::Body {
                attempt,
                left,
                polls,
                begun,
            } => {
                if left > 0 || self.looks_away(begun) {
                    if polls > 1 {
                        acts.push(Act::Polls(at, Poll::Pending));
                    }
                    acts.extend(
                        [Poll::Value, Poll::Error, Poll::Abandons].map(|poll| Act::Polls(at, poll)),
                    );
                    if self.bounds.asks && attempt > 1 && !begun {
                        acts.push(Act::Polls(at, Poll::Unanswered));
                    }
                }
                if left == 0 && !self.is(Mutant::NoSelfCancel) {
                    acts.push(Act::Stops(at));
                }
            }
            Phase::Undoing { age } if age >= self.bounds.lease => acts.push(Act::GivesUp(at)),
            _ => {}
        }
        if faults_left {
            if matches!(caller.phase, Phase::Body { .. } | Phase::Claiming { .. }) {
                acts.push(Act::Dropped(at));
            }
            if caller.phase != Phase::Idle {
                acts.push(Act::Crashes(at));
            }
        }
    }

    /// Whether the deadline is not looked at before a poll.
    fn looks_away(&self, begun: bool) -> bool {
        self.is(Mutant::NoSelfCancel)
            || self.is(Mutant::NoLookBeforePoll) && begun
            || self.is(Mutant::LateClaimStartsBody) && !begun
    }

    fn may_renew(&self, caller: &Caller) -> bool {
        match caller.phase {
            Phase::Body { .. } => true,
            Phase::Idle => self.is(Mutant::RenewalAfterDrop) && caller.excused > 0,
            _ => false,
        }
    }

    fn carry_out(&self, state: &mut State, at: usize, call: u8, request: Request) -> Reply {
        self.store
            .carry_out(&mut state.slot, &mut state.seen, Id::new(at, call), request)
    }

    fn receive(&self, caller: &mut Caller) {
        let Wire::Reply(reply) = caller.wire else {
            return;
        };
        caller.wire = Wire::Free;
        match (caller.phase, reply) {
            (Phase::Claiming { age, .. }, Reply::Owned(attempt)) => {
                let age = if self.is(Mutant::DeadlineFromReply) {
                    0
                } else {
                    age
                };
                let left = self.stops_after.saturating_sub(age);
                if left == 0
                    && !self.is(Mutant::LateClaimStartsBody)
                    && !self.is(Mutant::NoSelfCancel)
                {
                    caller.enters(Phase::Undoing { age: 0 });
                } else {
                    caller.enters(Phase::Body {
                        attempt,
                        left,
                        polls: self.bounds.polls,
                        begun: false,
                    });
                }
            }
            (Phase::Claiming { resent: true, .. }, _) => self.undoes(caller),
            (Phase::Claiming { .. }, _) => caller.enters(Phase::Idle),
            // The claim may still be on its way.
            (Phase::Undoing { age }, Reply::Lost) => caller.enters(Phase::Undoing { age }),
            _ => caller.ends(false, self.bounds.strays),
        }
    }

    /// A claim without a clear answer is undone.
    fn undoes(&self, caller: &mut Caller) {
        if self.is(Mutant::NoUndo) {
            caller.ends(false, self.bounds.strays);
        } else if self.is(Mutant::UnansweredClaimStartsBody) {
            caller.enters(Phase::Body {
                attempt: 1,
                left: self.stops_after,
                polls: self.bounds.polls,
                begun: false,
            });
        } else {
            caller.enters(Phase::Undoing { age: 0 });
        }
    }

    fn times_out(&self, caller: &mut Caller) {
        match caller.phase {
            Phase::Claiming { resent: false, .. } if self.is(Mutant::ResendAsAnother) => {
                caller.call += 1;
                caller.enters(Phase::Claiming {
                    age: 0,
                    resent: true,
                });
            }
            Phase::Claiming { age, resent: false } => {
                let age = if self.is(Mutant::DeadlineFromResend) {
                    0
                } else {
                    age
                };
                caller.enters(Phase::Claiming { age, resent: true });
            }
            Phase::Claiming { resent: true, .. } => self.undoes(caller),
            Phase::Committing { attempt } if self.is(Mutant::ReleaseOnFailedCommit) => {
                caller.enters(Phase::Releasing {
                    attempt,
                    abandon: false,
                    after: Ended::Value,
                });
            }
            phase => {
                caller.call += u8::from(
                    self.is(Mutant::CommitAsAnother) && matches!(phase, Phase::Committing { .. }),
                );
                caller.enters(phase);
            }
        }
    }

    fn poll(&self, state: &mut State, at: usize, poll: Poll) {
        let Some(Phase::Body { attempt, begun, .. }) =
            state.callers.get(at).map(|caller| caller.phase)
        else {
            return;
        };
        if !begun && poll != Poll::Unanswered {
            let seen = &mut state.seen;
            seen.expects(Promise::P2, !seen.must_remember());
            seen.expects(Promise::P5, attempt > seen.highest);
            seen.highest = seen.highest.max(attempt);
            for (other, caller) in state.callers.iter_mut().enumerate() {
                caller.superseded |=
                    other != at && matches!(caller.phase, Phase::Body { begun: true, .. });
            }
        }
        let Some(caller) = state.callers.get_mut(at) else {
            return;
        };
        state.seen.expects(Promise::P1, !caller.superseded);
        if poll != Poll::Pending {
            caller.stops_renewing(self.bounds.strays);
        }
        match (poll, &mut caller.phase) {
            (Poll::Pending, Phase::Body { polls, begun, .. }) => {
                *polls -= 1;
                *begun = true;
                return;
            }
            (Poll::Pending, _) => return,
            (Poll::Value, _) => caller.enters(Phase::Committing { attempt }),
            (Poll::Error, _) => caller.enters(Phase::Releasing {
                attempt,
                abandon: false,
                after: Ended::Error,
            }),
            (Poll::Unanswered, _) => {
                caller.enters(Phase::Releasing {
                    attempt,
                    abandon: true,
                    after: Ended::Unanswered,
                });
            }
            (Poll::Abandons, _) => caller.enters(Phase::Releasing {
                attempt,
                abandon: true,
                after: Ended::Error,
            }),
        }
        caller.superseded = false;
    }

    fn drop_or_crash(&self, caller: &mut Caller, dropped: bool) {
        if let Some(request) = caller.request().filter(|_| caller.wire == Wire::Sent) {
            caller.strays(request, self.bounds.strays);
        }
        match caller.phase {
            Phase::Claiming { .. } if dropped => {
                if self.is(Mutant::NoUndo) {
                    caller.ends(false, self.bounds.strays);
                } else {
                    caller.enters(Phase::Undoing { age: 0 });
                }
            }
            Phase::Body { attempt, .. } if dropped && self.is(Mutant::ReleaseOnDrop) => {
                caller.stops_renewing(self.bounds.strays);
                caller.enters(Phase::Releasing {
                    attempt,
                    abandon: false,
                    after: Ended::Cut,
                });
            }
            _ => caller.ends(true, self.bounds.strays),
        }
    }

    fn renewal_received(&self, caller: &mut Caller) {
        let reply = caller.renewal;
        let age = caller.renewal_age;
        (caller.renewal, caller.renewal_age) = (Wire::Free, 0);
        let Phase::Body { left, .. } = &mut caller.phase else {
            return;
        };
        if reply == Wire::Reply(Reply::Held) && (*left > 0 || self.is(Mutant::LateRenewalCounts)) {
            let age = if self.is(Mutant::DeadlineFromRenewalReply) {
                0
            } else {
                age
            };
            *left = self.stops_after.saturating_sub(age);
        } else if !self.is(Mutant::NoSelfCancel) {
            caller.ends(true, self.bounds.strays);
        }
    }

    pub(crate) fn act(&self, state: &mut State, act: Act) -> Option<()> {
        let room = self.bounds.strays;
        match act {
            Act::Tick => state.tick(self.bounds.lease.max(self.stops_after)),
            Act::Claims(at, print) => {
                let caller = state.callers.get_mut(at)?;
                caller.print = print;
                caller.enters(Phase::Claiming {
                    age: 0,
                    resent: false,
                });
            }
            Act::CarriedOut(at) => {
                let caller = *state.callers.get(at)?;
                let reply = self.carry_out(state, at, caller.call, caller.request()?);
                let caller = state.callers.get_mut(at)?;
                caller.wire = Wire::Reply(reply);
                if !matches!(reply, Reply::Owned(_)) {
                    self.receive(caller);
                }
            }
            Act::Receives(at) => self.receive(state.callers.get_mut(at)?),
            Act::TimesOut(at, fate) => {
                state.faults += 1;
                let caller = state.callers.get_mut(at)?;
                let request = caller.request()?;
                if fate == Fate::Strays && !caller.strays(request, room) {
                    return None;
                }
                self.times_out(caller);
            }
            Act::Renews(at) => {
                let caller = state.callers.get_mut(at)?;
                (caller.renewal, caller.renewal_age) = (Wire::Sent, 0);
            }
            Act::RenewalCarriedOut(at) => {
                let caller = *state.callers.get(at)?;
                let (call, attempt) = match caller.phase {
                    Phase::Body { attempt, .. } => (caller.call, attempt),
                    // So it is with a mutant alone.
                    _ => (caller.call.checked_sub(1)?, 1),
                };
                state
                    .seen
                    .expects(Promise::P5, matches!(caller.phase, Phase::Body { .. }));
                let reply = self.carry_out(state, at, call, Request::Renew { attempt });
                state.callers.get_mut(at)?.renewal = Wire::Reply(reply);
            }
            Act::RenewalReceived(at) => self.renewal_received(state.callers.get_mut(at)?),
            Act::RenewalTimesOut(at, fate) => {
                state.faults += 1;
                let caller = state.callers.get_mut(at)?;
                let Phase::Body { attempt, .. } = caller.phase else {
                    return None;
                };
                if fate == Fate::Strays && !caller.strays(Request::Renew { attempt }, room) {
                    return None;
                }
                if self.is(Mutant::UnansweredRenewalCounts) {
                    caller.renewal = Wire::Reply(Reply::Held);
                    self.renewal_received(caller);
                }
                (caller.renewal, caller.renewal_age) = (Wire::Free, 0);
            }
            Act::StrayCarriedOut(at, place) => {
                let stray = state.callers.get_mut(at)?.take_stray(place)?;
                self.carry_out(state, at, stray.call, stray.request);
            }
            Act::Polls(at, poll) => self.poll(state, at, poll),
            Act::Intervenes(decision) => {
                self.store
                    .intervene(&mut state.slot, &mut state.seen, decision)?;
            }
            Act::GivesUp(at) | Act::Stops(at) => state.callers.get_mut(at)?.ends(true, room),
            Act::Dropped(at) | Act::Crashes(at) => {
                state.faults += 1;
                self.drop_or_crash(state.callers.get_mut(at)?, matches!(act, Act::Dropped(_)));
            }
        }
        Some(())
    }
}
