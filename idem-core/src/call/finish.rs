//! Decides what the end of a body means for its record and for its caller, for every kind of call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::call::keeping::Policy;
use crate::call::ownership::Ownership;
use crate::call::plan::{AfterTry, Answer, GiveUp, Over, Panic, RecordPlan, TryEnd, Verdict};
use crate::call::recorded::Recorded;
use crate::call::witness::Witness;
use crate::error::Error;
use crate::observe::Decision;
use crate::outcome::codec::{CodecFailure, caught};
use crate::policy::errors::{ErrorAction, Next, Then, Tries};
use crate::record::Encoded;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::task::current::{self, Call};
use crate::task::watch::{self, Seen};

/// How the results of a body are handled: what its type allows, and what its error policy says.
pub(crate) struct Handling<R, T, E, P> {
    pub(crate) witness: Witness<R, T, E>,
    pub(crate) policy: Policy<P, E>,
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

    /// Decides what the end of a try means.
    pub(crate) fn judge<O: Ownership<R>>(
        &self,
        owner: &O,
        tries: &mut Tries,
        can_retry: bool,
        end: TryEnd<R>,
    ) -> AfterTry<T, E> {
        let call = owner.call();
        match end {
            TryEnd::Stopped(error) => returns(Verdict::AsPlanned, Err(self.fail(error))),
            TryEnd::Panicked(panic) => panics(owner, give_up(call, tries), panic),
            TryEnd::Returned(returned) => match (self.witness.split)(returned) {
                Ok(value) => returns(verdict_on_value(owner, call), Ok(value)),
                Err(error) => self.judge_error(owner, tries, can_retry, error),
            },
        }
    }

    /// Decides what an error of the body means, as its policy says.
    fn judge_error<O: Ownership<R>>(
        &self,
        owner: &O,
        tries: &mut Tries,
        can_retry: bool,
        error: E,
    ) -> AfterTry<T, E> {
        let call = owner.call();
        let give_up = give_up(call, tries);
        // An error of `reconcile` is not the body's own: the record stays abandoned, whatever the
        // policy says of such an error. Without a record, the policy only decides on a retry.
        let is_unreconciled = call.is_some_and(Call::is_unreconciled);
        if is_unreconciled || (call.is_none() && !can_retry) {
            return returns(Verdict::GiveUp(give_up), Err(error));
        }
        let action = match catch_unwind(AssertUnwindSafe(|| (self.policy.action)(&error))) {
            Ok(action) => action,
            // The policy is the author's code, so its panic counts as one of the body.
            Err(panic) => return panics(owner, give_up, panic),
        };
        let is_retry = matches!(action, ErrorAction::Retry(_));
        let then = match tries.next(action) {
            Next::Retry { pause, then, most } if can_retry => {
                let why = format_args!("try {} of {most} in {pause:.0?}", tries.count());
                owner.report(Decision::Retried, Some(&why));
                return AfterTry::Retry {
                    pause,
                    give_up: GiveUp::abandon_if(
                        give_up == GiveUp::Abandon || then == Then::Abandon,
                    ),
                    error,
                };
            }
            _ if is_retry && !owner.can_replace_retry() => Then::Release,
            Next::Retry { then, .. } | Next::Then(then) => then,
        };
        let verdict = match then {
            Then::Release => Verdict::GiveUp(give_up),
            Then::Abandon => Verdict::GiveUp(GiveUp::Abandon),
            Then::Keep(kept_for) => Verdict::KeepError {
                kept_for,
                else_give_up: give_up,
            },
        };
        returns(verdict, Err(error))
    }

    /// Turns a verdict into the step at the store, and encodes the outcome. `None`: the step that
    /// was planned before stays.
    pub(crate) fn plan<O: Ownership<R>>(
        &self,
        owner: &O,
        verdict: Verdict,
        answer: &Answer<T, E>,
    ) -> Option<RecordPlan> {
        let Some(writer) = owner.writer() else {
            return Some(RecordPlan::Nothing);
        };
        Some(match (verdict, answer) {
            (Verdict::AsPlanned, _) => return None,
            (Verdict::RecordedInTransaction, _) => RecordPlan::RecordedInTransaction,
            (Verdict::CommitValue, Answer::Returns(Ok(value))) => RecordPlan::Commit {
                outcome: (self.witness.encode)(&writer, value),
                kept_for: None,
            },
            (Verdict::CommitValue | Verdict::CommitWithoutValue, _) => RecordPlan::Commit {
                outcome: None,
                kept_for: None,
            },
            (
                Verdict::KeepError {
                    kept_for,
                    else_give_up,
                },
                Answer::Returns(Err(error)),
            ) => match self.encoded_error(owner.call(), &writer, error) {
                Ok(encoded) => RecordPlan::Commit {
                    outcome: Some(encoded),
                    kept_for,
                },
                Err(failure) => {
                    owner.report(Decision::ErrorNotKept, Some(&failure));
                    RecordPlan::GiveUp(else_give_up)
                }
            },
            (Verdict::KeepError { else_give_up, .. }, _) => RecordPlan::GiveUp(else_give_up),
            (Verdict::GiveUp(give_up), _) => RecordPlan::GiveUp(give_up),
        })
    }

    fn encoded_error(
        &self,
        call: Option<&Call>,
        writer: &OutcomeWriter<'_>,
        error: &E,
    ) -> Result<Encoded, CodecFailure> {
        let Some(error_codec) = &self.policy.error_codec else {
            return Err("its policy says that no error of this type is kept".into());
        };
        if call.is_some_and(Call::is_tainted) {
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

/// What a body does to its record when it is given up. An earlier try of this call may have an
/// unknown outcome.
fn give_up(call: Option<&Call>, tries: &Tries) -> GiveUp {
    if call.is_some_and(Call::is_unreconciled) {
        GiveUp::Unanswered
    } else {
        GiveUp::abandon_if(tries.is_outcome_unknown())
    }
}

fn returns<T, E>(verdict: Verdict, returned: Result<T, E>) -> AfterTry<T, E> {
    AfterTry::Over(Over {
        verdict,
        answer: Answer::Returns(returned),
    })
}

fn panics<R, T, E, O: Ownership<R>>(owner: &O, give_up: GiveUp, panic: Panic) -> AfterTry<T, E> {
    owner.report(Decision::Panicked, None);
    AfterTry::Over(Over {
        verdict: Verdict::GiveUp(give_up),
        answer: Answer::Panics(panic),
    })
}

fn verdict_on_value<R, O: Ownership<R>>(owner: &O, call: Option<&Call>) -> Verdict {
    let Some(call) = call else {
        return Verdict::AsPlanned;
    };
    if call.is_reconciled() {
        owner.report(Decision::Reconciled, None);
    }
    if call.is_recorded() {
        Verdict::RecordedInTransaction
    } else if call.omits_outcome() {
        Verdict::CommitWithoutValue
    } else {
        Verdict::CommitValue
    }
}
