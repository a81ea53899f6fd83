//! Runs a body under its lease.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, FutureExt as _};

use crate::error::Error;
use crate::lease::term::Term;

/// How a body ended.
pub(crate) enum BodyExit<T> {
    /// It returned.
    Returned(T),
    /// It was stopped, because its lease was lost. The caller gets this error.
    Lost(Error),
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

/// Polls a body while its lease is held. Drops the body when the lease is lost, or the body has
/// ended.
///
/// It reads the lease before each poll. So a process that was stopped for longer than its lease
/// does not poll the body once more when it continues. Without a lease, the body runs to its end.
pub(crate) fn run<'a, F: Future>(
    term: Option<&'a Term>,
    body: Pin<&'a mut Option<F>>,
) -> RunningBody<'a, F> {
    RunningBody {
        term,
        body,
        lost: None,
    }
}

/// The future of [`run`].
pub(crate) struct RunningBody<'a, F> {
    term: Option<&'a Term>,
    body: Pin<&'a mut Option<F>>,
    /// Resolves when the lease is lost. Only a body that waits needs a wake-up for that. Most short
    /// bodies end at their first poll.
    lost: Option<BoxFuture<'a, ()>>,
}

impl<F: Future> RunningBody<'_, F> {
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<BodyExit<F::Output>> {
        if let Some(term) = self.term.filter(|term| term.is_lost()) {
            return Poll::Ready(BodyExit::Lost(term.lost_error()));
        }
        let Some(running) = self.body.as_mut().as_pin_mut() else {
            // Callers always pass a body, so this does not happen.
            return Poll::Pending;
        };
        // The body is not polled again after a panic, so nothing sees its half-done state.
        match catch_unwind(AssertUnwindSafe(|| running.poll(context))) {
            Ok(Poll::Ready(value)) => Poll::Ready(BodyExit::Returned(value)),
            Ok(Poll::Pending) => {
                let Some(term) = self.term else {
                    return Poll::Pending;
                };
                let lost = self.lost.get_or_insert_with(|| term.lost().boxed());
                let lost = lost.as_mut().poll(context);
                lost.map(|()| BodyExit::Lost(term.lost_error()))
            }
            Err(panic) => Poll::Ready(BodyExit::Panicked(panic)),
        }
    }
}

impl<F: Future> Future for RunningBody<'_, F> {
    type Output = BodyExit<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let end = ready!(this.poll_body(context));
        this.body.set(None);
        Poll::Ready(end)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::encoding::key::Key;
    use crate::record::RecordId;

    #[derive(Clone, Copy)]
    enum Does {
        Returns,
        Panics,
        Waits,
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_dropped_when_it_has_ended_or_must_stop_and_is_woken_for_that_only_if_it_waits()
     {
        let id = RecordId::new("orders", &Key::encode("1").unwrap()).unwrap();
        let length = Duration::from_secs(10);
        let term = Term::first(id, length);
        for does in [Does::Returns, Does::Panics, Does::Waits] {
            let mut body = pin!(Some(async move {
                match does {
                    Does::Returns => {}
                    Does::Panics => panic!("the body"),
                    Does::Waits => std::future::pending().await,
                }
            }));
            {
                let mut running = run(Some(&term), body.as_mut());
                let exit = (&mut running).now_or_never();
                assert_eq!(running.lost.is_some(), matches!(does, Does::Waits));
                let exit = match exit {
                    Some(exit) => exit,
                    None => running.await,
                };
                assert!(matches!(
                    (does, exit),
                    (Does::Returns, BodyExit::Returned(()))
                        | (Does::Panics, BodyExit::Panicked(_))
                        | (
                            Does::Waits,
                            BodyExit::Lost(Error::LeaseLost { attempt: 1, .. })
                        )
                ));
            }
            assert!(body.is_none());
        }
    }
}
