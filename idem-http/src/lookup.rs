//! The result of a call whose client timed out.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, StatusCode, request};
use idem_core::adapter::report_without_call;
use idem_core::{ErrorKind, Idempotency, Lookup, Operation};
use percent_encoding::percent_decode_str;
use tower_service::Service;

use crate::body::Body;
use crate::key::IdempotencyKey;
use crate::key_rules::KeyRules;
use crate::problem::{Problem, Response, problem_json};
use crate::scope::KeyScope;
use crate::server::{HasScope, NeedsScope, Scoped, complete, operation, replay};
use crate::stored::StoredResponse;

/// Creates a service that looks up a request by its key, for `GET ../{key}`.
///
/// A client whose request timed out asks this service. It answers immediately and never claims, so
/// it changes nothing. Set the name, route and scope of the
/// [`IdempotencyLayer`](crate::IdempotencyLayer) that guards the request. The key is the last
/// segment of the path, percent-decoded. Responses carry `Cache-Control: no-store`, unless the
/// recorded one has its own.
///
/// | record | response |
/// | --- | --- |
/// | outcome | the recorded response, with `Idempotent-Replayed: true` |
/// | in flight | 202 and `Retry-After` |
/// | abandoned | 409 |
/// | done, answer expired or not recorded | 410 |
/// | none, or released | 404 |
/// | store unavailable | 503 and `Retry-After` |
/// | unreadable | 500 |
///
/// A request with an invalid key gets 400, one without an owner 401, and a method other than GET
/// and HEAD 405.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use idem_core::{Idempotency, MemoryStore};
///
/// /// The authenticated user: a layer puts it into the request's extensions.
/// #[derive(Clone)]
/// struct User(String);
///
/// let idempotency = Idempotency::new(MemoryStore::new());
/// let lookup = idem_http::lookup(idempotency)
///     .name("payments")
///     .route("POST", "/v1/charges")
///     .scope(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()));
/// let app: Router = Router::new().route_service("/v1/charges/by-key/{key}", lookup);
/// ```
pub fn lookup(idempotency: Idempotency) -> LookupService {
    let settings = Settings {
        idempotency,
        name: "http".into(),
        method: "POST".into(),
        route: "/".into(),
        rules: None,
        scope: KeyScope::Shared,
        problem: Arc::new(problem_json),
    };
    LookupService {
        settings,
        scope: PhantomData,
    }
}

/// A service that looks up requests: see [`lookup`](fn@crate::lookup).
#[derive(Clone)]
pub struct LookupService<S = NeedsScope> {
    settings: Settings,
    scope: PhantomData<S>,
}

#[derive(Clone)]
struct Settings {
    idempotency: Idempotency,
    name: Arc<str>,
    method: Arc<str>,
    route: Arc<str>,
    rules: Option<KeyRules>,
    scope: KeyScope,
    problem: Arc<dyn Fn(&Problem) -> Response + Send + Sync>,
}

impl LookupService {
    /// Sets how the owner of a key is found in a request, like the layer's
    /// [`scope`](crate::IdempotencyLayer::scope).
    ///
    /// A request for which this returns `None` gets 401, and one for which it returns a password
    /// 500.
    pub fn scope<F>(mut self, scope: F) -> LookupService<Scoped>
    where
        F: Fn(&request::Parts) -> Option<String> + Send + Sync + 'static,
    {
        self.settings.scope = KeyScope::PerClient(Arc::new(scope));
        LookupService {
            settings: self.settings,
            scope: PhantomData,
        }
    }

    /// Looks keys up that all clients share, like the layer's `unscoped`.
    pub fn unscoped(self) -> LookupService<Scoped> {
        LookupService {
            settings: self.settings,
            scope: PhantomData,
        }
    }
}

