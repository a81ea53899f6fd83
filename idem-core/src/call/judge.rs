//! Decides what the end of a body means for its record and for its caller, for every kind of call.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::call::body::BodyExit;
use crate::call::keeping::Policy;
use crate::call::recorded::Recorded;
use crate::call::witness::{Witness, outcome_of};
use crate::error::Error;
use crate::observe::Event;
use crate::outcome::Storable;
use crate::outcome::codec::{CodecFailure, caught};
use crate::policy::errors::{ErrorAction, Next, Then, Tries};
use crate::record::Encoded;
use crate::task::current::{self, Call, OMITS, RECONCILED, RECORDED, TAINTED, UNRECONCILED};
use crate::task::outcome_writer::OutcomeWriter;
use crate::task::watch::{self, Seen};

pub(crate) const RETRIED: Event = Event::info("retried");

pub(crate) type Panic = Box<dyn Any + Send>;

/// The caller's result, or the body's panic.
pub(crate) type Answer<T, E> = Result<Result<T, E>, Panic>;

/// Returns the result, or resumes the body's panic.
pub(crate) fn give<T, E>(answer: Answer<T, E>) -> Result<T, E> {
    answer.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The meaning of a try's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ruling {
    Over(Ending),
    /// The body runs again after a pause. If the call ends during the pause, the key is given up.
    Retry {
        pause: Duration,
        give_up: GiveUp,
        /// The tries in all.
        most: u32,
    },
}

/// The fate of the record, before anything is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing: there is no record, or another call owns it.
    Nothing,
    /// A transaction of the body has recorded the outcome.
    RecordedByBody,
    /// The value is the outcome.
    CommitValue,
    /// The call is recorded without its value.
    CommitWithoutValue,
    /// The error is the outcome, with a retention of its own if `kept_for` is set. If the error
    /// fails to encode, the key is given up.
    KeepError {
        kept_for: Option<Duration>,
        or_else: GiveUp,
    },
    GiveUp(GiveUp),
}

/// The step that is left to do to the record.
pub(crate) enum StepLeft {
    /// The body has not ended.
    Running,
    /// The outcome is to be recorded.
    Commit {
        /// `None` if it is left out: it failed to encode, is too large, or the body asked for that.
        outcome: Option<Encoded>,
        /// The outcome is kept and remembered for that long, and not as the operation says.
        kept_for: Option<Duration>,
    },
    /// The key is to be given up.
    GiveUp(GiveUp),
    /// Nothing.
    Over,
}

/// How a key is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The body may run again.
    Release,
    /// The outcome of the body is unknown.
    Abandon,
    /// No body has begun. What an earlier body did is still unknown.
    Unanswered,
}

/// Whether a call can run its body again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reruns {
    Can,
    /// The body runs once. An error that asks for a retry is treated as after the last one.
    Never,
    /// Like `Never`, but such an error releases the key: the transaction's owner may run it again.
    InTransaction,
}

/// All that a ruling depends on, besides how the try ended.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact by itself")]
struct Facts {
    has_record: bool,
    reruns: Reruns,
    /// No body has begun: the question about an earlier one got no answer.
    is_unreconciled: bool,
    is_recorded: bool,
    omits_outcome: bool,
}

/// How a try ended, as a ruling sees it.
#[derive(Debug, Clone, Copy)]
enum End {
    Value,
    Error(ErrorAction),
    Panic,
}

/// Reports an event of the call.
pub(crate) type Report<'a> = &'a dyn Fn(Event, Option<&dyn Display>);

impl Facts {
    fn gather(call: Option<&Call>, reruns: Reruns) -> Self {
        let has = |event| call.is_some_and(|call| call.has(event));
        Self {
            has_record: call.is_some(),
            reruns,
            is_unreconciled: has(UNRECONCILED),
            is_recorded: has(RECORDED),
            omits_outcome: has(OMITS),
        }
    }

