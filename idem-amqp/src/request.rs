//! Requests that the broker may refuse.
//!
//! The broker refuses a request by closing its channel. If the caller drops the channel at that
//! moment, lapin closes it too, does not expect the broker's answer, and ends the whole connection.
//! So such a request runs in a task, which keeps the channel until the answer arrives, even if the
//! caller is dropped.

use std::future::Future;
use std::io;

/// Runs a request, which owns its channel, to its end.
pub(crate) async fn run_to_end<T>(
    request: impl Future<Output = lapin::Result<T>> + Send + 'static,
) -> lapin::Result<T>
where
    T: Send + 'static,
{
    tokio::spawn(request)
        .await
        .unwrap_or_else(|ended| Err(io::Error::other(ended).into()))
}
