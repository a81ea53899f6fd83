//! Carries requests and responses between the layer, whose futures may move between threads, and a
//! service of actix-web, which stays on its worker's thread.

use std::any::Any;
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{Stream, StreamExt as _};
use http_body::{Frame, SizeHint};
use idem_core::adapter::BodyPart;
use idem_http::Body;
use tokio::sync::{mpsc, oneshot};

/// An error of a service or a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many chunks of a body wait for their reader.
const CHANNEL_CAPACITY: usize = 4;

/// The response of a handler, or its panic.
pub(crate) type HandlerResult = Result<http::Response<Body>, Box<dyn Any + Send>>;

/// A request that the layer has let through, and where its response goes.
pub(crate) struct Job {
    pub(crate) request: http::Request<Body>,
    /// Gives the handler the guarded call: its lease, and `idem::current()`.
    pub(crate) part: BodyPart,
    pub(crate) response: oneshot::Sender<HandlerResult>,
}

/// The service that the layer guards. It sends its only request to the worker's thread.
#[derive(Clone)]
pub(crate) struct WorkerService(Arc<Mutex<Option<oneshot::Sender<Job>>>>);

impl WorkerService {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Job>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }
}

impl tower_service::Service<http::Request<Body>> for WorkerService {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let (response, received) = oneshot::channel();
            let sent = sender.map(|sender| {
                sender
                    .send(Job {
                        request,
                        part: BodyPart::here(),
                        response,
                    })
                    .is_ok()
            });
            if sent != Some(true) {
                return Err("the worker of actix-web has stopped".into());
            }
            match received.await {
                Ok(Ok(response)) => Ok(response),
                // A panic of the handler is a panic of the guarded body.
                Ok(Err(panic)) => resume_unwind(panic),
                Err(_) => Err("the worker of actix-web has stopped".into()),
            }
        })
    }
}

/// A body whose chunks come from another thread.
pub(crate) struct ChannelBody {
    chunks: mpsc::Receiver<Result<Bytes, BoxError>>,
    length: Option<u64>,
    has_ended: bool,
    /// Receives a message when the body is complete. A body whose sender is dropped without it has
    /// broken off.
    ended: Option<oneshot::Receiver<()>>,
}

/// The source of the chunks of a [`ChannelBody`] body.
pub(crate) struct BodySender {
    chunks: mpsc::Sender<Result<Bytes, BoxError>>,
    ended: oneshot::Sender<()>,
}

impl ChannelBody {
    /// A body of a length, if that is known.
    pub(crate) fn new(length: Option<u64>) -> (BodySender, Self) {
        let (sender, chunks) = mpsc::channel(CHANNEL_CAPACITY);
        let (ended, wait) = oneshot::channel();
        (
            BodySender {
                chunks: sender,
                ended,
            },
            Self {
                chunks,
                length,
                has_ended: false,
                ended: Some(wait),
            },
        )
    }
}

impl BodySender {
    /// Sends all chunks of a stream, until the reader is gone.
    pub(crate) async fn send_all<S, E>(self, stream: S)
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: std::fmt::Display,
    {
        let mut stream = std::pin::pin!(stream);
        loop {
            // A stream may stay silent for long after its reader is gone.
            let gone = std::pin::pin!(self.chunks.closed());
            let Either::Left((chunk, _)) = select(stream.next(), gone).await else {
                return;
            };
            let Some(chunk) = chunk else { break };
            // An error of actix-web is not `Send`, but its text is.
            let chunk = chunk.map_err(|error| BoxError::from(error.to_string()));
            let has_failed = chunk.is_err();
            if self.chunks.send(chunk).await.is_err() || has_failed {
                return;
            }
        }
        // Fails if the reader is gone.
        let _ = self.ended.send(());
    }
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Some(chunk) = ready!(self.chunks.poll_recv(context)) {
            self.has_ended = chunk.is_err();
            return Poll::Ready(Some(chunk.map(Frame::data)));
        }
        self.has_ended = true;
        let is_whole = self
            .ended
            .take()
            .is_some_and(|mut ended| ended.try_recv().is_ok());
        Poll::Ready((!is_whole).then(|| Err("the body broke off".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The length of a body of actix-web, if it says one.
pub(crate) fn length(size: BodySize) -> Option<u64> {
    match size {
        BodySize::None => Some(0),
        BodySize::Sized(length) => Some(length),
        BodySize::Stream => None,
    }
}

/// The chunks of a body of actix-web.
pub(crate) fn chunks<B: MessageBody>(body: B) -> impl Stream<Item = Result<Bytes, BoxError>> {
    futures_util::stream::unfold(Box::pin(body), |mut body| async {
        let chunk = std::future::poll_fn(|context| body.as_mut().poll_next(context)).await?;
        Some((
            chunk.map_err(|error| BoxError::from(error.into().to_string())),
            body,
        ))
    })
}
