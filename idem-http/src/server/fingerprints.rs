//! What must be equal when a key comes again.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, request};
use idem_core::Operation;
use serde::Serialize;

use super::route::original_uri;
use crate::media_type::{canonical, canonical_path};

/// What a duplicate must have in common with the first request, beside the key: for
/// [`fingerprint`](crate::IdempotencyLayer::fingerprint).
///
/// The values are stored as a digest. After a change of this setting, the keys of requests that were
/// recorded before it may be refused as mismatches, until they expire.
///
/// # Examples
///
/// ```
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_http::{Fingerprints, IdempotencyLayer};
///
/// // Uploads: a large file is not compared, and streams to the service.
/// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
///     .name("uploads")
///     .fingerprint(Fingerprints::url())
///     .unscoped();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprints(Compared);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    BodyAndUrl,
    Url,
    Nothing,
}

impl Fingerprints {
    /// Compares method, path with query, content type and body. The default.
    ///
    /// Spellings that HTTP and URIs define as equal are equal: `Application/JSON;charset=UTF-8` and
    /// `application/json`, `%7Euser` and `~user`, `%2f` and `%2F`. The body is compared byte for
    /// byte.
    ///
    /// The body is read into memory, so [`max_body`](crate::IdempotencyLayer::max_body) limits it.
    pub const fn body_and_url() -> Self {
        Self(Compared::BodyAndUrl)
    }

    /// Compares method and path with query. A duplicate may have another body.
    pub const fn url() -> Self {
        Self(Compared::Url)
    }

    /// Compares nothing: the key alone identifies a request of its operation.
    pub const fn nothing() -> Self {
        Self(Compared::Nothing)
    }

    /// Whether the body is compared.
    pub(super) fn needs_body(self) -> bool {
        self.0 == Compared::BodyAndUrl
    }

    /// Sets the fingerprint of a request. `Content-Type` is its only header, because clients change
    /// others between their tries.
    pub(super) fn set<'a>(
        self,
        operation: Operation<'a>,
        parts: &request::Parts,
        body: &[u8],
    ) -> Operation<'a> {
        let method = parts.method.as_str();
        let path = original_uri(parts)
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let path = &*canonical_path(path);
        match self.0 {
            Compared::Nothing => operation.no_fingerprint(),
            Compared::Url => operation.fingerprint(&(method, path)),
            Compared::BodyAndUrl => {
                let content_type = parts
                    .headers
                    .get(CONTENT_TYPE)
                    .map(HeaderValue::as_bytes)
                    .unwrap_or_default();
                let content_type = &*canonical(content_type);
                operation.fingerprint(&(method, path, Raw(content_type), Raw(body)))
            }
        }
    }
}

/// Bytes that are serialized as bytes: serde writes a slice as a sequence of numbers.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}
