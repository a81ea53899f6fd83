//! A call's place in a flight.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::state::{Answered, FlightOwner, FlightStep, Patience, SentStep, State, applies};
use super::{Flight, PATIENCE};
use crate::base::clock;
use crate::base::race::first;
use crate::encoding::fingerprint::Fingerprint;
use crate::error::StoreError;
use crate::lease::term::Term;
use crate::runtime::rejected::Rejected;

/// A call's place in a flight. If it is dropped, another call takes over what this call was doing
/// for the others.
pub(crate) struct FlightSeat {
    pub(super) flight: Arc<Flight>,
    /// Answers to this message and earlier ones are too old for this call.
    pub(super) joined: u64,
    /// The message that gave the call its role.
    pub(super) message: u64,
    pub(super) role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    None,
    Asks,
    Waits,
    Owns,
}

impl FlightSeat {
    /// Waits until this call has something to do, at most until `deadline`; without one, it does
    /// not wait. Returns whether it waited, and since when only for claims of other calls.
    ///
    /// Cancel safe.
    pub(crate) async fn turn(
        &mut self,
        fingerprint: Option<Fingerprint>,
        deadline: Option<Instant>,
    ) -> (FlightStep, bool, Instant) {
        let mut waited = false;
        let mut since = clock::now();
        let flight = self.flight.clone();
        loop {
            // Subscribes before it looks at the state: a change right after the look still wakes
            // this call, although nothing has polled the future yet.
            let changed = flight.changed.notified();
            let Patience {
                term,
                until,
                is_for_claim,
            } = match self.look(fingerprint, deadline) {
                Ok(turn) => return (turn, waited, since),
                Err(patience) => patience,
            };
            waited = true;
            let lost = async {
                match &term {
                    Some(term) => term.silent().await,
                    None => pending().await,
                }
            };
            first(changed, first(lost, sleep_until(until))).await;
            if !is_for_claim {
                since = clock::now();
            }
        }
    }

    /// Takes the next step, or says how long to wait for other calls.
    pub(super) fn look(
        &mut self,
        fingerprint: Option<Fingerprint>,
        deadline: Option<Instant>,
    ) -> Result<FlightStep, Patience> {
        let now = clock::now();
        let deadline = deadline.filter(|deadline| now < *deadline);
        let mut state = self.flight.lock();
        if let Some(answer) = &state.answer
            && answer.serves(self.joined, fingerprint)
            && !(deadline.is_some() && answer.held().is_some())
        {
            let shared = answer.shared.clone();
            return Ok(shared.map_or(FlightStep::Alone, FlightStep::Answer));
        }
        if let Some(step) = state.behind_owner(self.joined, fingerprint, deadline, now) {
            return step;
        }
        if let Some(asking) = state.asking.as_ref().filter(|asking| now < asking.until()) {
            if !applies(asking.fingerprint, fingerprint) {
                return Ok(FlightStep::Alone);
            }
            return Err(Patience {
                term: None,
                until: asking.until(),
                is_for_claim: true,
            });
        }
        if let Some(deadline) = deadline {
            if let Some(patience) = state.behind_waiter(fingerprint, deadline, now) {
                return Err(patience);
            }
            if let Some(wait) = state.wait_at_store(fingerprint) {
                self.role = Role::Waits;
                self.message = state.begin_waiting(fingerprint, now);
                return Ok(wait);
            }
        }
        self.role = Role::Asks;
        self.message = state.begin_asking(fingerprint, now);
        Ok(FlightStep::Ask)
    }

    /// Shares the answer to this call's claim.
    pub(crate) fn claim_answered(
        &mut self,
        fingerprint: Option<Fingerprint>,
        shared: Option<Rejected>,
    ) {
        let mut state = self.flight.lock();
        state
            .asking
            .take_if(|asking| asking.message == self.message);
        // That the store gives no answer is as new as the moment in which it is known.
        let outage = shared.as_ref().and_then(Rejected::outage);
        let message = if outage.is_some() {
            state.next_message()
        } else {
            self.message
        };
        state.record(Answered {
            message,
            fingerprint,
            shared,
        });
        drop(state);
        self.role = Role::None;
        self.flight.changed.notify_waiters();
    }

    /// Asks the store. If the others wait for longer than [`PATIENCE`], the asker notes at
    /// intervals that it is polled. One that asks beside a slow one ends with it if the store gives
    /// that one no answer.
    pub(crate) async fn while_asking<T>(
        &self,
        asks: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut asks = pin!(asks);
        if self.flight.lock().takeovers == 0 {
            return asks.await;
        }
        loop {
            let changed = self.flight.changed.notified();
            if let Some(error) = self.outage() {
                return Err(error);
            }
            let mut answer = None;
            let asked = async { answer = Some(asks.as_mut().await) };
            first(asked, first(changed, tokio::time::sleep(PATIENCE / 2))).await;
            if let Some(answer) = answer {
                return answer;
            }
            self.note_polled();
        }
    }

    /// The error of another call to which the store gave no answer since this one asks.
    fn outage(&self) -> Option<StoreError> {
        let state = self.flight.lock();
        let answer = state.answer.as_ref();
        let answer = answer.filter(|answer| answer.message > self.message)?;
        answer.shared.as_ref()?.outage().cloned()
    }

    /// Waits at the store, and notes at intervals that it is polled. Ends early if another call
    /// gets the answer that this one waits for.
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
            self.note_polled();
        }
    }

    pub(super) fn has_answer(&self) -> bool {
        let state = self.flight.lock();
        let fingerprint = state
            .waiting
            .as_ref()
            .and_then(|waiting| waiting.fingerprint);
        state.answer.as_ref().is_some_and(|answer| {
            answer.serves(self.joined, fingerprint) && answer.held().is_none()
        })
    }

    /// Shows the others that this call, which asks or waits for them, is still polled.
    fn note_polled(&self) {
        let mut state = self.flight.lock();
        let State {
            asking, waiting, ..
        } = &mut *state;
        let asks = asking
            .as_mut()
            .filter(|asking| asking.message == self.message)
            .map(|asking| &mut asking.polled);
        let waits = waiting
            .as_mut()
            .filter(|waiting| waiting.message == self.message)
            .map(|waiting| &mut waiting.polled);
        if let Some(polled) = asks.or(waits) {
            *polled = clock::now();
        }
    }

    /// Ends the wait at the store. The known owner may have changed meanwhile, so that answer is
    /// dropped.
    pub(crate) fn wait_ended(&mut self) {
        let mut state = self.flight.lock();
        if state
            .waiting
            .take_if(|waiting| waiting.message == self.message)
            .is_some()
        {
            state.answer.take_if(|answer| answer.held().is_some());
        }
        self.role = Role::None;
    }

    /// Makes the call the owner: the store accepted its claim.
    pub(crate) fn become_owner(&mut self, fingerprint: Option<Fingerprint>, term: Arc<Term>) {
        let mut state = self.flight.lock();
        state
            .asking
            .take_if(|asking| asking.message == self.message);
        state.answer = None;
        state.takeovers = 0;
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

    /// Notes that the owner is about to send its commit or release.
    pub(crate) fn sending_step(&self) {
        let mut state = self.flight.lock();
        let message = state.next_message();
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

    /// Shares the answer to the owner's commit or release, and leaves the flight.
    pub(crate) fn step_answered(self, answer: Option<Rejected>) {
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
            state.record(Answered {
                message: step.latest,
                fingerprint,
                shared: Some(answer),
            });
        }
        drop(state);
        // `self` is dropped here, which wakes the others.
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
