//! Bodies of requests and responses, whole or streaming.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request that reaches the guarded service, and of each response.
///
/// It is complete if the layer has read it; otherwise it streams. A service behind the layer takes
/// `Request<Body>`. Generic services such as axum's accept it without changes.
pub struct Body(Kind);

enum Kind {
    Whole(Whole),
    Streaming(UnsyncBoxBody<Bytes, BoxError>),
}

/// A body that is in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Whole {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Body {
    pub(crate) fn whole(whole: Whole) -> Self {
        Self(Kind::Whole(whole))
    }

    /// Wraps a body that is passed through as it arrives.
    pub fn streaming<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Streaming(UnsyncBoxBody::new(body.map_err(Into::into))))
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::whole(Whole { data, trailers: None })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(whole) if !whole.data.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut whole.data)))))
            }
            Kind::Whole(whole) => Poll::Ready(whole.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
            Kind::Streaming(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(whole) => whole.data.is_empty() && whole.trailers.is_none(),
            Kind::Streaming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(whole) => SizeHint::with_exact(whole.data.len() as u64),
            Kind::Streaming(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Whole(_) => "Body(whole)",
            Kind::Streaming(_) => "Body(streaming)",
        })
    }
}

/// The result of reading a body into memory.
pub(crate) enum Read {
    /// All of it.
    Whole(Whole),
    /// More than the limit: what was read, with the rest behind it.
    Larger(Body),
    /// It broke off: what was read, with the error behind it.
    Broken(Body),
}

/// Reads a body, up to a limit in bytes. Nothing of it is lost if it is larger.
pub(crate) async fn read<B>(body: B, limit: usize) -> Read
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut body = Box::pin(body);
    let (mut frames, mut length, mut trailers) = (Vec::<Bytes>::new(), 0usize, None);
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                length = length.saturating_add(data.len());
                frames.push(data);
                if length > limit {
                    return Read::Larger(rest_behind(frames, None, body));
                }
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return Read::Broken(rest_behind(frames, Some(error.into()), body)),
        }
    }
    let data = match frames.len() {
        0 => Bytes::new(),
        1 => frames.swap_remove(0),
        _ => frames.concat().into(),
    };
    Read::Whole(Whole { data, trailers })
}

fn rest_behind<B>(frames: Vec<Bytes>, error: Option<BoxError>, rest: Pin<Box<B>>) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Body::streaming(Resumed { read: frames.into_iter(), error, rest })
}

/// A body of which a part was read already.
struct Resumed<B> {
    read: std::vec::IntoIter<Bytes>,
    error: Option<BoxError>,
    rest: Pin<Box<B>>,
}

impl<B> HttpBody for Resumed<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(data) = self.read.next() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        self.rest.as_mut().poll_frame(context).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }
}
