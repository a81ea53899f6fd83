//! Waits for the first of two futures. `tokio::select!` would make every program with this library
//! build a parser of Rust before tokio.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;

use tokio::time::{Instant, sleep_until};

/// Returns the output of the future that ends first; of `one` if both are ready.
pub(crate) async fn first<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let mut one = pin!(one);
    let mut other = pin!(other);
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Pending => other.as_mut().poll(context),
        ready @ Poll::Ready(_) => ready,
    })
    .await
}

/// Waits until `at`; without it, does not end.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
