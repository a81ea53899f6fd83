//! Calls of one process with one key share their claims, their waits and the answers.
//!
//! At any time one of them asks the store and one waits there; the others wait for these two. An
//! answer serves the calls that had joined before its message was sent, and no others: an older
//! answer may describe a record that was forgotten since. So of many duplicates the first asks for
//! itself, the second for all others.
//!
//! The call that asks or waits may be alive and not polled. After [`PATIENCE`] another one takes
//! over.

use std::collections::hash_map::RandomState;
use std::future::{Future, pending};
use std::hash::BuildHasher as _;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tokio::time::Instant;

use crate::base::clock;
use crate::base::race::{self, first};
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::encoding::fingerprint::Fingerprint;
use crate::error::StoreError;
use crate::lease::term::Term;
use crate::record::{Encoded, RecordId};

const SHARDS: usize = 32;
/// How long a call that asks the store, waits there or sends a commit is given before another call
/// asks too. Each takeover doubles it, so that a store that is slow to fail gets few more claims.
const PATIENCE: Duration = Duration::from_millis(250);
const MAX_DOUBLINGS: u32 = 6;

/// The flights of a runtime.
pub(crate) struct Flights {
    shards: [Mutex<HashTable<SharedFlight>>; SHARDS],
    hasher: RandomState,
}

struct SharedFlight {
    flight: Arc<Flight>,
    seats: usize,
}

/// One key that calls of this process are busy with.
struct Flight {
    flights: Arc<Flights>,
    id: RecordId,
    /// The hash of the id.
    hash: u64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Counts the messages that calls of this flight have sent: claims, waits, commits and
    /// releases.
    sent: u64,
    asking: Option<Asking>,
    waiting: Option<Waiting>,
    owned: Option<FlightOwner>,
    /// The answer to the latest message that was answered.
    answer: Option<Answered>,
    /// How often the asking was taken over since the last answer.
    takeovers: u32,
}

/// A claim is under way.
struct Asking {
    message: u64,
    fingerprint: Option<Fingerprint>,
    /// From here on another call asks.
    until: Instant,
    /// When it was last polled.
    seen: Instant,
}

impl Asking {
    /// Until when others wait for it. Without its poll, no longer.
    fn until(&self) -> Instant {
        self.until.min(clock::after(self.seen, PATIENCE))
    }
}

/// A call waits at the store.
struct Waiting {
    message: u64,
    fingerprint: Option<Fingerprint>,
    /// When it was last polled.
    seen: Instant,
}

/// A call is the owner.
struct FlightOwner {
    /// The claim that made it the owner.
    claim: u64,
    fingerprint: Option<Fingerprint>,
    term: Arc<Term>,
    /// Its commit or release, once one was sent.
    step: Option<SentStep>,
}

#[derive(Clone, Copy)]
struct SentStep {
    first: u64,
    latest: u64,
    since: Instant,
}

struct Answered {
    message: u64,
    fingerprint: Option<Fingerprint>,
    shared: SharedAnswer,
}

/// The answer to a message.
#[derive(Clone)]
pub(crate) enum SharedAnswer {
    /// The outcome is recorded.
    Committed {
        /// The attempt that succeeded.
        attempt: u64,
        /// Its outcome.
        outcome: Encoded,
    },
    /// There was an outcome, which is not kept any more.
    Done,
    /// Another owner holds the key.
    InFlight {
        /// Its attempt.
        attempt: u64,
        /// When its lease ends unless it is renewed.
        until: Instant,
    },
    /// The store could not answer.
    Failed(StoreError),
    /// The answer depends on the settings of the call that asked: each of the others asks for
    /// itself.
    Unshared,
}

/// The state that a call finds in its own process.
pub(crate) enum Joined {
    /// No other call is busy with the key: this one asks.
    First(FlightSeat),
    /// Other calls are.
    Behind(FlightSeat),
}

/// The next step of a call.
pub(crate) enum FlightStep {
    /// Asks the store, for all calls that are here.
    Ask,
    /// Asks the store for itself: the answer to the claim under way would not be its own.
    Alone,
    /// Waits at the store, for all calls that wait.
    Wait {
        /// For the end of this attempt.
        attempt: u64,
        /// When its lease ends unless it is renewed.
        until: Instant,
    },
    /// Uses this answer.
    Answer(SharedAnswer),
    /// Fails: a call of this process is the owner, with another fingerprint.
    Mismatch,
    /// Fails: a call of this process is the owner, with so much of its lease left.
    InFlight(Duration),
}