impl<S> LookupService<S> {
    /// Sets the layer's name. Default: `http`.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Sets the method and the route of the guarded requests, as in `.route("POST",
    /// "/v1/charges")`. Default: POST and `/`.
    #[must_use]
    pub fn route(mut self, method: impl Into<Arc<str>>, route: impl Into<Arc<str>>) -> Self {
        self.settings.method = method.into();
        self.settings.route = route.into();
        self
    }

    /// Sets which texts are keys, like the layer's
    /// [`key_rules`](crate::IdempotencyLayer::key_rules).
    #[must_use]
    pub fn key_rules(mut self, rules: KeyRules) -> Self {
        self.settings.rules = Some(rules);
        self
    }

    /// Sets the shape of the service's own responses. Default: [`problem_json`].
    #[must_use]
    pub fn problem<F>(mut self, problem: F) -> Self
    where
        F: Fn(&Problem) -> Response + Send + Sync + 'static,
    {
        self.settings.problem = Arc::new(problem);
        self
    }
}

impl Settings {
    async fn answer(self, parts: request::Parts) -> http::Response<Body> {
        let mut response = match self.find(&parts).await {
            Ok(response) => response,
            Err(problem) => {
                let mut response = complete((self.problem)(&problem));
                if problem == Problem::METHOD_NOT_ALLOWED {
                    response
                        .headers_mut()
                        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
                }
                response
            }
        };
        // A cache may keep the response to a GET, even a 404, and the next response may differ.
        response
            .headers_mut()
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        response
    }

    /// The call that a request asks about.
    fn call_of(&self, name: &str, parts: &request::Parts) -> Result<Operation<'static>, Problem> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(Problem::METHOD_NOT_ALLOWED);
        }
        let scope = self.scope.owner(parts)?;
        let segment = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let decoded: Vec<u8> = percent_decode_str(segment).collect();
        let key = KeyRules::read(self.rules, &decoded, IdempotencyKey::from_text)?;
        let operation = self.idempotency.operation(name.to_owned());
        Ok(match &scope {
            Some(scope) => operation.key(&(scope.as_str(), &key)),
            None => operation.key(&key),
        })
    }

    async fn find(&self, parts: &request::Parts) -> Result<http::Response<Body>, Problem> {
        let name = operation(&self.name, &self.method, &self.route);
        let call = self.call_of(&name, parts);
        let call = call.inspect_err(|refused| report_without_call(&name, Some(refused.code)))?;
        match call.lookup::<StoredResponse>().await {
            Ok(Lookup::Outcome(mut stored)) => {
                // They may be those of an answer to HEAD, and this one answers a GET.
                for framing in [CONTENT_LENGTH, TRANSFER_ENCODING] {
                    stored.headers.remove(framing);
                }
                Ok(replay(stored, true))
            }
            Ok(Lookup::InFlight { .. }) => Err(Problem {
                status: StatusCode::ACCEPTED,
                ..Problem::of_kind(ErrorKind::InFlight)
            }),
            Ok(Lookup::Abandoned { .. }) => Err(Problem::of_kind(ErrorKind::Abandoned)),
            Ok(Lookup::AlreadyDone) => Err(Problem {
                status: StatusCode::GONE,
                ..Problem::of_kind(ErrorKind::AlreadyDone)
            }),
            Ok(Lookup::Unknown) => Err(Problem::NOT_FOUND),
            Ok(_) => Err(Problem::INTERNAL),
            Err(error) => Err(Problem::from(&error)),
        }
    }
}

impl<B, S: HasScope> Service<Request<B>> for LookupService<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = LookupFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> LookupFuture {
        let (parts, _) = request.into_parts();
        LookupFuture(Box::pin(self.settings.clone().answer(parts)))
    }
}

/// The response of a [`LookupService`].
pub struct LookupFuture(BoxFuture<'static, http::Response<Body>>);

impl Future for LookupFuture {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}

impl fmt::Debug for LookupFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LookupFuture")
    }
}

impl<S> fmt::Debug for LookupService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupService")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}
