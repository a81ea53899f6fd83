//! Media types and URLs, compared as HTTP and URIs define it: proxies and clients spell them anew.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// Returns type and subtype of the content type, in lower case; `None` if it has none, or is
/// malformed.
pub(crate) fn essence(headers: &HeaderMap) -> Option<String> {
    let (essence, _) = split(headers.get(CONTENT_TYPE)?.as_bytes().trim_ascii())?;
    Some(essence)
}

/// Whether the content type says JSON, as `application/vnd.api+json` does.
pub(crate) fn is_json(essence: &str) -> bool {
    essence == "application/json" || essence.ends_with("+json")
}

/// Whether the content type is that of an HTML form in one text.
pub(crate) fn is_form(essence: &str) -> bool {
    essence == "application/x-www-form-urlencoded"
}

/// Whether the content type is that of gRPC. gRPC-Web sends its trailers in the body, so its status
/// cannot be read in a header.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    essence(headers).is_some_and(|essence| {
        let rest = essence.strip_prefix("application/grpc");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    })
}

/// Returns a content type in the one spelling that all equal ones share (RFC 9110, section 8.3.1):
/// type, subtype, names of parameters and the charset in lower case, parameters by their names,
/// quotation marks only where a value needs them. One that is malformed is returned as it is.
///
/// JSON has no charset (RFC 8259), so it is left out there. A form is UTF-8, so that one is left out
/// of it.
pub(crate) fn canonical(content_type: &[u8]) -> Cow<'_, [u8]> {
    let content_type = content_type.trim_ascii();
    let is_plain = |byte: u8| is_token(byte) && !byte.is_ascii_uppercase() || byte == b'/';
    if content_type.iter().copied().all(is_plain) {
        return Cow::Borrowed(content_type);
    }
    respelled(content_type).map_or(Cow::Borrowed(content_type), Cow::Owned)
}

fn respelled(content_type: &[u8]) -> Option<Vec<u8>> {
    let (essence, rest) = split(content_type)?;
    let mut parameters = parameters(rest)?;
    let (json, form) = (is_json(&essence), is_form(&essence));
    parameters.retain(|(name, value)| !(name == "charset" && (json || form && value == b"utf-8")));
    // Stable: of two with one name, readers may take the first.
    parameters.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut text = essence.into_bytes();
    for (name, value) in parameters {
        text.extend_from_slice(b"; ");
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        if !value.is_empty() && token_end(&value) == value.len() {
            text.extend_from_slice(&value);
            continue;
        }
        text.push(b'"');
        for byte in value {
            if matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(byte);
        }
        text.push(b'"');
    }
    Some(text)
}

/// Splits type and subtype, in lower case, from the parameters.
fn split(content_type: &[u8]) -> Option<(String, &[u8])> {
    let (first, rest) = token(content_type)?;
    let (second, rest) = token(rest.strip_prefix(b"/")?)?;
    Some((format!("{first}/{second}"), rest))
}

fn parameters(mut rest: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let Some(after) = rest.strip_prefix(b";") else {
            return rest.is_empty().then_some(all);
        };
        rest = after.trim_ascii_start();
        if matches!(rest.first(), None | Some(b';')) {
            continue;
        }
        let (name, value) = token(rest)?;
        let value = value.strip_prefix(b"=")?;
        let (mut value, after) = if let Some(text) = value.strip_prefix(b"\"") {
            quoted(text)?
        } else {
            let (value, after) = value.split_at(token_end(value));
            (
                Some(value.to_vec()).filter(|value| !value.is_empty())?,
                after,
            )
        };
        if name == "charset" {
            value.make_ascii_lowercase();
        }
        all.push((name, value));
        rest = after;
    }
}

/// Reads a token in lower case, and what follows it.
fn token(text: &[u8]) -> Option<(String, &[u8])> {
    let (token, rest) = text.split_at(token_end(text));
    let token = String::from_utf8(token.to_ascii_lowercase()).ok()?;
    (!token.is_empty()).then_some((token, rest))
}

