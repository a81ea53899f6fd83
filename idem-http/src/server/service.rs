//! The service that the layer makes: one request, from its key to its response.

use std::fmt;
use std::future::{Future, ready};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, TryFutureExt as _, lazy};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, request, response};
use http_body::Body as HttpBody;
use idem_core::adapter::{
    FinishInBackground, finish_in_background, report_without_call, run_boxed,
};
use idem_core::{Error, ErrorAction, Operation};
use serde::{Deserialize, Serialize};
use tower_service::Service;

use super::field::in_body;
use super::interruption::Interruption;
use super::route::{matched_route, operation, route};
use super::settings::{KeySource, Settings};
use crate::body::{Body, Read, Whole, read, read_unary};
use crate::key::IdempotencyKey;
use crate::key_rules::KeyRules;
use crate::media_type::is_grpc;
use crate::problem::{Problem, Response, challenged};
use crate::stored::{ResponseRecord, StoredResponse};

/// The header that marks a replay.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The extension that marks a replayed response, for outer layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed;

/// A service whose responses are guarded: see [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Clone)]
pub struct Idempotent<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Idempotent<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S: fmt::Debug> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

type Answer = http::Response<Body>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The response of an [`Idempotent`] service.
pub struct ResponseFuture<E>(BoxFuture<'static, Result<Answer, E>>);

impl<E> Future for ResponseFuture<E> {
    type Output = Result<Answer, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl<E> fmt::Debug for ResponseFuture<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Answer;
    type Error = S::Error;
    type Future = ResponseFuture<S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S::Error> {
        // The clone may not be ready; the one that is goes with this request.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let settings = self.settings.clone();
        // Here and not in the future, which would hold the request twice.
        ResponseFuture(match admit(&settings, request) {
            Admitted::Unguarded(request) => Box::pin(pass(inner, request)),
            Admitted::Refused(problem) => Box::pin(ready(Ok(refusal(&settings, &problem)))),
            Admitted::Guarded(head, body) => Box::pin(serve(settings, inner, head, body)),
        })
    }
}

/// What to do with a request.
enum Admitted<B> {
    Unguarded(Request<Body>),
    Refused(Problem),
    /// Its body is not read yet.
    Guarded(Head, B),
}

/// The head of a guarded request.
struct Head {
    parts: request::Parts,
    /// `None`: it is in the body.
    key: Option<String>,
    /// `None`: all clients share their keys.
    scope: Option<String>,
}

/// Decides by its head whether a request is guarded, so that the body of one that is refused, or
/// passes, is not read into memory.
fn admit<B>(settings: &Settings, request: Request<B>) -> Admitted<B>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if !settings.methods.contains(request.method()) {
        return Admitted::Unguarded(request.map(Body::streaming));
    }
    let (parts, body) = request.into_parts();
    let refused = |problem: Problem| {
        report(settings, &parts, Some(&problem));
        Admitted::Refused(problem)
    };
    let found = match &settings.key.source {
        KeySource::Header(name) => {
            IdempotencyKey::from_headers(&parts.headers, name).map(|key| key.map(Into::into))
        }
        KeySource::Parts(key) => key(&parts)
            .map(|key| {
                let rules = settings.key.rules;
                KeyRules::read(rules, key.as_bytes(), IdempotencyKey::from_bytes)
            })
            .transpose(),
        KeySource::Body(_) => Ok(None),
    };
    let key = match found {
        Err(invalid) => return refused(invalid.into()),
        Ok(None) if !matches!(settings.key.source, KeySource::Body(_)) => {
            if settings.key.required {
                return refused(Problem::missing_key());
            }
            report(settings, &parts, None);
            return Admitted::Unguarded(Request::from_parts(parts, Body::streaming(body)));
        }
        Ok(key) => key,
    };
    let scope = match settings.key.scope.owner(&parts) {
        Ok(scope) => scope,
        Err(problem) => return refused(problem),
    };
    let is_larger = body.size_hint().lower() > u64::try_from(settings.max_body).unwrap_or(u64::MAX);
    if is_larger && settings.key.needs_body() {
        return refused(Problem::TOO_LARGE);
    }
    Admitted::Guarded(Head { parts, key, scope }, body)
}

