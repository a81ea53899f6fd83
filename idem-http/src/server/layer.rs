//! The layer and its settings.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{Method, StatusCode, request, response};
use idem_core::Idempotency;
use idem_core::policy::StoreFailure;
use tower_layer::Layer;

use super::fingerprints::Fingerprints;
use super::service::Idempotent;
use super::settings::{KeySource, Settings};
use crate::key_rules::KeyRules;
use crate::problem::{Problem, Response};
use crate::scope::KeyScope;

/// The state of a layer without a scope: call [`scope`](IdempotencyLayer::scope) or
/// [`unscoped`](IdempotencyLayer::unscoped).
#[derive(Debug, Clone, Copy)]
pub enum NeedsScope {}

/// The state of a layer with a scope.
#[derive(Debug, Clone, Copy)]
pub enum Scoped {}

/// A state in which a layer or a lookup can serve requests: [`Scoped`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "nothing says whose keys these are: call `.scope(..)`, or `.unscoped()`",
    label = "has no scope",
    note = "`.scope(|parts| ..)` finds the owner of a key, such as the user, in each request: two \
        owners never share a record",
    note = "`.unscoped()` lets all clients share their keys, for a service with a single client"
)]
pub trait HasScope: sealed::HasScope {}

impl HasScope for Scoped {}

mod sealed {
    pub trait HasScope {}
    impl HasScope for super::Scoped {}
}

/// Guards whole responses by the Idempotency-Key header, in front of any tower service.
///
/// The first request runs the service, and its response is recorded. A duplicate gets that
/// response, with the header `Idempotent-Replayed: true`. POST and PATCH are guarded; other methods
/// pass.
///
/// If the client disconnects, claim and service continue in a task of their own.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::post};
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_http::IdempotencyLayer;
///
/// /// The authenticated user: an outer layer puts it into the request's extensions.
/// #[derive(Clone)]
/// struct User(String);
///
/// async fn charge() -> &'static str {
///     "charged"
/// }
///
/// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
///     .name("payments")
///     .scope(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()))
///     .required(true);
/// let app: Router = Router::new().route("/v1/charges", post(charge)).route_layer(layer);
/// ```
///
/// Without a scope, this does not compile:
///
/// ```compile_fail
/// # use idem_core::{Idempotency, MemoryStore};
/// # use idem_http::IdempotencyLayer;
/// let app: axum::Router = axum::Router::new()
///     .layer(IdempotencyLayer::new(Idempotency::new(MemoryStore::new())));
/// ```
#[must_use = "a layer does nothing until it is added to a service"]
pub struct IdempotencyLayer<S = NeedsScope> {
    /// Shared, because a router may make a service of the layer for each request.
    pub(super) settings: Arc<Settings>,
    scope: PhantomData<S>,
}

impl IdempotencyLayer {
    /// Creates a layer over a runtime, with its store and its defaults.
    pub fn new(idempotency: Idempotency) -> Self {
        Self {
            settings: Arc::new(Settings::new(idempotency)),
            scope: PhantomData,
        }
    }

    /// Sets how the owner of a key is found in a request: the authenticated user or account.
    ///
    /// Two owners never share a record. If `scope` returns `None`, the request gets 401.
    ///
    /// The owner is a part of the record's key, which the store holds in clear. So a token of the
    /// request, as of `Authorization: Bearer`, `Cookie` or `X-Api-Key`, is stored as a digest. A
    /// password (`Authorization: Basic`) could be guessed from one: if `scope` returns it, the
    /// request gets 500 with the code `config`, and nothing runs. The event `credential_in_scope`
    /// names the header. A [`ScopeSecret`](crate::ScopeSecret) digests passwords as well. A renewed
    /// credential, such as an access token, is another owner, and the same key runs again.
    pub fn scope<F>(mut self, scope: F) -> IdempotencyLayer<Scoped>
    where
        F: Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    {
        self.set().key.scope = KeyScope::PerClient(Arc::new(scope));
        IdempotencyLayer {
            settings: self.settings,
            scope: PhantomData,
        }
    }

    /// Lets all clients share their keys.
    ///
    /// Use it only if the service has a single client. With several clients, one can get another
    /// one's response.
    pub fn unscoped(self) -> IdempotencyLayer<Scoped> {
        IdempotencyLayer {
            settings: self.settings,
            scope: PhantomData,
        }
    }
}

impl<S: HasScope> IdempotencyLayer<S> {
    /// Returns the layer as one with a scope: for adapters that take an `IdempotencyLayer<S>`.
    pub fn scoped(self) -> IdempotencyLayer<Scoped> {
        IdempotencyLayer {
            settings: self.settings,
            scope: PhantomData,
        }
    }
}

