//! The return types of axum's handlers, as outcomes.
//!
//! Each is stored as its content: a status as its number, headers as pairs, `Json<T>` as the `T`. A
//! response whose body is a stream is not an outcome, because it can be read only once.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, NoContent, Redirect, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::adapter::engine::sealed;
use crate::adapter::{CHALLENGE, PROBLEM_JSON, problem_json, problem_pause, whole_seconds};
use crate::{Error, Storable};

/// A value that is stored without the type around it.
#[derive(Debug)]
pub enum InWrapper {}

/// A value that is stored in a form of its own.
#[derive(Debug)]
pub enum InForm {}

/// An outcome with a status, stored as both.
#[derive(Debug)]
pub struct WithStatus<Via>(Via);

/// An outcome with headers, stored as both.
#[derive(Debug)]
pub struct WithHeaders<Via>(Via);

macro_rules! inside {
    ($($wrapper:ident)*) => {$(
        impl<T: Serialize + DeserializeOwned> sealed::Storable<InWrapper> for $wrapper<T> {}

        #[diagnostic::do_not_recommend]
        impl<T: Serialize + DeserializeOwned> Storable<InWrapper> for $wrapper<T> {
            type Stored = T;

            fn to_stored(&self) -> impl Serialize {
                &self.0
            }

            fn from_stored(stored: T) -> Option<Self> {
                Some(Self(stored))
            }
        }
    )*};
}

inside!(Json Html);

impl sealed::Storable<InForm> for StatusCode {}

#[diagnostic::do_not_recommend]
impl Storable<InForm> for StatusCode {
    type Stored = u16;

    fn to_stored(&self) -> impl Serialize {
        self.as_u16()
    }

    fn from_stored(stored: u16) -> Option<Self> {
        Self::from_u16(stored).ok()
    }
}

impl sealed::Storable<InForm> for NoContent {}

#[diagnostic::do_not_recommend]
impl Storable<InForm> for NoContent {
    type Stored = ();

    fn to_stored(&self) -> impl Serialize {}

    fn from_stored((): ()) -> Option<Self> {
        Some(Self)
    }
}

impl sealed::Storable<InForm> for Redirect {}

#[diagnostic::do_not_recommend]
impl Storable<InForm> for Redirect {
    type Stored = (u16, String);

    fn to_stored(&self) -> impl Serialize {
        // Read from the response, because axum before 0.8.5 has no accessors.
        let response = self.clone().into_response();
        let location = response
            .headers()
            .get(LOCATION)
            .map_or(&[][..], HeaderValue::as_bytes);
        (
            response.status().as_u16(),
            String::from_utf8_lossy(location).into_owned(),
        )
    }

    fn from_stored((status, location): (u16, String)) -> Option<Self> {
        match status {
            303 => Some(Self::to(&location)),
            307 => Some(Self::temporary(&location)),
            308 => Some(Self::permanent(&location)),
            _ => None,
        }
    }
}

/// All headers in their order. A name may come several times.
impl sealed::Storable<InForm> for HeaderMap {}

#[diagnostic::do_not_recommend]
impl Storable<InForm> for HeaderMap {
    type Stored = Vec<(String, Text)>;

    fn to_stored(&self) -> impl Serialize {
        let lines = self
            .iter()
            .map(|(name, value)| (name.as_str(), Text::from_bytes(value.as_bytes())));
        lines.collect::<Vec<_>>()
    }

    fn from_stored(stored: Vec<(String, Text)>) -> Option<Self> {
        let mut headers = Self::with_capacity(stored.len());
        for (name, value) in stored {
            headers.append(HeaderName::try_from(name).ok()?, value.into_header()?);
        }
        Some(headers)
    }
}

/// Arrays of headers. A replay needs as many headers as the type has.
macro_rules! header_arrays {
    ($($value:ty, $read:expr;)*) => {$(
        impl<const N: usize> sealed::Storable<InForm> for [(HeaderName, $value); N] {}

        #[diagnostic::do_not_recommend]
        impl<const N: usize> Storable<InForm> for [(HeaderName, $value); N] {
            type Stored = Vec<(String, Text)>;

            fn to_stored(&self) -> impl Serialize {
                let lines = self
                    .iter()
                    .map(|(name, value)| (name.as_str(), Text::from_bytes(value.as_bytes())));
                lines.collect::<Vec<_>>()
            }

            fn from_stored(stored: Vec<(String, Text)>) -> Option<Self> {
                let read: fn(Text) -> Option<$value> = $read;
                let header =
                    |(name, value): (String, Text)| {
                        Some((HeaderName::try_from(name).ok()?, read(value)?))
                    };
                stored.into_iter().map(header).collect::<Option<Vec<_>>>()?.try_into().ok()
            }
        }
    )*};
}