    /// Whether the error policy decides anything. An error of `reconcile` is not the body's own:
    /// the record stays abandoned, whatever the policy says of such an error. Without a record, the
    /// policy only decides on a retry.
    fn asks_policy(self) -> bool {
        !self.is_unreconciled && (self.has_record || self.reruns == Reruns::Can)
    }
}

/// Rules what the end of a try means.
fn rule(facts: Facts, tries: &mut Tries, end: End) -> Ruling {
    // An earlier try of this call may have an unknown outcome.
    let give_up = match (facts.is_unreconciled, tries.is_outcome_unknown()) {
        (true, _) => GiveUp::Unanswered,
        (false, true) => GiveUp::Abandon,
        (false, false) => GiveUp::Release,
    };
    let ending = match end {
        End::Panic => Ending::GiveUp(give_up),
        End::Value if facts.is_recorded => Ending::RecordedByBody,
        End::Value if facts.omits_outcome => Ending::CommitWithoutValue,
        End::Value => Ending::CommitValue,
        End::Error(_) if !facts.asks_policy() => Ending::GiveUp(give_up),
        End::Error(action) => {
            let is_retry = matches!(action, ErrorAction::Retry(_));
            let then = match tries.next(action) {
                Next::Retry { pause, then, most } if facts.reruns == Reruns::Can => {
                    let give_up = match then {
                        Then::Abandon => GiveUp::Abandon,
                        _ => give_up,
                    };
                    return Ruling::Retry {
                        pause,
                        give_up,
                        most,
                    };
                }
                _ if is_retry && facts.reruns == Reruns::InTransaction => Then::Release,
                Next::Retry { then, .. } | Next::Then(then) => then,
            };
            match then {
                Then::Release => Ending::GiveUp(give_up),
                Then::Abandon => Ending::GiveUp(GiveUp::Abandon),
                Then::Keep(kept_for) => Ending::KeepError {
                    kept_for,
                    or_else: give_up,
                },
            }
        }
    };
    Ruling::Over(if facts.has_record {
        ending
    } else {
        Ending::Nothing
    })
}

/// How the results of a body are handled: what its type allows, and what its error policy says.
pub(crate) struct Handling<R, T, E, P> {
    pub(crate) witness: Witness<R, T, E>,
    pub(crate) policy: Policy<P, E>,
}

impl<T, E: From<Error>, P> Handling<Result<T, E>, T, E, P> {
    pub(crate) fn new<Via>(policy: Policy<P, E>) -> Self
    where
        T: Storable<Via>,
    {
        let witness = outcome_of::<Result<T, E>, Via>();
        Self { witness, policy }
    }
}

impl<R, T, E, P: Fn(&E) -> ErrorAction> Handling<R, T, E, P> {
    /// Converts an error of `idem` into the body's error type. The body around this call may pass
    /// it on, so that body is marked as tainted.
    fn fail(&self, error: Error) -> E {
        current::taint();
        (self.witness.fail)(error)
    }

    /// Fails a call that has neither run its body nor found an outcome.
    pub(crate) fn refuse(&self, error: Error) -> E {
        watch::note(Seen::Failed);
        self.fail(error)
    }

    /// Decodes a recorded outcome: a value or a kept error.
    pub(crate) fn decoded(&self, recorded: &Recorded) -> Result<Result<T, E>, Error> {
        match &self.policy.error_codec {
            Some(error_codec) if recorded.is_error() => (error_codec.decode)(recorded).map(Err),
            _ => (self.witness.decode)(recorded).map(Ok),
        }
    }

    /// Decodes a recorded outcome that becomes the answer of this call.
    pub(crate) fn replay(&self, recorded: &Recorded) -> Result<Result<T, E>, Error> {
        self.decoded(recorded)
            .inspect(|_| watch::note(Seen::Replayed))
    }

