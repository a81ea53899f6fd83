//! Asks what became of an attempt that was cut off, at the start of the body that would run again.

use std::future::{Future, Pending, pending};

use crate::task::current;

/// The question of a call, at the start of its body.
#[diagnostic::on_unimplemented(
    message = "what `reconcile` gives does not fit what the body gives",
    label = "the body and the question differ",
    note = "for a body that gives `Result<T, E>`, `reconcile` gives a future of `Result<Option<T>, \
        E>`"
)]
pub trait Question<T, E>: sealed::Question {
    /// Whether there is a question.
    const ASKS: bool;
    /// The future that answers the question.
    type Asked: Future<Output = Result<Option<T>, E>>;

    /// Asks.
    fn ask(self) -> Self::Asked;
}

/// Only this crate implements the trait, so that it can grow.
mod sealed {
    pub trait Question {}
    impl Question for () {}
    impl<R> Question for super::Reconcile<R> {}
}

/// No question.
impl<T, E> Question<T, E> for () {
    const ASKS: bool = false;
    type Asked = Pending<Result<Option<T>, E>>;

    fn ask(self) -> Self::Asked {
        pending()
    }
}

/// The question of [`Operation::reconcile`](crate::Operation::reconcile).
#[derive(Debug)]
pub struct Reconcile<R>(pub(crate) R);

impl<R, Asked, T, E> Question<T, E> for Reconcile<R>
where
    R: FnOnce() -> Asked,
    Asked: Future<Output = Result<Option<T>, E>>,
{
    const ASKS: bool = true;
    type Asked = Asked;

    fn ask(self) -> Asked {
        (self.0)()
    }
}

/// Asks about an earlier attempt, if there was one. Returns the body's result if the body need not
/// run.
pub(crate) async fn asked<T, E, Q: Question<T, E>>(question: Option<Q>) -> Option<Result<T, E>> {
    let question = question.filter(|_| Q::ASKS && must_reconcile())?;
    reconciled(question.ask().await)
}

/// Whether the running body must ask first what became of an earlier attempt.
pub(crate) fn must_reconcile() -> bool {
    current::current().is_some_and(|call| call.begin_reconcile())
}

/// Returns the running body's result, if the answer replaces it.
pub(crate) fn reconciled<T, E>(asked: Result<Option<T>, E>) -> Option<Result<T, E>> {
    if let (Ok(found), Some(call)) = (&asked, current::current()) {
        call.was_answered(found.is_some());
    }
    asked.transpose()
}
