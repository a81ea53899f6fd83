//! Asking what became of an earlier attempt that was cut off, at the head of the body that would
//! run again.

use std::future::{Future, Pending, pending};

use crate::task::current;

/// The question of a call at the head of its body.
#[diagnostic::on_unimplemented(
    message = "what `reconcile` gives does not fit what the body gives",
    label = "the body and the question differ",
    note = "for a body that gives `Result<T, E>`, `reconcile` gives a future of `Result<Option<T>, E>`"
)]
pub trait Question<T, E>: sealed::Question {
    /// Whether there is anything to ask.
    const ASKS: bool;
    /// The future that asks.
    type Asked: Future<Output = Result<Option<T>, E>>;

    /// Asks.
    fn ask(self) -> Self::Asked;
}

/// Implemented here alone, so that it can grow.
mod sealed {
    pub trait Question {}
    impl Question for () {}
    impl<R> Question for super::Reconcile<R> {}
}

/// Nothing is asked.
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

/// Returns the body's early result, if it has asked about an earlier attempt and need not continue.
pub(crate) async fn asked<T, E, Q: Question<T, E>>(question: Option<Q>) -> Option<Result<T, E>> {
    let question = question.filter(|_| Q::ASKS && must_reconcile())?;
    reconciled(question.ask().await)
}

/// Whether the body that is running must ask first what became of an earlier one.
pub(crate) fn must_reconcile() -> bool {
    current::current().is_some_and(|call| call.asks())
}

/// Returns the running body's result instead, when it has asked.
pub(crate) fn reconciled<T, E>(asked: Result<Option<T>, E>) -> Option<Result<T, E>> {
    if let (Ok(found), Some(call)) = (&asked, current::current()) {
        call.was_answered(found.is_some());
    }
    asked.transpose()
}