/// Reads the body of a request, and runs the service or replays.
#[allow(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` contains its arguments twice"
)]
fn serve<S, B, R>(
    settings: Arc<Settings>,
    inner: S,
    mut head: Head,
    body: B,
) -> impl Future<Output = Result<Answer, S::Error>> + Send
where
    S: Service<Request<Body>, Response = http::Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async move {
        let described = match read(body, settings.max_body).await {
            Read::Whole(whole) => describe(&settings, &head, &whole.data)
                .map(|operation| (operation, Body::whole(whole))),
            Read::Larger(_) if settings.key.needs_body() => Err(Problem::TOO_LARGE),
            Read::Larger(body) => {
                let interruption = Interruption::default();
                head.parts.extensions.insert(interruption.clone());
                describe(&settings, &head, &[])
                    .map(|operation| (operation, interruption.watch(body)))
            }
            Read::Broken(_) => Err(Problem::BROKEN_BODY),
        };
        match described {
            Err(problem) => {
                report(&settings, &head.parts, Some(&problem));
                Ok(refusal(&settings, &problem))
            }
            Ok((None, body)) => {
                report(&settings, &head.parts, None);
                Box::pin(pass(inner, Request::from_parts(head.parts, body))).await
            }
            Ok((Some(operation), body)) => {
                let request = Request::from_parts(head.parts, body);
                let ended = guard(&settings, inner, request, operation);
                answer(&settings, ended.await)
            }
        }
    }
}

/// Describes the call of a request; `None` if it has no key, and needs none.
fn describe(
    settings: &Settings,
    head: &Head,
    body: &[u8],
) -> Result<Option<Operation<'static>>, Problem> {
    let Head { parts, key, scope } = head;
    let found = match (&settings.key.source, key) {
        (KeySource::Body(pointer), None) => {
            in_body(&parts.headers, body, pointer, settings.key.rules)?
        }
        _ => None,
    };
    let key = match key.as_deref().or(found.as_deref()) {
        Some(key) => key,
        None if settings.key.required => return Err(Problem::missing_key()),
        None => return Ok(None),
    };
    let operation = settings.operation(operation(
        &settings.name,
        parts.method.as_str(),
        &route(settings.route.as_ref(), parts),
    ));
    let operation = match scope {
        Some(scope) => operation.key(&(scope.as_str(), key)),
        None => operation.key(key),
    };
    Ok(Some(settings.key.fingerprints.set(operation, parts, body)))
}

/// Reports a request that is refused, or that passes because it has no key and needs none.
fn report(settings: &Settings, parts: &request::Parts, problem: Option<&Problem>) {
    // Without a route the path is left out: clients choose it, and a metric keeps each of its
    // labels.
    let operation = operation(
        &settings.name,
        parts.method.as_str(),
        &matched_route(settings.route.as_ref(), parts).unwrap_or_default(),
    );
    report_without_call(&operation, problem.map(|problem| problem.code));
}

/// Passes a request on, unguarded.
async fn pass<S, R>(mut inner: S, request: Request<Body>) -> Result<Answer, S::Error>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    Ok(inner.call(request).await?.map(Body::streaming))
}

/// The outcome of a guarded call. It is small, because it is moved through many futures.
enum ServiceOutcome {
    /// The service has run. A part of its response is recorded.
    Live {
        response: Box<Answer>,
        settings: Arc<Settings>,
    },
    /// The recorded response of an earlier request.
    Replayed(Box<StoredResponse>),
}

impl Serialize for ServiceOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (response, settings) = match self {
            Self::Live { response, settings } => (response, settings),
            // Not recorded again: it is compared with the response that it was read back from.
            Self::Replayed(stored) => {
                return ResponseRecord {
                    status: stored.status,
                    headers: &stored.headers,
                    is_recorded: |_: &HeaderName| true,
                    body: &stored.body,
                    trailers: Some(&stored.trailers),
                }
                .serialize(serializer);
            }
        };
        // The outcome of a streaming response is omitted.
        let Some(Whole { data, trailers }) = response.body().as_whole() else {
            return serializer.serialize_none();
        };
        let headers = response.headers();
        let is_recorded = settings.record.is_recorded(headers, !data.is_empty());
        ResponseRecord {
            status: response.status(),
            headers,
            is_recorded,
            body: data,
            trailers: trailers.as_ref(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ServiceOutcome {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StoredResponse::deserialize(deserializer).map(|stored| Self::Replayed(Box::new(stored)))
    }
}

/// The error of a guarded call: why there is nothing to record.
enum Failed<E> {
    Idempotency(Error),
    Service(E),
    /// The response is not kept.
    Released(Box<Answer>),
}

impl<E> From<Error> for Failed<E> {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

/// Runs the service for a request, or replays its recorded response.
fn guard<S, R>(
    settings: &Arc<Settings>,
    inner: S,
    request: Request<Body>,
    operation: Operation<'static>,
) -> FinishInBackground<Result<ServiceOutcome, Failed<S::Error>>>
where
    S: Service<Request<Body>, Response = http::Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let body = Box::pin(run_service(settings.clone(), inner, request));
    // A response that is not kept releases the key, whatever the runtime's default is: its status
    // tells the client that the request may be sent again. An error of the service itself, such as
    // a timeout, tells nothing, so the default applies.
    let errors = |failed: &Failed<S::Error>| match failed {
        Failed::Released(_) => ErrorAction::Release,
        Failed::Service(_) | Failed::Idempotency(_) => ErrorAction::Unlisted,
    };
    // If the client disconnects, the call continues in a task of its own. Otherwise a dropped claim
    // would leave the key locked, and the body would stop in the middle.
    finish_in_background(
        &settings.idempotency,
        run_boxed::<ServiceOutcome, _, _, _, _>(operation, errors, body),
    )
}

/// Turns the result of a guarded call into the response for the client.
fn answer<E>(settings: &Settings, ended: Result<ServiceOutcome, Failed<E>>) -> Result<Answer, E> {
    match ended {
        Ok(ServiceOutcome::Live { response, .. }) | Err(Failed::Released(response)) => {
            Ok(*response)
        }
        Ok(ServiceOutcome::Replayed(stored)) => Ok(replay(*stored, settings.marks_replays)),
        Err(Failed::Service(error)) => Err(error),
        Err(Failed::Idempotency(error)) => {
            let mut problem = Problem::from(&error);
            if let (Error::FingerprintMismatch { .. }, Some(status)) =
                (&error, settings.key.mismatch)
            {
                problem.status = status;
            }
            Ok(refusal(settings, &problem))
        }
    }
}

/// The body of the operation: it runs the service, and reads what is recorded of the response.
///
/// It is made of combinators, because an `async` block would keep room for the request while the
/// service runs.
fn run_service<S, R>(
    settings: Arc<Settings>,
    mut inner: S,
    mut request: Request<Body>,
) -> impl Future<Output = Result<ServiceOutcome, Failed<S::Error>>>
where
    S: Service<Request<Body>, Response = http::Response<R>>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let interruption = request.extensions_mut().remove::<Interruption>();
    let served = lazy(move |_| inner.call(request))
        .flatten()
        .map_err(Failed::Service);
    served.and_then(move |response| {
        let is_incomplete = interruption.is_some_and(|interruption| interruption.has_happened());
        to_outcome(settings, response, is_incomplete)
    })
}

