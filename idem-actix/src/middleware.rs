//! The middleware.

use std::fmt;
use std::future::{Ready, ready};
use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use actix_web::body::{BodyStream, BoxBody, MessageBody, SizedStream};
use actix_web::dev::{
    Extensions, Payload, Service, ServiceRequest, ServiceResponse, Transform, forward_ready,
};
use actix_web::error::{ErrorInternalServerError, InternalError, PayloadError};
use actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{FutureExt as _, LocalBoxFuture};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use idem_http::{Body, HasScope, IdempotencyLayer, Scoped};
use tokio::sync::oneshot;
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::bridge::{ChannelBody, HandlerResult, Job, WorkerService, chunks, length};
use crate::convert;

/// A middleware that guards whole responses by the Idempotency-Key header:
/// `App::new().wrap(Idempotent::new(layer))`.
///
/// All settings and rules are those of the [`IdempotencyLayer`]. The scope and the other closures
/// see the request as `http` 1 has it, with the extensions that
/// [`copy_extension`](Self::copy_extension) names.
///
/// Around an `App`, it also guards paths without a route, because a default service may handle
/// them. They are one operation, named by the method alone, and their 404 is recorded as any other
/// response. Around a `web::resource` or a `web::scope`, it guards what is inside.
///
/// The service runs in a task of its own on its worker: a client that disconnects does not stop it.
/// It is a part of the guarded call: `idem::current()` returns the call, and a handler that loses
/// its lease is dropped.
#[derive(Clone)]
pub struct Idempotent {
    layer: IdempotencyLayer<Scoped>,
    extensions: Vec<CopyExtension>,
}

/// Copies one extension of a request, if it has it.
type CopyExtension = fn(&Extensions, &mut http::Extensions);

impl Idempotent {
    /// Makes the middleware of a layer. Clones of one layer share its store.
    pub fn new<S: HasScope>(layer: IdempotencyLayer<S>) -> Self {
        Self {
            layer: layer.scoped(),
            extensions: Vec::new(),
        }
    }

    /// Copies an extension of the request to where the layer's scope and other closures see it,
    /// such as the authenticated user.
    ///
    /// The middleware that sets the extension must be outside of this one: wrapped later.
    #[must_use]
    pub fn copy_extension<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.extensions.push(|from, to| {
            if let Some(extension) = from.get::<T>() {
                to.insert(extension.clone());
            }
        });
        self
    }
}

impl fmt::Debug for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl<S, B> Transform<S, ServiceRequest> for Idempotent
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = actix_web::Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = actix_web::Error;
    type Transform = Guarded<S>;
    type InitError = ();
    type Future = Ready<Result<Guarded<S>, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        let extensions = self.extensions.clone();
        ready(Ok(Guarded {
            layer: self.layer.clone(),
            extensions,
            service: Rc::new(service),
        }))
    }
}

/// A service behind [`Idempotent`].
pub struct Guarded<S> {
    layer: IdempotencyLayer<Scoped>,
    extensions: Vec<CopyExtension>,
    service: Rc<S>,
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl<S, B> Service<ServiceRequest> for Guarded<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = actix_web::Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<BoxBody>;
    type Error = actix_web::Error;
    type Future = LocalBoxFuture<'static, Result<Self::Response, actix_web::Error>>;

    forward_ready!(service);

    fn call(&self, mut request: ServiceRequest) -> Self::Future {
        let Some(mut head) = convert::head(&request) else {
            return Box::pin(async move {
                Ok(request.into_response(HttpResponse::BadRequest().finish()))
            });
        };
        for copy in &self.extensions {
            copy(&request.extensions(), &mut head.extensions);
        }
        let (worker, jobs) = WorkerService::new();
        let mut guarded = self.layer.layer(worker);
        let body = body_of(&mut request);
        let (done, ended) = oneshot::channel();
        // In a box, because tokio moves the future of a new task several times.
        actix_web::rt::spawn(Box::pin(serve(self.service.clone(), request, jobs, done)));
        Box::pin(async move {
            let response = AssertUnwindSafe(guarded.call(http::Request::from_parts(head, body)))
                .catch_unwind()
                .await;
            let response = response.unwrap_or_else(|_| Err("the service panicked".into()));
            // If the service was not called, this ends the task `serve`.
            drop(guarded);
            let response = match response {
                Ok(response) => answer(response),
                Err(error) => HttpResponse::from_error(ErrorInternalServerError(error.to_string())),
            };
            match ended.await {
                Ok(Ok(request)) => Ok(ServiceResponse::new(request, response)),
                Ok(Err(error)) => Err(error),
                // The handler panicked, or lost its lease, and its request is gone with it.
                Err(_) => {
                    Err(InternalError::from_response("the handler did not end", response).into())
                }
            }
        })
    }
}