    /// Decides what the end of a try means, and what the caller gets if it is the last one.
    pub(crate) fn judge(
        &self,
        call: Option<&Call>,
        reruns: Reruns,
        tries: &mut Tries,
        exit: BodyExit<R>,
        report: Report<'_>,
    ) -> (Ruling, Answer<T, E>) {
        let facts = Facts::gather(call, reruns);
        let (end, answer) = match exit {
            BodyExit::Lost(error) => {
                return (Ruling::Over(Ending::Nothing), Ok(Err(self.fail(error))));
            }
            BodyExit::Panicked(panic) => (End::Panic, Err(panic)),
            BodyExit::Returned(returned) => match (self.witness.split)(returned) {
                Ok(value) => (End::Value, Ok(Ok(value))),
                Err(error) if facts.asks_policy() => {
                    let asked = catch_unwind(AssertUnwindSafe(|| (self.policy.action)(&error)));
                    match asked {
                        Ok(action) => (End::Error(action), Ok(Err(error))),
                        // The policy is the author's code, so its panic counts as one of the body.
                        Err(panic) => (End::Panic, Err(panic)),
                    }
                }
                Err(error) => (End::Error(ErrorAction::Release), Ok(Err(error))),
            },
        };
        match end {
            End::Panic => report(Event::warn("panicked"), None),
            End::Value if call.is_some_and(|call| call.has(RECONCILED)) => {
                report(Event::info("reconciled"), None);
            }
            End::Value | End::Error(_) => {}
        }
        let ruling = rule(facts, tries, end);
        if let Ruling::Retry { pause, most, .. } = ruling {
            let why = format_args!("try {} of {most} in {pause:.0?}", tries.count());
            report(RETRIED, Some(&why));
        }
        (ruling, answer)
    }

    /// Decides like [`judge`](Self::judge), for a body that runs once.
    pub(crate) fn judge_once(
        &self,
        call: Option<&Call>,
        unlisted: Then,
        exit: BodyExit<R>,
        report: Report<'_>,
    ) -> (Ending, Answer<T, E>) {
        let mut tries = Tries::new(unlisted);
        match self.judge(call, Reruns::InTransaction, &mut tries, exit, report) {
            (Ruling::Over(ending), answer) => (ending, answer),
            (Ruling::Retry { give_up, .. }, answer) => (Ending::GiveUp(give_up), answer),
        }
    }

    /// Turns an ending into what is left to do to the record, and encodes the outcome. `None`: what
    /// was planned before stays.
    pub(crate) fn encode(
        &self,
        call: &Call,
        writer: &OutcomeWriter<'_>,
        ending: Ending,
        answer: &Answer<T, E>,
        report: Report<'_>,
    ) -> Option<StepLeft> {
        Some(match (ending, answer) {
            (Ending::Nothing | Ending::RecordedByBody, _) => return None,
            (Ending::CommitValue, Ok(Ok(value))) => StepLeft::Commit {
                outcome: (self.witness.encode)(writer, value),
                kept_for: None,
            },
            (Ending::CommitValue | Ending::CommitWithoutValue, _) => StepLeft::Commit {
                outcome: None,
                kept_for: None,
            },
            (Ending::KeepError { kept_for, or_else }, Ok(Err(error))) => {
                match self.encoded_error(call, writer, error) {
                    Ok(encoded) => StepLeft::Commit {
                        outcome: Some(encoded),
                        kept_for,
                    },
                    Err(failure) => {
                        report(Event::warn("error_not_kept"), Some(&failure));
                        StepLeft::GiveUp(or_else)
                    }
                }
            }
            (Ending::KeepError { or_else, .. }, _) => StepLeft::GiveUp(or_else),
            (Ending::GiveUp(give_up), _) => StepLeft::GiveUp(give_up),
        })
    }

    fn encoded_error(
        &self,
        call: &Call,
        writer: &OutcomeWriter<'_>,
        error: &E,
    ) -> Result<Encoded, CodecFailure> {
        let Some(error_codec) = &self.policy.error_codec else {
            return Err("its policy says that no error of this type is kept".into());
        };
        if call.has(TAINTED) {
            return Err(
                "a guarded call inside of it failed with an error of idem, which is never kept"
                    .into(),
            );
        }
        caught(|| {
            if (error_codec.has_ours)(error) {
                return Err("an error of idem is among its sources, and is never kept".into());
            }
            (error_codec.encode)(writer, error)
        })
    }
}
