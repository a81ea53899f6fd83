//! What the end of a body means, in the types of the engine.

use std::any::Any;
use std::panic::resume_unwind;
use std::time::Duration;

use crate::record::Encoded;

/// How a try of a body ended.
pub(crate) enum TryEnd<R> {
    Returned(R),
    Panicked(Panic),
    /// The body was stopped because its lease was lost. The caller gets this error.
    Stopped(crate::error::Error),
}

pub(crate) type Panic = Box<dyn Any + Send>;

/// What the end of a try means.
pub(crate) enum AfterTry<T, E> {
    Over(Over<T, E>),
    /// The body runs again after a pause. If the call ends during the pause, the key is given up.
    Retry {
        pause: Duration,
        give_up: GiveUp,
        error: E,
    },
}

/// The end of a call.
pub(crate) struct Over<T, E> {
    pub(crate) verdict: Verdict,
    pub(crate) answer: Answer<T, E>,
}

/// The caller's result.
pub(crate) enum Answer<T, E> {
    Returns(Result<T, E>),
    Panics(Panic),
}

impl<T, E> Answer<T, E> {
    /// Returns the result, or resumes the body's panic.
    pub(crate) fn give(self) -> Result<T, E> {
        match self {
            Self::Returns(returned) => returned,
            Self::Panics(panic) => resume_unwind(panic),
        }
    }
}

/// What becomes of the record, before anything is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The plan that was made before stays.
    AsPlanned,
    /// A transaction of the body has recorded the outcome.
    RecordedInTransaction,
    /// The value is the outcome.
    CommitValue,
    /// The call is recorded without its value.
    CommitWithoutValue,
    /// The error is the outcome, with a retention of its own if `kept_for` is set. If the error
    /// fails to encode, the key is given up.
    KeepError {
        kept_for: Option<Duration>,
        else_give_up: GiveUp,
    },
    GiveUp(GiveUp),
}

/// What is done to the record.
pub(crate) enum RecordPlan {
    /// Nothing: there is no record, or another call owns it.
    Nothing,
    RecordedInTransaction,
    /// Records the call, without an outcome if `outcome` is `None`. With `kept_for`, the outcome is
    /// kept and remembered for that long.
    Commit {
        outcome: Option<Encoded>,
        kept_for: Option<Duration>,
    },
    GiveUp(GiveUp),
}

/// How a key is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The body may run again.
    Release,
    /// The outcome of the body is unknown.
    Abandon,
    /// No body has begun. What an earlier body did is still unknown.
    Unanswered,
}

impl GiveUp {
    pub(crate) fn abandon_if(is_outcome_unknown: bool) -> Self {
        if is_outcome_unknown {
            Self::Abandon
        } else {
            Self::Release
        }
    }
}
