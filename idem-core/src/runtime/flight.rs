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
use hashbrown::hash_table::Entry;
use tokio::time::{Instant, sleep, sleep_until};

use crate::base::clock;
use crate::base::race::first;
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::encoding::fingerprint::Fingerprint;
use crate::lease::term::Term;
use crate::record::RecordId;
use crate::runtime::rejected::{Held, Rejected};

const SHARDS: usize = 32;
/// How long the others wait for a call that asks the store, waits there or sends a commit, before
/// another call does so too.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest time from a claim to the news that the store gave it no answer. Older news is that
/// of a call that was not polled.
const NEWS: Duration = Duration::from_secs(2);

/// The content of a claim that its answer depends on. Calls of one flight have the same, so an
/// answer to one of them is an answer to each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimContent {
    pub(crate) id: RecordId,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) take_over: bool,
    pub(crate) take_over_after: Option<Duration>,
    pub(crate) max_attempts: Option<u64>,
    pub(crate) must_be_issued: bool,
}

/// The flights of a runtime.
pub(crate) struct Flights {
    shards: [Mutex<HashTable<SharedFlight>>; SHARDS],
    hasher: RandomState,
}

struct SharedFlight {
    flight: Arc<Flight>,
    seats: usize,
}

/// Claims with one content, which calls of this process are busy with.
struct Flight {
    flights: Arc<Flights>,
    content: ClaimContent,
    /// The hash of the id and the fingerprint.
    hash: u64,
    state: Mutex<State>,
    changed: Notify,
}