/// The events that a call waits for inside its process.
struct Patience {
    term: Option<Arc<Term>>,
    until: Option<Instant>,
}

/// A call's place in a flight; given up when dropped, and so is what the call was doing for the
/// others.
pub(crate) struct FlightSeat {
    flight: Arc<Flight>,
    /// Answers to this message and earlier ones are too old for this call.
    joined: u64,
    /// The message by which the role is known.
    message: u64,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    None,
    Asks,
    Waits,
    Owns,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(HashTable::new())),
            hasher: RandomState::new(),
        }
    }

    /// Joins the flight of a key, or begins one.
    pub(crate) fn join(
        self: &Arc<Self>,
        id: &RecordId,
        fingerprint: Option<Fingerprint>,
    ) -> Joined {
        let hash = self.hasher.hash_one(id);
        let flight = match self.shard(hash).entry(
            hash,
            |place| place.flight.id == *id,
            |place| place.flight.hash,
        ) {
            Entry::Occupied(mut entry) => {
                let place = entry.get_mut();
                place.seats += 1;
                place.flight.clone()
            }
            Entry::Vacant(entry) => {
                let now = clock::now();
                let asking = Some(Asking {
                    message: 1,
                    fingerprint,
                    until: clock::after(now, PATIENCE),
                    seen: now,
                });
                let state = Mutex::new(State {
                    sent: 1,
                    asking,
                    ..State::default()
                });
                let flights = self.clone();
                let id = id.clone();
                let changed = Notify::new();
                let flight = Arc::new(Flight {
                    flights,
                    id,
                    hash,
                    state,
                    changed,
                });
                entry.insert(SharedFlight {
                    flight: flight.clone(),
                    seats: 1,
                });
                return Joined::First(FlightSeat {
                    flight,
                    joined: 0,
                    message: 1,
                    role: Role::Asks,
                });
            }
        };
        let joined = flight.lock().sent;
        Joined::Behind(FlightSeat {
            flight,
            joined,
            message: 0,
            role: Role::None,
        })
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
        // Other bits than those by which the table inside begins to look.
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
    fn sends(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    fn answers(&mut self, answer: Answered) {
        self.takeovers = 0;
        if self
            .answer
            .as_ref()
            .is_none_or(|known| known.message < answer.message)
        {
            self.answer = Some(answer);
        }
    }
}

impl FlightOwner {
    /// Until when the owner speaks for a call that joined then; `None` if it does not.
    fn speaks_to(&self, joined: u64, now: Instant) -> Option<Instant> {
        if self.term.is_lost_at(now) || self.term.may_be_recorded() {
            return None;
        }
        let Some(step) = self.step else {
            return Some(clock::after(now, Duration::MAX));
        };
        let until = clock::after(step.since, PATIENCE);
        // A step sent before the call joined may be carried out by now, and undone by others.
        (joined < step.first && now < until).then_some(until)
    }
}

/// Whether what a call with one fingerprint learned holds for a call with another.
fn serves(of: Option<Fingerprint>, to: Option<Fingerprint>) -> bool {
    to.is_none() || to == of
}

impl FlightSeat {
    /// Waits until this call has something to do, at most until `deadline`; without one, it does
    /// not wait. Returns whether it waited.
    ///
    /// Cancel safe.
    pub(crate) async fn turn(
        &mut self,
        fingerprint: Option<Fingerprint>,
        deadline: Option<Instant>,
    ) -> (FlightStep, bool) {
        let mut waited = false;
        let flight = self.flight.clone();
        loop {
            // Before the look, so that a change in between is not missed: all that are there are
            // woken, polled or not.
            let changed = flight.changed.notified();
            let Patience { term, until } = match self.look(fingerprint, deadline) {
                Ok(turn) => return (turn, waited),
                Err(patience) => patience,
            };
            waited = true;
            let lost = async {
                match &term {
                    Some(term) => term.silent().await,
                    None => pending().await,
                }
            };
            first(changed, first(lost, race::until(until))).await;
        }
    }

    fn look(
        &mut self,
        fingerprint: Option<Fingerprint>,
        deadline: Option<Instant>,
    ) -> Result<FlightStep, Patience> {
        let now = clock::now();
        let deadline = deadline.filter(|deadline| now < *deadline);
        let mut state = self.flight.lock();
        match &state.answer {
            Some(answer)
                if answer.message <= self.joined || !serves(answer.fingerprint, fingerprint) => {}
            Some(Answered {
                shared: SharedAnswer::InFlight { .. },
                ..
            }) if deadline.is_some() => {}
            Some(answer) => return Ok(FlightStep::Answer(answer.shared.clone())),
            None => {}
        }
        if let Some(owned) = &state.owned
            && let Some(until) = owned.speaks_to(self.joined, now)
        {
            if matches!((owned.fingerprint, fingerprint), (Some(one), Some(two)) if one != two) {
                return Ok(FlightStep::Mismatch);
            }
            return match deadline {
                None => Ok(FlightStep::InFlight(owned.term.left())),
                Some(deadline) => Err(Patience {
                    term: Some(owned.term.clone()),
                    until: Some(until.min(deadline)),
                }),
            };
        }
        if let Some(asking) = state.asking.as_ref().filter(|asking| now < asking.until()) {
            if !serves(asking.fingerprint, fingerprint) {
                return Ok(FlightStep::Alone);
            }
            return Err(Patience {
                term: None,
                until: Some(asking.until()),
            });
        }
        if let Some(deadline) = deadline {
            if let Some(waiting) = &state.waiting {
                let until = clock::after(waiting.seen, PATIENCE);
                if now < until && serves(waiting.fingerprint, fingerprint) {
                    return Err(Patience {
                        term: None,
                        until: Some(until.min(deadline)),
                    });
                }
            }
            if let Some(Answered {
                shared: SharedAnswer::InFlight { attempt, until },
                fingerprint: of,
                ..
            }) = &state.answer
                && serves(*of, fingerprint)
            {
                let turn = FlightStep::Wait {
                    attempt: *attempt,
                    until: *until,
                };
                (self.role, self.message) = (Role::Waits, state.sends());
                state.waiting = Some(Waiting {
                    message: self.message,
                    fingerprint,
                    seen: now,
                });
                return Ok(turn);
            }
        }
        state.takeovers = if state.asking.is_some() {
            (state.takeovers + 1).min(MAX_DOUBLINGS)
        } else {
            0
        };
        let until = clock::after(now, PATIENCE * (1 << state.takeovers));
        (self.role, self.message) = (Role::Asks, state.sends());
        state.asking = Some(Asking {
            message: self.message,
            fingerprint,
            until,
            seen: now,
        });
        Ok(FlightStep::Ask)
    }

    /// The claim was answered.
    pub(crate) fn answered(&mut self, fingerprint: Option<Fingerprint>, answer: SharedAnswer) {
        let mut state = self.flight.lock();
        state
            .asking
            .take_if(|asking| asking.message == self.message);
        state.answers(Answered {
            message: self.message,
            fingerprint,
            shared: answer,
        });
        drop(state);
        self.role = Role::None;
        self.flight.changed.notify_waiters();
    }

    /// Asks the store. If others are to wait for longer than [`PATIENCE`], lets them see that it is
    /// polled.
    pub(crate) async fn while_asking<T>(&self, asks: impl Future<Output = T>) -> T {
        let mut asks = pin!(asks);
        if self.flight.lock().takeovers == 0 {
            return asks.await;
        }
        loop {
            let mut answer = None;
            let asked = async { answer = Some(asks.as_mut().await) };
            first(asked, tokio::time::sleep(PATIENCE / 2)).await;
            if let Some(answer) = answer {
                return answer;
            }
            self.is_here();
        }
    }

    /// Waits at the store, and lets the others see that it is polled. Ends early if another call
    /// learns what this one waits for.
    pub(crate) async fn while_waiting(&self, wait: impl Future<Output = ()>) {
        let mut wait = pin!(wait);
        loop {
            let changed = self.flight.changed.notified();
            if self.has_answer() {
                return;
            }
            let mut is_over = false;
            let over = async {
                wait.as_mut().await;
                is_over = true;
            };
            first(over, first(changed, tokio::time::sleep(PATIENCE / 2))).await;
            if is_over {
                return;
            }
            self.is_here();
        }
    }

    fn has_answer(&self) -> bool {
        let state = self.flight.lock();
        let fingerprint = state
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.fingerprint);
        state.answer.as_ref().is_some_and(|answer| {
            let is_new = answer.message > self.joined && serves(answer.fingerprint, fingerprint);
            is_new && !matches!(answer.shared, SharedAnswer::InFlight { .. })
        })
    }

    fn is_here(&self) {
        let mut state = self.flight.lock();
        let State {
            asking, waiting, ..
        } = &mut *state;
        let asks = asking
            .as_mut()
            .filter(|asking| asking.message == self.message)
            .map(|asking| &mut asking.seen);
        let waits = waiting
            .as_mut()
            .filter(|waiting| waiting.message == self.message)
            .map(|waiting| &mut waiting.seen);
        if let Some(seen) = asks.or(waits) {
            *seen = clock::now();
        }
    }

    /// The wait at the store is over: what was known of the owner is too old.
    pub(crate) fn waited(&mut self) {
        let mut state = self.flight.lock();
        if state
            .waiting
            .take_if(|waiting| waiting.message == self.message)
            .is_some()
        {
            state
                .answer
                .take_if(|answer| matches!(answer.shared, SharedAnswer::InFlight { .. }));
        }
        self.role = Role::None;
    }

    /// The call is the owner.
    pub(crate) fn owns(&mut self, fingerprint: Option<Fingerprint>, term: Arc<Term>) {
        let mut state = self.flight.lock();
        state
            .asking
            .take_if(|asking| asking.message == self.message);
        (state.answer, state.takeovers) = (None, 0);
        state.owned = Some(FlightOwner {
            claim: self.message,
            fingerprint,
            term,
            step: None,
        });
        drop(state);
        self.role = Role::Owns;
        self.flight.changed.notify_waiters();
    }

    /// The owner is about to send its commit or release.
    pub(crate) fn sends(&self) {
        let mut state = self.flight.lock();
        let message = state.sends();
        if let Some(owned) = state
            .owned
            .as_mut()
            .filter(|owned| owned.claim == self.message)
        {
            let since = owned.step.map_or_else(clock::now, |step| step.since);
            let first = owned.step.map_or(message, |step| step.first);
            owned.step = Some(SentStep {
                first,
                latest: message,
                since,
            });
        }
    }

    /// The owner's commit or release was answered.
    pub(crate) fn ends(self, answer: Option<SharedAnswer>) {
        let mut state = self.flight.lock();
        let owned = state.owned.take_if(|owned| owned.claim == self.message);
        if let (
            Some(FlightOwner {
                fingerprint,
                step: Some(step),
                ..
            }),
            Some(answer),
        ) = (owned, answer)
        {
            state.answers(Answered {
                message: step.latest,
                fingerprint,
                shared: answer,
            });
        }
        drop(state);
        // Dropping this, which happens now, wakes the others.
    }
}

