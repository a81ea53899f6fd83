//! Bodies of requests and responses, whole or streaming.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
#[cfg(feature = "grpc-client")]
use futures_util::FutureExt as _;
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

    /// Returns the body that is in memory, unless this one streams.
    pub(crate) fn as_whole(&self) -> Option<&Whole> {
        match &self.0 {
            Kind::Whole(whole) => Some(whole),
            Kind::Streaming(_) => None,
        }
    }

    /// Wraps a body that is passed through as it arrives.
    pub fn streaming<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Streaming(UnsyncBoxBody::new(
            body.map_err(Into::into),
        )))
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self::whole(Whole {
            data,
            trailers: None,
        })
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(whole) if !whole.data.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut whole.data)))))
            }
            Kind::Whole(whole) => Poll::Ready(
                whole
                    .trailers
                    .take()
                    .map(|trailers| Ok(Frame::trailers(trailers))),
            ),
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

/// Reads a body, up to a limit in bytes. A larger body is returned complete.
pub(crate) fn read<B>(body: B, limit: usize) -> impl Future<Output = Read> + Send
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    read_as(Box::pin(body), limit, Shape::Whole)
}

/// Reads a response of gRPC if it is that of a unary call: one message at most, and no pause of a
/// second before its trailers. A stream of messages is [`Read::Larger`].
pub(crate) fn read_unary<B>(body: B, limit: usize) -> impl Future<Output = Read> + Send
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    read_as(Box::pin(body), limit, Shape::Message)
}

/// Reads a body that needs no waiting, as that of a unary request of gRPC, up to a limit in bytes.
/// One whose next frame is not there yet is [`Read::Larger`].
#[cfg(feature = "grpc-client")]
pub(crate) fn read_at_once<B>(body: B, limit: usize) -> impl Future<Output = Read> + Send
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    read_as(Box::pin(body), limit, Shape::AtOnce)
}

/// What a body is expected to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// The whole body is read.
    Whole,
    /// All of it is there already.
    #[cfg(feature = "grpc-client")]
    AtOnce,
    /// One message of gRPC. A stream of more messages may never end.
    Message,
}

/// How long a unary response of gRPC may pause between two frames.
const PAUSE: Duration = Duration::from_secs(1);

async fn read_as<B>(mut body: Pin<Box<B>>, limit: usize, shape: Shape) -> Read
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut gathered = Gathered::default();
    let mut trailers = None;
    loop {
        let frame = match shape {
            Shape::Whole => body.frame().await,
            #[cfg(feature = "grpc-client")]
            Shape::AtOnce => match body.frame().now_or_never() {
                Some(frame) => frame,
                None => return Read::Larger(rest_behind(gathered, None, body)),
            },
            // In a box, so that the future has no room for a timer that most bodies do not need.
            Shape::Message => match Box::pin(tokio::time::timeout(PAUSE, body.frame())).await {
                Ok(frame) => frame,
                Err(_) => return Read::Larger(rest_behind(gathered, None, body)),
            },
        };
        let Some(frame) = frame else { break };
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                gathered.add(data);
                if gathered.len() > limit
                    || (shape == Shape::Message && gathered.is_beyond_a_message())
                {
                    return Read::Larger(rest_behind(gathered, None, body));
                }
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(error) => return Read::Broken(rest_behind(gathered, Some(error.into()), body)),
        }
    }
    Read::Whole(Whole {
        data: gathered.into_bytes(),
        trailers,
    })
}

/// The data of a body so far. A single frame is not copied. Several frames are joined, so that a
/// client cannot use up memory by many small or empty frames.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    /// All data, once there is a second frame.
    all: Vec<u8>,
}

impl Gathered {
    fn add(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if self.all.is_empty() && self.first.is_empty() {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&data);
    }

    fn data(&self) -> &[u8] {
        if self.all.is_empty() {
            &self.first
        } else {
            &self.all
        }
    }

    fn len(&self) -> usize {
        self.data().len()
    }

    /// Whether there is more than one message of gRPC: a flag, a length of four bytes, the message.
    fn is_beyond_a_message(&self) -> bool {
        let Some((head, rest)) = self.data().split_first_chunk::<5>() else {
            return false;
        };
        let [_, length @ ..] = *head;
        u32::try_from(rest.len()).map_or(true, |found| found > u32::from_be_bytes(length))
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.into()
        }
    }
}

fn rest_behind<B>(gathered: Gathered, error: Option<BoxError>, rest: Pin<Box<B>>) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Body::streaming(Resumed {
        read: gathered.into_bytes(),
        error,
        rest,
    })
}

/// A body whose beginning was read already.
struct Resumed<B> {
    /// What was read, until it is passed on.
    read: Bytes,
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        self.rest
            .as_mut()
            .poll_frame(context)
            .map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of frames that are all ready.
    struct Frames(std::collections::VecDeque<Bytes>);

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    #[tokio::test]
    async fn a_body_in_many_small_and_empty_frames_is_kept_in_one_piece() {
        let frames = || {
            Frames(
                (0..10_000)
                    .map(|n| Bytes::from_static(if n % 10 == 0 { b"x" } else { b"" }))
                    .collect(),
            )
        };
        let Read::Whole(whole) = read(frames(), 1000).await else {
            panic!("it fits")
        };
        assert_eq!(whole.data, "x".repeat(1000));
        let Read::Larger(mut body) = read(frames(), 999).await else {
            panic!("it does not fit")
        };
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "x".repeat(1000), "what was read is one frame");
    }
}
