//! The owner of a key: what the scope says of a request, which is never a credential.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue, request};
use idem_core::ErrorKind;

use crate::problem::Problem;

pub(crate) type FromParts = Arc<dyn Fn(&request::Parts) -> Option<String> + Send + Sync>;

/// Who shares a key.
#[derive(Clone)]
pub(crate) enum KeyScope {
    /// All clients.
    Shared,
    PerClient(FromParts),
}

/// Whether the warning was given: one for each process, because the setting is the same for every
/// request. It is not a `Once`, which a subscriber that panics would poison for all later requests.
static WARNED: AtomicBool = AtomicBool::new(false);

impl KeyScope {
    /// Returns the owner of a request; `None` if all clients share their keys.
    pub(crate) fn owner(&self, parts: &request::Parts) -> Result<Option<String>, Problem> {
        let Self::PerClient(scope) = self else {
            return Ok(None);
        };
        let owner = scope(parts)
            .filter(|owner| !owner.is_empty())
            .ok_or(Problem::NO_SCOPE)?;
        let Some((header, value)) = credential_in(&owner, &parts.headers) else {
            return Ok(Some(owner));
        };
        if has_password(value) {
            tracing::error!(
                target: "idem", event = "credential_in_scope", %header,
                "the scope is a password of the request, which would be in the store; return the \
                 authenticated user, or digest it by a `ScopeSecret`",
            );
            return Err(Problem::of_kind(ErrorKind::Config));
        }
        if !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "idem", event = "credential_in_scope", %header,
                "the scope is a token of the request, and is stored as a digest; a renewed token \
                 is another owner: return the authenticated user",
            );
        }
        Ok(Some(digest_of_token(&owner)))
    }
}

/// Digests a token. A token is random, so it cannot be guessed from its digest, as a password
/// could.
fn digest_of_token(owner: &str) -> String {
    let digest = blake3::Hasher::new_derive_key("idem 2026 the owner of a key by a token")
        .update(owner.as_bytes())
        .finalize();
    digest.to_hex().chars().take(32).collect()
}

fn has_password(value: &HeaderValue) -> bool {
    let scheme = value
        .as_bytes()
        .split(|byte| *byte == b' ')
        .next()
        .unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"basic") || scheme.eq_ignore_ascii_case(b"digest")
}

/// Digests credentials, so that they can be a scope.
///
/// A scope is a part of the record's key, which operators and everybody who reads the store can
/// see. So the layer and the lookup refuse a scope that contains a password of its request, and
/// store one that contains a token as a digest. If a service knows its clients only by a
/// credential, it digests the credential with this secret. The digest is keyed: without the secret,
/// a password or a short token cannot be guessed from it.
///
/// All processes that share a store need the same secret. With another secret every owner is a new
/// one, so a request whose key is still alive runs again. The digest of a renewed credential is
/// another owner too; prefer the authenticated user.
///
/// # Examples
///
/// ```
/// use http::header::AUTHORIZATION;
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_http::{IdempotencyLayer, ScopeSecret};
///
/// # let bytes = [7; 32];
/// // From your secret manager: 32 random bytes.
/// let secret = ScopeSecret::new(bytes);
/// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
///     .scope(secret.header(AUTHORIZATION));
/// ```
#[derive(Clone)]
pub struct ScopeSecret([u8; 32]);

impl ScopeSecret {
    /// Takes 32 bytes from a source of secrets. A password is none.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns a digest of a text: 32 hexadecimal digits, the same in every process with this
    /// secret.
    pub fn digest(&self, text: &str) -> String {
        let digest = blake3::keyed_hash(&self.0, text.as_bytes()).to_hex();
        digest.chars().take(32).collect()
    }

    /// Returns a scope that digests a header of the request, such as `Authorization` or
    /// `X-Api-Key`. A request without it has no owner, as with [`header`](crate::header).
    pub fn header(
        &self,
        name: HeaderName,
    ) -> impl Fn(&request::Parts) -> Option<String> + Clone + Send + Sync + 'static {
        let secret = self.clone();
        move |parts| crate::header(parts, name.clone()).map(|text| secret.digest(&text))
    }
}

