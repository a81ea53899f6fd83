//! The lookup of a request.

use std::time::Duration;

use http::header::{self as names, HeaderName};
use http::{Extensions, HeaderMap, Method, StatusCode};
use reqwest::{Request, Response, Url};
use reqwest_middleware::Next;
use tokio::time::Instant;

use super::pause::{backoff, now, suggested};
use super::received::received;

/// The lookup request, which is sent if the tries leave the outcome unknown.
pub(super) struct Question {
    url: Url,
    headers: HeaderMap,
}

/// Headers that a lookup does not copy, because it has no body.
const OF_THE_BODY: [HeaderName; 7] = [
    names::CONTENT_TYPE,
    names::CONTENT_LENGTH,
    names::CONTENT_ENCODING,
    names::TRANSFER_ENCODING,
    names::TRAILER,
    names::EXPECT,
    names::HOST,
];

/// The result of asking.
pub(super) enum Answer {
    Recorded(Response),
    /// The last status; `None` if there was no response.
    Unknown(Option<StatusCode>),
}

impl Question {
    pub(super) fn new(request: &Request, url: Url, key: &HeaderName) -> Self {
        // Credentials are sent only to the origin that already has them.
        let mut headers = if url.origin() == request.url().origin() {
            request.headers().clone()
        } else {
            HeaderMap::new()
        };
        for name in OF_THE_BODY.iter().chain([key]) {
            headers.remove(name);
        }
        Self { url, headers }
    }

    /// Asks until there is an answer, or the time is up.
    pub(super) async fn ask(
        &self,
        next: &Next<'_>,
        extensions: &mut Extensions,
        until: Instant,
        max_body: usize,
    ) -> Answer {
        let mut last = None;
        for asked in 1.. {
            let mut request = Request::new(Method::GET, self.url.clone());
            request.headers_mut().clone_from(&self.headers);
            let response = async {
                let response = next.clone().run(request, extensions).await?;
                received(response, max_body)
                    .await
                    .map_err(reqwest_middleware::Error::from)
            };
            let pause = match tokio::time::timeout_at(until, response).await {
                Ok(Ok((response, _))) if response.headers().contains_key("idempotent-replayed") => {
                    return Answer::Recorded(response);
                }
                Ok(Ok((response, _))) => {
                    last = Some(response.status());
                    match response.status().as_u16() {
                        202 | 425 | 429 | 500 | 502 | 503 | 504 => suggested(response.headers()),
                        _ => return Answer::Unknown(last),
                    }
                }
                Ok(Err(_)) => None,
                Err(_) => return Answer::Unknown(last),
            };
            // There is always a pause, even if the server suggests none.
            let pause = pause
                .filter(|pause| !pause.is_zero())
                .unwrap_or_else(|| backoff(Duration::from_millis(200), asked));
            if until.saturating_duration_since(now()) <= pause {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        Answer::Unknown(last)
    }
}
