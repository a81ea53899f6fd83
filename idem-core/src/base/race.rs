//! Waiting for what comes first. `tokio::select!` needs a parser of Rust, which every program with
//! this library would build before tokio.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::time::{Instant, sleep_until};

/// Returns the output of whichever ends first. If both are ready, it is that of `one`.
pub(crate) async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let mut one = pin!(one);
    let mut other = pin!(other);
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Pending => other.as_mut().poll(context),
        ready @ Poll::Ready(_) => ready,
    })
    .await
}

/// Waits until then; for ever if there is no such time.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
