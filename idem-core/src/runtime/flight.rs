//! Calls of one process with one key share their claims, their waits and the answers.
//!
//! At any time one call asks the store and one call waits there; the others wait for these two. An
//! answer serves only the calls that had joined before its message was sent: an older answer may
//! describe a record that was forgotten since. So of many duplicates, the first asks for itself,
//! and the second for all others. If the store gives a call no answer, all calls that are here by
//! then fail with it: one after the other, they would take that time again and again.
//!
//! The call that asks or waits may be alive and not polled. After [`PATIENCE`] another call takes
//! over.

mod seat;
mod state;
#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

pub(crate) use self::seat::FlightSeat;
use self::seat::Role;
pub(crate) use self::state::FlightStep;
use self::state::State;
use crate::base::clock;
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::encoding::fingerprint::Fingerprint;
use crate::record::RecordId;

const SHARDS: usize = 32;
/// How long the others wait for a call that asks the store, waits there or sends a commit, before
/// another call asks too. Each takeover doubles it, so that a store that is slow to fail gets few
/// more claims.
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

/// The state that a call finds in its own process.
pub(crate) enum Joined {
    /// No other call is busy with the key: this one asks.
    First(FlightSeat),
    /// Other calls are.
    Behind(FlightSeat),
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
                let mut state = State::default();
                let message = state.begin_asking(fingerprint, clock::now());
                let flight = Arc::new(Flight {
                    flights: self.clone(),
                    id: id.clone(),
                    hash,
                    state: Mutex::new(state),
                    changed: Notify::new(),
                });
                entry.insert(SharedFlight {
                    flight: flight.clone(),
                    seats: 1,
                });
                return Joined::First(FlightSeat {
                    flight,
                    joined: 0,
                    message,
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
