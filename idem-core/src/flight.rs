//! Calls of one process with one key share one claim, one wait and one answer.
//!
//! The first call of a key is the leader: it alone talks to the store. The others follow it: they are told its answer, or that there is
//! none, and then one of them leads. A flight says nothing that the store has not said; it saves asking it again.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use tokio::time::Instant;

use crate::clock;
use crate::error::StoreError;
use crate::fingerprint::Fingerprint;
use crate::lease::Term;
use crate::record::{Encoded, RecordId};
use crate::sync::{Mutex, MutexGuard, Notify};

const SHARDS: usize = 32;
/// How long a call that does not wait for an owner gives the leader to find out whether there is one: as long as a claim may take.
const ANSWER: Duration = Duration::from_secs(2);

/// The flights of a runtime.
pub(crate) struct Flights {
    shards: [Mutex<HashTable<Arc<Flight>>>; SHARDS],
    hasher: RandomState,
}

/// One key that a call of this process is busy with.
pub(crate) struct Flight {
    id: RecordId,
    /// Of the id.
    hash: u64,
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
    /// The store could not answer.
    Failed(StoreError),
    /// There was an answer that depends on what the leader asked: each follower asks for itself.
    Unshared,
    /// Nothing that a follower could use: released, given up, lost. One of them leads now.
    Gone,
}

/// What a call finds in its own process.
pub(crate) enum Joined {
    /// Nobody is busy with the key: this call leads.
    Leader(Leader),
    /// Somebody is.
    Follower(Arc<Flight>),
    /// Somebody is, but with other arguments, or with a lease that is lost: this call asks for itself.
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
    /// The leader is no help: it has lost its lease, or does not come to an answer. The follower asks for itself.
    Ask,
}

impl Flights {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::new(HashTable::new())), hasher: RandomState::new() }
    }

    /// Joins the flight of a key, or begins one.
    pub(crate) fn join(self: &Arc<Self>, id: &RecordId, fingerprint: Option<Fingerprint>) -> Joined {
        let hash = self.hasher.hash_one(id);
        match self.shard(hash).entry(hash, |flight| flight.id == *id, |flight| flight.hash) {
            Entry::Occupied(entry) if entry.get().can_be_shared_with(fingerprint) => {
                Joined::Follower(entry.get().clone())
            }
            Entry::Occupied(_) => Joined::Alone,
            Entry::Vacant(entry) => {
                let (stage, changed) = (Mutex::new(Stage::Claiming), Notify::new());
                let flight = Arc::new(Flight { id: id.clone(), hash, fingerprint, stage, changed });
                entry.insert(flight.clone());
                Joined::Leader(Leader { flying: Some((self.clone(), flight)) })
            }
        }
    }

    /// Takes a flight out, of which there is one for each id.
    fn take_out(&self, flight: &Arc<Flight>) {
        if let Ok(entry) = self.shard(flight.hash).find_entry(flight.hash, |other| Arc::ptr_eq(other, flight)) {
            entry.remove();
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Arc<Flight>>> {
        // Other bits than those by which the table inside begins to look.
        let index = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Follows the leader: until it has an answer, or until `deadline`; `None` does not wait for an owner.
    ///
    /// A leader may be a future that nobody polls, so no follower hangs on it: who would have to be refused without knowing that
    /// somebody owns the key asks the store first.
    pub(crate) async fn follow(&self, fingerprint: Option<Fingerprint>, deadline: Option<Instant>) -> Followed {
        loop {
            // Before the look, so that a change in between is not missed: it is told to all that are there, polled or not.
            let changed = self.changed.notified();
            match self.stage() {
                // It became an answer to other arguments between joining and now: this call asks for itself.
                Stage::Over(_) if self.mismatches(fingerprint) => return Followed::Ask,
                Stage::Over(ending) => return Followed::Over(ending),
                Stage::Owned(term) if term.is_lost() => return Followed::Ask,
                Stage::Owned(_) if self.mismatches(fingerprint) => return Followed::Mismatch,
                Stage::Owned(term) => {
                    let Some(deadline) = deadline else { return Followed::InFlight(term.left()) };
                    tokio::select! {
                        () = changed => {}
                        () = term.lost() => return Followed::Ask,
                        () = tokio::time::sleep_until(deadline) => return Followed::InFlight(term.left()),
                    }
                }
                Stage::Waiting(until) if deadline.is_none() => {
                    return Followed::InFlight(until.saturating_duration_since(clock::now()));
                }
                Stage::Claiming | Stage::Waiting(_) => {
                    let deadline = deadline.unwrap_or_else(|| clock::after(clock::now(), ANSWER));
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Followed::Ask;
                    }
                }
            }
        }
    }

    /// Whether the leader's answer would be this call's too, or is known to be a mismatch.
    fn can_be_shared_with(&self, fingerprint: Option<Fingerprint>) -> bool {
        match self.stage() {
            Stage::Owned(term) => !term.is_lost(),
            _ => fingerprint.is_none() || fingerprint == self.fingerprint,
        }
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
    /// `None` once it is over.
    flying: Option<(Arc<Flights>, Arc<Flight>)>,
}

impl Leader {
    /// Another process is the owner for this long, and the leader waits.
    pub(crate) fn waits(&self, lease_left: Duration) {
        if let Some((_, flight)) = &self.flying {
            flight.enter(Stage::Waiting(clock::after(clock::now(), lease_left)));
        }
    }

    /// The leader asks the store again. No follower needs to know.
    pub(crate) fn claims(&self) {
        if let Some((_, flight)) = &self.flying {
            flight.set(Stage::Claiming);
        }
    }

    /// The leader is the owner.
    pub(crate) fn owns(&self, lease: Arc<Term>) {
        if let Some((_, flight)) = &self.flying {
            flight.enter(Stage::Owned(lease));
        }
    }

    /// Ends the flight with an answer.
    pub(crate) fn end(mut self, ending: Ending) {
        self.land(ending);
    }

    fn land(&mut self, ending: Ending) {
        let Some((flights, flight)) = self.flying.take() else { return };
        // Out of the map first: who comes now must not find an answer that is growing old.
        flights.take_out(&flight);
        // Nobody can come any more, so if nobody is there nobody has to be told.
        if Arc::strong_count(&flight) > 1 {
            flight.enter(Stage::Over(ending));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.land(Ending::Gone);
    }
}
