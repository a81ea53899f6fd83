//! The tries of one request.

use std::time::Duration;

use http::{Extensions, Method, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::error::{UnknownOutcome, target};
use super::lookup::{Answer, Question};
use super::pause::now;
use super::received::received;
use super::request_key::{Chosen, RequestKey};
use super::reqwest_client::IdempotencyClient;
use super::try_log::TryLog;
use super::verdict::{Effect, Verdict};
use crate::key::{IdempotencyKey, only_value};

/// How long a lookup may take beyond the deadline.
const LOOKUP_TIME: Duration = Duration::from_secs(5);

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

/// What one try came to.
enum TryResult {
    Response(Response),
    Error(Error),
    /// The deadline came first.
    Deadline,
}

/// The tries of one request.
struct Tries<'a> {
    client: &'a IdempotencyClient,
    next: Next<'a>,
    /// The URL of the request. A response of another URL was redirected.
    url: Url,
    /// The request, as errors and events name it.
    target: String,
    log: TryLog,
}

#[async_trait::async_trait]
impl Middleware for IdempotencyClient {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let Some(key) = self.key(&mut request, extensions)? else {
            return next.run(request, extensions).await;
        };
        let question = self.question(&request, &key)?;
        let mut tries = Tries {
            client: self,
            next: next.clone(),
            url: request.url().clone(),
            target: target(&request),
            log: TryLog::begin(self.deadline),
        };
        let last = tries.run(request, extensions).await;
        if !tries.log.is_uncertain {
            return match last {
                TryResult::Response(response) => Ok(response),
                TryResult::Error(error) => Err(error),
                // Unreachable: a try that the deadline ends is uncertain.
                TryResult::Deadline => Err(tries.unknown_outcome(key, last, None)),
            };
        }
        let mut lookup_status = None;
        if let Some(question) = question {
            let until = tries.log.deadline.max(now() + LOOKUP_TIME);
            match question.ask(&next, extensions, until, self.max_body).await {
                Answer::Recorded(response) => return Ok(response),
                Answer::Unknown(status) => lookup_status = status,
            }
        }
        tracing::warn!(
            target: "idem", event = "outcome_unknown", request = %tries.target,
            tries = tries.log.count, "gave up on a request that may have been carried out",
        );
        Err(tries.unknown_outcome(key, last, lookup_status))
    }
}

impl Tries<'_> {
    /// Sends the request until a response is final, or the tries or the time are used up. Returns
    /// the result of the last try.
    async fn run(&mut self, mut request: Request, extensions: &mut Extensions) -> TryResult {
        loop {
            self.log.count += 1;
            let again = if self.log.count < self.client.tries {
                request.try_clone()
            } else {
                None
            };
            let last = self.send(request, extensions).await;
            let verdict = last.verdict;
            self.log.note(verdict.effect);
            let Some(again) = again.filter(|_| verdict.retry) else {
                return last.result;
            };
            // A pause of zero is no suggestion.
            let suggested = verdict.after.filter(|after| !after.is_zero());
            let Some(pause) = self.log.pause(self.client.backoff, suggested) else {
                return last.result;
            };
            let status = match &last.result {
                TryResult::Response(response) => Some(response.status().as_u16()),
                TryResult::Error(_) | TryResult::Deadline => None,
            };
            tracing::debug!(
                target: "idem", event = "request_retried", request = %self.target,
                tries = self.log.count, status, ?pause, "a request is sent again with its key",
            );
            drop(last);
            tokio::time::sleep(pause).await;
            request = again;
        }
    }

    /// Sends the request once.
    async fn send(&self, request: Request, extensions: &mut Extensions) -> Try {
        let sent = async {
            let response = self.next.clone().run(request, extensions).await?;
            received(response, self.client.max_body)
                .await
                .map_err(Error::from)
        };
        match tokio::time::timeout_at(self.log.deadline, sent).await {
            Ok(Ok((response, body))) => {
                let verdict =
                    Verdict::of_response(response.status(), response.headers(), body.as_deref());
                Try {
                    verdict: self.judged_at(response.url(), verdict),
                    result: TryResult::Response(response),
                }
            }
            Ok(Err(error)) => {
                let verdict = Verdict::of_error(&error);
                Try {
                    verdict: error
                        .url()
                        .map_or(verdict, |url| self.judged_at(url, verdict)),
                    result: TryResult::Error(error),
                }
            }
            Err(_) => Try {
                verdict: Verdict {
                    retry: false,
                    after: None,
                    effect: Effect::Possible,
                },
                result: TryResult::Deadline,
            },
        }
    }

    /// The verdict on a response or an error of this URL.
    fn judged_at(&self, url: &Url, verdict: Verdict) -> Verdict {
        if is_same_resource(&self.url, url) {
            verdict
        } else {
            verdict.after_redirect()
        }
    }

    fn unknown_outcome(
        self,
        key: IdempotencyKey,
        last: TryResult,
        lookup_status: Option<StatusCode>,
    ) -> Error {
        let (status, source) = match last {
            TryResult::Response(response) => (Some(response.status()), None),
            // The query of a URL may hold secrets.
            TryResult::Error(error) => (None, Some(error.without_url())),
            TryResult::Deadline => (None, None),
        };
        Error::middleware(UnknownOutcome {
            key,
            target: self.target,
            tries: self.log.count,
            status,
            lookup_status,
            source,
        })
    }
}

