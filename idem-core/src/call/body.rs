//! Runs a body under its lease.

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

/// Polls a body while its lease is held. Drops the body when the lease is lost, or the body has
/// ended.
///
/// It reads the lease before each poll. So a process that was stopped for longer than its lease
/// does not poll the body once more when it continues. Without a lease, the body runs to its end.
pub(crate) async fn run<F: Future>(
    term: Option<&Term>,
    mut body: Pin<&mut Option<F>>,
) -> BodyExit<F::Output> {
    let end = {
        // Only a body that waits needs a wake-up for the loss. Most short bodies end at their first
        // poll.
        let mut lost = None;
        poll_fn(|context| {
            if term.is_some_and(Term::is_lost) {
                return Poll::Ready(BodyExit::Lost);
            }
            let Some(running) = body.as_mut().as_pin_mut() else {
                // Callers always pass a body, so this does not happen.
                return Poll::Ready(BodyExit::Lost);
            };
            // The body is not polled again after a panic, so nothing sees its half-done state.
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
