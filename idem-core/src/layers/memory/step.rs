//! One atomic step of the store.

use super::shard::{Place, Slot, Target};
use super::{Locked, Room};
use crate::record::{OnStep, Ownership, Record};
use std::time::Duration;

/// Whether a step tells those who wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waking {
    /// It changes the record.
    Wakes,
    /// They wait on.
    LeavesWaiting,
}

/// One atomic step: the lock is held.
pub(crate) struct LockedStep<'a> {
    pub(crate) room: &'a Room,
    pub(crate) locked: &'a mut Locked,
    pub(crate) target: Target<'a>,
    /// Where [`find`](Self::find) has found the record.
    pub(crate) place: Option<Place>,
}

impl LockedStep<'_> {
    /// Returns the record as it is now, and the time until it changes by itself. Each step calls
    /// this once, before it writes.
    pub(crate) fn find(&mut self) -> Option<(&Record, Duration)> {
        let records = &mut self.locked.records;
        self.place = records.find(self.target, self.room);
        let slot = records.slot(self.place?)?;
        let left = slot.expires.saturating_sub(self.target.now);
        Some((&slot.record, left))
    }

    /// Writes what an owner's step makes of the record. `None` if there is no record; the duration
    /// is the time until the record changes by itself.
    pub(crate) fn carry_out(
        &mut self,
        on_step: Option<(OnStep, Duration)>,
        waking: Waking,
    ) -> Ownership {
        match on_step {
            None => return Ownership::Lost,
            Some((OnStep::Answer(answer), _)) => return answer,
            Some((
                OnStep::Put {
                    record,
                    expires_in,
                    then_done,
                },
                left,
            )) => {
                self.put(record, expires_in.unwrap_or(left), then_done);
            }
            Some((OnStep::Remove, _)) => self.remove(),
        }
        if waking == Waking::Wakes {
            self.locked.waiters.wake(self.target);
        }
        Ownership::Held
    }

    pub(crate) fn put(&mut self, record: Record, expires_in: Duration, then_done: Duration) {
        let slot = Slot {
            record,
            expires: self.target.now.saturating_add(expires_in),
            then_done,
        };
        self.locked.records.put(self.target, self.place, slot);
    }

    pub(crate) fn remove(&mut self) {
        if let Some(place) = self.place {
            self.locked.records.remove(place, self.room);
        }
    }
}
