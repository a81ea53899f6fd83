//! The bodies of transactions: those that can move to another thread, and those that cannot.

use std::future::{Future, pending};
use std::pin::Pin;

/// A body whose future can move between threads: an async closure over `X`, which is `&mut` the
/// transaction. No type implements it by hand.
///
/// Stable Rust has no way to say that the future of an `AsyncFnMut` is `Send`. Without that,
/// `tokio::spawn` and handlers would refuse the call ("implementation of `Send` is not general
/// enough"). But every async closure can be called once as a plain `FnOnce`, whose future has a
/// name. So a body that may run again is `Clone`.
#[diagnostic::on_unimplemented(
    message = "this body cannot run in a transaction on any thread",
    label = "not an async closure over `&mut` the transaction, whose future is `Send`",
    note = "write `async |tx| ..`; for a body with an `Rc`, or another value that is not `Send`, \
        use `run_in_local` or `transaction_local`"
)]
pub trait TransactionBody<X, R>: FnOnce(X) -> Self::Running {
    /// The future of the body.
    type Running: Future<Output = R> + Send;
}

impl<X, R, F, Running> TransactionBody<X, R> for F
where
    F: FnOnce(X) -> Running,
    Running: Future<Output = R> + Send,
{
    type Running = Running;
}

/// A body that may run again if its transaction meets another one, so it is `Clone`. No type
/// implements it by hand.
#[diagnostic::on_unimplemented(
    message = "this body cannot run a second time, as it must if its transaction meets another one",
    label = "not `Clone`",
    note = "a body that owns what is not `Clone`: write `async |tx| ..` without `move`, so that it \
        borrows, or put that into an `Arc`",
    note = "a body that changes what it captures: return the change, or use `transaction_local`; \
        `run_in` runs its body once, in a transaction of yours"
)]
pub trait RunsAgain: Clone {}

#[diagnostic::do_not_recommend]
impl<F: Clone> RunsAgain for F {}

/// A body, and how it is run.
pub(crate) trait Body<X, R> {
    fn run(&mut self, tx: &mut X) -> impl Future<Output = R>;
}

/// A body whose future can move between threads, cloned for each run.
///
/// The future is boxed, so that the caller's future is `Send` whatever the body borrows.
pub(crate) struct AnyThread<F>(pub(crate) F);

impl<X, R, F> Body<X, R> for AnyThread<F>
where
    F: for<'t> TransactionBody<&'t mut X, R> + Clone,
{
    async fn run(&mut self, tx: &mut X) -> R {
        let body = self.0.clone();
        let running: Pin<Box<dyn Future<Output = R> + Send + '_>> = Box::pin(body(&mut *tx));
        running.await
    }
}

/// Like [`AnyThread`], for a body that runs once.
pub(crate) struct AnyThreadOnce<F>(pub(crate) Option<F>);

impl<X, R, F> Body<X, R> for AnyThreadOnce<F>
where
    F: for<'t> TransactionBody<&'t mut X, R>,
{
    async fn run(&mut self, tx: &mut X) -> R {
        // A call in the caller's transaction runs its body once, so this does not happen.
        let Some(body) = self.0.take() else {
            return pending().await;
        };
        let running: Pin<Box<dyn Future<Output = R> + Send + '_>> = Box::pin(body(&mut *tx));
        running.await
    }
}

/// A body that may hold values that are not `Send`.
pub(crate) struct OneThread<F>(pub(crate) F);

impl<X, R, F: AsyncFnMut(&mut X) -> R> Body<X, R> for OneThread<F> {
    fn run(&mut self, tx: &mut X) -> impl Future<Output = R> {
        (self.0)(tx)
    }
}

/// Like [`OneThread`], for a body that runs once.
pub(crate) struct OneThreadOnce<F>(pub(crate) Option<F>);

impl<X, R, F: AsyncFnOnce(&mut X) -> R> Body<X, R> for OneThreadOnce<F> {
    async fn run(&mut self, tx: &mut X) -> R {
        let Some(body) = self.0.take() else {
            return pending().await;
        };
        body(tx).await
    }
}
