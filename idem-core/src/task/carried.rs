//! A future that continues in a task of its own if its caller is dropped.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

use crate::runtime::background::Counted;
use crate::runtime::handle::Idempotency;
use crate::task::inherited::Inherited;

/// The future of [`finish_in_background`].
pub struct FinishInBackground<T: Send + 'static> {
    state: State<T>,
    /// The tokio runtime on which it began, and on which it continues.
    handle: Option<Handle>,
    /// Dropped after the future, whose step may continue in the background, so that `shutdown`
    /// always sees one of the two. `None` if the runtime is disabled, which counts nothing.
    counted: Option<Counted>,
    inherited: Option<Inherited>,
    span: Span,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum State<T> {
    /// It was never polled.
    New(Boxed<T>),
    Begun(Boxed<T>),
    /// It has ended, or panicked.
    Over,
}

/// Finishes a future in a background task if its caller is dropped after the first poll.
///
/// Until then the caller polls the future, which needs no task. The background task has the call
/// and the [`scope`](crate::scope) that were current where this was called. Its output is dropped.
///
/// The future counts as a detached body from the beginning, so
/// [`shutdown`](crate::Idempotency::shutdown) waits for it. A future that was never polled, that
/// has panicked, or that began outside a tokio runtime is dropped with its caller.
pub fn finish_in_background<T: Send + 'static>(
    runtime: &Idempotency,
    future: impl Future<Output = T> + Send + 'static,
) -> FinishInBackground<T> {
    FinishInBackground {
        state: State::New(Box::pin(future)),
        handle: Handle::try_current().ok(),
        counted: runtime
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.background.body()),
        inherited: Some(Inherited::here()),
        span: Span::current(),
    }
}

impl<T: Send + 'static> Future for FinishInBackground<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // The state is taken out, so that a future that panics is not polled again.
        let (State::New(mut future) | State::Begun(mut future)) =
            mem::replace(&mut self.state, State::Over)
        else {
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.state = State::Begun(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for FinishInBackground<T> {
    fn drop(&mut self) {
        let State::Begun(future) = mem::replace(&mut self.state, State::Over) else {
            return;
        };
        let (Some(handle), Some(inherited)) = (&self.handle, self.inherited.take()) else {
            return;
        };
        let rest = inherited.around(future);
        let counted = self.counted.take();
        // The order holds even if the task is dropped before its first poll.
        let rest = async move {
            rest.await;
            drop(counted);
        };
        handle.spawn(rest.instrument(mem::replace(&mut self.span, Span::none())));
    }
}

impl<T: Send + 'static> fmt::Debug for FinishInBackground<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishInBackground").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used, clippy::async_yields_async, reason = "tests")]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;
    use crate::MemoryStore;
    use crate::task::scope::{default_runtime, scope};

    /// Polls a future once, with a waker that does nothing.
    fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    /// Counts the runs that came to their end, after a signal.
    fn gated() -> (
        Arc<Notify>,
        Arc<AtomicU32>,
        impl Future<Output = ()> + Send + 'static,
    ) {
        let gate = Arc::new(Notify::new());
        let ended = Arc::new(AtomicU32::new(0));
        let future = {
            let gate = gate.clone();
            let ended = ended.clone();
            async move {
                gate.notified().await;
                ended.fetch_add(1, Ordering::SeqCst);
            }
        };
        (gate, ended, future)
    }

    #[tokio::test]
    async fn p9_a_dropped_future_goes_on_and_shutdown_waits_for_it() {
        let runtime = Idempotency::new(MemoryStore::new());
        let (gate, ended, future) = gated();
        let mut carried = finish_in_background(&runtime, future);
        assert!(poll_once(&mut carried).is_pending());
        // Before as well: its caller may be about to be dropped.
        assert_eq!(
            runtime.shutdown(Duration::ZERO).await.unwrap_err().bodies,
            1
        );
        drop(carried);
        assert_eq!(
            runtime.shutdown(Duration::ZERO).await.unwrap_err().bodies,
            1
        );
        gate.notify_one();
        runtime.shutdown(Duration::from_secs(10)).await.unwrap();
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_future_that_has_not_begun_or_has_ended_does_not_go_on() {
        let runtime = Idempotency::new(MemoryStore::new());
        let (gate, ended, future) = gated();
        gate.notify_one();
        drop(finish_in_background(&runtime, future));
        let (gate, other, future) = gated();
        gate.notify_one();
        let mut carried = finish_in_background(&runtime, future);
        assert!(poll_once(&mut carried).is_ready());
        assert!(poll_once(&mut carried).is_pending());
        drop(carried);
        runtime.shutdown(Duration::ZERO).await.unwrap();
        assert_eq!(
            (ended.load(Ordering::SeqCst), other.load(Ordering::SeqCst)),
            (0, 1)
        );
    }

    #[tokio::test]
    async fn p8_a_future_that_panicked_does_not_go_on() {
        let runtime = Idempotency::new(MemoryStore::new());
        let mut carried = finish_in_background(&runtime, async {
            tokio::task::yield_now().await;
            panic!("a bug");
        });
        assert!(poll_once(&mut carried).is_pending());
        let polled =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll_once(&mut carried)));
        assert!(polled.is_err());
        drop(carried);
        runtime.shutdown(Duration::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn what_goes_on_has_the_scope_of_its_caller() {
        let runtime = Idempotency::new(MemoryStore::new());
        let scoped = Idempotency::new(MemoryStore::new());
        let (gate, _, future) = gated();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut carried = scope(scoped.clone(), async {
            finish_in_background(&runtime, async move {
                future.await;
                sender
                    .send(default_runtime().and_then(|here| here.runtime))
                    .map_err(drop)
                    .unwrap();
            })
        })
        .await;
        assert!(poll_once(&mut carried).is_pending());
        drop(carried);
        gate.notify_one();
        let here = receiver.await.unwrap().unwrap();
        assert!(Arc::ptr_eq(&here, scoped.runtime.as_ref().unwrap()));
    }

    #[test]
    fn where_the_tokio_runtime_has_ended_it_ends_too() {
        let runtime = Idempotency::new(MemoryStore::new());
        let held = Arc::new(());
        let tokio = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let carried = tokio.block_on(async {
            let held = held.clone();
            let mut carried = finish_in_background(&runtime, async move {
                pending::<()>().await;
                drop(held);
            });
            assert!(poll_once(&mut carried).is_pending());
            carried
        });
        drop(tokio);
        drop(carried);
        assert_eq!(Arc::strong_count(&held), 1);
        // Nor if it is dropped because the tokio runtime ends.
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let carried = tokio.block_on(async {
            let held = held.clone();
            finish_in_background(&runtime, async move {
                begun.send(()).unwrap();
                pending::<()>().await;
                drop(held);
            })
        });
        tokio.spawn(carried);
        begins.recv().unwrap();
        drop(tokio);
        assert_eq!(Arc::strong_count(&held), 1);
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        tokio.block_on(runtime.shutdown(Duration::ZERO)).unwrap();
        // Nor does it where there was none.
        let mut carried = finish_in_background(&runtime, pending::<()>());
        assert!(poll_once(&mut carried).is_pending());
        drop(carried);
    }
}
