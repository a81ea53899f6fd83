//! The key in a field of a request's body.

use std::borrow::Cow;
use std::fmt;

use http::HeaderMap;
use idem_core::adapter::without_byte_order_mark;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::key::IdempotencyKey;
use crate::key_rules::KeyRules;
use crate::media_type::{essence, is_form, is_json};
use crate::problem::Problem;

/// The key in a field of the body, `None` if there is none.
///
/// A body that another reader could understand differently is refused: one that has the field
/// twice, or that claims to be JSON and is not valid.
pub(super) fn in_body(
    headers: &HeaderMap,
    body: &[u8],
    pointer: &str,
    rules: Option<KeyRules>,
) -> Result<Option<String>, Problem> {
    let content_type = essence(headers).unwrap_or_default();
    let found = if is_form(&content_type) {
        in_form(body, pointer.trim_start_matches('/'))
    } else {
        match in_json(body, pointer) {
            Ok(found) => found,
            Err(_)
                if is_json(&content_type)
                    && !without_byte_order_mark(body).trim_ascii().is_empty() =>
            {
                FieldValue::Unclear
            }
            // The body is not JSON, so it has no such field.
            Err(_) => FieldValue::Nothing,
        }
    };
    match found {
        FieldValue::Nothing => Ok(None),
        FieldValue::Text(key) => Ok(Some(KeyRules::read(
            rules,
            key.as_bytes(),
            IdempotencyKey::from_text,
        )?)),
        FieldValue::Other => Err(Problem::INVALID_KEY),
        FieldValue::Unclear => Err(Problem::UNCLEAR_KEY),
    }
}

/// The value of the field.
enum FieldValue {
    Nothing,
    Text(String),
    /// A value that is not a text.
    Other,
    /// Readers may disagree on the value.
    Unclear,
}

fn in_form(body: &[u8], name: &str) -> FieldValue {
    let mut values = form_urlencoded::parse(body)
        .filter(|(field, _)| field == name)
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (None, _) => FieldValue::Nothing,
        (Some(value), None) => FieldValue::Text(value.into_owned()),
        (Some(_), Some(_)) => FieldValue::Unclear,
    }
}

fn in_json(body: &[u8], pointer: &str) -> Result<FieldValue, serde_json::Error> {
    // The part before the first `/` is empty.
    let names: Vec<_> = pointer
        .split('/')
        .skip(1)
        .map(|name| name.replace("~1", "/").replace("~0", "~"))
        .collect();
    let mut json = serde_json::Deserializer::from_slice(without_byte_order_mark(body));
    let found = At(&names).deserialize(&mut json)?;
    json.end()?;
    Ok(found)
}

