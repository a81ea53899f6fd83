//! Why a call does not become the owner of its key.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::Event;
use crate::policy::settings::{Duplicate, InFlight, Settings, StoreFailure};
use crate::record::{Claimed, Encoded, Origin, RecordId};

pub(crate) const NOT_ISSUED: Event = Event::warn("token_unknown");
pub(crate) const REJECTED_ABANDONED: Event = Event::warn("rejected_abandoned");
pub(crate) const REPLAYED: Event = Event::debug("replayed");
pub(crate) const STORE_FAILED: Event = Event::warn("store_failed");
pub(crate) const UNREADABLE: Event = Event::warn("unreadable");
pub(crate) const WAITED: Event = Event::debug("waited");

/// Why a call does not become the owner: the answer of the store, or of this process.
#[derive(Clone)]
pub(crate) enum Rejected {
    InFlight(Held),
    Committed {
        attempt: u64,
        outcome: Encoded,
    },
    Done,
    Mismatch,
    Abandoned(u64),
    Exhausted(u64),
    TooLate(u64),
    Reentrant,
    /// The key must be issued, and is not, or not any more.
    NotIssued {
        is_expired: bool,
    },
    /// By its [`Admission`](super::admission::Admission).
    Refused(Event, Error),
    Store(StoreError),
}

/// A lease of another owner.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) attempt: u64,
    /// When it ends unless it is renewed.
    pub(crate) ends: Instant,
}

impl Held {
    /// A lease of which so much is left now.
    pub(crate) fn new(attempt: u64, left: Duration) -> Self {
        let ends = clock::after(clock::now(), left);
        Self { attempt, ends }
    }

    pub(crate) fn left(self) -> Duration {
        self.ends.saturating_duration_since(clock::now())
    }
}

impl Rejected {
    /// Returns what an owner learns, or why the call is none.
    pub(crate) fn unless_owned(claimed: Claimed) -> Result<(u64, Origin), Self> {
        Err(match claimed {
            Claimed::Owned { attempt, from } => return Ok((attempt, from)),
            Claimed::InFlight {
                attempt,
                lease_left,
            } => Self::InFlight(Held::new(attempt, lease_left)),
            Claimed::Committed { attempt, outcome } => Self::Committed { attempt, outcome },
            Claimed::Done { .. } => Self::Done,
            Claimed::Mismatch => Self::Mismatch,
            Claimed::Abandoned { attempt } => Self::Abandoned(attempt),
            Claimed::Exhausted { attempts } => Self::Exhausted(attempts),
            Claimed::NotIssued => Self::NotIssued { is_expired: false },
            Claimed::IssueExpired => Self::NotIssued { is_expired: true },
        })
    }

    /// The error of a store that gave no answer.
    pub(crate) fn outage(&self) -> Option<&StoreError> {
        use StoreErrorKind::{Timeout, Unavailable};
        match self {
            Self::Store(error) if matches!(error.kind(), Timeout | Unavailable) => Some(error),
            _ => None,
        }
    }

    /// Whether the body runs all the same, without a record.
    pub(crate) fn runs_unguarded(&self, settings: &Settings) -> bool {
        matches!(self, Self::Store(error) if error.kind() != StoreErrorKind::Unreadable)
            && settings.store_failure == StoreFailure::Run
    }

    /// Returns the event that is reported, and the attempt that it is about, or 0.
    pub(crate) fn event(&self, settings: &Settings) -> (Event, u64) {
        let event = match self {
            Self::InFlight(held) if settings.observes && settings.in_flight == InFlight::Wait => {
                return (WAITED, held.attempt);
            }
            Self::Abandoned(attempt) => return (REJECTED_ABANDONED, *attempt),
            Self::Exhausted(attempt) => return (Event::warn("rejected_exhausted"), *attempt),
            Self::TooLate(attempt) => return (Event::warn("claim_too_late"), *attempt),
            Self::InFlight(_) => Event::debug("rejected_in_flight"),
            Self::Committed { .. } if settings.duplicate == Duplicate::Replay => REPLAYED,
            Self::Committed { .. } => Event::debug("rejected_duplicate"),
            Self::Done => Event::debug("rejected_already_done"),
            Self::Mismatch => Event::warn("rejected_mismatch"),
            Self::Reentrant => Event::warn("rejected_reentrant"),
            Self::NotIssued { .. } => NOT_ISSUED,
            Self::Refused(event, _) => *event,
            Self::Store(error) => of_failure(error),
        };
        (event, 0)
    }

    pub(crate) fn error(self, id: &RecordId) -> Error {
        let operation = id.name().into();
        let key = id.digest();
        match self {
            Self::InFlight(held) => Error::held(id, held.left()),
            Self::Committed { .. } => Error::Duplicate { operation, key },
            Self::Done => Error::AlreadyDone { operation, key },
            Self::Mismatch => Error::FingerprintMismatch { operation, key },
            Self::Abandoned(attempt) => Error::Abandoned {
                operation,
                key,
                attempt,
            },
            Self::Exhausted(attempts) => Error::AttemptsExhausted {
                operation,
                key,
                attempts,
            },
            Self::TooLate(attempt) => Error::LeaseLost {
                operation,
                key,
                attempt,
            },
            Self::Reentrant => Error::Reentrant { operation, key },
            Self::NotIssued { .. } => Error::UnknownToken { operation, key },
            Self::Refused(_, error) => error,
            Self::Store(error) if error.kind() == StoreErrorKind::Unreadable => {
                Error::unreadable(id, &error.to_string())
            }
            Self::Store(source) => Error::Store {
                operation,
                key,
                source,
            },
        }
    }
}

pub(super) fn of_failure(error: &StoreError) -> Event {
    match error.kind() {
        StoreErrorKind::Unreadable => UNREADABLE,
        StoreErrorKind::Conflict => Event::debug("conflict"),
        _ => STORE_FAILED,
    }
}
