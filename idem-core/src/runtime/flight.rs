//! Calls of one process that would ask the store the same share their claims, their waits and the
//! answers.
//!
//! At any time one call asks the store and one call waits there; the others wait for these two. An
//! answer serves only the calls that had joined before its message was sent: an older answer may
//! describe a record that was forgotten since. So of many duplicates, the first asks for itself,
//! and the second for all others. If the store gives a call no answer, all calls that are here by
//! then fail with it: one after the other, they would take that time again and again.
//!
//! A call that asks gets no answer for long if it is not polled, or if the store is slow. After
//! [`PATIENCE`] another call asks too. A call that waits shows at intervals that it is polled.

#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::future::{Future, pending};
use std::hash::BuildHasher as _;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use hashbrown::HashTable;
use tokio::time::{Instant, sleep, sleep_until};

use crate::base::clock;
use crate::base::race::first;
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::lease::term::Term;
use crate::record::Claim;
use crate::runtime::rejected::{Held, Rejected};

const SHARDS: usize = 32;
/// How long the others wait for a call that asks the store, waits there or sends a commit, before
/// another call does so too.
const PATIENCE: Duration = Duration::from_millis(500);
/// A call that waited for longer than this for claims of other calls of its process sends its own
/// twice only if the first one failed [within a second](FAILS_SOON) of that wait's beginning. The
/// time limits of stores are below a second by default, so such a call fails within two.
const LONG_BEHIND_CLAIMS: Duration = Duration::from_millis(100);
const FAILS_SOON: Duration = Duration::from_secs(1);
/// The longest time from a claim to the news that the store gave it no answer. Older news is that
/// of a call that was not polled.
const NEWS: Duration = Duration::from_secs(2);

/// The flights of a runtime.
pub(crate) struct Flights {
    shards: [Mutex<HashTable<Arc<Flight>>>; SHARDS],
    hasher: RandomState,
}

/// Claims with one question, which calls of this process are busy with.
struct Flight {
    flights: Arc<Flights>,
    /// The part of a claim that its answer depends on. So an answer to one of the calls is an answer
    /// to each.
    question: Claim,
    /// The hash of the id and the fingerprint.
    hash: u64,
    state: Mutex<State>,
    changed: Notify,
}

/// The knowledge that calls of a flight share.
#[derive(Default)]
struct State {
    /// How many calls are here.
    seats: usize,
    /// Counts the messages that calls of this flight have sent: claims, waits, commits and
    /// releases.
    sent: u64,
    /// The latest claim, if it has no answer yet.
    asking: Option<Sent>,
    /// The wait at the store.
    waiting: Option<Sent>,
    owner: Option<LocalOwner>,
    /// The answer to the latest message that was answered.
    answer: Option<Answered>,
    /// The latest message to which the store itself gave an answer.
    answered: u64,
}

/// A message on its way.
#[derive(Clone, Copy)]
struct Sent {
    message: u64,
    /// When it was sent; of a wait, when the waiting call was last polled.
    at: Instant,
}

/// A call of this flight that owns the key.
struct LocalOwner {
    /// Its latest message: the claim that made it the owner, or a commit or release.
    message: u64,
    term: Arc<Term>,
    /// Its first commit or release.
    step: Option<Sent>,
}

struct Answered {
    message: u64,
    why: Rejected,
}

/// A call's place in a flight. If it is dropped, another call takes over what this call was doing
/// for the others.
pub(crate) struct FlightSeat {
    flight: Arc<Flight>,
    /// Answers to this message and earlier ones are too old for this call.
    joined: u64,
    /// The latest message that the call has sent. Its number is 0 if there is none.
    latest: Sent,
    /// The beginning of the call's wait for claims of others, if its last wait was for those.
    behind_claims_since: Option<Instant>,
}

/// The next step of a call.
pub(crate) enum Turn {
    /// Asks the store, for all calls that are here.
    Ask,
    /// Waits at the store, for all calls that wait.
    Wait(Held),
    /// Uses this answer, of the store or of a call of this process that is the owner.
    Answer(Rejected),
}

