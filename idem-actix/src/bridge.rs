//! Between the layer, whose futures go from thread to thread, and a service of actix-web, which
//! stays on its own.

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
use idem_core::__private::BodyPart;
use idem_http::Body;
use tokio::sync::{mpsc, oneshot};

/// An error that a service or a body has.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How many chunks of a body wait for their reader.
const CHUNKS: usize = 4;

/// The response of a handler, or its panic.
pub(crate) type Served = Result<http::Response<Piped>, Box<dyn Any + Send>>;

/// A request that the layer has let through, and where its response goes.
pub(crate) struct Job {
    pub(crate) request: http::Request<Body>,
    /// What the handler has of the guarded call: its lease, and `idem::current()`.
    pub(crate) part: BodyPart,
    pub(crate) response: oneshot::Sender<Served>,
}

/// The guarded service, as the layer sees it: it hands its one request to the thread of actix-web.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Mutex<Option<oneshot::Sender<Job>>>>);

impl Remote {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Job>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), receiver)
    }
}

impl tower_service::Service<http::Request<Body>> for Remote {
    type Response = http::Response<Piped>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let (response, received) = oneshot::channel();
            let sent = sender.map(|sender| sender.send(Job { request, part: BodyPart::here(), response }).is_ok());
            if sent != Some(true) {
                return Err("the worker of actix-web has stopped".into());
            }
            match received.await {
                Ok(Ok(response)) => Ok(response),
                // A panic of the handler is one of the guarded body.
                Ok(Err(panic)) => resume_unwind(panic),
                Err(_) => Err("the worker of actix-web has stopped".into()),
            }
        })
    }
}

/// A body whose chunks come from another thread.
pub(crate) struct Piped {
    chunks: mpsc::Receiver<Result<Bytes, BoxError>>,
    length: Option<u64>,
    /// The sender ends a body that is whole with `None`, so that one whose task ended early is not
    /// taken for whole.
    has_ended: bool,
    ended: Option<oneshot::Receiver<()>>,
}

/// The source of the chunks of a [`Piped`] body.
pub(crate) struct Pipe {
    chunks: mpsc::Sender<Result<Bytes, BoxError>>,
    ended: oneshot::Sender<()>,
}

impl Piped {
    /// A body of a length, if that is known.
    pub(crate) fn new(length: Option<u64>) -> (Pipe, Self) {
        let (sender, chunks) = mpsc::channel(CHUNKS);
        let (ended, wait) = oneshot::channel();
        (Pipe { chunks: sender, ended }, Self { chunks, length, has_ended: false, ended: Some(wait) })
    }
}

impl Pipe {
    /// Sends all of a stream. It stops early without a reader.
    pub(crate) async fn send_all<S, E>(self, stream: S)
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: std::fmt::Display,
    {
        let mut stream = std::pin::pin!(stream);
        loop {
            // A stream may be quiet for long after its reader is gone.
            let gone = std::pin::pin!(self.chunks.closed());
            let Either::Left((chunk, _)) = select(stream.next(), gone).await else { return };
            let Some(chunk) = chunk else { break };
            // An error of actix-web stays on its thread; its text does not.
            let chunk = chunk.map_err(|error| BoxError::from(error.to_string()));
            let has_failed = chunk.is_err();
            if self.chunks.send(chunk).await.is_err() || has_failed {
                return;
            }
        }
        // Nobody may read any more.
        let _ = self.ended.send(());
    }
}

impl http_body::Body for Piped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Some(chunk) = ready!(self.chunks.poll_recv(context)) {
            self.has_ended = chunk.is_err();
            return Poll::Ready(Some(chunk.map(Frame::data)));
        }
        self.has_ended = true;
        let is_whole = self.ended.take().is_some_and(|mut ended| ended.try_recv().is_ok());
        Poll::Ready((!is_whole).then(|| Err("the body broke off".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
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
        Some((chunk.map_err(|error| BoxError::from(error.into().to_string())), body))
    })
}
