//! Runs a body to its end: the one flow of every kind of call.

use std::ops::Deref;

use crate::call::finish::Handling;
use crate::call::ownership::Ownership;
use crate::call::plan::{AfterTry, Answer, RecordPlan, Verdict};
use crate::error::Error;
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Tries};
use crate::task::current::Call;

/// A call that has ended.
pub(crate) struct Finished<T, E> {
    pub(crate) answer: Answer<T, E>,
    /// If this is an error, the caller gets it instead of the answer.
    pub(crate) carried_out: Result<(), Error>,
    /// The body's error is the outcome.
    pub(crate) is_error_kept: bool,
}

impl<T, E> Finished<T, E> {
    /// Returns the result as an outcome of this call, or resumes the body's panic.
    pub(crate) fn give(self) -> Result<Outcome<T>, E> {
        self.answer.give().map(Outcome::executed)
    }
}

/// Runs the body, once more if its policy says so, and records its outcome. A body that can run
/// only once has no next try.
pub(crate) async fn run<R, T, E, P, H, O, A>(
    handling: H,
    mut owner: O,
    mut tries: Tries,
    mut begin_next_try: Option<A>,
) -> Finished<T, E>
where
    P: Fn(&E) -> ErrorAction,
    // A policy need not be `Sync`, because a detached body holds the only reference.
    H: Deref<Target = Handling<R, T, E, P>>,
    O: Ownership<R>,
    A: FnMut(&mut O),
{
    // Separate from the answer, so that the future holds it only until the record is planned.
    let verdict;
    let answer = loop {
        let end = owner.run_body().await;
        let after = handling.judge(&owner, &mut tries, begin_next_try.is_some(), end);
        match after {
            AfterTry::Over(over) => {
                verdict = over.verdict;
                break over.answer;
            }
            AfterTry::Retry {
                pause,
                give_up,
                error,
            } => {
                // No body runs between two tries, so a call that ends here gives its key up.
                owner.plan(RecordPlan::GiveUp(give_up));
                // Boxed, because few calls come here, and the future of every call would be larger.
                if !Box::pin(owner.wait_for_next_try(pause)).await {
                    verdict = Verdict::AsPlanned;
                    break Answer::Returns(Err(error));
                }
                drop(error);
                if let Some(begin) = &mut begin_next_try {
                    begin(&mut owner);
                }
            }
        }
    };
    // A body that panicked may have left any state, so nothing is claimed after it.
    if let Answer::Returns(_) = answer {
        owner.claim_after_body(verdict).await;
    }
    if let Some(plan) = handling.plan(&owner, verdict, &answer) {
        owner.plan(plan);
    }
    let carried_out = owner.carry_out().await;
    if let (Answer::Returns(Err(_)), Some(call)) = (&answer, owner.call()) {
        // The error goes to the body around this call.
        Call::pass_on_taint(call);
    }
    Finished {
        answer,
        carried_out,
        is_error_kept: owner.is_error_kept(),
    }
}
