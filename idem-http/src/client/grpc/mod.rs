//! The client half of gRPC: one key for all tries of a call.

mod error;
mod judged;
mod tries;

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, Request, Response};
use http_body::Body as HttpBody;
use idem_core::KeyGenerator;
use tower_layer::Layer;
use tower_service::Service;

pub use self::error::UnknownOutcome;
use crate::body::Body;

type MethodFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A tower layer for clients of gRPC that gives each unary call an idempotency key, and retries it
/// safely.
///
/// The key is the metadata `idempotency-key`. All tries of a call carry one key. It is the first of
/// these:
///
/// 1. the metadata, if the caller has set it;
/// 2. the extension [`RequestKey`](crate::RequestKey) of the request;
/// 3. with [`keys_from_call`](Self::keys_from_call), a child key of the guarded body that makes the
///    call;
/// 4. a new key of a [`KeyGenerator`].
///
/// Only a key of the caller's own survives a restart of the caller's process.
///
/// # What is retried
///
/// | result of a try | retried | may have been carried out |
/// | --- | --- | --- |
/// | `OK`, or a replay | no, it is the answer | – |
/// | `INVALID_ARGUMENT`, `NOT_FOUND`, `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED` | never, it is the answer | – |
/// | `PERMISSION_DENIED`, `UNAUTHENTICATED` | no | no |
/// | `ABORTED` | yes | no |
/// | `CANCELLED`, `UNKNOWN`, `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED`, `INTERNAL`, `UNAVAILABLE`, no status | yes | yes |
/// | `DATA_LOSS` | no | yes |
/// | a [problem](crate::grpc) `in_flight`, `store`, `lease_lost` | yes | yes |
/// | a problem `incomplete_body`, `throttled` | yes | no |
/// | a problem `abandoned`, `attempts_exhausted` | no | yes |
/// | any other problem | never, it is the answer | – |
/// | a response of HTTP that is none of gRPC | as `IdempotencyClient` does | as there |
/// | connection refused | yes | no |
/// | any other error of the channel | yes | yes |
/// | the deadline, during a try | no | yes |
///
/// The pause before the next try is that of `grpc-retry-pushback-ms`; a negative or unreadable one
/// ends the tries. Without it, the pause doubles from [`backoff`](Self::backoff), with jitter. A
/// pushback beyond the deadline ends the tries immediately.
///
/// If the client gives up and no try may have been carried out, the caller gets the last response or
/// error. Otherwise the outcome is unknown: the error is an [`UnknownOutcome`], which holds the key.
/// tonic makes the status `UNKNOWN` of it. The events `request_retried` (DEBUG) and
/// `outcome_unknown` (WARN) have the target `idem`.
///
/// A request that is a stream of messages is sent once, with its key. A response that is a stream
/// passes through. Leave such methods out by [`methods`](Self::methods), or the first message of a
/// slow stream comes up to a second late.
///
/// `grpc-timeout`, which tonic's `Request::set_timeout` sets, and the timeout of the channel limit a
/// single try. Set one, or a lost reply takes all of the deadline.
///
/// # Cancellation safety
///
/// A dropped call may have been carried out. Call again with the same
/// [`RequestKey`](crate::RequestKey).
///
/// # Examples
///
/// With tonic. The second argument makes a body of the channel's type:
///
/// ```
/// # mod tonic { pub mod body { pub use idem_http::Body;
/// #     pub trait New { fn new(body: Body) -> Body { body } } impl New for Body {} } }
/// # use tonic::body::New as _;
/// use std::time::Duration;
/// use idem_http::grpc::ClientLayer;
/// use tower::Layer as _;
///
/// # fn example<C>(channel: C) {
/// let layer = ClientLayer::new("checkout", tonic::body::Body::new)
///     .tries(4)
///     .deadline(Duration::from_secs(30));
/// let channel = layer.layer(channel); // for the generated client's `new`
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is added to a channel"]
pub struct ClientLayer<F> {
    settings: Arc<Settings>,
    into_body: F,
}

/// All settings, shared by the calls of a layer.
#[derive(Clone)]
struct Settings {
    keys: KeyGenerator,
    metadata: HeaderName,
    tries: u32,
    deadline: Duration,
    backoff: Duration,
    max_body: usize,
    /// Which methods get a key; `None`: all.
    methods: Option<MethodFilter>,
    keys_from_call: bool,
}