/// Reads the rest of a quoted string, after its first quotation mark, and what follows it.
fn quoted(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut text = Vec::new();
    loop {
        let (byte, after) = match rest {
            [b'"', after @ ..] => return Some((text, after)),
            [b'\\', byte, after @ ..] | [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        text.push(byte);
        rest = after;
    }
}

/// How many bytes at the beginning may be in a token.
fn token_end(text: &[u8]) -> usize {
    text.iter()
        .position(|byte| !is_token(*byte))
        .unwrap_or(text.len())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns a path, with its query, in the one spelling that all equal ones share (RFC 3986, section
/// 6.2.2): hexadecimal digits in upper case, and no escapes of letters, digits, `-`, `.`, `_`, `~`.
///
/// Dot segments stay: routers and stores of files take them for names.
pub(crate) fn canonical_path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut parts = path.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escape = part.get(..2).and_then(|hex| {
            let is_hex = hex.bytes().all(|digit| digit.is_ascii_hexdigit());
            u8::from_str_radix(hex, 16).ok().filter(|_| is_hex)
        });
        match escape {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                text.push(byte.into());
            }
            Some(byte) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
            None => text.push('%'),
        }
        text.push_str(if escape.is_some() { &part[2..] } else { part });
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(content_type: &str) -> String {
        String::from_utf8(canonical(content_type.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn equal_media_types_have_one_spelling() {
        for (wanted, equal) in [
            (
                "application/json",
                &[
                    "application/json; charset=utf-8",
                    "application/json;charset=utf-8",
                    "application/json; charset=UTF-8",
                    "application/json; charset=\"utf-8\"",
                    "application/json ;\tCharset=\"UTF\\-8\" ;",
                    "Application/JSON",
                    " application/json ",
                    "application/json;",
                ][..],
            ),
            (
                "application/vnd.api+json; ext=\"a b\"; profile=\"http://x/Y\"",
                &[
                    "application/vnd.api+JSON;profile=\"http://x/Y\";charset=utf-8; EXT=\"a b\"",
                    "application/vnd.api+json; ext=\"a\\ b\"; profile=\"http:\\//x/Y\"",
                ],
            ),
            (
                "text/plain; charset=utf-8; format=flowed",
                &["Text/Plain;Format=flowed;charset=UTF-8"],
            ),
            (
                "application/x-www-form-urlencoded",
                &[
                    "application/x-www-form-urlencoded;charset=UTF-8",
                    "application/x-www-form-urlencoded; Charset=\"utf-8\"",
                    "Application/X-WWW-Form-URLencoded; charset=utf-8;",
                ],
            ),
            (
                "application/x-www-form-urlencoded; a=1",
                &["application/x-www-form-urlencoded; charset=utf-8; a=1"],
            ),
            (
                "multipart/form-data; boundary=AbC",
                &["multipart/form-data;boundary=\"AbC\""],
            ),
            (
                "text/x; a=\"\"; b=\"\\\"\\\\\"",
                &["text/X;b=\"\\\"\\\\\";a=\"\""],
            ),
        ] {
            for equal in equal.iter().chain([&wanted]) {
                assert_eq!(spelled(equal), wanted, "{equal}");
            }
        }
    }

    #[test]
    fn different_media_types_stay_different_and_malformed_ones_as_they_are() {
        let different = [
            "application/json",
            "application/json; version=1",
            "application/json; version=2",
            "text/json",
            "text/plain",
            "text/plain; charset=utf-8",
            "text/plain; charset=latin1",
            "application/x-www-form-urlencoded",
            "application/x-www-form-urlencoded; charset=latin1",
            "multipart/form-data; charset=utf-8",
            "text/plain; format=flowed",
            "text/plain; format=Flowed",
            "text/plain; a=1; a=2",
            "text/plain; a=2; a=1",
            "multipart/form-data; boundary=a",
            "multipart/form-data; boundary=A",
        ];
        for (place, one) in different.iter().enumerate() {
            assert_eq!(spelled(one), *one);
            for other in &different[..place] {
                assert_ne!(spelled(one), spelled(other));
            }
        }
        for malformed in [
            "",
            "JSON",
            "application/",
            "/JSON",
            "Text/Plain; charset",
            "Text/Plain; charset=",
            "Text/Plain; charset = utf-8",
            "Text/Plain; a=\"b",
            "Text/Plain, text/html",
            "Text/Plain charset=utf-8",
        ] {
            assert_eq!(spelled(malformed), malformed);
        }
    }

    #[test]
    fn equal_paths_have_one_spelling() {
        for (path, wanted) in [
            ("/a/b?c=d", "/a/b?c=d"),
            (
                "/%7euser/%41%2d%2E%5f?q=%c3%a4%2f",
                "/~user/A-._?q=%C3%A4%2F",
            ),
            // Escapes that mean something else without them.
            ("/a%2Fb%3Fc%23d%25e%2Bf", "/a%2Fb%3Fc%23d%25e%2Bf"),
            ("/100%/%zz/%4/%+1/%", "/100%/%zz/%4/%+1/%"),
            // Only once.
            ("/%2541", "/%2541"),
            ("/%é1", "/%é1"),
            // Segments that a router, or a store of files, may take for names.
            ("/a/./b", "/a/./b"),
            ("/x/../b", "/x/../b"),
            ("/x/%2e%2E/b/.", "/x/../b/."),
        ] {
            assert_eq!(canonical_path(path), wanted);
            assert_eq!(canonical_path(wanted), wanted);
        }
    }

    #[test]
    fn types_are_recognised_by_their_whole_name() {
        let headers = |text: &'static str| {
            HeaderMap::from_iter([(CONTENT_TYPE, http::HeaderValue::from_static(text))])
        };
        for (text, json, grpc) in [
            ("application/json", true, false),
            ("Application/Problem+JSON; charset=utf-8", true, false),
            ("application/jsonp", false, false),
            ("application/json-seq", false, false),
            ("application/grpc", false, true),
            ("application/grpc; x=1", false, true),
            ("application/grpc+proto", false, true),
            ("Application/gRPC+json", true, true),
            ("application/grpc-web", false, false),
            ("application/grpc-web+proto", false, false),
            ("json", false, false),
        ] {
            let headers = headers(text);
            let is_json = essence(&headers).is_some_and(|essence| is_json(&essence));
            assert_eq!((is_json, is_grpc(&headers)), (json, grpc), "{text}");
        }
    }
}
