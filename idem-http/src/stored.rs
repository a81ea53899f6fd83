//! A response as it is recorded.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

/// What is recorded of a response: readable JSON if its body is text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stored {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, Text)>,
    #[serde(default)]
    body: Text,
    /// Of gRPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trailers: Vec<(String, Text)>,
    /// The author keeps this status although clients may retry it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    final_error: bool,
}

/// Bytes that are text most of the time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Text {
    Plain(String),
    Encoded { base64: String },
}

impl Default for Text {
    fn default() -> Self {
        Self::Plain(String::new())
    }
}

impl From<&[u8]> for Text {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Plain(text.to_owned()),
            Err(_) => Self::Encoded { base64: BASE64.encode(bytes) },
        }
    }
}

impl Text {
    fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Plain(text) => Some(text.into_bytes()),
            Self::Encoded { base64 } => BASE64.decode(base64).ok(),
        }
    }
}

/// The parts of a recorded response.
pub(crate) struct Parts {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Stored {
    /// Records a response whose headers were chosen already.
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: &[u8], trailers: Option<&HeaderMap>) -> Self {
        Self {
            status: status.as_u16(),
            headers: pairs(headers),
            body: body.into(),
            trailers: trailers.map(pairs).unwrap_or_default(),
            final_error: status.is_server_error(),
        }
    }

    /// Whether clients must be told not to retry: they would get the same answer each time.
    pub(crate) fn is_final_error(&self) -> bool {
        self.final_error
    }

    /// The response again; `None` if the recorded value is not a response.
    pub(crate) fn into_parts(self) -> Option<Parts> {
        let trailers = if self.trailers.is_empty() { None } else { Some(map(self.trailers)?) };
        Some(Parts {
            status: StatusCode::from_u16(self.status).ok()?,
            headers: map(self.headers)?,
            body: self.body.into_bytes()?.into(),
            trailers,
        })
    }
}

fn pairs(headers: &HeaderMap) -> Vec<(String, Text)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().into())).collect()
}

fn map(pairs: Vec<(String, Text)>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(pairs.len());
    for (name, value) in pairs {
        let name: HeaderName = name.parse().ok()?;
        headers.append(name, HeaderValue::from_bytes(&value.into_bytes()?).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_as_it_was_recorded_and_text_is_readable() {
        let mut headers = HeaderMap::new();
        headers.append("location", HeaderValue::from_static("/orders/7"));
        headers.append("x-raw", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("link", HeaderValue::from_static("a"));
        headers.append("link", HeaderValue::from_static("b"));
        for body in [&b"{\"id\":7}"[..], b"", b"\x00\xff"] {
            let stored = Stored::new(StatusCode::CREATED, &headers, body, None);
            let json = serde_json::to_string(&stored).unwrap();
            assert_eq!(json.contains("{\\\"id\\\":7}"), body.starts_with(b"{"), "{json}");
            let parts = serde_json::from_str::<Stored>(&json).unwrap().into_parts().unwrap();
            assert_eq!((parts.status, parts.headers, &parts.body[..]), (StatusCode::CREATED, headers.clone(), body));
            assert!(parts.trailers.is_none());
        }
    }
}
