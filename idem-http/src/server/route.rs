//! The operation that a request belongs to.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::{Uri, request};
use idem_core::Fingerprint;

use crate::media_type::canonical_path;
use crate::scope::FromParts;

/// The extension that names the route of a request, such as `/v1/charges/{id}`: for adapters of
/// frameworks other than axum, and for layers outside of this one. It goes before axum's matched path.
///
/// Without it, and without axum's matched path, each path is a separate operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(pub String);

/// The longest name of an operation, in bytes.
const MAX_LEN: usize = 128;

/// Names the operation of a method and a route, such as `payments.POST/v1/charges`.
///
/// Two routes never share a name: what a name cannot hold is written as `+` and two hexadecimal
/// digits, and a name that is too long ends in a digest.
pub(crate) fn operation(name: &str, method: &str, route: &str) -> String {
    let mut operation = String::with_capacity(name.len() + method.len() + route.len() + 1);
    operation.push_str(name);
    operation.push('.');
    // Without a router, the route is a path, which proxies may spell in another way.
    for text in [method, &canonical_path(route)] {
        // In most routes no character needs another form.
        if text.bytes().all(is_plain) {
            operation.push_str(text);
            continue;
        }
        for byte in text.bytes() {
            if is_plain(byte) {
                operation.push(byte.into());
            } else {
                // Writing to a string cannot fail.
                let _ = write!(operation, "+{byte:02X}");
            }
        }
    }
    if operation.len() > MAX_LEN {
        // The name is stored, so the digest must be the same in every build.
        let digest = Fingerprint::of(&operation)
            .map(|digest| digest.to_string())
            .unwrap_or_default();
        // Only the name that the author has set may have characters of several bytes.
        let end = (0..=MAX_LEN - 1 - digest.len())
            .rev()
            .find(|end| operation.is_char_boundary(*end));
        operation.truncate(end.unwrap_or_default());
        operation.push('#');
        operation.push_str(&digest);
    }
    operation
}

/// The route of a request, or else its path.
pub(super) fn route<'a>(by_layer: Option<&FromParts>, parts: &'a request::Parts) -> Cow<'a, str> {
    matched_route(by_layer, parts).unwrap_or_else(|| original_uri(parts).path().into())
}

/// The route of a request, if the layer, the application or the router says so.
pub(crate) fn matched_route<'a>(
    by_layer: Option<&FromParts>,
    parts: &'a request::Parts,
) -> Option<Cow<'a, str>> {
    if let Some(route) = by_layer.and_then(|route| route(parts)) {
        return Some(route.into());
    }
    if let Some(Route(route)) = parts.extensions.get() {
        return Some(route.into());
    }
    let by_axum = parts.extensions.get::<axum::extract::MatchedPath>();
    by_axum.map(|matched| matched.as_str().into())
}

/// The URI as the client sent it. A nested service of axum sees only the end of its path, which may be
/// equal for two routes.
pub(super) fn original_uri(parts: &request::Parts) -> &Uri {
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri;
    }
    &parts.uri
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_and_route_has_a_valid_name_of_its_own() {
        assert_eq!(
            operation("payments", "POST", "/v1/charges"),
            "payments.POST/v1/charges"
        );
        assert_eq!(
            operation("payments", "POST", "/v1/{id}"),
            "payments.POST/v1/+7Bid+7D"
        );
        assert_eq!(
            operation("payments", "POST", "/a%7eb/%2f"),
            operation("payments", "POST", "/a~b/%2F")
        );
        let long = "/x".repeat(200);
        let names = [
            "/v1/{id}",
            "/v1/+7Bid+7D",
            "/v1/:id",
            "/ä",
            &long,
            &format!("{long}y"),
        ]
        .map(|route| operation("payments", "POST", route));
        for (place, name) in names.iter().enumerate() {
            assert!(idem_core::record::is_valid_operation(name), "{name}");
            assert!(!names[..place].contains(name), "{name}");
        }
    }
}
