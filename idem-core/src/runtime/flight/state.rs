//! What the calls of one flight know about their key: who asks, who waits, who owns it, and the
//! latest answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{MAX_DOUBLINGS, PATIENCE};
use crate::base::clock;
use crate::encoding::fingerprint::Fingerprint;
use crate::lease::term::Term;
use crate::runtime::rejected::{Held, Rejected};

/// The next step of a call.
pub(crate) enum FlightStep {
    /// Asks the store, for all calls that are here.
    Ask,
    /// Asks the store for itself: an answer that another call got, or asks for, does not apply to
    /// it.
    Alone,
    /// Waits at the store, for all calls that wait.
    Wait(Held),
    /// Uses this answer, of the store or of a call of this process that is the owner.
    Answer(Rejected),
}

/// The end of a call's wait for other calls of its process.
pub(super) struct Patience {
    /// The owner's term: if it goes silent, the wait is over.
    pub(super) term: Option<Arc<Term>>,
    pub(super) until: Instant,
    /// Whether the wait is for a claim that is under way, and not for an owner.
    pub(super) is_for_claim: bool,
}

#[derive(Default)]
pub(super) struct State {
    /// Counts the messages that calls of this flight have sent: claims, waits, commits and
    /// releases.
    pub(super) sent: u64,
    pub(super) asking: Option<Asking>,
    pub(super) waiting: Option<Waiting>,
    pub(super) owned: Option<FlightOwner>,
    /// The answer to the latest message that was answered.
    pub(super) answer: Option<Answered>,
    /// How many calls have replaced a slow asker since the last answer.
    pub(super) takeovers: u32,
}

/// A claim is under way.
pub(super) struct Asking {
    pub(super) message: u64,
    pub(super) fingerprint: Option<Fingerprint>,
    /// At this instant another call asks too.
    pub(super) until: Instant,
    /// When the asking call was last polled.
    pub(super) polled: Instant,
}

impl Asking {
    /// Until when others wait for the asker: not past its turn, and not past [`PATIENCE`] after its
    /// last poll.
    pub(super) fn until(&self) -> Instant {
        self.until.min(clock::after(self.polled, PATIENCE))
    }
}

/// A call waits at the store.
pub(super) struct Waiting {
    pub(super) message: u64,
    pub(super) fingerprint: Option<Fingerprint>,
    /// When the waiting call was last polled.
    pub(super) polled: Instant,
}

/// A call is the owner.
pub(super) struct FlightOwner {
    /// The claim that made it the owner.
    pub(super) claim: u64,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) term: Arc<Term>,
    /// Its commit or release, once one was sent.
    pub(super) step: Option<SentStep>,
}

impl FlightOwner {
    /// Until when a call that joined at message `joined` may wait for this owner. `None`: the call
    /// asks the store instead.
    fn serves_until(&self, joined: u64, now: Instant) -> Option<Instant> {
        if self.term.is_lost_at(now) || self.term.may_be_recorded() {
            return None;
        }
        let Some(step) = self.step else {
            return Some(clock::after(now, Duration::MAX));
        };
        let until = clock::after(step.since, PATIENCE);
        // If the step was sent before the call joined, the store may have carried it out, and
        // others may have changed the record since.
        (joined < step.first && now < until).then_some(until)
    }
}

/// A commit or release that the owner has sent, once or several times.
#[derive(Clone, Copy)]
pub(super) struct SentStep {
    pub(super) first: u64,
    pub(super) latest: u64,
    pub(super) since: Instant,
}

pub(super) struct Answered {
    pub(super) message: u64,
    pub(super) fingerprint: Option<Fingerprint>,
    /// `None`: it holds for the call that asked alone. Each of the others asks for itself.
    pub(super) shared: Option<Rejected>,
}

impl Answered {
    /// Whether a call that joined at message `joined` may use this answer.
    pub(super) fn serves(&self, joined: u64, fingerprint: Option<Fingerprint>) -> bool {
        self.message > joined && applies(self.fingerprint, fingerprint)
    }

    /// The lease of another owner, if that is the answer.
    pub(super) fn held(&self) -> Option<Held> {
        match self.shared {
            Some(Rejected::InFlight(held)) => Some(held),
            _ => None,
        }
    }
}

/// Whether the answer to a call with one fingerprint applies to a call with another.
pub(super) fn applies(answered: Option<Fingerprint>, call: Option<Fingerprint>) -> bool {
    call.is_none() || call == answered
}

impl State {
    /// Numbers a message that is about to be sent.
    pub(super) fn next_message(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Keeps an answer, unless that to a later message is known.
    pub(super) fn record(&mut self, answer: Answered) {
        self.takeovers = 0;
        if self
            .answer
            .as_ref()
            .is_none_or(|known| known.message < answer.message)
        {
            self.answer = Some(answer);
        }
    }

    /// Numbers a claim that is about to be sent, and lets the others wait for it.
    pub(super) fn begin_asking(&mut self, fingerprint: Option<Fingerprint>, now: Instant) -> u64 {
        self.takeovers = if self.asking.is_some() {
            (self.takeovers + 1).min(MAX_DOUBLINGS)
        } else {
            0
        };
        let message = self.next_message();
        self.asking = Some(Asking {
            message,
            fingerprint,
            until: clock::after(now, PATIENCE * (1 << self.takeovers)),
            polled: now,
        });
        message
    }

    /// Numbers a wait that is about to be sent, and lets the others wait for it.
    pub(super) fn begin_waiting(&mut self, fingerprint: Option<Fingerprint>, now: Instant) -> u64 {
        let message = self.next_message();
        self.waiting = Some(Waiting {
            message,
            fingerprint,
            polled: now,
        });
        message
    }

    /// The next step of a call if an owner in this process holds the key.
    pub(super) fn behind_owner(
        &self,
        joined: u64,
        fingerprint: Option<Fingerprint>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Option<Result<FlightStep, Patience>> {
        let owned = self.owned.as_ref()?;
        let until = owned.serves_until(joined, now)?;
        if matches!((owned.fingerprint, fingerprint), (Some(one), Some(two)) if one != two) {
            return Some(Ok(FlightStep::Answer(Rejected::Mismatch)));
        }
        Some(match deadline {
            None => {
                let held = Held::new(owned.term.attempt, owned.term.left());
                Ok(FlightStep::Answer(Rejected::InFlight(held)))
            }
            Some(deadline) => Err(Patience {
                term: Some(owned.term.clone()),
                until: until.min(deadline),
                is_for_claim: false,
            }),
        })
    }

    /// How long a call waits for the one that waits at the store, if that is alive.
    pub(super) fn behind_waiter(
        &self,
        fingerprint: Option<Fingerprint>,
        deadline: Instant,
        now: Instant,
    ) -> Option<Patience> {
        let waiting = self.waiting.as_ref()?;
        let until = clock::after(waiting.polled, PATIENCE);
        (now < until && applies(waiting.fingerprint, fingerprint)).then(|| Patience {
            term: None,
            until: until.min(deadline),
            is_for_claim: false,
        })
    }

    /// The wait of a call at the store, if the last answer was that another owner holds the key.
    pub(super) fn wait_at_store(&self, fingerprint: Option<Fingerprint>) -> Option<FlightStep> {
        let answer = self.answer.as_ref()?;
        let held = answer.held()?;
        applies(answer.fingerprint, fingerprint).then_some(FlightStep::Wait(held))
    }
}
