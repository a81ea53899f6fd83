//! The tries of one request.

use std::time::Duration;

use http::{Extensions, HeaderValue, Method};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::error::{NoCall, UnknownOutcome, target};
use super::lookup::{Answer, Question};
use super::pause::{backoff, now, with_jitter};
use super::received::received;
use super::verdict::{Effect, Verdict};
use super::{IdempotencyClient, RequestKey, Source};
use crate::key::{IdempotencyKey, InvalidKey, only_value};

/// How long a lookup may take beyond the deadline.
const FOR_A_LOOKUP: Duration = Duration::from_secs(5);

/// The characters that a segment of a path must escape.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}')
    .add(b';')
    .add(b'+')
    .add(b'&')
    .add(b'=');

/// The result of the last try.
enum Last {
    Response(Response),
    Error(Error),
    /// The deadline came first.
    Nothing,
}

#[async_trait::async_trait]
impl Middleware for IdempotencyClient {
    async fn handle(&self, mut request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response> {
        let Some(key) = self.key(&mut request, extensions)? else {
            return next.run(request, extensions).await;
        };
        let question = match &self.lookup_url {
            Some(url) => {
                let encoded = utf8_percent_encode(&key.to_value(), SEGMENT).to_string();
                Some(Question::new(&request, url(&request, &encoded)?, &self.header))
            }
            None => None,
        };
        let target = target(&request);
        let place = request.url().clone();
        // A deadline that the clock cannot express is none.
        let begun = now();
        let deadline = begun.checked_add(self.deadline).unwrap_or_else(|| begun + Duration::from_secs(31_536_000));
        let (mut tries, mut is_uncertain) = (0, false);
        let last = loop {
            tries += 1;
            let again = if tries < self.tries { request.try_clone() } else { None };
            let sent = async {
                let response = next.clone().run(request, extensions).await?;
                received(response, self.max_body).await.map_err(Error::from)
            };
            let (verdict, last) = match tokio::time::timeout_at(deadline, sent).await {
                Ok(Ok((response, body))) => {
                    let verdict = Verdict::of_response(response.status(), response.headers(), body.as_deref());
                    let verdict = if is_at(&place, response.url()) { verdict } else { verdict.after_redirect() };
                    (verdict, Last::Response(response))
                }
                Ok(Err(error)) => {
                    let verdict = Verdict::of_error(&error);
                    let is_here = error.url().is_none_or(|url| is_at(&place, url));
                    (if is_here { verdict } else { verdict.after_redirect() }, Last::Error(error))
                }
                Err(_) => (Verdict { retry: false, after: None, effect: Effect::Possible }, Last::Nothing),
            };
            match verdict.effect {
                Effect::Answer => is_uncertain = false,
                Effect::Possible => is_uncertain = true,
                Effect::None => {}
            }
            let Some(again) = again.filter(|_| verdict.retry) else { break last };
            let left = deadline.saturating_duration_since(now());
            let pause = match verdict.after {
                Some(after) if after >= left => break last,
                Some(after) if !after.is_zero() => {
                    Some(with_jitter(after)).filter(|longer| *longer < left).unwrap_or(after)
                }
                _ => backoff(self.backoff, tries),
            };
            // A try that the deadline would end at once is not begun.
            if pause >= left {
                break last;
            }
            let status = if let Last::Response(response) = &last { Some(response.status().as_u16()) } else { None };
            tracing::debug!(target: "idem", event = "request_retried", request = %target, tries, status, ?pause, "a request is sent again with its key");
            drop(last);
            tokio::time::sleep(pause).await;
            request = again;
        };
        if !is_uncertain {
            return match last {
                Last::Response(response) => Ok(response),
                Last::Error(error) => Err(error),
                // Unreachable: a try that the deadline ends is uncertain.
                Last::Nothing => Err(Error::middleware(unknown(key, target, tries, last, None))),
            };
        }
        let mut lookup_status = None;
        if let Some(question) = question {
            let until = deadline.max(now() + FOR_A_LOOKUP);
            match question.ask(&next, extensions, until, self.max_body).await {
                Answer::Recorded(response) => return Ok(response),
                Answer::Unknown(status) => lookup_status = status,
            }
        }
        tracing::warn!(target: "idem", event = "outcome_unknown", request = %target, tries, "gave up on a request that may have been carried out");
        Err(Error::middleware(unknown(key, target, tries, last, lookup_status)))
    }
}

/// Whether a response or an error of this URL is one of the place that the request was sent to, and
/// not of a redirect's target.
fn is_at(place: &Url, url: &Url) -> bool {
    let parts = |url: &Url| (url.origin(), url.path().to_owned(), url.query().map(str::to_owned));
    // What reqwest gives to a response that other middleware has made.
    url.host_str() == Some("no.url.provided.local") || parts(place) == parts(url)
}

fn unknown(
    key: IdempotencyKey,
    target: String,
    tries: u32,
    last: Last,
    lookup_status: Option<http::StatusCode>,
) -> UnknownOutcome {
    let (status, source) = match last {
        Last::Response(response) => (Some(response.status()), None),
        // A query may hold secrets.
        Last::Error(error) => (None, Some(error.without_url())),
        Last::Nothing => (None, None),
    };
    UnknownOutcome { key, target, tries, status, lookup_status, source }
}

impl IdempotencyClient {
    /// The key of a request, which then has it as its header; `None` if it needs none.
    fn key(&self, request: &mut Request, extensions: &Extensions) -> Result<Option<IdempotencyKey>> {
        // As the caller has set it: whether a raw comma means something is the server's to say.
        if let Some(value) = only_value(request.headers(), &self.header).map_err(Error::middleware)? {
            return IdempotencyKey::from_text(value).map(Some).map_err(Error::middleware);
        }
        let text = match extensions.get::<RequestKey>() {
            Some(RequestKey(Source::Given(key))) => key.clone(),
            Some(RequestKey(Source::Child(name))) => {
                idem_core::current().ok_or_else(|| Error::middleware(NoCall))?.child_key(name)
            }
            None if request.method() != Method::POST && request.method() != Method::PATCH => return Ok(None),
            None => match idem_core::current().filter(|_| self.keys_from_call) {
                Some(call) => call.child_key(&name(request)),
                None => self.keys.generate(),
            },
        };
        // A quotation mark at its beginning would make it a quoted string.
        if text.starts_with('"') {
            return Err(Error::middleware(InvalidKey::Quotes));
        }
        let key = IdempotencyKey::from_text(text.as_bytes()).map_err(Error::middleware)?;
        let value = HeaderValue::from_str(&key.to_value()).map_err(Error::middleware)?;
        request.headers_mut().insert(self.header.clone(), value);
        Ok(Some(key))
    }
}

/// The name of a child key: method and URL, without credentials.
fn name(request: &Request) -> String {
    let url = request.url();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{} {}{port}{}{query}", request.method(), url.host_str().unwrap_or_default(), url.path())
}