/// The knowledge that calls of a flight share.
#[derive(Default)]
struct State {
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
    /// The latest message that the call has sent, or 0.
    message: u64,
    /// When the call sent its claim, or joined.
    asked: Instant,
    /// The beginning of the call's wait for claims of others, if its last wait was for those.
    pub(crate) behind_claims_since: Option<Instant>,
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
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(HashTable::new())),
            hasher: RandomState::new(),
        }
    }

    /// Joins the flight of a content, or begins one. The call that begins it asks.
    pub(crate) fn join(self: &Arc<Self>, content: ClaimContent) -> FlightSeat {
        let hash = self.hasher.hash_one((&content.id, content.fingerprint));
        let mut shard = self.shard(hash);
        let place = shard.entry(
            hash,
            |place| place.flight.content == content,
            |place| place.flight.hash,
        );
        let entry = match place {
            Entry::Occupied(mut entry) => {
                let place = entry.get_mut();
                place.seats += 1;
                let flight = place.flight.clone();
                drop(shard);
                let joined = flight.lock().sent;
                return FlightSeat::new(flight, joined, 0);
            }
            Entry::Vacant(entry) => entry,
        };
        let mut state = State::default();
        let message = state.ask(clock::now());
        let flight = Arc::new(Flight {
            flights: self.clone(),
            content,
            hash,
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        entry.insert(SharedFlight {
            flight: flight.clone(),
            seats: 1,
        });
        FlightSeat::new(flight, 0, message)
    }

    fn leave(&self, flight: &Arc<Flight>) {
        let mut shard = self.shard(flight.hash);
        if let Ok(mut entry) =
            shard.find_entry(flight.hash, |place| Arc::ptr_eq(&place.flight, flight))
        {
            let place = entry.get_mut();
            place.seats -= 1;
            if place.seats == 0 {
                entry.remove();
            }
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<SharedFlight>> {
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
    fn next_message(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Numbers a claim that is about to be sent, and lets the others wait for its answer.
    fn ask(&mut self, now: Instant) -> u64 {
        let message = self.next_message();
        self.asking = Some(Sent { message, at: now });
        message
    }

    /// The answer for a call that joined at message `joined`.
    fn answer(&self, joined: u64) -> Option<&Rejected> {
        let answer = self.answer.as_ref()?;
        (answer.message > joined).then_some(&answer.why)
    }

    /// The same, for a call that waits for the owner: `InFlight` is no answer for it.
    fn last_answer(&self, joined: u64) -> Option<&Rejected> {
        let answer = self.answer(joined);
        answer.filter(|why| !matches!(why, Rejected::InFlight(_)))
    }

    /// The owner for which a call that joined at message `joined` may wait, and until when. Once the
    /// owner has sent its commit or release, a call that joined after that asks the store: the step
    /// may be carried out by now, and the record changed since.
    fn owner_for(&self, joined: u64, now: Instant) -> Option<(&Arc<Term>, Instant)> {
        let LocalOwner { term, step, .. } = self.owner.as_ref()?;
        if term.is_lost_at(now) || term.may_be_recorded() {
            return None;
        }
        let until = match step {
            None => clock::after(now, Duration::MAX),
            Some(step) if joined < step.message => waited_for_until(Some(step), now)?,
            Some(_) => return None,
        };
        Some((term, until))
    }

    /// Whether the owner has sent a commit or release.
    fn is_step_sent(&self) -> bool {
        let step = self.owner.as_ref().map(|owner| &owner.step);
        step.is_some_and(Option::is_some)
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
    fn new(flight: Arc<Flight>, joined: u64, message: u64) -> Self {
        Self {
            flight,
            joined,
            message,
            asked: clock::now(),
            behind_claims_since: None,
        }
    }

    /// Whether the call has begun the flight, and asks.
    pub(crate) fn is_first(&self) -> bool {
        self.message == 1
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
            let Patience { term, until } = match self.look(deadline) {
                Ok(turn) => return (turn, has_waited),
                Err(patience) => patience,
            };
            has_waited = true;
            let silent = async {
                match &term {
                    Some(term) => term.silent().await,
                    None => pending().await,
                }
            };
            first(changed, first(silent, sleep_until(until))).await;
        }
    }

    /// Takes the next step, or says how long to wait for other calls.
    fn look(&mut self, deadline: Option<Instant>) -> Result<Turn, Patience> {
        let now = clock::now();
        let deadline = deadline.filter(|deadline| now < *deadline);
        let mut state = self.flight.lock();
        let answer = match deadline {
            Some(_) => state.last_answer(self.joined),
            None => state.answer(self.joined),
        };
        if let Some(why) = answer {
            return Ok(Turn::Answer(why.clone()));
        }
        if let Some((term, until)) = state.owner_for(self.joined, now) {
            let Some(deadline) = deadline else {
                let held = Held::new(term.attempt, term.left());
                return Ok(Turn::Answer(Rejected::InFlight(held)));
            };
            let patience = Patience {
                term: Some(term.clone()),
                until: until.min(deadline),
            };
            if state.is_step_sent() {
                self.behind_claims_since.get_or_insert(now);
            } else {
                self.behind_claims_since = None;
            }
            return Err(patience);
        }
        if let Some(until) = waited_for_until(state.asking.as_ref(), now) {
            self.behind_claims_since.get_or_insert(now);
            return Err(Patience { term: None, until });
        }
        if let Some(deadline) = deadline {
            if let Some(until) = waited_for_until(state.waiting.as_ref(), now) {
                self.behind_claims_since = None;
                let until = until.min(deadline);
                return Err(Patience { term: None, until });
            }
            if let Some(Rejected::InFlight(held)) = state.answer(self.joined) {
                let held = *held;
                self.message = state.next_message();
                state.waiting = Some(Sent {
                    message: self.message,
                    at: now,
                });
                return Ok(Turn::Wait(held));
            }
        }
        self.message = state.ask(now);
        self.asked = now;
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
                let answer = self.flight.lock().answer(self.message).cloned();
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
        let mut state = self.flight.lock();
        state.end(self.message);
        // That the store gives no answer is as new as the moment in which it is known, unless it has
        // answered a later message.
        let message = if why.outage().is_none() {
            state.answered = state.answered.max(self.message);
            self.message
        } else if self.message < state.answered || clock::now() >= clock::after(self.asked, NEWS) {
            self.message
        } else {
            state.next_message()
        };
        if state
            .answer
            .as_ref()
            .is_none_or(|known| known.message < message)
        {
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
        if state.end(self.message) {
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
        if let Some(waiting) = waiting.filter(|waiting| waiting.message == self.message) {
            waiting.at = clock::now();
        }
        state.last_answer(self.joined).is_none()
    }

    /// Makes the call the owner: the store accepted its claim.
    pub(crate) fn become_owner(&self, term: Arc<Term>) {
        let message = self.message;
        let mut state = self.flight.lock();
        state.end(message);
        state.answered = state.answered.max(message);
        state.answer = None;
        let step = None;
        state.owner = Some(LocalOwner {
            message,
            term,
            step,
        });
        drop(state);
        self.flight.changed.notify_waiters();
    }

    /// Notes that the owner is about to send its commit or release.
    pub(crate) fn sending_step(&mut self) {
        let mut state = self.flight.lock();
        let message = state.next_message();
        let last = std::mem::replace(&mut self.message, message);
        let Some(owner) = state.owner.as_mut().filter(|owner| owner.message == last) else {
            return;
        };
        owner.message = message;
        // If the step is sent again, the others' wait still counts from the first time.
        if owner.step.is_none() {
            let at = clock::now();
            owner.step = Some(Sent { message, at });
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
        if self.flight.lock().end(self.message) {
            self.flight.changed.notify_waiters();
        }
        self.flight.flights.leave(&self.flight);
    }
}
