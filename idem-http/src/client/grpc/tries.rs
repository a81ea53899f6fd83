//! The tries of one call.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body as HttpBody;
use tokio::time::Instant;
use tower_service::Service;

use super::super::pause::{backoff, now, with_jitter};
use super::super::request_key::{Chosen, RequestKey};
use super::super::verdict::{Effect, Verdict};
use super::{BoxError, Client, Settings, UnknownOutcome, judged};
use crate::body::{Body, Read, Whole, is_grpc, read, read_at_once, read_unary};
use crate::key::{IdempotencyKey, only_value};

const A_YEAR: Duration = Duration::from_secs(31_536_000);

/// What one try came to.
enum TryResult {
    Response(Box<Response<Body>>),
    Error(BoxError),
    /// The deadline came first.
    Deadline,
}

/// A request whose whole body is known.
struct Repeatable {
    parts: request::Parts,
    body: Whole,
}

/// What is known of the tries of one call.
struct Tries {
    deadline: Instant,
    /// How often the call was sent.
    count: u32,
    /// Whether the call may have been carried out, and no response was the answer to its key.
    is_uncertain: bool,
}

impl<S, F> Client<S, F> {
    /// Sends a call until a response is final, or the tries or the time are used up.
    pub(super) async fn send<B, R>(
        mut self,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        F: Fn(Body) -> B,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let key = self.settings.key(&mut parts)?;
        let begun = now();
        let mut tries = Tries {
            // If the clock cannot express the deadline, there is none.
            deadline: begun
                .checked_add(self.settings.deadline)
                .unwrap_or_else(|| begun + A_YEAR),
            count: 1,
            is_uncertain: false,
        };
        let Some(key) = key else {
            return self.pass(parts, body).await;
        };
        let method = parts.uri.path().to_owned();
        let last = match read_at_once(body, self.settings.max_body).await {
            Read::Whole(body) => {
                let request = Repeatable { parts, body };
                tries.run(&mut self, request, &method).await
            }
            // The messages of a stream exist once.
            Read::Larger(body) | Read::Broken(body) => match self.pass(parts, body).await {
                Ok(response) => TryResult::Response(Box::new(response)),
                Err(error) => {
                    tries.note(judged::of_error(&*error));
                    TryResult::Error(error)
                }
            },
        };
        if tries.is_uncertain {
            tracing::warn!(
                target: "idem", event = "outcome_unknown", request = %method,
                tries = tries.count, "gave up on a request that may have been carried out",
            );
            return Err(tries.unknown_outcome(key, method, last).into());
        }
        match last {
            TryResult::Response(response) => Ok(*response),
            TryResult::Error(error) => Err(error),
            // Unreachable: a try that the deadline ends is uncertain.
            TryResult::Deadline => Err(tries.unknown_outcome(key, method, last).into()),
        }
    }

    /// Sends a request once, and returns its response as it comes.
    async fn pass<B, R>(
        &mut self,
        parts: request::Parts,
        body: Body,
    ) -> Result<Response<Body>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        F: Fn(Body) -> B,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        poll_fn(|context| self.inner.poll_ready(context))
            .await
            .map_err(Into::into)?;
        let request = Request::from_parts(parts, (self.into_body)(body));
        let response = self.inner.call(request).await.map_err(Into::into)?;
        Ok(response.map(Body::streaming))
    }

    /// Sends a request once, and reads its response if it is that of a unary call.
    async fn try_once<B, R>(&mut self, request: &Repeatable) -> Result<Response<Body>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        F: Fn(Body) -> B,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let body = Body::whole(request.body.clone());
        let response = self.pass(request.parts.clone(), body).await?;
        let limit = self.settings.max_body;
        let (parts, body) = response.into_parts();
        let read = if is_grpc(&parts.headers) {
            read_unary(body, limit).await
        } else if body.size_hint().exact().is_some() {
            read(body, limit).await
        } else {
            Read::Larger(body)
        };
        match read {
            Read::Whole(whole) => Ok(Response::from_parts(parts, Body::whole(whole))),
            Read::Larger(body) => Ok(Response::from_parts(parts, body)),
            Read::Broken(_) => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the response broke off").into())
            }
        }
    }
}