/// Takes the body of a request, and converts it to one that can move to another thread.
fn body_of(request: &mut ServiceRequest) -> Body {
    let stated = request
        .headers()
        .get("content-length")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let is_chunked = request.headers().contains_key("transfer-encoding");
    let payload = std::mem::replace(request.parts_mut().1, Payload::None);
    if matches!(payload, Payload::None) {
        return Body::from(Bytes::new());
    }
    let (sender, received) = ChannelBody::new(if is_chunked { None } else { stated });
    actix_web::rt::spawn(sender.send_all(payload));
    Body::streaming(received)
}

/// Gives a request the body that the layer has let through.
fn set_body(request: &mut ServiceRequest, body: Body) {
    let stream = body
        .into_data_stream()
        .map(|chunk| chunk.map_err(|error| PayloadError::Io(std::io::Error::other(error))));
    request.set_payload(Payload::Stream {
        payload: Box::pin(stream),
    });
}

/// Runs the service if the layer lets the request through, and gives the request back afterwards.
///
/// It is a task of its own, so that a client that disconnects does not stop it. A lost lease does.
async fn serve<S, B>(
    service: Rc<S>,
    mut request: ServiceRequest,
    jobs: oneshot::Receiver<Job>,
    done: oneshot::Sender<Result<HttpRequest, actix_web::Error>>,
) where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = actix_web::Error> + 'static,
    B: MessageBody + 'static,
{
    let Ok(Job {
        request: admitted,
        part,
        response,
    }) = jobs.await
    else {
        // Refused or replayed. The receiver is gone if the client is.
        let _ = done.send(Ok(request.into_parts().0));
        return;
    };
    set_body(&mut request, admitted.into_body());
    // As a part of the guarded call, so that a handler whose lease is lost is dropped.
    let running =
        AssertUnwindSafe(part.run(async move { service.call(request).await })).catch_unwind();
    let served = match running.await {
        Ok(Some(served)) => served,
        Ok(None) => return,
        Err(panic) => {
            let _ = response.send(Err(panic));
            return;
        }
    };
    let (request, served) = match served {
        Ok(served) => {
            let (request, served) = served.into_parts();
            (Ok(request), served.map_into_boxed_body())
        }
        // The response that actix-web makes of an error is recorded like any other.
        Err(error) => {
            let served = error.error_response();
            (Err(error), served)
        }
    };
    let _ = done.send(request);
    send_response(served, response).await;
}

/// Sends the service's response to the layer. Returns when all of its body is sent.
async fn send_response(served: HttpResponse<BoxBody>, response: oneshot::Sender<HandlerResult>) {
    let Some(parts) = convert::parts(&served) else {
        return;
    };
    // Most bodies are in memory, and need no channel.
    let body = match served.into_body().try_into_bytes() {
        Ok(whole) => {
            let whole = http::Response::from_parts(parts, Body::from(whole));
            let _ = response.send(Ok(whole));
            return;
        }
        Err(body) => body,
    };
    let (sender, received) = ChannelBody::new(length(body.size()));
    let streaming = http::Response::from_parts(parts, Body::streaming(received));
    if response.send(Ok(streaming)).is_ok() {
        sender.send_all(chunks(body)).await;
    }
}

/// A response of the layer, with its body.
fn answer(response: http::Response<Body>) -> HttpResponse {
    let (parts, body) = response.into_parts();
    let length = body.size_hint().exact();
    // actix-web needs an `Error`, and a boxed error is none.
    let stream = body
        .into_data_stream()
        .map(|chunk| chunk.map_err(std::io::Error::other));
    let body = match length {
        Some(length) => SizedStream::new(length, stream).boxed(),
        None => BodyStream::new(stream).boxed(),
    };
    convert::response(&parts, body)
}
