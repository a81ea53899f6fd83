//! Calls of one process with one key share one claim, one wait and one answer.
//!
//! The first call of a key is the leader: it alone talks to the store. The others follow it: they are told its answer, or that there is
//! none, and then one of them leads. A flight says nothing that the store has not said; it saves asking it again.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::fingerprint::Fingerprint;
use crate::lease::Term;
use crate::record::{Encoded, RecordId};

const SHARDS: usize = 32;

/// The flights of a runtime.
pub(crate) struct Flights {
    shards: [Mutex<HashMap<RecordId, Arc<Flight>>>; SHARDS],
    hasher: RandomState,
}

/// One key that a call of this process is busy with.
pub(crate) struct Flight {
    /// What the leader's claim carries.
    fingerprint: Option<Fingerprint>,
    stage: Mutex<Stage>,
    changed: Notify,
}

#[derive(Clone)]
enum Stage {
    /// The leader is asking the store.
    Claiming,
    /// Another process is the owner, with a lease until then; the leader waits.
    Waiting(Instant),
    /// The leader is the owner.
    Owned(Arc<Term>),
    /// The leader has an answer.
    Over(Ending),
}

/// How a flight ended.
#[derive(Clone)]
pub(crate) enum Ending {
    /// The outcome is recorded.
    Committed(Encoded),
    /// It is known that there was an outcome.
    Done,
    /// Another process is the owner, for this long unless it renews its lease; the leader would not wait (longer).
    InFlight(Duration),
    /// Nothing that a follower could use: released, failed, given up, lost.
    Gone,
}

/// What a call finds in its own process.
pub(crate) enum Joined {
    /// Nobody is busy with the key: this call leads.
    Leader(Leader),
    /// Somebody is.
    Follower(Arc<Flight>),
    /// Somebody is, with other arguments, and what the store would say to these is not known: this call asks for itself.
    Alone,
}

/// What a follower learns.
pub(crate) enum Followed {
    /// The flight is over.
    Over(Ending),
    /// The leader is the owner, with another fingerprint.
    Mismatch,
    /// The follower does not wait (longer). The owner's lease ends in this time unless it is renewed.
    InFlight(Duration),
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }

    /// Joins the flight of a key, or begins one.
    pub(crate) fn join(self: &Arc<Self>, id: &RecordId, fingerprint: Option<Fingerprint>) -> Joined {
        match self.shard(id).entry(id.clone()) {
            Entry::Occupied(entry) if entry.get().can_be_shared_with(fingerprint) => {
                Joined::Follower(entry.get().clone())
            }
            Entry::Occupied(_) => Joined::Alone,
            Entry::Vacant(entry) => {
                let flight =
                    Arc::new(Flight { fingerprint, stage: Mutex::new(Stage::Claiming), changed: Notify::new() });
                entry.insert(flight.clone());
                Joined::Leader(Leader { flights: self.clone(), id: id.clone(), flight, ending: Ending::Gone })
            }
        }
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, HashMap<RecordId, Arc<Flight>>> {
        let index = usize::try_from(self.hasher.hash_one(id) >> 32).unwrap_or_default() % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Follows the leader: until it has an answer, or until `deadline`; `None` does not wait at all.
    pub(crate) async fn follow(&self, fingerprint: Option<Fingerprint>, deadline: Option<Instant>) -> Followed {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enrolled before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            let left = match self.stage() {
                // It became an answer to other arguments between joining and now: this call asks for itself.
                Stage::Over(_) if self.mismatches(fingerprint) => return Followed::Over(Ending::Gone),
                Stage::Over(ending) => return Followed::Over(ending),
                Stage::Owned(_) if self.mismatches(fingerprint) => return Followed::Mismatch,
                Stage::Owned(lease) => Some(lease.left()),
                Stage::Waiting(until) => Some(until.saturating_duration_since(clock::now())),
                // Not known yet whether there is anything to wait for: the answer is a round trip away.
                Stage::Claiming => None,
            };
            match (deadline, left) {
                (None, Some(left)) => return Followed::InFlight(left),
                (None, None) => changed.await,
                (Some(deadline), _) => {
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Followed::InFlight(left.unwrap_or_default());
                    }
                }
            }
        }
    }

    /// Whether the leader's answer would be this call's too, or is known to be a mismatch.
    fn can_be_shared_with(&self, fingerprint: Option<Fingerprint>) -> bool {
        fingerprint.is_none() || fingerprint == self.fingerprint || matches!(self.stage(), Stage::Owned(_))
    }

    fn mismatches(&self, fingerprint: Option<Fingerprint>) -> bool {
        matches!((self.fingerprint, fingerprint), (Some(one), Some(two)) if one != two)
    }

    fn stage(&self) -> Stage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    fn enter(&self, stage: Stage) {
        self.set(stage);
        self.changed.notify_waiters();
    }
}

/// The leader's end of a flight. Dropped without an answer, it lets a follower lead.
pub(crate) struct Leader {
    flights: Arc<Flights>,
    id: RecordId,
    flight: Arc<Flight>,
    ending: Ending,
}

impl Leader {
    /// Another process is the owner for this long, and the leader waits.
    pub(crate) fn waits(&self, lease_left: Duration) {
        self.flight.enter(Stage::Waiting(clock::after(clock::now(), lease_left)));
    }

    /// The leader asks the store again. No follower needs to know.
    pub(crate) fn claims(&self) {
        self.flight.set(Stage::Claiming);
    }

    /// The leader is the owner.
    pub(crate) fn owns(&self, lease: Arc<Term>) {
        self.flight.enter(Stage::Owned(lease));
    }

    /// Ends the flight with an answer.
    pub(crate) fn end(mut self, ending: Ending) {
        self.ending = ending;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // Out of the map first: who comes now must not find an answer that is growing old.
        self.flights.shard(&self.id).remove(&self.id);
        self.flight.enter(Stage::Over(std::mem::replace(&mut self.ending, Ending::Gone)));
    }
}