impl Drop for FlightSeat {
    fn drop(&mut self) {
        let mut state = self.flight.lock();
        match self.role {
            Role::None => {}
            Role::Asks => drop(
                state
                    .asking
                    .take_if(|asking| asking.message == self.message),
            ),
            Role::Waits => drop(
                state
                    .waiting
                    .take_if(|waiting| waiting.message == self.message),
            ),
            Role::Owns => drop(state.owned.take_if(|owned| owned.claim == self.message)),
        }
        drop(state);
        if self.role != Role::None {
            self.flight.changed.notify_waiters();
        }
        self.flight.flights.leave(&self.flight);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::encoding::key::Key;
    use crate::record::Owner;

    const HOUR: Duration = Duration::from_secs(3600);

    fn id(key: u64) -> RecordId {
        RecordId::new("orders", &Key::encode(&key).unwrap()).unwrap()
    }

    fn seat(flights: &Arc<Flights>, key: u64) -> FlightSeat {
        match flights.join(&id(key), None) {
            Joined::First(seat) | Joined::Behind(seat) => seat,
        }
    }

    fn counts(flights: &Flights) -> Vec<usize> {
        flights
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap().len())
            .collect()
    }

    #[tokio::test]
    async fn a_flight_is_there_until_the_last_of_its_calls_leaves() {
        let flights = Arc::new(Flights::new());
        let mut seats: Vec<_> = (0..3).map(|_| seat(&flights, 1)).collect();
        while !seats.is_empty() {
            assert_eq!(counts(&flights).iter().sum::<usize>(), 1);
            seats.remove(0);
        }
        assert_eq!(
            counts(&flights).iter().sum::<usize>(),
            0,
            "a key that nobody is busy with takes no memory"
        );
        assert!(matches!(flights.join(&id(1), None), Joined::First(_)));
    }

