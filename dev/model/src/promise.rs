//! The promises of `docs/guarantees.md`, as what an onlooker sees broken.

use crate::caller::Id;
use crate::slot::Slot;
use crate::ticks::less;

/// A promise that the model checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// One at a time.
    P1,
    /// Once done, done.
    P2,
    /// A late owner changes nothing.
    P3,
    /// After a crash the next call runs, under the next attempt.
    P5,
    /// Errors as the author says: what is abandoned is abandoned.
    P6,
    /// Another payload never gets this answer.
    P7,
    /// A dropped caller is a crash.
    P8,
    /// A failed commit does not release.
    P9,
    /// A lost reply locks no caller out.
    P10,
    /// A token counts only if it was issued.
    P13,
    /// A run of steps goes on until an outcome, a removal or an expiry, and no longer.
    Run,
}

/// The knowledge of an onlooker that sees everything and takes no part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Onlooker {
    /// The promises that were seen broken, as bits.
    broken: u16,
    /// The last outcome that was recorded, and for how many ticks it is to be replayed, and to be
    /// known of.
    recorded: Option<(Id, u8, u8)>,
    /// The highest attempt under which a body has begun, since the record is there.
    pub(crate) highest: u8,
    /// The attempts that only asked, as bits, since the record is there.
    pub(crate) asked: u16,
    /// The run that goes on: its first owner, and its first attempt. A claim that was sent again
    /// may take over what it began.
    pub(crate) run: Option<(Id, u8)>,
}

impl Onlooker {
    pub(crate) const NEW: Self = Self {
        broken: 0,
        recorded: None,
        highest: 0,
        asked: 0,
        run: None,
    };

    /// Whether a promise was seen broken.
    pub fn saw_broken(&self, promise: Promise) -> bool {
        self.broken & (1 << promise as u16) != 0
    }

    pub(crate) fn expects(&mut self, promise: Promise, kept: bool) {
        self.broken |= u16::from(!kept) << promise as u16;
    }

    pub(crate) fn tick(&mut self, slot: Option<&Slot>) {
        self.recorded = self
            .recorded
            .map(|(outcome, ttl, remember)| (outcome, less(ttl), less(remember)))
            .filter(|(_, _, remember)| *remember > 0);
        if slot.is_none() {
            (self.highest, self.asked, self.run) = (0, 0, None);
        }
    }

    /// An outcome was accepted.
    pub(crate) fn sees_recorded(&mut self, outcome: Id, ttl: u8, remember: u8) {
        self.run = None;
        if self.recorded.is_none() {
            self.recorded = Some((outcome, ttl, remember));
        }
    }

    /// An operator's outcome was replaced; no other is.
    pub(crate) fn sees_replaced(&mut self, old: Id, new: Id) {
        match &mut self.recorded {
            Some((outcome, ..)) if *outcome == old => *outcome = new,
            _ => self.expects(Promise::P2, false),
        }
    }

    /// How many of the attempts up to this one may have begun a body.
    pub(crate) fn counted(&self, attempt: u8) -> u8 {
        let up_to = (1_u16 << (attempt.min(14) + 1)) - 1;
        attempt.saturating_sub(u8::try_from((self.asked & up_to).count_ones()).unwrap_or(u8::MAX))
    }

    /// The outcome that duplicates must get, as long as they must.
    pub(crate) fn must_replay(&self) -> Option<Id> {
        self.recorded
            .and_then(|(outcome, ttl, _)| (ttl > 0).then_some(outcome))
    }

    /// Whether it must be known that there was an outcome.
    pub(crate) fn must_remember(&self) -> bool {
        self.recorded.is_some()
    }

    /// The ids that it holds, to be renamed.
    pub(crate) fn names(&mut self) -> [Option<&mut Id>; 2] {
        let recorded = self.recorded.as_mut().map(|(outcome, ..)| outcome);
        [recorded, self.run.as_mut().map(|(first, _)| first)]
    }
}
