//! A response as it is recorded: readable JSON if its body is text.
//!
//! It is written directly from a live response, and read directly into the parts of one.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeSeq as _, SerializeStruct as _, Serializer};
use serde::{Deserialize, Serialize};

/// The parts of a live response that are recorded.
pub(crate) struct ResponseRecord<'a, F> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    /// Whether a header is recorded.
    pub(crate) is_recorded: F,
    pub(crate) body: &'a [u8],
    /// Only responses of gRPC have them.
    pub(crate) trailers: Option<&'a HeaderMap>,
}

impl<F: Fn(&HeaderName) -> bool> Serialize for ResponseRecord<'_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let trailers = self.trailers.filter(|trailers| !trailers.is_empty());
        // The author keeps a status that clients would retry, so the replay tells them not to.
        let is_final_error = self.status.is_server_error();
        let count = 3 + usize::from(trailers.is_some()) + usize::from(is_final_error);
        let mut fields = serializer.serialize_struct("Stored", count)?;
        fields.serialize_field("status", &self.status.as_u16())?;
        fields.serialize_field("headers", &Pairs(self.headers, &self.is_recorded))?;
        fields.serialize_field("body", &Text(self.body))?;
        match trailers {
            Some(trailers) => {
                fields.serialize_field("trailers", &Pairs(trailers, |_: &HeaderName| true))?;
            }
            None => fields.skip_field("trailers")?,
        }
        if is_final_error {
            fields.serialize_field("final_error", &true)?;
        } else {
            fields.skip_field("final_error")?;
        }
        fields.end()
    }
}

/// The headers that a filter accepts, as pairs of name and value.
struct Pairs<'a, F>(&'a HeaderMap, F);

impl<F: Fn(&HeaderName) -> bool> Serialize for Pairs<'_, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(headers, is_recorded) = self;
        let pairs = || headers.iter().filter(|(name, _)| is_recorded(name));
        // Some codecs write the length first.
        let mut all = serializer.serialize_seq(Some(pairs().count()))?;
        for (name, value) in pairs() {
            all.serialize_element(&(name.as_str(), Text(value.as_bytes())))?;
        }
        all.end()
    }
}

/// Bytes, written as text if they are UTF-8, and otherwise as [`Encoded`].
struct Text<'a>(&'a [u8]);

/// Bytes that are not UTF-8.
#[derive(Serialize, Deserialize)]
struct Encoded {
    base64: String,
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded {
                base64: BASE64.encode(self.0),
            }
            .serialize(serializer),
        }
    }
}

/// A recorded response.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename = "Stored")]
pub(crate) struct StoredResponse {
    #[serde(deserialize_with = "status")]
    pub(crate) status: StatusCode,
    #[serde(default, deserialize_with = "headers")]
    pub(crate) headers: HeaderMap,
    #[serde(default, deserialize_with = "bytes")]
    pub(crate) body: Bytes,
    #[serde(default, deserialize_with = "headers")]
    pub(crate) trailers: HeaderMap,
    /// Whether clients are told not to retry, because they would get the same error each time.
    #[serde(default)]
    pub(crate) final_error: bool,
}

fn status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StatusCode, D::Error> {
    StatusCode::from_u16(u16::deserialize(deserializer)?).map_err(de::Error::custom)
}

fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderMap, D::Error> {
    struct Headers;
    impl<'de> Visitor<'de> for Headers {
        type Value = HeaderMap;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("headers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<HeaderMap, A::Error> {
            let mut headers = HeaderMap::with_capacity(pairs.size_hint().unwrap_or(4).min(64));
            while let Some((Name(name), Data(value))) = pairs.next_element()? {
                let value = HeaderValue::from_maybe_shared(value).map_err(de::Error::custom)?;
                headers.try_append(name, value).map_err(de::Error::custom)?;
            }
            Ok(headers)
        }
    }
    deserializer.deserialize_seq(Headers)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    Ok(Data::deserialize(deserializer)?.0)
}

