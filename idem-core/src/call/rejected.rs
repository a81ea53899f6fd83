//! Why a call does not run, and the error that its caller gets.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock;
use crate::call::request::Request;
use crate::error::Error;
use crate::observe::{Decision, Observer};
use crate::policy::settings::InFlight;
use crate::record::{Claimed, Encoded, Origin, RecordId};
use crate::runtime::Runtime;
use crate::token::{Flaw, Submission};

/// Why a call does not run.
pub(crate) enum Rejected {
    InFlight(Duration),
    Duplicate,
    Done,
    Mismatch,
    Abandoned(u64),
    Exhausted(u64),
    TooLate(u64),
    Reentrant,
    Token(Flaw),
    Throttled(Duration),
}

/// What the store's answer to a claim means for the call.
pub(crate) enum ClaimAnswer {
    Owned { attempt: u64, from: Origin },
    InFlight { attempt: u64, lease_left: Duration },
    Committed { attempt: u64, outcome: Encoded },
    Rejected(Rejected),
}

impl From<Claimed> for ClaimAnswer {
    fn from(claimed: Claimed) -> Self {
        Self::Rejected(match claimed {
            Claimed::Owned { attempt, from } => return Self::Owned { attempt, from },
            Claimed::InFlight {
                attempt,
                lease_left,
            } => {
                return Self::InFlight {
                    attempt,
                    lease_left,
                };
            }
            Claimed::Committed { attempt, outcome } => {
                return Self::Committed { attempt, outcome };
            }
            Claimed::Done { .. } => Rejected::Done,
            Claimed::Mismatch => Rejected::Mismatch,
            Claimed::Abandoned { attempt } => Rejected::Abandoned(attempt),
            Claimed::Exhausted { attempts } => Rejected::Exhausted(attempts),
            Claimed::NotIssued => Rejected::Token(Flaw::Unknown),
            Claimed::IssueExpired => Rejected::Token(Flaw::Expired),
        })
    }
}

impl Rejected {
    fn decision(&self, request: &Request) -> Decision {
        match self {
            Self::InFlight(_) => {
                let would_wait =
                    request.settings.observes && request.settings.in_flight == InFlight::Wait;
                if would_wait {
                    Decision::Waited
                } else {
                    Decision::RejectedInFlight
                }
            }
            Self::Duplicate => Decision::RejectedDuplicate,
            Self::Done => Decision::RejectedAlreadyDone,
            Self::Mismatch => Decision::RejectedMismatch,
            Self::Abandoned(_) => Decision::RejectedAbandoned,
            Self::Exhausted(_) => Decision::RejectedExhausted,
            Self::TooLate(_) => Decision::ClaimTooLate,
            Self::Reentrant => Decision::RejectedReentrant,
            Self::Throttled(_) => Decision::TokenThrottled,
            Self::Token(flaw) => flaw.decision(),
        }
    }

    /// The attempt that the decision is about, or 0.
    fn attempt(&self) -> u64 {
        match *self {
            Self::Abandoned(attempt) | Self::Exhausted(attempt) | Self::TooLate(attempt) => attempt,
            _ => 0,
        }
    }

    fn error(&self, id: &RecordId) -> Error {
        let operation = id.name().into();
        let key = id.digest();
        match *self {
            Self::InFlight(lease_left) => Error::InFlight {
                operation,
                key,
                lease_left,
                retry_after: lease_left,
            },
            Self::Duplicate => Error::Duplicate { operation, key },
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
        }
    }
}

impl Runtime {
    /// Returns the observer for decisions that end a guarded call. In observe mode it reports them
    /// as hypothetical.
    pub(crate) fn reporter(&self, request: &Request) -> Observer {
        self.observer.observing(request.settings.observes)
    }

    /// Refuses a submission whose token is malformed, or whose subject has sent too many invalid
    /// tokens.
    pub(crate) fn admit(
        &self,
        request: &Request,
        submission: &Submission,
        now: Instant,
    ) -> Result<(), Error> {
        if let Some(throttle) = self.throttle.as_ref().filter(|_| !submission.settles)
            && let Some(retry_after) = throttle.check(request.id.name(), submission.subject, now)
        {
            return Err(self.reject(request, &Rejected::Throttled(retry_after)));
        }
        submission.flaw.map_or(Ok(()), |flaw| {
            Err(self.reject(request, &Rejected::Token(flaw)))
        })
    }

    /// Reports why the call does not run, and returns its error.
    pub(crate) fn reject(&self, request: &Request, why: &Rejected) -> Error {
        if let Rejected::Token(flaw) = why
            && flaw.may_be_guess()
            && let (Some(throttle), Some(submission)) = (&self.throttle, &request.submission)
            && !submission.settles
        {
            throttle.failed(request.id.name(), submission.subject, clock::now());
        }
        let decision = why.decision(request);
        let attempt = why.attempt();
        let error = why.error(&request.id);
        let observer = self.reporter(request);
        if let Some(submission) = &request.submission {
            observer.decided_because(decision, &request.id, attempt, submission);
            return error;
        }
        observer.decided(decision, &request.id, attempt);
        error
    }
}