impl Tries {
    async fn run<S, F, B, R>(
        &mut self,
        client: &mut Client<S, F>,
        request: Repeatable,
        method: &str,
    ) -> TryResult
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        F: Fn(Body) -> B,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        loop {
            let sent = tokio::time::timeout_at(self.deadline, client.try_once(&request)).await;
            let last = match sent {
                Ok(Ok(response)) => TryResult::Response(Box::new(response)),
                Ok(Err(error)) => TryResult::Error(error),
                Err(_) => TryResult::Deadline,
            };
            let verdict = match &last {
                TryResult::Response(response) => judged::of_response(response),
                TryResult::Error(error) => judged::of_error(&**error),
                TryResult::Deadline => Verdict::new(false, Effect::Possible),
            };
            self.note(verdict);
            if !verdict.retry || self.count >= client.settings.tries {
                return last;
            }
            let Some(pause) = self.pause(&client.settings, verdict.after) else {
                return last;
            };
            tracing::debug!(
                target: "idem", event = "request_retried", request = %method,
                tries = self.count, status = last.status(), ?pause,
                "a request is sent again with its key",
            );
            drop(last);
            tokio::time::sleep(pause).await;
            self.count += 1;
        }
    }

    fn note(&mut self, verdict: Verdict) {
        match verdict.effect {
            Effect::Answer => self.is_uncertain = false,
            Effect::Possible => self.is_uncertain = true,
            Effect::None => {}
        }
    }

    /// Returns the pause before the next try; `None` if the deadline comes first.
    fn pause(&self, settings: &Settings, pushback: Option<Duration>) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(now());
        let pause = match pushback {
            Some(pushback) => Some(with_jitter(pushback))
                .filter(|longer| *longer < left)
                .unwrap_or(pushback),
            None => backoff(settings.backoff, self.count),
        };
        // The deadline would end the next try immediately.
        (pause < left).then_some(pause)
    }

    fn unknown_outcome(
        &self,
        key: IdempotencyKey,
        method: String,
        last: TryResult,
    ) -> UnknownOutcome {
        UnknownOutcome {
            key,
            method,
            tries: self.count,
            status: last.status(),
            last_error: match last {
                TryResult::Error(error) => Some(error),
                TryResult::Response(_) | TryResult::Deadline => None,
            },
        }
    }
}

impl TryResult {
    /// Returns the status of gRPC, if there is one.
    fn status(&self) -> Option<u16> {
        match self {
            Self::Response(response) => judged::status(response),
            Self::Error(_) | Self::Deadline => None,
        }
    }
}

impl Settings {
    /// Returns the key of a call, and adds its metadata; `None` if the call needs no key.
    fn key(&self, parts: &mut request::Parts) -> Result<Option<IdempotencyKey>, BoxError> {
        // The caller's own metadata is not changed: the server decides what a raw comma means.
        if let Some(value) = only_value(&parts.headers, &self.metadata)? {
            return Ok(Some(IdempotencyKey::from_text(value)?));
        }
        let path = parts.uri.path();
        let text = match parts.extensions.get::<RequestKey>() {
            Some(key) => key.text()?,
            None if self.methods.as_ref().is_some_and(|methods| !methods(path)) => {
                return Ok(None);
            }
            None => match idem_core::current().filter(|_| self.keys_from_call) {
                Some(call) => call.child_key(path),
                None => self.keys.generate(),
            },
        };
        let chosen = Chosen::new(&text)?;
        parts.headers.insert(self.metadata.clone(), chosen.value);
        Ok(Some(chosen.key))
    }
}