/// Reads the value at the end of a path of names, and nothing else of the body.
struct At<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = FieldValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldValue, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl At<'_> {
    /// The result for a value without fields.
    fn plain(&self, value: impl FnOnce() -> FieldValue) -> FieldValue {
        if self.0.is_empty() {
            value()
        } else {
            FieldValue::Nothing
        }
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = FieldValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FieldValue, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = map.next_key()? {
            match self.0.split_first() {
                Some((first, _)) if *name != **first => drop(map.next_value::<IgnoredAny>()?),
                Some(_) if found.is_some() => {
                    map.next_value::<IgnoredAny>()?;
                    found = Some(FieldValue::Unclear);
                }
                Some((_, rest)) => found = Some(map.next_value_seed(At(rest))?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                    found = Some(FieldValue::Other);
                }
            }
        }
        Ok(found.unwrap_or(if self.0.is_empty() {
            FieldValue::Other
        } else {
            FieldValue::Nothing
        }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FieldValue, A::Error> {
        let index = self.0.first().and_then(|first| index(first));
        let mut found = self.plain(|| FieldValue::Other);
        for place in 0.. {
            if let (true, Some((_, rest))) = (index == Some(place), self.0.split_first()) {
                match seq.next_element_seed(At(rest))? {
                    Some(value) => found = value,
                    None => break,
                }
            } else if seq.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(found)
    }

    fn visit_str<E>(self, text: &str) -> Result<FieldValue, E> {
        Ok(self.plain(|| FieldValue::Text(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<FieldValue, E> {
        Ok(FieldValue::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<FieldValue, E> {
        Ok(self.plain(|| FieldValue::Other))
    }

    fn visit_i64<E>(self, _: i64) -> Result<FieldValue, E> {
        Ok(self.plain(|| FieldValue::Other))
    }

    fn visit_u64<E>(self, _: u64) -> Result<FieldValue, E> {
        Ok(self.plain(|| FieldValue::Other))
    }

    fn visit_f64<E>(self, _: f64) -> Result<FieldValue, E> {
        Ok(self.plain(|| FieldValue::Other))
    }
}

/// An index into an array, as a JSON pointer writes it: digits without a leading zero.
fn index(name: &str) -> Option<usize> {
    let is_plain =
        name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
    is_plain.then(|| name.parse().ok()).flatten()
}

/// A field's name, copied only if it has escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;

    /// The key, or the code of the problem.
    fn read(
        content_type: &'static str,
        pointer: &str,
        body: &str,
    ) -> Result<Option<String>, &'static str> {
        let headers =
            HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let found =
            in_body(&headers, body.as_bytes(), pointer, None).map_err(|problem| problem.message)?;
        Ok(found)
    }

    const UNCLEAR: Result<Option<String>, &str> = Err(Problem::UNCLEAR_KEY.message);
    const INVALID: Result<Option<String>, &str> = Err(Problem::INVALID_KEY.message);

    #[test]
    fn a_field_is_found_where_a_json_pointer_has_it() {
        let json = |pointer, body| read("application/json", pointer, body);
        for (pointer, body) in [
            ("/key", r#"{"a":[{}],"key":"k","z":{"key":"x"}}"#),
            ("/meta/key", r#"{"key":"x","meta":{"key":"k"}}"#),
            (
                "/list/1/key",
                r#"{"list":[{"key":"x"},{"key":"k"},{"key":"x"}]}"#,
            ),
            ("/a~1b/~0c", r#"{"a/b":{"~c":"k"}}"#),
            ("/", r#"{"":"k"}"#),
            ("/key", r#" {"\u006bey":"\u006b"} "#),
            ("/key", "\u{feff}{\"key\":\"k\"}"),
        ] {
            assert_eq!(
                json(pointer, body),
                Ok(Some("k".to_owned())),
                "{pointer} {body}"
            );
            let body = body.trim_start_matches('\u{feff}');
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(value.pointer(pointer).unwrap(), "k", "serde_json agrees");
        }
        for (pointer, body) in [
            ("/key", r#"{"meta":{"key":"k"}}"#),
            ("/key", r#"{"key":null}"#),
            ("/key", r#"["key"]"#),
            ("/key", "7"),
            ("/key/x", r#"{"key":"k"}"#),
            ("/list/01", r#"{"list":["x","k"]}"#),
            ("/list/+1", r#"{"list":["x","k"]}"#),
            ("/list/2", r#"{"list":["x","k"]}"#),
            ("/key", ""),
            ("/key", "\r\n"),
            ("/key", "\u{feff}"),
        ] {
            assert_eq!(json(pointer, body), Ok(None), "{pointer} {body}");
        }
        for body in [
            r#"{"key":7}"#,
            r#"{"key":-7}"#,
            r#"{"key":1.5}"#,
            r#"{"key":true}"#,
            r#"{"key":{}}"#,
        ] {
            assert_eq!(json("/key", body), INVALID, "{body}");
        }
        for body in [
            r#"{"key":[]}"#,
            r#"{"key":["k"]}"#,
            r#"{"key":{"k":1}}"#,
            r#"{"key":"a b"}"#,
            r#"{"key":""}"#,
        ] {
            assert_eq!(json("/key", body), INVALID, "{body}");
        }
    }

    #[test]
    fn a_body_that_two_readers_may_understand_differently_is_refused() {
        for (pointer, body) in [
            ("/key", r#"{"key":"a","key":"b"}"#),
            ("/key", r#"{"key":"a","other":1,"key":"a"}"#),
            ("/key", r#"{"key":null,"key":"b"}"#),
            ("/key", r#"{"key":"a","\u006bey":"b"}"#),
            ("/meta/key", r#"{"meta":{"key":"a"},"meta":{"key":"b"}}"#),
            ("/meta/key", r#"{"meta":{"key":"a"},"meta":{}}"#),
            ("/meta/key", r#"{"meta":{"key":"a","key":"b"}}"#),
            // A lenient reader may accept these.
            ("/key", r#"{"key":"a",}"#),
            ("/key", r#"{"key":"a"} {}"#),
            ("/key", "\u{feff}\u{feff}{\"key\":\"a\"}"),
            ("/key", "{'key':'a'}"),
            ("/key", r#"{"key":"a""#),
        ] {
            assert_eq!(
                read("application/json", pointer, body),
                UNCLEAR,
                "{pointer} {body}"
            );
        }
        for content_type in [
            "application/vnd.api+json",
            "Application/Problem+JSON; charset=utf-8",
        ] {
            assert_eq!(
                read(content_type, "/key", r#"{"key":"a",}"#),
                UNCLEAR,
                "{content_type}"
            );
        }
        assert_eq!(
            read("application/x-www-form-urlencoded", "/key", "key=a&key=a"),
            UNCLEAR
        );
        assert_eq!(
            read("application/x-www-form-urlencoded", "/key", "key=a&%6bey=b"),
            UNCLEAR
        );
        // Another field may occur twice, and a body of another content type need not be JSON.
        assert_eq!(
            read("application/json", "/key", r#"{"a":1,"a":2,"key":"k"}"#),
            Ok(Some("k".to_owned()))
        );
        assert_eq!(read("text/plain", "/key", "key"), Ok(None));
        assert_eq!(
            read("text/plain", "/key", r#"{"key":"a","key":"b"}"#),
            UNCLEAR
        );
    }

    #[test]
    fn a_deep_body_is_read_to_its_key() {
        let body = format!(
            r#"{{"deep":{}1{},"key":"k"}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(
            read("application/json", "/key", &body),
            Ok(Some("k".to_owned()))
        );
    }
}
