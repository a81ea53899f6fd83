//! Why a call does not run, and what its caller gets.

use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock;
use crate::call::request::Request;
use crate::error::Error;
use crate::observe::{Decision, Observer};
use crate::policy::settings::InFlight;
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

impl Runtime {
    /// The target of the decisions that end a guarded call; those of an observing call are only
    /// hypothetical.
    pub(crate) fn reporter(&self, request: &Request) -> Observer {
        self.observer.observing(request.settings.observes)
    }

    /// Refuses a submission with a malformed token, and one of a subject that has sent too many
    /// invalid ones.
    pub(crate) fn admit(
        &self,
        request: &Request,
        submission: &Submission,
        now: Instant,
    ) -> Result<(), Error> {
        if let Some(throttle) = self.throttle.as_ref().filter(|_| !submission.settles)
            && let Some(retry_after) =
                throttle.check(request.id.operation(), submission.subject, now)
        {
            return Err(self.reject(request, &Rejected::Throttled(retry_after)));
        }
        submission.flaw.map_or(Ok(()), |flaw| {
            Err(self.reject(request, &Rejected::Token(flaw)))
        })
    }

    pub(crate) fn reject(&self, request: &Request, why: &Rejected) -> Error {
        let (operation, key) = (request.id.operation().into(), request.id.digest());
        let (decision, attempt, error) = match *why {
            Rejected::InFlight(lease_left) => {
                let would_wait =
                    request.settings.observes && request.settings.in_flight == InFlight::Wait;
                let decision = if would_wait {
                    Decision::Waited
                } else {
                    Decision::RejectedInFlight
                };
                (decision, 0, request.in_flight(lease_left))
            }
            Rejected::Duplicate => (
                Decision::RejectedDuplicate,
                0,
                Error::Duplicate { operation, key },
            ),
            Rejected::Done => (
                Decision::RejectedAlreadyDone,
                0,
                Error::AlreadyDone { operation, key },
            ),
            Rejected::Mismatch => (
                Decision::RejectedMismatch,
                0,
                Error::FingerprintMismatch { operation, key },
            ),
            Rejected::Abandoned(attempt) => (
                Decision::RejectedAbandoned,
                attempt,
                Error::Abandoned {
                    operation,
                    key,
                    attempt,
                },
            ),
            Rejected::Exhausted(attempts) => (
                Decision::RejectedExhausted,
                attempts,
                Error::AttemptsExhausted {
                    operation,
                    key,
                    attempts,
                },
            ),
            Rejected::TooLate(attempt) => (
                Decision::ClaimTooLate,
                attempt,
                Error::LeaseLost {
                    operation,
                    key,
                    attempt,
                },
            ),
            Rejected::Reentrant => (
                Decision::RejectedReentrant,
                0,
                Error::Reentrant { operation, key },
            ),
            Rejected::Throttled(retry_after) => (
                Decision::TokenThrottled,
                0,
                Error::Throttled {
                    operation,
                    key,
                    retry_after,
                },
            ),
            Rejected::Token(flaw) => {
                if let (Some(throttle), Some(submission)) = (&self.throttle, &request.submission)
                    && flaw.may_be_guess()
                    && !submission.settles
                {
                    throttle.failed(request.id.operation(), submission.subject, clock::now());
                }
                (flaw.decision(), 0, Error::UnknownToken { operation, key })
            }
        };
        let observer = self.reporter(request);
        if let Some(submission) = &request.submission {
            observer.decided_because(decision, &request.id, attempt, submission);
            return error;
        }
        observer.decided(decision, &request.id, attempt);
        error
    }
}