/// The end of a call's wait for other calls of its process.
struct Patience {
    /// The owner's term: if it goes silent, the wait is over.
    term: Option<Arc<Term>>,
    until: Instant,
    /// The wait is for the answer to another call's claim or commit.
    is_behind_claims: bool,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(HashTable::new())),
            hasher: RandomState::new(),
        }
    }

    /// Joins the flight of a question, or begins one. The call that begins it asks.
    pub(crate) fn join(self: &Arc<Self>, question: Claim) -> FlightSeat {
        let hash = self.hasher.hash_one((&question.id, question.fingerprint));
        let mut shard = self.shard(hash);
        let entry = shard.entry(
            hash,
            |flight| flight.question == question,
            |flight| flight.hash,
        );
        let new = || {
            Arc::new(Flight {
                flights: self.clone(),
                question,
                hash,
                state: Mutex::new(State::default()),
                changed: Notify::new(),
            })
        };
        let flight = entry.or_insert_with(new).get().clone();
        let mut state = flight.lock();
        state.seats += 1;
        let (joined, at) = (state.sent, clock::now());
        let latest = match state.seats {
            1 => state.ask(at),
            _ => Sent { message: 0, at },
        };
        drop(state);
        FlightSeat {
            flight,
            joined,
            latest,
            behind_claims_since: None,
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Arc<Flight>>> {
        // The table inside begins its search with the low bits, so the shard uses others.
        let index = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Numbers a message that is about to be sent.
    fn send(&mut self, at: Instant) -> Sent {
        self.sent += 1;
        let message = self.sent;
        Sent { message, at }
    }

    /// Numbers a claim that is about to be sent, and lets the others wait for its answer.
    fn ask(&mut self, now: Instant) -> Sent {
        let sent = self.send(now);
        self.asking = Some(sent);
        sent
    }

    /// The answer for a call that joined at message `joined`. For one that waits for the owner,
    /// `InFlight` is none.
    fn answer(&self, joined: u64, waits: bool) -> Option<&Rejected> {
        let answer = self.answer.as_ref()?;
        let is_new = answer.message > joined;
        let serves = is_new && !(waits && matches!(answer.why, Rejected::InFlight(_)));
        serves.then_some(&answer.why)
    }

    /// The owner for which a call that joined at message `joined` may wait, and until when. Once the
    /// owner has sent its commit or release, a call that joined after that asks the store: the step
    /// may be carried out by now, and the record changed since.
    fn owner_for(&self, joined: u64, now: Instant) -> Option<(&LocalOwner, Instant)> {
        let owner = self.owner.as_ref()?;
        if owner.term.is_lost_at(now) || owner.term.may_be_recorded() {
            return None;
        }
        let until = match &owner.step {
            None => clock::after(now, Duration::MAX),
            Some(step) if joined < step.message => waited_for_until(Some(step), now)?,
            Some(_) => return None,
        };
        Some((owner, until))
    }

    /// Ends what the call with this message does for the others. Returns whether it did anything.
    fn end(&mut self, message: u64) -> bool {
        let asked = self.asking.take_if(|asking| asking.message == message);
        let waited = self.waiting.take_if(|waiting| waiting.message == message);
        let owned = self.owner.take_if(|owner| owner.message == message);
        asked.is_some() || waited.is_some() || owned.is_some()
    }
}

impl FlightSeat {
    /// Whether the call has begun the flight, and asks.
    pub(crate) fn is_first(&self) -> bool {
        self.latest.message == 1
    }

    /// Until when a claim that is sent now may be sent again. After a long wait behind other claims,
    /// that is only shortly after the wait began. Otherwise the call's age says nothing: the
    /// process may have been stopped.
    pub(crate) fn resends_until(&self, sent: Instant) -> Option<Instant> {
        let since = self.behind_claims_since?;
        let is_long = sent.saturating_duration_since(since) >= LONG_BEHIND_CLAIMS;
        is_long.then(|| clock::after(since, FAILS_SOON))
    }

    /// Waits until this call has something to do, at most until `deadline`; without one, it waits
    /// for no owner. Returns whether it waited.
    ///
    /// Cancel safe.
    pub(crate) async fn turn(&mut self, deadline: Option<Instant>) -> (Turn, bool) {
        let flight = self.flight.clone();
        let mut has_waited = false;
        self.behind_claims_since = None;
        loop {
            // Subscribes before it looks at the state: a change right after the look still wakes
            // this call, although nothing has polled the future yet.
            let changed = flight.changed.notified();
            let patience = match self.look(deadline) {
                Ok(turn) => return (turn, has_waited),
                Err(patience) => patience,
            };
            has_waited = true;
            let since = self.behind_claims_since.unwrap_or_else(clock::now);
            self.behind_claims_since = patience.is_behind_claims.then_some(since);
            let silent = async {
                match &patience.term {
                    Some(term) => term.until_unconfirmed().await,
                    None => pending().await,
                }
            };
            first(changed, first(silent, sleep_until(patience.until))).await;
        }
    }

    /// Takes the next step, or says how long to wait for other calls.
    fn look(&mut self, deadline: Option<Instant>) -> Result<Turn, Patience> {
        let now = clock::now();
        let deadline = deadline.filter(|deadline| now < *deadline);
        let mut state = self.flight.lock();
        if let Some(why) = state.answer(self.joined, deadline.is_some()) {
            return Ok(Turn::Answer(why.clone()));
        }
        if let Some((owner, until)) = state.owner_for(self.joined, now) {
            let term = &owner.term;
            let Some(deadline) = deadline else {
                let held = Held::new(term.attempt, term.left());
                return Ok(Turn::Answer(Rejected::InFlight(held)));
            };
            return Err(Patience {
                term: Some(term.clone()),
                until: until.min(deadline),
                is_behind_claims: owner.step.is_some(),
            });
        }
        if let Some(until) = waited_for_until(state.asking.as_ref(), now) {
            return Err(Patience {
                term: None,
                until,
                is_behind_claims: true,
            });
        }
        if let Some(deadline) = deadline {
            if let Some(until) = waited_for_until(state.waiting.as_ref(), now) {
                return Err(Patience {
                    term: None,
                    until: until.min(deadline),
                    is_behind_claims: false,
                });
            }
            if let Some(Rejected::InFlight(held)) = state.answer(self.joined, false) {
                let held = *held;
                self.latest = state.send(now);
                state.waiting = Some(self.latest);
                return Ok(Turn::Wait(held));
            }
        }
        self.latest = state.ask(now);
        Ok(Turn::Ask)
    }

    /// Asks the store. Ends early, with an error, if the store gives another call no answer
    /// meanwhile.
    pub(crate) async fn while_asking<T>(
        &self,
        asks: impl Future<Output = T>,
    ) -> Result<T, Rejected> {
        let mut asks = pin!(asks.map(Ok));
        let outage = async {
            loop {
                let changed = self.flight.changed.notified();
                let message = self.latest.message;
                let answer = self.flight.lock().answer(message, false).cloned();
                if let Some(outage) = answer.filter(|answer| answer.outage().is_some()) {
                    return Err(outage);
                }
                changed.await;
            }
        };
        first(asks.as_mut(), outage).await
    }

    /// Shares the answer to this call's claim, commit or release, and ends what the call does for the
    /// others.
    pub(crate) fn share(&self, why: Rejected) {
        let mut message = self.latest.message;
        let mut state = self.flight.lock();
        state.end(message);
        if why.outage().is_none() {
            state.answered = state.answered.max(message);
        } else if message >= state.answered && clock::now() < clock::after(self.latest.at, NEWS) {
            // That the store gives no answer is as new as the moment in which it is known, unless
            // it has answered a later message.
            message = state.send(self.latest.at).message;
        }
        let known = state.answer.as_ref().map_or(0, |known| known.message);
        if known < message {
            state.answer = Some(Answered { message, why });
        }
        drop(state);
        self.flight.changed.notify_waiters();
    }

    /// Waits at the store, and notes at intervals that it is polled. Ends early if another call
    /// gets the answer that this one waits for.
    pub(crate) async fn while_waiting(&self, wait: impl Future<Output = ()>) {
        let mut wait = pin!(wait);
        let mut is_over = false;
        while !is_over {
            let changed = self.flight.changed.notified();
            if !self.goes_on_waiting() {
                break;
            }
            let over = async {
                wait.as_mut().await;
                is_over = true;
            };
            first(over, first(changed, sleep(PATIENCE / 2))).await;
        }
        let mut state = self.flight.lock();
        if state.end(self.latest.message) {
            // The owner may be another one by now.
            state
                .answer
                .take_if(|known| matches!(known.why, Rejected::InFlight(_)));
        }
    }

    /// Notes that the waiting call is polled. Returns `false` if there is an answer for it.
    fn goes_on_waiting(&self) -> bool {
        let mut state = self.flight.lock();
        let waiting = state.waiting.as_mut();
        if let Some(waiting) = waiting.filter(|waiting| waiting.message == self.latest.message) {
            waiting.at = clock::now();
        }
        state.answer(self.joined, true).is_none()
    }

    /// Makes the call the owner: the store accepted its claim.
    pub(crate) fn become_owner(&self, term: Arc<Term>) {
        let message = self.latest.message;
        let mut state = self.flight.lock();
        state.end(message);
        state.answered = state.answered.max(message);
        state.answer = None;
        state.owner = Some(LocalOwner {
            message,
            term,
            step: None,
        });
        drop(state);
        self.flight.changed.notify_waiters();
    }

    /// Notes that the owner is about to send its commit or release.
    pub(crate) fn sending_step(&mut self) {
        let mut state = self.flight.lock();
        let sent = state.send(clock::now());
        let last = std::mem::replace(&mut self.latest, sent);
        let Some(owner) = state
            .owner
            .as_mut()
            .filter(|owner| owner.message == last.message)
        else {
            return;
        };
        owner.message = sent.message;
        // If the step is sent again, the others' wait still counts from the first time.
        if owner.step.is_none() {
            owner.step = Some(sent);
            drop(state);
            self.flight.changed.notify_waiters();
        }
    }
}

/// Returns the end of the others' wait for a message, unless it has passed.
fn waited_for_until(sent: Option<&Sent>, now: Instant) -> Option<Instant> {
    let until = clock::after(sent?.at, PATIENCE);
    (now < until).then_some(until)
}

impl Drop for FlightSeat {
    fn drop(&mut self) {
        let flight = &self.flight;
        let mut shard = flight.flights.shard(flight.hash);
        let mut state = flight.lock();
        let did_something = state.end(self.latest.message);
        state.seats -= 1;
        if state.seats == 0
            && let Ok(entry) = shard.find_entry(flight.hash, |other| Arc::ptr_eq(other, flight))
        {
            entry.remove();
        }
        drop(state);
        drop(shard);
        if did_something {
            flight.changed.notify_waiters();
        }
    }
}
