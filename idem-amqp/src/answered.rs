//! Requests that the broker may refuse.
//!
//! It refuses one by closing the channel. If the channel is dropped at that moment, lapin closes it
//! as well, does not expect the broker's answer, and ends the whole connection. So such a request is
//! a task, which keeps the channel until the answer although its caller is dropped.

use std::future::Future;
use std::io;

/// Runs a request that owns its channel to its end.
pub(crate) async fn answered<T>(request: impl Future<Output = lapin::Result<T>> + Send + 'static) -> lapin::Result<T>
where
    T: Send + 'static,
{
    tokio::spawn(request).await.unwrap_or_else(|ended| Err(io::Error::other(ended).into()))
}
