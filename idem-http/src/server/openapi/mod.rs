//! Guarded operations in OpenAPI documents.

#[cfg(feature = "aide")]
mod aide;
#[cfg(feature = "utoipa")]
mod utoipa;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use idem_core::ErrorKind;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fingerprints::Fingerprints;
use super::layer::IdempotencyLayer;
use super::settings::{KeySource, Settings};
use crate::key::{InvalidKey, MAX_KEY_LEN};
use crate::problem::Problem;
use crate::scope::KeyScope;

/// The header of a key, where an extractor reads it.
const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// The extension by which Fern's generators know an operation that takes a key.
const FERN: &str = "x-fern-idempotent";
/// The header that marks replays, as it is usually spelled.
const REPLAYED: &str = "Idempotent-Replayed";

/// A part of an OpenAPI document, by utoipa or aide: the whole, a path, or an operation. Sealed.
pub trait ApiDocument: sealed::ApiDocument {}

impl<D: sealed::ApiDocument> ApiDocument for D {}

mod sealed {
    pub trait ApiDocument {
        fn describe(&mut self, guard: &super::Guard);
    }
}

impl<S> IdempotencyLayer<S> {
    /// Describes the layer in an OpenAPI document, or in a part of it: features `utoipa`, `aide`.
    ///
    /// Each operation with a guarded method gets
    ///
    /// - the header of the key, required or optional as it is for the layer,
    /// - the responses of the layer, as [`problem`](Self::problem) makes them: 409, 422 and others,
    ///   with `Retry-After`,
    /// - `Idempotent-Replayed` at those of its own responses that are recorded, if
    ///   [replays are marked](Self::mark_replays),
    /// - `x-fern-idempotent: true`.
    ///
    /// What the document says already stays. If the layer guards a part of the service, describe the
    /// document of that part, and merge it into the other.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "utoipa")] {
    /// use idem_core::{Idempotency, MemoryStore};
    /// use idem_http::IdempotencyLayer;
    ///
    /// let mut api = utoipa::openapi::OpenApi::default(); // yours
    /// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new())).required(true);
    /// layer.document(&mut api);
    /// # }
    /// ```
    pub fn document(&self, document: &mut impl ApiDocument) {
        document.describe(&Guard {
            responses: responses(&self.settings),
            settings: self.settings.clone(),
        });
    }
}

/// A layer, as its clients see it.
pub struct Guard {
    settings: Arc<Settings>,
    responses: BTreeMap<StatusCode, Value>,
}

impl Guard {
    fn guards(&self, method: &Method) -> bool {
        self.settings.methods.contains(method)
    }

    /// Returns the header of the key; `None` if the key is elsewhere.
    fn parameter<P: DeserializeOwned>(&self) -> Option<P> {
        match &self.settings.key.source {
            KeySource::Header(name) => parameter(name, self.settings.key.required),
            KeySource::Parts(_) | KeySource::Body(_) => None,
        }
    }

    fn responses<R: DeserializeOwned>(&self) -> impl Iterator<Item = (StatusCode, R)> {
        let responses = self.responses.iter();
        responses.filter_map(|(status, response)| Some((*status, R::deserialize(response).ok()?)))
    }

    /// Returns the header that marks replays, if a response of the service is recorded. Its status
    /// is one such as `201`, `4XX` or `default`.
    fn mark<H: DeserializeOwned>(&self, status: &str, description: &str) -> Option<H> {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let is_kept = match status.replace('X', "0").parse::<StatusCode>() {
            Ok(status) => {
                parts.status = status;
                self.settings.record.keeps(&parts)
            }
            Err(_) => true,
        };
        // A document may be described twice.
        let mut ours = self.responses.values();
        let is_ours = ours.any(|ours| ours["description"] == description);
        if is_ours || !is_kept || !self.settings.marks_replays {
            return None;
        }
        let header = json!({
            "description": "The response is that of an earlier request with this key.",
            "schema": { "type": "string", "enum": ["true"] },
        });
        H::deserialize(header).ok()
    }
}