impl<S> IdempotencyLayer<S> {
    fn set(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.settings)
    }

    /// Sets the name that all operations of this layer begin with. Default: `http`.
    ///
    /// Method and route follow it, as in `payments.POST/v1/charges`. The route is the first of
    ///
    /// 1. what [`route_from`](Self::route_from) returns,
    /// 2. the extension [`Route`](crate::Route) of the request,
    /// 3. axum's matched path. A service behind `Router::nest_service` has none, unless it is itself
    ///    a router with the layer on its routes,
    /// 4. the path as the client sent it: each path is then an operation of its own.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.set().name = name.into();
        self
    }

    /// Sets how the route of a request is found, such as `/v1/charges/{id}`: for services whose
    /// router tells none, as behind `Router::nest_service`.
    ///
    /// Two requests of one route are the same operation. Metrics keep each route as a label, so
    /// return one of few texts, and not the path. If `route` returns `None`, the route is found as
    /// without this setting.
    ///
    /// # Examples
    ///
    /// ```
    /// use idem_core::{Idempotency, MemoryStore};
    /// use idem_http::IdempotencyLayer;
    ///
    /// // One operation for all that is behind `nest_service("/v1/charges", ..)`.
    /// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
    ///     .name("payments")
    ///     .route_from(|_| Some("/v1/charges".to_owned()))
    ///     .unscoped();
    /// ```
    pub fn route_from<F>(mut self, route: F) -> Self
    where
        F: Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    {
        self.set().route = Some(Arc::new(route));
        self
    }

    /// Sets whether a guarded request without a key gets 400. Default: it passes, unguarded.
    pub fn required(mut self, required: bool) -> Self {
        self.set().key.required = required;
        self
    }

    /// Sets the guarded methods. Default: POST and PATCH.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.set().methods = methods.into_iter().collect();
        self
    }

    /// Sets how long a response is kept, from its commit. Default: the runtime's. 1 ms to 100
    /// years. With an invalid setting, each guarded request gets 500 with the code `config`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.set().overrides.ttl = Some(ttl);
        self
    }

    /// Sets how long the store remembers, from the commit, that there was a response. Default: the
    /// runtime's. At least `ttl`.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.set().overrides.remember = Some(remember);
        self
    }

    /// Sets how long a crashed process blocks its keys. Default: the runtime's. At least 100 ms.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.set().overrides.lease = Some(lease);
        self
    }

    /// Sets how long a duplicate is held while the first request runs. Then it gets 409. Default:
    /// the runtime's.
    ///
    /// Official clients give up after 1.0 to 1.5 s and some never retry a 409, so 1.2 s suits them.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.set().overrides.wait = Some(wait);
        self
    }

    /// Sets how many attempts a key has. Default: the runtime's. At least 1.
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.set().overrides.max_attempts = Some(max_attempts);
        self
    }

    /// Sets what a request gets if the store does not answer. Default: the runtime's, which is a
    /// 503.
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.set().overrides.store_failure = Some(store_failure);
        self
    }

    /// Sets the largest body, in bytes, that is compared, and the largest response that is recorded.
    /// Default: 2 MiB, which is also axum's limit of bodies.
    ///
    /// A larger request gets 413, and the service does not run. If the body is not compared
    /// ([`fingerprint`](Self::fingerprint)) and holds no key ([`body_field`](Self::body_field)), a
    /// larger request streams to the service. If such a body breaks off, a response other than 2xx
    /// and 3xx releases the key.
    ///
    /// A larger response passes through complete, and the request is recorded as done, without its
    /// response.
    pub fn max_body(mut self, max_body: usize) -> Self {
        self.set().max_body = max_body;
        self
    }

    /// Sets the status for a key that comes again with another request. Default: 422. Stripe's
    /// clients expect 400.
    pub fn mismatch(mut self, status: StatusCode) -> Self {
        self.set().key.mismatch = Some(status);
        self
    }

    /// Sets what a duplicate must have in common with the first request, beside the key. Default:
    /// [`Fingerprints::body_and_url`].
    pub fn fingerprint(mut self, fingerprints: Fingerprints) -> Self {
        self.set().key.fingerprints = fingerprints;
        self
    }

    /// Replays the response even to a different request: for services whose contract is the key
    /// alone. Another name for `fingerprint(Fingerprints::nothing())`.
    pub fn replay_on_mismatch(self) -> Self {
        self.fingerprint(Fingerprints::nothing())
    }

    /// Sets whether a replay carries `Idempotent-Replayed: true`, and a replayed 5xx
    /// `Stripe-Should-Retry: false` and `X-Should-Retry: false`. Default: `true`.
    ///
    /// With `false`, clients cannot tell a replay from the first response. Those that retry also
    /// send a request again whose 5xx is replayed, if [`keep`](Self::keep) records 5xx. The
    /// extension [`Replayed`](crate::Replayed) marks replays for outer layers in either case.
    pub fn mark_replays(mut self, marks: bool) -> Self {
        self.set().marks_replays = marks;
        self
    }

    /// Sets the header that holds the key. Default: `Idempotency-Key`.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.set().key.source = KeySource::Header(name);
        self
    }

    /// Takes the key from the request's head, instead of from the header.
    ///
    /// The text is read like the header's value. [`key_rules`](Self::key_rules) accepts others.
    pub fn key_from<F>(mut self, key: F) -> Self
    where
        F: Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    {
        self.set().key.source = KeySource::Parts(Arc::new(key));
        self
    }

    /// Takes the key from a field of the body: `pointer` is a JSON pointer, or `/` and the name of
    /// a form's field. The `/` at its beginning may be left out.
    pub fn body_field(mut self, pointer: impl Into<Arc<str>>) -> Self {
        let pointer = pointer.into();
        // A pointer without it matches nothing, so each request would pass unguarded.
        let pointer = if pointer.starts_with('/') {
            pointer
        } else {
            format!("/{pointer}").into()
        };
        self.set().key.source = KeySource::Body(pointer);
        self
    }

    /// Sets which texts are keys, where they come by [`key_from`](Self::key_from) or
    /// [`body_field`](Self::body_field). Default: 1 to 255 visible ASCII characters.
    ///
    /// Keys of a header keep the rules of the draft. A [`lookup`](fn@crate::lookup) needs the same
    /// rules.
    pub fn key_rules(mut self, rules: KeyRules) -> Self {
        self.set().key.rules = Some(rules);
        self
    }

    /// Sets which responses are recorded; the others release the key, so that the next request runs
    /// the service.
    ///
    /// Default: 2xx, 3xx and 4xx except 401, 403, 408, 409, 425 and 429. Of gRPC: `OK`,
    /// `INVALID_ARGUMENT`, `NOT_FOUND`, `FAILED_PRECONDITION` and `OUT_OF_RANGE`.
    pub fn keep<F>(mut self, keep: F) -> Self
    where
        F: Fn(&response::Parts) -> bool + Send + Sync + 'static,
    {
        self.set().record.set_keep(Arc::new(keep));
        self
    }

    /// Releases the key if the response is 400, 422 or `INVALID_ARGUMENT` of gRPC, whatever
    /// [`keep`](Self::keep) says. Default: such a response is recorded, and a request that was
    /// corrected needs another key.
    ///
    /// For services that answer so before a request has any effect, such as by an extractor: the
    /// corrected request runs with the same key.
    pub fn release_validation_errors(mut self) -> Self {
        self.set().record.release_invalid();
        self
    }

    /// Leaves a header of responses out of the record.
    ///
    /// `Date`, `Set-Cookie` and the headers of a connection are always left out.
    pub fn exclude_header(mut self, name: HeaderName) -> Self {
        self.set().record.exclude(name);
        self
    }

    /// Sets the shape of the layer's own responses. Default: [`problem_json`](crate::problem_json).
    pub fn problem<F>(mut self, problem: F) -> Self
    where
        F: Fn(&Problem) -> Response + Send + Sync + 'static,
    {
        self.set().problem = Arc::new(problem);
        self
    }
}

/// Returns the text of a header: for [`scope`](IdempotencyLayer::scope), if a gateway in front of
/// the service puts the authenticated user into a header.
///
/// `None` if the header is missing, empty, occurs more than once, or has other characters than
/// visible ASCII, spaces and tabs.
///
/// # Examples
///
/// ```
/// let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
/// let (parts, ()) = request.into_parts();
/// assert_eq!(
///     idem_http::header(&parts, http::HeaderName::from_static("x-user")).as_deref(),
///     Some("alice")
/// );
/// assert_eq!(idem_http::header(&parts, http::header::HOST), None);
/// ```
pub fn header(parts: &request::Parts, name: HeaderName) -> Option<String> {
    let mut values = parts.headers.get_all(name).iter();
    let value = values
        .next()?
        .to_str()
        .ok()
        .filter(|value| !value.is_empty())?;
    values.next().is_none().then(|| value.to_owned())
}

impl<I, S: HasScope> Layer<I> for IdempotencyLayer<S> {
    type Service = Idempotent<I>;

    fn layer(&self, inner: I) -> Idempotent<I> {
        Idempotent::new(inner, self.settings.clone())
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            scope: PhantomData,
        }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}
