//! What stands at the key, kept small, and as the record that the functions of `idem-core` work on.

use std::time::Duration;

use idem_core::CodecId;
use idem_core::record::{Encoded, InFlight, Origin, Record};

use crate::bounds::{duration, less, ticks};
use crate::caller::Id;

/// A record, and what is left until it changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The record.
    pub entry: Entry,
    /// The ticks until it changes by itself.
    pub left: u8,
    /// For a committed one: for how many ticks after that it stays as done.
    pub then_done: u8,
}

/// A [`Record`], without fingerprint, with times in ticks, and with the owner's id as the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// See [`Record::Issued`].
    Issued,
    /// See [`Record::InFlight`].
    InFlight {
        /// Who claimed it.
        owner: Id,
        /// Which claim of this key it is.
        attempt: u8,
        /// What the claim found.
        origin: Origin,
        /// How long the lease is.
        lease: u8,
        /// The expiry with which the record is written.
        hold: u8,
    },
    /// See [`Record::Released`].
    Released {
        /// The last attempt.
        attempt: u8,
    },
    /// See [`Record::Committed`].
    Committed {
        /// The attempt that succeeded.
        attempt: u8,
        /// Whose outcome it is.
        outcome: Id,
    },
    /// See [`Record::Done`].
    Done {
        /// The attempt that succeeded.
        attempt: u8,
    },
}

impl Slot {
    /// Lets a tick pass.
    pub(crate) fn tick(self) -> Option<Self> {
        let left = less(self.left);
        if left > 0 {
            return Some(Self { left, ..self });
        }
        let expired = self.entry.record().expired().filter(|_| self.then_done > 0)?;
        Some(Self { entry: Entry::from(&expired), left: self.then_done, then_done: 0 })
    }

    /// Who owns it, alive or not.
    pub(crate) fn owner(self) -> Option<Id> {
        match self.entry {
            Entry::InFlight { owner, .. } => Some(owner),
            _ => None,
        }
    }

    /// Whether it is in flight, and its lease has run out.
    pub(crate) fn is_abandoned(self) -> bool {
        self.owner().is_some() && !self.is_alive()
    }

    /// Whether the lease is alive.
    pub(crate) fn is_alive(self) -> bool {
        self.entry.record().lease_left(duration(self.left)).is_some()
    }
}

impl Entry {
    pub(crate) fn record(self) -> Record {
        match self {
            Self::Issued => Record::Issued { grace: Duration::ZERO },
            Self::InFlight { owner, attempt, origin, lease, hold } => Record::InFlight(InFlight {
                owner: owner.owner(),
                attempt: attempt.into(),
                origin,
                lease: duration(lease),
                hold: duration(hold),
                fingerprint: None,
            }),
            Self::Released { attempt } => Record::Released { attempt: attempt.into() },
            Self::Committed { attempt, outcome } => {
                Record::Committed { attempt: attempt.into(), fingerprint: None, outcome: encoded(outcome) }
            }
            Self::Done { attempt } => Record::Done { attempt: attempt.into(), fingerprint: None },
        }
    }

    /// Who is named in it.
    pub(crate) fn names(&mut self) -> Option<&mut Id> {
        match self {
            Self::InFlight { owner: id, .. } | Self::Committed { outcome: id, .. } => Some(id),
            _ => None,
        }
    }
}

impl From<&Record> for Entry {
    fn from(record: &Record) -> Self {
        let attempt = u8::try_from(record.attempt()).unwrap_or(u8::MAX);
        match record {
            Record::Issued { .. } => Self::Issued,
            Record::InFlight(held) => Self::InFlight {
                owner: Id::from_owner(held.owner),
                attempt,
                origin: held.origin,
                lease: ticks(held.lease),
                hold: ticks(held.hold),
            },
            Record::Released { .. } => Self::Released { attempt },
            Record::Committed { outcome, .. } => Self::Committed { attempt, outcome: whose(outcome) },
            Record::Done { .. } => Self::Done { attempt },
        }
    }
}

/// The outcome that a body of this owner gives.
pub(crate) fn encoded(id: Id) -> Encoded {
    Encoded { is_error: false, codec: CodecId::JSON, payload: vec![id.0].into() }
}

/// Whose outcome it is.
pub(crate) fn whose(outcome: &Encoded) -> Id {
    Id(outcome.payload.first().copied().unwrap_or_default())
}
