//! The settings of a layer, shared by all requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self as names, HeaderName};
use http::{HeaderMap, Method, StatusCode, request, response};
use idem_core::{Idempotency, Operation, StoreFailure};

use crate::problem::{Problem, Response, problem_json};

type FromParts = Arc<dyn Fn(&request::Parts) -> Option<String> + Send + Sync>;

/// Everything that can be set, shared by all requests once the layer is in place.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) idempotency: Idempotency,
    pub(super) name: Arc<str>,
    pub(super) owner: Owner,
    pub(super) key: KeyOf,
    pub(super) required: bool,
    pub(super) methods: Arc<[Method]>,
    pub(super) max_body: usize,
    pub(super) mismatch: Option<StatusCode>,
    pub(super) compares: bool,
    pub(super) keep: Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>,
    pub(super) problem: Arc<dyn Fn(&Problem) -> Response + Send + Sync>,
    pub(super) not_recorded: HashSet<HeaderName>,
    pub(super) times: Times,
}

/// The settings that differ from the defaults of the runtime.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) ttl: Option<Duration>,
    pub(super) remember: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) max_attempts: Option<u64>,
    pub(super) store_failure: Option<StoreFailure>,
}

/// Whose key it is.
#[derive(Clone)]
pub(crate) enum Owner {
    /// Everybody's.
    Shared,
    Of(FromParts),
}

/// The source of the key.
#[derive(Clone)]
pub(crate) enum KeyOf {
    Header(HeaderName),
    Parts(FromParts),
    /// A JSON pointer, or `/` and the name of a form's field.
    Body(Arc<str>),
}

impl Settings {
    pub(super) fn new(idempotency: Idempotency) -> Self {
        Self {
            idempotency,
            name: "http".into(),
            owner: Owner::Shared,
            key: KeyOf::Header(HeaderName::from_static("idempotency-key")),
            required: false,
            methods: [Method::POST, Method::PATCH].into(),
            max_body: 1 << 20,
            mismatch: None,
            compares: true,
            keep: Arc::new(is_kept),
            problem: Arc::new(problem_json),
            not_recorded: HashSet::new(),
            times: Times::default(),
        }
    }

    /// The call that a request stands for, but for its key.
    pub(super) fn operation(&self, name: String) -> Operation<'static> {
        let mut operation = self.idempotency.operation(name);
        if let Some(ttl) = self.times.ttl {
            operation = operation.ttl(ttl);
        }
        if let Some(remember) = self.times.remember {
            operation = operation.remember(remember);
        }
        if let Some(lease) = self.times.lease {
            operation = operation.lease(lease);
        }
        if let Some(wait) = self.times.wait {
            operation = operation.wait(wait);
        }
        if let Some(max_attempts) = self.times.max_attempts {
            operation = operation.max_attempts(max_attempts);
        }
        match self.times.store_failure {
            Some(store_failure) => operation.store_failure(store_failure),
            None => operation,
        }
    }

    /// Returns a check of whether a header of a response with these headers is recorded.
    pub(super) fn is_recorded(&self, headers: &HeaderMap) -> impl Fn(&HeaderName) -> bool {
        let is_connected = headers.contains_key(names::CONNECTION);
        move |name| {
            let is_left_out = OF_A_CONNECTION.contains(name) || self.not_recorded.contains(name);
            !(is_left_out || (is_connected && is_of_this_connection(headers, name)))
        }
    }
}

/// Never recorded. The length is known from the body.
const OF_A_CONNECTION: [HeaderName; 10] = [
    names::CONNECTION,
    HeaderName::from_static("keep-alive"),
    names::PROXY_AUTHENTICATE,
    names::TE,
    names::TRAILER,
    names::TRANSFER_ENCODING,
    names::UPGRADE,
    names::CONTENT_LENGTH,
    names::DATE,
    names::SET_COOKIE,
];

/// Whether `Connection` names the header: then it belongs to the connection as well.
fn is_of_this_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let values = headers.get_all(names::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
}

fn is_kept(parts: &response::Parts) -> bool {
    let status = parts.status;
    let passes = matches!(status.as_u16(), 401 | 403 | 408 | 409 | 425 | 429);
    (status.is_success() || status.is_redirection() || status.is_client_error()) && !passes
}