fn parameter<P: DeserializeOwned>(name: &HeaderName, required: bool) -> Option<P> {
    let is_usual = *name == HEADER;
    let parameter = json!({
        "name": if is_usual { "Idempotency-Key" } else { name.as_str() },
        "in": "header",
        "required": required,
        "description": "A key of your choice: new for each operation, the same for each of its tries.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY_LEN,
            "pattern": "^[!#-+.-:<-~-][!-+.-:<-~-]*$",
        },
    });
    P::deserialize(parameter).ok()
}

/// The operations of a path, with their methods.
macro_rules! operations {
    ($path:expr) => {
        [
            (Method::GET, &mut $path.get),
            (Method::PUT, &mut $path.put),
            (Method::POST, &mut $path.post),
            (Method::DELETE, &mut $path.delete),
            (Method::OPTIONS, &mut $path.options),
            (Method::HEAD, &mut $path.head),
            (Method::PATCH, &mut $path.patch),
            (Method::TRACE, &mut $path.trace),
        ]
    };
}
use operations;

/// Adds to a response what it lacks of another one.
macro_rules! complete {
    ($theirs:expr, $ours:expr) => {
        append(&mut $theirs.description, &$ours.description);
        for (name, header) in $ours.headers {
            $theirs.headers.entry(name).or_insert(header);
        }
        for (media_type, content) in $ours.content {
            $theirs.content.entry(media_type).or_insert(content);
        }
    };
}
use complete;

/// The answers of the layer in place of the service, but for mistakes of the service itself.
fn problems(settings: &Settings) -> impl Iterator<Item = Problem> {
    let key = &settings.key;
    let invalid = match (&key.source, key.rules) {
        (KeySource::Body(_), _) => Problem::UNCLEAR_KEY,
        (KeySource::Parts(_), Some(_)) => Problem::from(InvalidKey::AgainstRules),
        _ => Problem::INVALID_KEY,
    };
    let mut mismatch = Problem::of_kind(ErrorKind::FingerprintMismatch);
    mismatch.status = key.mismatch.unwrap_or(mismatch.status);
    let has_owners = matches!(key.scope, KeyScope::PerClient(_));
    let refusals = [
        (key.required, Problem::missing_key()),
        (true, invalid),
        (has_owners, Problem::NO_SCOPE),
        (key.needs_body(), Problem::TOO_LARGE),
        (key.fingerprints != Fingerprints::nothing(), mismatch),
    ];
    let by_record = [
        ErrorKind::InFlight,
        ErrorKind::AlreadyDone,
        ErrorKind::Abandoned,
        ErrorKind::AttemptsExhausted,
        ErrorKind::LeaseLost,
        ErrorKind::Store,
    ];
    let refusals = refusals.into_iter().filter(|(may_be, _)| *may_be);
    refusals
        .map(|(_, problem)| problem)
        .chain(by_record.map(Problem::of_kind))
}

/// One response for each status, as the layer answers, with its problems as examples.
fn responses(settings: &Settings) -> BTreeMap<StatusCode, Value> {
    let mut responses = BTreeMap::new();
    for problem in problems(settings) {
        let answer = (settings.problem)(&problem);
        let response = responses.entry(answer.status()).or_insert(Value::Null);
        let mut description = response["description"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        append(&mut description, problem.message);
        response["description"] = description.into();
        if answer.headers().contains_key(RETRY_AFTER) {
            response["headers"]["Retry-After"] = json!({
                "description": "After so many seconds, send the same request again, with the same key.",
                "schema": { "type": "integer" },
            });
        }
        if let Some(Ok(media_type)) = answer.headers().get(CONTENT_TYPE).map(HeaderValue::to_str) {
            let body = answer.body().as_str();
            let body: Value = serde_json::from_str(body).unwrap_or_else(|_| body.into());
            response["content"][media_type]["examples"][problem.code] = json!({ "value": body });
        }
    }
    responses
}

/// Adds a description to another one, unless it is there.
fn append(description: &mut String, more: &str) {
    if description.is_empty() {
        more.clone_into(description);
    } else if !description.contains(more) {
        description.push_str("\n\nOr: ");
        description.push_str(more);
    }
}
