//! Running a body under its lease.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use crate::lease::term::Term;

/// How a body ended.
pub(crate) enum BodyExit<T> {
    /// It returned.
    Returned(T),
    /// It was stopped, because its lease was lost.
    Lost,
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

/// Polls a body as long as its lease is held, and drops it then, or when it has ended.
///
/// The lease is looked at before each poll, so a process that was stopped for longer than its lease
/// does not poll the body once more when it goes on. Without a lease to look at, the body runs to
/// its end.
pub(crate) async fn run<F: Future>(
    term: Option<&Term>,
    mut body: Pin<&mut Option<F>>,
) -> BodyExit<F::Output> {
    let end = {
        // Most bodies that are short end at their first poll: only one that waits needs to be told.
        let mut lost = None;
        poll_fn(|context| {
            if term.is_some_and(Term::is_lost) {
                return Poll::Ready(BodyExit::Lost);
            }
            let Some(running) = body.as_mut().as_pin_mut() else {
                // There is nothing to run; never so, since callers pass a body.
                return Poll::Ready(BodyExit::Lost);
            };
            // The body is not polled again after a panic, so its half-done state stays unseen.
            match catch_unwind(AssertUnwindSafe(|| running.poll(context))) {
                Ok(Poll::Ready(value)) => Poll::Ready(BodyExit::Returned(value)),
                Ok(Poll::Pending) => {
                    let Some(term) = term else {
                        return Poll::Pending;
                    };
                    let lost = lost.get_or_insert_with(|| Box::pin(term.lost()));
                    lost.as_mut().poll(context).map(|()| BodyExit::Lost)
                }
                Err(panic) => Poll::Ready(BodyExit::Panicked(panic)),
            }
        })
        .await
    };
    body.set(None);
    end
}