/// Whether a service refused a request: by the status, or by that of gRPC in its headers.
fn is_refusal(parts: &response::Parts) -> bool {
    let is_good = parts.status.is_success() || parts.status.is_redirection();
    !is_good || is_grpc(&parts.headers) && is_failed_by_grpc(&parts.headers)
}

/// Whether the status of gRPC in these headers or trailers is that of a failure.
fn is_failed_by_grpc(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status.as_bytes() != b"0")
}

/// Reads the body of a response into memory if it is to be recorded. A response that is not kept is an
/// error, which releases the key. So does the refusal of a request whose body broke off: the next try
/// may be complete.
async fn to_outcome<R, E>(
    settings: Arc<Settings>,
    response: http::Response<R>,
    is_incomplete: bool,
) -> Result<ServiceOutcome, Failed<E>>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    if !settings.record.keeps(&parts) || (is_incomplete && is_refusal(&parts)) {
        return Err(Failed::Released(Box::new(http::Response::from_parts(
            parts,
            Body::streaming(body),
        ))));
    }
    let read = match body.size_hint().exact() {
        Some(length) if length <= u64::try_from(settings.max_body).unwrap_or(u64::MAX) => {
            read(body, settings.max_body).await
        }
        // A unary response of gRPC is short, but has no length.
        None if is_grpc(&parts.headers) => Box::pin(read_unary(body, settings.max_body)).await,
        // Any other body without a length may never end.
        _ => Read::Larger(Body::streaming(body)),
    };
    let body = match read {
        Read::Whole(whole) => {
            let status = whole.trailers.as_ref().filter(|_| is_grpc(&parts.headers));
            if status.is_some_and(|trailers| {
                !settings.record.keeps_trailers(trailers)
                    || (is_incomplete && is_failed_by_grpc(trailers))
            }) {
                return Err(Failed::Released(Box::new(http::Response::from_parts(
                    parts,
                    Body::whole(whole),
                ))));
            }
            Body::whole(whole)
        }
        Read::Larger(body) | Read::Broken(body) => {
            if let Some(call) = idem_core::current() {
                call.omit_outcome();
            }
            body
        }
    };
    Ok(ServiceOutcome::Live {
        response: Box::new(http::Response::from_parts(parts, body)),
        settings,
    })
}

/// Makes a response of a record. Clients see that it is a replay only if it is marked.
pub(crate) fn replay(stored: StoredResponse, is_marked: bool) -> Answer {
    let StoredResponse {
        status,
        headers,
        body,
        trailers,
        final_error,
    } = stored;
    let trailers = (!trailers.is_empty()).then_some(trailers);
    let mut response = http::Response::new(Body::whole(Whole {
        data: body,
        trailers,
    }));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(Replayed);
    if !is_marked {
        return response;
    }
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    if final_error {
        for name in ["stripe-should-retry", "x-should-retry"] {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static("false"),
            );
        }
    }
    response
}

fn refusal(settings: &Settings, problem: &Problem) -> Answer {
    complete((settings.problem)(problem))
}

pub(crate) fn complete(response: Response) -> Answer {
    challenged(response).map(|text| Body::from(Bytes::from(text)))
}