impl fmt::Debug for ScopeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeSecret(..)")
    }
}

/// The ends of the names of headers and cookies that hold credentials.
const CREDENTIAL_NAMES: [&str; 23] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "credentials",
    "api-key",
    "api_key",
    "apikey",
    "access-key",
    "auth-key",
    "subscription-key",
    "session",
    "session-id",
    "session_id",
    "sessionid",
    "sessid",
    "connect.sid",
    "jwt",
    "jwt-assertion",
    "auth",
];

/// The shortest text that counts as a credential, in bytes. A shorter one can be a part of a scope
/// by accident.
const MIN_CREDENTIAL_LEN: usize = 8;

/// Returns the header of the request whose credential the scope contains.
fn credential_in<'a>(
    scope: &str,
    headers: &'a HeaderMap,
) -> Option<(&'a HeaderName, &'a HeaderValue)> {
    // It has no room for one.
    if scope.len() < MIN_CREDENTIAL_LEN {
        return None;
    }
    headers
        .iter()
        .find(|(name, value)| is_credential(name.as_str()) && is_from(scope, name, value))
}

fn is_credential(name: &str) -> bool {
    CREDENTIAL_NAMES.iter().any(|end| name.ends_with(end))
}

/// Whether the scope contains the credential of a header, in one of the forms in which services use
/// it.
fn is_from(scope: &str, name: &HeaderName, value: &HeaderValue) -> bool {
    let Ok(value) = std::str::from_utf8(value.as_bytes()).map(str::trim) else {
        return false;
    };
    let has = |secret: &str| secret.len() >= MIN_CREDENTIAL_LEN && scope.contains(secret);
    if has(value) {
        return true;
    }
    if name.as_str().ends_with("cookie") {
        let pairs = value
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        let mut secrets =
            pairs.filter(|(name, _)| *name == "sid" || is_credential(&name.to_ascii_lowercase()));
        return secrets.any(|(_, secret)| has(secret));
    }
    let Some((scheme, rest)) = value.split_once(' ') else {
        return false;
    };
    let rest = rest.trim();
    if has(rest) {
        return true;
    }
    // `user:password`, or one of them. The user alone is what a scope should be, unless there is no
    // password: then it is an API key.
    let decoded = scheme
        .eq_ignore_ascii_case("basic")
        .then(|| STANDARD_NO_PAD.decode(rest.trim_end_matches('=')));
    let pair = decoded
        .and_then(Result::ok)
        .and_then(|pair| String::from_utf8(pair).ok());
    let Some(pair) = pair.as_deref() else {
        return false;
    };
    match pair.split_once(':') {
        Some((user, "")) => has(user),
        Some((user, password)) => has(pair) || (password != user && has(password)),
        None => has(pair),
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// The warning comes once a process, so this is the only test here that asks for an owner.
    #[test]
    fn a_subscriber_that_panics_at_the_warning_breaks_no_later_request() {
        let header = HeaderName::from_static("x-api-key");
        let scope =
            KeyScope::PerClient(Arc::new(move |parts| crate::header(parts, header.clone())));
        let request = http::Request::builder().header("x-api-key", "0123456789");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        // With one subscriber alone, a thread of another test decides whether the event is wanted.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let panics = tracing_subscriber::fmt().with_writer(|| -> std::io::Sink { panic!() });
        tracing::subscriber::with_default(panics.finish(), || {
            let owner = || catch_unwind(AssertUnwindSafe(|| scope.owner(&parts).ok().flatten()));
            assert!(owner().is_err(), "the warning is written");
            for _ in 0..2 {
                assert_eq!(owner().unwrap(), Some(digest_of_token("0123456789")));
            }
        });
    }

    /// Whether a scope is recognised as a credential of a request with this header.
    fn is_recognised(scope: &str, name: &'static str, value: &str) -> bool {
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
        credential_in(scope, &headers).is_some()
    }

    #[test]
    fn a_scope_that_contains_a_credential_is_recognised_in_each_of_its_forms() {
        for (scope, name, value) in [
            (
                "Basic YWRtaW46czNjcmV0",
                "authorization",
                "Basic YWRtaW46czNjcmV0",
            ),
            (
                "YWRtaW46czNjcmV0",
                "authorization",
                "Basic YWRtaW46czNjcmV0",
            ),
            ("admin:s3cret", "authorization", "basic YWRtaW46czNjcmV0"),
            // `sk_test_4242:`, as `curl -u sk_test_4242:` sends it.
            (
                "sk_test_4242",
                "authorization",
                "Basic c2tfdGVzdF80MjQyOg==",
            ),
            ("Bearer eyJhbGciOi", "authorization", "Bearer eyJhbGciOi"),
            ("shop/eyJhbGciOi", "authorization", "Bearer eyJhbGciOi"),
            ("0123456789", "authorization", "0123456789"),
            ("eyJhbGciOi", "proxy-authorization", "Bearer eyJhbGciOi"),
            (
                "theme=dark; session=8d7e6f5a4b",
                "cookie",
                "theme=dark; session=8d7e6f5a4b",
            ),
            ("8d7e6f5a4b", "cookie", "theme=dark; JSESSIONID=8d7e6f5a4b"),
            ("8d7e6f5a4b", "cookie", "sid=8d7e6f5a4b"),
            ("0123456789", "x-api-key", "0123456789"),
            // The shortest credential.
            ("01234567", "x-api-key", "01234567"),
            ("0123456789", "apikey", "0123456789"),
            ("eu/0123456789", "x-goog-api-key", "0123456789"),
            ("0123456789", "x-auth-token", "0123456789"),
            ("0123456789", "ocp-apim-subscription-key", "0123456789"),
        ] {
            assert!(
                is_recognised(scope, name, value),
                "{scope} of {name}: {value}"
            );
        }
    }

    #[test]
    fn an_owner_is_none_for_being_in_a_request() {
        for (scope, name, value) in [
            // The users of `admin:s3cret-s3cret`, `alice-smith:alice-smith`, `alice:alice`.
            (
                "admin",
                "authorization",
                "Basic YWRtaW46czNjcmV0LXMzY3JldA==",
            ),
            (
                "alice-smith",
                "authorization",
                "Basic YWxpY2Utc21pdGg6YWxpY2Utc21pdGg=",
            ),
            ("alice", "authorization", "Basic YWxpY2U6YWxpY2U="),
            ("alice", "authorization", "Bearer alice"),
            ("alice", "authorization", "alice"),
            ("alice", "authorization", ""),
            ("alice", "authorization", "Basic !"),
            (
                "550e8400-e29b",
                "cookie",
                "user_id=550e8400-e29b; session=8d7e6f5a4b",
            ),
            ("tenant-7", "x-api-key", "7"),
            ("550e8400-e29b", "x-user", "550e8400-e29b"),
            ("550e8400-e29b", "x-tenant-id", "550e8400-e29b"),
            ("550e8400-e29b", "idempotency-key", "550e8400-e29b"),
        ] {
            assert!(
                !is_recognised(scope, name, value),
                "{scope} of {name}: {value}"
            );
        }
    }

    #[test]
    fn the_digest_of_a_token_stays_the_same_because_it_is_a_part_of_stored_keys() {
        assert_eq!(
            digest_of_token("Bearer eyJhbGciOi"),
            "9e532ab8fe059484f3bd89d5076e769c"
        );
        assert_ne!(
            digest_of_token("Bearer eyJhbGciOi"),
            digest_of_token("Bearer eyJhbGciOj")
        );
    }

    #[test]
    fn a_digest_depends_on_the_secret_and_on_the_text_alone() {
        let secret = ScopeSecret::new([7; 32]);
        let digest = secret.digest("Basic YWRtaW46czNjcmV0");
        assert_eq!(digest, "0e6283ea7f688f99ace50cdc7dacf742");
        assert_ne!(digest, secret.digest("Basic YWRtaW46czNjcmV1"));
        assert_ne!(
            digest,
            ScopeSecret::new([8; 32]).digest("Basic YWRtaW46czNjcmV0")
        );
        assert_eq!(format!("{secret:?}"), "ScopeSecret(..)");
    }
}
