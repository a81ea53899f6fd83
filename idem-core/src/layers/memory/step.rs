//! One atomic step of the store.

use super::shard::{Place, Slot, Target};
use super::{Locked, Room};
use crate::record::{OnStep, Ownership, Record};
use std::time::Duration;

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

    /// Writes what an owner's step makes of the record, if there is one.
    pub(crate) fn carry_out(&mut self, decide: impl FnOnce(&Record) -> OnStep) -> Ownership {
        let Some((record, left)) = self.find() else {
            return Ownership::Lost;
        };
        match decide(record) {
            OnStep::Answer(answer) => return answer,
            OnStep::Put {
                record,
                expires_in,
                then_done,
            } => self.put(record, expires_in.unwrap_or(left), then_done),
            OnStep::Remove => self.remove(),
        }
        Ownership::Held
    }

    /// Like [`carry_out`](Self::carry_out), for a step that ends a lease: those who wait look
    /// again.
    pub(crate) fn end_lease(&mut self, decide: impl FnOnce(&Record) -> OnStep) -> Ownership {
        let ownership = self.carry_out(decide);
        if ownership == Ownership::Held {
            self.locked.waiters.wake(self.target);
        }
        ownership
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
