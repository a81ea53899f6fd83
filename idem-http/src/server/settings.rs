//! The settings of a layer, shared by all requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self as names, HeaderName};
use http::{HeaderMap, HeaderValue, Method, StatusCode, response};
use idem_core::policy::StoreFailure;
use idem_core::{Idempotency, Operation};

use super::fingerprints::Fingerprints;
use crate::key_rules::KeyRules;
use crate::media_type::is_grpc;
use crate::problem::{Problem, Response, problem_json};
use crate::scope::{FromParts, KeyScope};

pub(super) type Keep = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

/// All settings, shared by the requests of a layer.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) idempotency: Idempotency,
    pub(super) name: Arc<str>,
    pub(super) methods: Arc<[Method]>,
    /// The route, if the application says it; `None`: the router does.
    pub(super) route: Option<FromParts>,
    pub(super) max_body: usize,
    /// Whether a replay says that it is one.
    pub(super) marks_replays: bool,
    pub(super) problem: Arc<dyn Fn(&Problem) -> Response + Send + Sync>,
    pub(super) key: KeySettings,
    pub(super) record: RecordSettings,
    pub(super) overrides: Overrides,
}

/// How a request is identified.
#[derive(Clone)]
pub(super) struct KeySettings {
    pub(super) source: KeySource,
    /// Of keys that are not in a header; `None`: those of the draft.
    pub(super) rules: Option<KeyRules>,
    pub(super) scope: KeyScope,
    pub(super) required: bool,
    pub(super) fingerprints: Fingerprints,
    /// The status of a request that is not equal.
    pub(super) mismatch: Option<StatusCode>,
}

/// Which responses are recorded, and what of them.
#[derive(Clone)]
pub(super) struct RecordSettings {
    /// `None`: the default, which also looks at the status of gRPC.
    keep: Option<Keep>,
    releases_invalid: bool,
    excluded_headers: HashSet<HeaderName>,
}

/// What an operation gets instead of the defaults of the runtime.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overrides {
    pub(super) ttl: Option<Duration>,
    pub(super) remember: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) max_attempts: Option<u64>,
    pub(super) store_failure: Option<StoreFailure>,
}

/// The source of the key.
#[derive(Clone)]
pub(crate) enum KeySource {
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
            methods: [Method::POST, Method::PATCH].into(),
            route: None,
            max_body: 2 << 20,
            marks_replays: true,
            problem: Arc::new(problem_json),
            key: KeySettings {
                source: KeySource::Header(HeaderName::from_static("idempotency-key")),
                rules: None,
                scope: KeyScope::Shared,
                required: false,
                fingerprints: Fingerprints::body_and_url(),
                mismatch: None,
            },
            record: RecordSettings {
                keep: None,
                releases_invalid: false,
                excluded_headers: HashSet::new(),
            },
            overrides: Overrides::default(),
        }
    }

    /// Begins the description of a call, with the settings of the layer and without a key.
    pub(super) fn operation(&self, name: String) -> Operation<'static> {
        let mut operation = self.idempotency.operation(name);
        if let Some(ttl) = self.overrides.ttl {
            operation = operation.ttl(ttl);
        }
        if let Some(remember) = self.overrides.remember {
            operation = operation.remember(remember);
        }
        if let Some(lease) = self.overrides.lease {
            operation = operation.lease(lease);
        }
        if let Some(wait) = self.overrides.wait {
            operation = operation.wait(wait);
        }
        if let Some(max_attempts) = self.overrides.max_attempts {
            operation = operation.max_attempts(max_attempts);
        }
        match self.overrides.store_failure {
            Some(store_failure) => operation.store_failure(store_failure),
            None => operation,
        }
    }
}

impl KeySettings {
    /// Whether a request without its whole body cannot be claimed.
    pub(super) fn needs_body(&self) -> bool {
        self.fingerprints.needs_body() || matches!(self.source, KeySource::Body(_))
    }
}

impl RecordSettings {
    pub(super) fn set_keep(&mut self, keep: Keep) {
        self.keep = Some(keep);
    }

    pub(super) fn release_invalid(&mut self) {
        self.releases_invalid = true;
    }

    pub(super) fn exclude(&mut self, name: HeaderName) {
        self.excluded_headers.insert(name);
    }

    /// Whether a response is recorded, by its head.
    pub(super) fn keeps(&self, parts: &response::Parts) -> bool {
        let is_invalid =
            || matches!(parts.status.as_u16(), 400 | 422) || is_invalid_by_grpc(&parts.headers);
        if self.releases_invalid && is_invalid() {
            return false;
        }
        match &self.keep {
            Some(keep) => keep(parts),
            None => {
                is_kept(parts.status)
                    && (!is_grpc(&parts.headers) || is_kept_by_grpc(&parts.headers))
            }
        }
    }

    /// Whether a response of gRPC is recorded, by its trailers.
    pub(super) fn keeps_trailers(&self, trailers: &HeaderMap) -> bool {
        if self.releases_invalid && is_invalid_by_grpc(trailers) {
            return false;
        }
        self.keep.is_some() || is_kept_by_grpc(trailers)
    }

    /// Returns a check of whether a header of a response with these headers is recorded.
    ///
    /// `Transfer-Encoding` describes the body, if there is one. An answer to `HEAD` and a 304 have it
    /// for a body that they do not send.
    pub(super) fn is_recorded(
        &self,
        headers: &HeaderMap,
        has_body: bool,
    ) -> impl Fn(&HeaderName) -> bool {
        let has_connection = headers.contains_key(names::CONNECTION);
        move |name| {
            let is_excluded = is_of_one_response(name)
                || (has_body && name == names::TRANSFER_ENCODING)
                || self.excluded_headers.contains(name);
            !(is_excluded || (has_connection && is_named_by_connection(headers, name)))
        }
    }
}

/// Whether it is a header of a connection, or another that belongs to one response.
/// `content-length` is none: an answer to `HEAD`, or a 304, has it without a body.
fn is_of_one_response(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "te"
            | "trailer"
            | "upgrade"
            | "date"
            | "set-cookie"
    )
}

/// Whether `Connection` names the header: then it belongs to the connection as well.
fn is_named_by_connection(headers: &HeaderMap, name: &HeaderName) -> bool {
    let values = headers
        .get_all(names::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .any(|named| named.trim().eq_ignore_ascii_case(name.as_str()))
}

fn is_kept(status: StatusCode) -> bool {
    let may_change = matches!(status.as_u16(), 401 | 403 | 408 | 409 | 425 | 429);
    (status.is_success() || status.is_redirection() || status.is_client_error()) && !may_change
}

/// Whether the status of gRPC in these headers or trailers is one that is kept, or is missing.
///
/// The status of HTTP is always 200. The kept ones are those whose counterparts in HTTP are kept:
/// `OK`, `INVALID_ARGUMENT`, `NOT_FOUND`, `FAILED_PRECONDITION` and `OUT_OF_RANGE`.
fn is_kept_by_grpc(headers: &HeaderMap) -> bool {
    let status = headers.get("grpc-status").map(HeaderValue::as_bytes);
    status.is_none_or(|status| matches!(status, b"0" | b"3" | b"5" | b"9" | b"11"))
}

/// Whether the status of gRPC in these headers or trailers is `INVALID_ARGUMENT`.
fn is_invalid_by_grpc(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status.as_bytes() == b"3")
}