/// The name of a header.
struct Name(HeaderName);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl Visitor<'_> for Names {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a header")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                text.parse().map(Name).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Names)
    }
}

/// The bytes of a [`Text`].
struct Data(Bytes);

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrEncoded;
        impl<'de> Visitor<'de> for TextOrEncoded {
            type Value = Data;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, or bytes as base64")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Data, E> {
                Ok(Data(Bytes::copy_from_slice(text.as_bytes())))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Data, E> {
                Ok(Data(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Data, A::Error> {
                let Encoded { base64 } = Encoded::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Data(
                    BASE64.decode(base64).map_err(de::Error::custom)?.into(),
                ))
            }
        }
        deserializer.deserialize_any(TextOrEncoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        trailers: Option<&HeaderMap>,
    ) -> String {
        let is_recorded = |name: &HeaderName| name != "date";
        serde_json::to_string(&ResponseRecord {
            status,
            headers,
            is_recorded,
            body,
            trailers,
        })
        .unwrap()
    }

    #[test]
    fn a_response_is_read_as_it_was_recorded_and_text_is_readable() {
        let mut headers = HeaderMap::new();
        headers.append("location", HeaderValue::from_static("/orders/7"));
        headers.append("x-raw", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("link", HeaderValue::from_static("a"));
        headers.append("link", HeaderValue::from_static("b"));
        for body in [&b"{\"id\":7}"[..], b"", b"\x00\xff"] {
            let json = json(StatusCode::CREATED, &headers, body, None);
            assert_eq!(
                json.contains("{\\\"id\\\":7}"),
                body.starts_with(b"{"),
                "{json}"
            );
            let stored = serde_json::from_str::<StoredResponse>(&json).unwrap();
            assert_eq!(
                (stored.status, stored.headers, &stored.body[..]),
                (StatusCode::CREATED, headers.clone(), body)
            );
            assert!(stored.trailers.is_empty() && !stored.final_error);
        }
    }

    #[test]
    fn the_recorded_form_is_the_one_of_earlier_versions() {
        let mut headers = HeaderMap::new();
        headers.append("date", HeaderValue::from_static("today"));
        headers.append("x-raw", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("location", HeaderValue::from_static("/7"));
        let written = json(StatusCode::OK, &headers, b"text", None);
        assert_eq!(
            written,
            r#"{"status":200,"headers":[["x-raw",{"base64":"/w=="}],["location","/7"]],"body":"text"}"#
        );
        let trailers = HeaderMap::from_iter([(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static("0"),
        )]);
        let written = json(
            StatusCode::BAD_GATEWAY,
            &HeaderMap::new(),
            b"\xff",
            Some(&trailers),
        );
        let expected = r#"{"status":502,"headers":[],"body":{"base64":"/w=="},"trailers":[["grpc-status","0"]],"final_error":true}"#;
        assert_eq!(written, expected);
        let read = serde_json::from_str::<StoredResponse>(&written).unwrap();
        assert_eq!(
            (read.trailers, read.final_error, &read.body[..]),
            (trailers, true, &b"\xff"[..])
        );
        // Fields with their defaults may be missing.
        assert_eq!(
            serde_json::from_str::<StoredResponse>(r#"{"status":204}"#)
                .unwrap()
                .status,
            StatusCode::NO_CONTENT
        );
    }

    #[test]
    fn what_is_no_response_is_not_read() {
        for text in [
            r#"{"status":99}"#,
            r#"{"status":200,"headers":[["a b","c"]]}"#,
            r#"{"status":200,"headers":[["a","\n"]]}"#,
            r#"{"status":200,"headers":[["a"]]}"#,
            r#"{"status":200,"body":{"base64":"!"}}"#,
            r#"{"status":200,"body":{}}"#,
            r#"{"status":200,"body":7}"#,
            "7",
        ] {
            assert!(
                serde_json::from_str::<StoredResponse>(text).is_err(),
                "{text}"
            );
        }
    }
}