    #[tokio::test]
    async fn keys_are_spread_over_the_locks() {
        let flights = Arc::new(Flights::new());
        let _seats: Vec<_> = (0..1_000).map(|key| seat(&flights, key)).collect();
        let used = counts(&flights)
            .into_iter()
            .filter(|count| *count > 0)
            .count();
        assert!(used > SHARDS / 2, "{used} of {SHARDS}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_whose_commit_was_sent_speaks_for_a_moment_and_only_for_calls_that_came_before()
     {
        let flights = Arc::new(Flights::new());
        let now = clock::now();
        let deadline = Some(clock::after(clock::now(), HOUR));
        let mut owner = seat(&flights, 1);
        owner.owns(
            None,
            Arc::new(Term::new(id(1), Owner::generate(), 1, (HOUR, HOUR), now)),
        );
        let mut before = seat(&flights, 1);
        owner.sends();
        let Err(patience) = before.look(None, deadline) else {
            panic!("the answer is on its way")
        };
        assert_eq!(patience.until, Some(now + PATIENCE));
        let mut after = seat(&flights, 1);
        assert!(matches!(after.look(None, deadline), Ok(FlightStep::Ask)));
        drop(after);
        tokio::time::advance(PATIENCE).await;
        assert!(matches!(before.look(None, deadline), Ok(FlightStep::Ask)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_goes_on_for_an_answer_that_was_asked_for_after_it_came_and_for_no_older_one()
     {
        let flights = Arc::new(Flights::new());
        let now = clock::now();
        let deadline = Some(clock::after(clock::now(), HOUR));
        let mut asks = seat(&flights, 1);
        asks.answered(
            None,
            SharedAnswer::InFlight {
                attempt: 1,
                until: clock::after(now, HOUR),
            },
        );
        let mut waits = seat(&flights, 1);
        assert!(matches!(
            waits.look(None, deadline),
            Ok(FlightStep::Wait { attempt: 1, .. })
        ));
        assert!(!waits.has_answer());
        for (message, is_new) in [(waits.joined, false), (waits.joined + 1, true)] {
            waits.flight.lock().answer = Some(Answered {
                message,
                fingerprint: None,
                shared: SharedAnswer::Done,
            });
            assert_eq!(waits.has_answer(), is_new);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_call_did_for_the_others_is_taken_over_at_once_when_it_goes_away() {
        let now = clock::now();
        let deadline = Some(clock::after(clock::now(), HOUR));
        for role in [Role::Asks, Role::Waits, Role::Owns] {
            let flights = Arc::new(Flights::new());
            let mut one = seat(&flights, 1);
            match role {
                Role::Owns => one.owns(
                    None,
                    Arc::new(Term::new(id(1), Owner::generate(), 1, (HOUR, HOUR), now)),
                ),
                Role::Waits => {
                    one.answered(
                        None,
                        SharedAnswer::InFlight {
                            attempt: 1,
                            until: clock::after(now, HOUR),
                        },
                    );
                    assert!(matches!(
                        one.look(None, deadline),
                        Ok(FlightStep::Wait { .. })
                    ));
                }
                Role::Asks | Role::None => {}
            }
            let mut other = seat(&flights, 1);
            {
                let mut turn = pin!(other.turn(None, deadline));
                assert!(turn.as_mut().now_or_never().is_none());
                drop(one);
                let (turn, has_waited) = turn.await;
                assert!(has_waited && matches!(turn, FlightStep::Ask | FlightStep::Wait { .. }));
            }
            assert_eq!(clock::now(), now, "nothing was waited for");
        }
    }
}
