//! The mark of replays, for handlers that are guarded by the attribute.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request};
use tower_layer::Layer;
use tower_service::Service;

use super::service::{REPLAYED, Replayed};

/// Adds `Idempotent-Replayed: true` to the responses of annotated handlers that were replayed:
/// `Router::layer(MarkReplays)`.
///
/// An annotated handler returns an equal value for each duplicate, so it cannot mark its replays
/// itself. This layer asks [`watch`](idem_core::watch) whether the guarded calls of the handler
/// were replayed. A response is marked if there was at least one guarded call, and every one was
/// replayed. The [`IdempotencyLayer`](crate::IdempotencyLayer) marks its replays without it.
///
/// Use it for handlers whose response is the outcome of their guarded call. A handler that does
/// more after its call may fail although the call was replayed: that response is marked too, and
/// the mark ends the tries of a client.
///
/// Guarded calls in a task that the handler spawns do not count; a `detached` handler counts.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::post};
/// use idem_http::MarkReplays;
///
/// # async fn create() {}
/// // `create` is an annotated function.
/// let app: Router = Router::new().route("/v1/transfers", post(create)).layer(MarkReplays);
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "a layer does nothing until it is added to a service"]
pub struct MarkReplays;

impl<S> Layer<S> for MarkReplays {
    type Service = Marked<S>;

    fn layer(&self, inner: S) -> Marked<S> {
        Marked(inner)
    }
}

/// A service whose replays are marked: see [`MarkReplays`].
#[derive(Debug, Clone)]
pub struct Marked<S>(S);

impl<S, B, R> Service<Request<B>> for Marked<S>
where
    S: Service<Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = MarkedFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let response = self.0.call(request);
        MarkedFuture(Box::pin(async move {
            let (response, report) = idem_core::watch(response).await;
            let mut response = response?;
            if report.is_replayed() {
                response
                    .headers_mut()
                    .insert(REPLAYED, HeaderValue::from_static("true"));
                response.extensions_mut().insert(Replayed);
            }
            Ok(response)
        }))
    }
}

/// The response of a [`Marked`] service.
pub struct MarkedFuture<R, E>(BoxFuture<'static, Result<http::Response<R>, E>>);

impl<R, E> Future for MarkedFuture<R, E> {
    type Output = Result<http::Response<R>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<R, E> fmt::Debug for MarkedFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkedFuture")
    }
}
