//! The tries of one call.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::super::request_key::{Chosen, RequestKey};
use super::super::try_log::TryLog;
use super::super::verdict::{Effect, Verdict};
use super::{BoxError, Client, Settings, UnknownOutcome, judged};
use crate::body::{Body, Read, Whole, read, read_at_once, read_unary};
use crate::key::{IdempotencyKey, only_value};
use crate::media_type::is_grpc;

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
        let mut log = TryLog::begin(self.settings.deadline);
        let Some(key) = key else {
            return self.pass(parts, body).await;
        };
        let method = parts.uri.path().to_owned();
        let last = match read_at_once(body, self.settings.max_body).await {
            Read::Whole(body) => {
                let request = Repeatable { parts, body };
                self.repeat(&mut log, request, &method).await
            }
            // The messages of a stream exist once.
            Read::Larger(body) | Read::Broken(body) => {
                log.count = 1;
                match self.pass(parts, body).await {
                    Ok(response) => TryResult::Response(Box::new(response)),
                    Err(error) => {
                        log.note(judged::of_error(&*error).effect);
                        TryResult::Error(error)
                    }
                }
            }
        };
        if log.is_uncertain {
            tracing::warn!(
                target: "idem", event = "outcome_unknown", request = %method,
                tries = log.count, "gave up on a request that may have been carried out",
            );
            return Err(unknown_outcome(&log, key, method, last).into());
        }
        match last {
            TryResult::Response(response) => Ok(*response),
            TryResult::Error(error) => Err(error),
            // Unreachable: a try that the deadline ends is uncertain.
            TryResult::Deadline => Err(unknown_outcome(&log, key, method, last).into()),
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

    /// Sends the call until a response is final. Returns the result of the last try.
    async fn repeat<B, R>(
        &mut self,
        log: &mut TryLog,
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
            log.count += 1;
            let sent = tokio::time::timeout_at(log.deadline, self.try_once(&request)).await;
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
            log.note(verdict.effect);
            if !verdict.retry || log.count >= self.settings.tries {
                return last;
            }
            let Some(pause) = log.pause(self.settings.backoff, verdict.after) else {
                return last;
            };
            tracing::debug!(
                target: "idem", event = "request_retried", request = %method,
                tries = log.count, status = last.status(), ?pause,
                "a request is sent again with its key",
            );
            drop(last);
            tokio::time::sleep(pause).await;
        }
    }
}

fn unknown_outcome(
    log: &TryLog,
    key: IdempotencyKey,
    method: String,
    last: TryResult,
) -> UnknownOutcome {
    UnknownOutcome {
        key,
        method,
        tries: log.count,
        status: last.status(),
        last_error: match last {
            TryResult::Error(error) => Some(error),
            TryResult::Response(_) | TryResult::Deadline => None,
        },
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