/// One try, and what follows from it.
struct Try {
    verdict: Verdict,
    result: TryResult,
}

/// Whether two URLs are equal but for their fragments and credentials.
fn is_same_resource(one: &Url, other: &Url) -> bool {
    // reqwest gives this host to a response that other middleware has made.
    other.host_str() == Some("no.url.provided.local")
        || (one.origin() == other.origin()
            && one.path() == other.path()
            && one.query() == other.query())
}

impl IdempotencyClient {
    /// Prepares the lookup of a request, if the application has set a URL for it.
    fn question(&self, request: &Request, key: &IdempotencyKey) -> Result<Option<Question>> {
        let Some(lookup_url) = &self.lookup_url else {
            return Ok(None);
        };
        let encoded = utf8_percent_encode(&key.to_value(), SEGMENT).to_string();
        let url = lookup_url(request, &encoded)?;
        Ok(Some(Question::new(request, url, &self.header)))
    }

    /// Returns the key of a request, and adds its header; `None` if the request needs no key.
    fn key(
        &self,
        request: &mut Request,
        extensions: &Extensions,
    ) -> Result<Option<IdempotencyKey>> {
        // The caller's own header is not changed: the server decides what a raw comma means.
        if let Some(value) =
            only_value(request.headers(), &self.header).map_err(Error::middleware)?
        {
            return IdempotencyKey::from_text(value)
                .map(Some)
                .map_err(Error::middleware);
        }
        let text = match extensions.get::<RequestKey>() {
            Some(key) => key.text().map_err(Error::middleware)?,
            None if request.method() != Method::POST && request.method() != Method::PATCH => {
                return Ok(None);
            }
            None => match idem_core::current().filter(|_| self.keys_from_call) {
                Some(call) => call.child_key(&child_name(request)),
                None => self.keys.generate(),
            },
        };
        let chosen = Chosen::new(&text).map_err(Error::middleware)?;
        request
            .headers_mut()
            .insert(self.header.clone(), chosen.value);
        Ok(Some(chosen.key))
    }
}

/// The name of a child key: method and URL, without credentials.
fn child_name(request: &Request) -> String {
    let url = request.url();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let query = url
        .query()
        .map(|query| format!("?{query}"))
        .unwrap_or_default();
    format!(
        "{} {}{port}{}{query}",
        request.method(),
        url.host_str().unwrap_or_default(),
        url.path()
    )
}
