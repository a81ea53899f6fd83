//! Why a call does not become the owner of its key.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::Decision;
use crate::policy::settings::{Duplicate, InFlight, Settings, StoreFailure};
use crate::record::{Claimed, Encoded, Origin, RecordId};
use crate::token::Flaw;

/// Why a call does not become the owner: the answer of the store, or of this process.
#[derive(Clone)]
pub(crate) enum Rejected {
    InFlight(Held),
    Committed { attempt: u64, outcome: Encoded },
    Done,
    Mismatch,
    Abandoned(u64),
    Exhausted(u64),
    TooLate(u64),
    Reentrant,
    Token(Flaw),
    Throttled(Duration),
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
            Claimed::NotIssued => Self::Token(Flaw::Unknown),
            Claimed::IssueExpired => Self::Token(Flaw::Expired),
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

    /// Returns the decision about the call, and the attempt that it is about, or 0.
    pub(crate) fn decision(&self, settings: &Settings) -> (Decision, u64) {
        let decision = match self {
            Self::InFlight(held) if settings.observes && settings.in_flight == InFlight::Wait => {
                return (Decision::Waited, held.attempt);
            }
            Self::Abandoned(attempt) => return (Decision::RejectedAbandoned, *attempt),
            Self::Exhausted(attempt) => return (Decision::RejectedExhausted, *attempt),
            Self::TooLate(attempt) => return (Decision::ClaimTooLate, *attempt),
            Self::InFlight(_) => Decision::RejectedInFlight,
            Self::Committed { .. } if settings.duplicate == Duplicate::Replay => Decision::Replayed,
            Self::Committed { .. } => Decision::RejectedDuplicate,
            Self::Done => Decision::RejectedAlreadyDone,
            Self::Mismatch => Decision::RejectedMismatch,
            Self::Reentrant => Decision::RejectedReentrant,
            Self::Throttled(_) => Decision::TokenThrottled,
            Self::Token(flaw) => flaw.decision(),
            Self::Store(error) => of_failure(error),
        };
        (decision, 0)
    }

    pub(crate) fn error(self, id: &RecordId) -> Error {
        let operation = id.name().into();
        let key = id.digest();
        match self {
            Self::InFlight(held) => {
                let lease_left = held.left();
                Error::InFlight {
                    operation,
                    key,
                    lease_left,
                    retry_after: lease_left,
                }
            }
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
            Self::Throttled(retry_after) => Error::Throttled {
                operation,
                key,
                retry_after,
            },
            Self::Token(_) => Error::UnknownToken { operation, key },
            Self::Store(error) if error.kind() == StoreErrorKind::Unreadable => Error::Codec {
                operation,
                key,
                reason: error.to_string().into(),
                is_message: false,
            },
            Self::Store(source) => Error::Store {
                operation,
                key,
                source,
            },
        }
    }
}

pub(super) fn of_failure(error: &StoreError) -> Decision {
    match error.kind() {
        StoreErrorKind::Unreadable => Decision::Unreadable,
        StoreErrorKind::Conflict => Decision::Conflict,
        _ => Decision::StoreFailed,
    }
}
