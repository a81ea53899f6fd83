//! A channel that loses its first reply.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tonic::codegen::{Service, http};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The first call reaches the server, and its reply does not reach the client.
#[derive(Clone)]
pub(crate) struct Lossy<S> {
    inner: S,
    has_lost: Arc<AtomicBool>,
}

impl<S> Lossy<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            has_lost: Arc::default(),
        }
    }
}

impl<S, B, R> Service<http::Request<B>> for Lossy<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = http::Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let key = request.headers().get("idempotency-key").cloned();
        let key = key.and_then(|key| key.to_str().map(str::to_owned).ok());
        println!(
            "  client: sends the call with key {}",
            key.unwrap_or_default()
        );
        let has_lost = self.has_lost.clone();
        let reply = self.inner.call(request);
        Box::pin(async move {
            let response = reply.await.map_err(Into::into)?;
            if has_lost.swap(true, Ordering::SeqCst) {
                return Ok(response);
            }
            println!("  network: the reply is lost");
            Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
        })
    }
}