impl<F> ClientLayer<F> {
    /// Creates a layer whose generated keys begin with `prefix`, as in `checkout-<uuid>`.
    ///
    /// `into_body` turns a body into one of the channel: for tonic `tonic::body::Body::new`.
    pub fn new<B>(prefix: impl Into<String>, into_body: F) -> Self
    where
        F: Fn(Body) -> B,
    {
        Self {
            settings: Arc::new(Settings {
                keys: KeyGenerator::new(prefix.into()),
                metadata: HeaderName::from_static("idempotency-key"),
                tries: 4,
                deadline: Duration::from_secs(30),
                backoff: Duration::from_millis(200),
                max_body: 4 << 20,
                methods: None,
                keys_from_call: false,
            }),
            into_body,
        }
    }

    fn set(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// Sets how often a call is sent, at most. Default: 4. 0 counts as 1.
    pub fn tries(mut self, tries: u32) -> Self {
        self.set().tries = tries.max(1);
        self
    }

    /// Sets the time for all tries and pauses together. Default: 30 seconds.
    ///
    /// A try that still runs then is dropped.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.set().deadline = deadline;
        self
    }

    /// Sets the pause after the first try, if the server suggests none. Default: 200 ms. Each
    /// further pause is twice as long, up to 10 s, or `backoff` if that is longer. A random part of
    /// up to a half is taken off each pause.
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.set().backoff = backoff;
        self
    }

    /// Sets up to which size, in bytes, a request can be sent again, and a response is read before
    /// it is returned. Default: 4 MiB, which is also tonic's limit of messages.
    pub fn max_body(mut self, max_body: usize) -> Self {
        self.set().max_body = max_body;
        self
    }

    /// Sets the metadata that holds the key. Default: `idempotency-key`.
    pub fn metadata(mut self, name: HeaderName) -> Self {
        self.set().metadata = name;
        self
    }

    /// Sets which methods get a key and are retried, by their path such as `/shop.Charges/Create`.
    /// Default: all. A call of another method passes unchanged, unless the caller gave it a key.
    pub fn methods<M>(mut self, methods: M) -> Self
    where
        M: Fn(&str) -> bool + Send + Sync + 'static,
    {
        self.set().methods = Some(Arc::new(methods));
        self
    }

    /// Gives calls inside a guarded body a [child key](idem_core::Call::child_key) of that call.
    ///
    /// The name of the child key is the path of the method. If a body calls one method twice, give
    /// each call a name with [`RequestKey::child`](crate::RequestKey::child); otherwise the second
    /// one is a duplicate of the first. Outside a guarded body, keys are generated.
    pub fn keys_from_call(mut self) -> Self {
        self.set().keys_from_call = true;
        self
    }
}

impl<F> fmt::Debug for ClientLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayer")
            .field("keys", &self.settings.keys)
            .field("tries", &self.settings.tries)
            .field("deadline", &self.settings.deadline)
            .finish_non_exhaustive()
    }
}

impl<S, F: Clone> Layer<S> for ClientLayer<F> {
    type Service = Client<S, F>;

    fn layer(&self, inner: S) -> Client<S, F> {
        Client {
            inner,
            settings: self.settings.clone(),
            into_body: self.into_body.clone(),
        }
    }
}

/// A channel whose calls have keys: see [`ClientLayer`].
#[derive(Clone)]
pub struct Client<S, F> {
    inner: S,
    settings: Arc<Settings>,
    into_body: F,
}

impl<S, F> fmt::Debug for Client<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("keys", &self.settings.keys)
            .finish_non_exhaustive()
    }
}

impl<S, F, Q, B, R> Service<Request<Q>> for Client<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    F: Fn(Body) -> B + Clone + Send + 'static,
    B: Send + 'static,
    Q: HttpBody<Data = Bytes> + Send + 'static,
    Q::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = ClientFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> ClientFuture {
        // The clone may not be ready; the one that is goes with this call.
        let clone = self.clone();
        let ready = mem::replace(self, clone);
        ClientFuture(Box::pin(ready.send(request.map(Body::streaming))))
    }
}

/// The response of a [`Client`].
pub struct ClientFuture(BoxFuture<'static, Result<Response<Body>, BoxError>>);

impl Future for ClientFuture {
    type Output = Result<Response<Body>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for ClientFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientFuture")
    }
}