header_arrays! {
    HeaderValue, Text::into_header;
    String, Text::into_text;
}

impl<T: Storable<Via>, Via> sealed::Storable<WithStatus<Via>> for (StatusCode, T) {}

#[diagnostic::do_not_recommend]
impl<T: Storable<Via>, Via> Storable<WithStatus<Via>> for (StatusCode, T) {
    type Stored = (u16, T::Stored);

    fn to_stored(&self) -> impl Serialize {
        (self.0.as_u16(), self.1.to_stored())
    }

    fn from_stored((status, value): Self::Stored) -> Option<Self> {
        Some((StatusCode::from_stored(status)?, T::from_stored(value)?))
    }
}

macro_rules! with_headers {
    ($([$($parameter:tt)*] $headers:ty;)*) => {$(
        impl<T: Storable<Via>, Via, $($parameter)*> sealed::Storable<WithHeaders<Via>>
            for ($headers, T)
        {
        }

        #[diagnostic::do_not_recommend]
        impl<T: Storable<Via>, Via, $($parameter)*> Storable<WithHeaders<Via>> for ($headers, T) {
            type Stored = (Vec<(String, Text)>, T::Stored);

            fn to_stored(&self) -> impl Serialize {
                (self.0.to_stored(), self.1.to_stored())
            }

            fn from_stored((headers, value): Self::Stored) -> Option<Self> {
                Some((<$headers>::from_stored(headers)?, T::from_stored(value)?))
            }
        }

        impl<T: Storable<Via>, Via, $($parameter)*> sealed::Storable<WithStatus<WithHeaders<Via>>>
            for (StatusCode, $headers, T)
        {
        }

        #[diagnostic::do_not_recommend]
        impl<T: Storable<Via>, Via, $($parameter)*> Storable<WithStatus<WithHeaders<Via>>>
            for (StatusCode, $headers, T)
        {
            type Stored = (u16, Vec<(String, Text)>, T::Stored);

            fn to_stored(&self) -> impl Serialize {
                (self.0.as_u16(), self.1.to_stored(), self.2.to_stored())
            }

            fn from_stored((status, headers, value): Self::Stored) -> Option<Self> {
                Some((
                    StatusCode::from_stored(status)?,
                    <$headers>::from_stored(headers)?,
                    T::from_stored(value)?,
                ))
            }
        }
    )*};
}

with_headers! {
    [] HeaderMap;
    [const N: usize] [(HeaderName, HeaderValue); N];
    [const N: usize] [(HeaderName, String); N];
}

/// Answers with problem+json (RFC 9457), with the [status](crate::ErrorKind::http_status), the
/// [code](crate::ErrorKind::code) and the [message](crate::ErrorKind::client_message) of the
/// error's kind, a `Retry-After` for `InFlight`, `Throttled`, `LeaseLost` and `Store`, and
/// `WWW-Authenticate: Bearer` for a 401.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let body = problem_json(self.http_status(), self.code(), self.client_message());
        let status =
            StatusCode::from_u16(self.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, body).into_response();
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(pause) = problem_pause(&self) {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(whole_seconds(pause)));
        }
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        response
    }
}

/// Bytes, which nearly always are text that a person can read in the record.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// They are UTF-8.
    Text(String),
    /// They are not.
    Bytes(Vec<u8>),
}

impl Text {
    fn from_bytes(bytes: &[u8]) -> Self {
        std::str::from_utf8(bytes).map_or_else(
            |_| Self::Bytes(bytes.to_vec()),
            |text| Self::Text(text.to_owned()),
        )
    }

    fn into_header(self) -> Option<HeaderValue> {
        let bytes = match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes(bytes) => bytes,
        };
        HeaderValue::try_from(bytes).ok()
    }

    fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Bytes(_) => None,
        }
    }
}
