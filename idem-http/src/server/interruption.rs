//! Whether the body of a request broke off while the service read it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::body::Body;

/// Whether a body has broken off. It travels as an extension of the request.
#[derive(Debug, Clone, Default)]
pub(super) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    pub(super) fn has_happened(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns the same body, watched.
    pub(super) fn watch(self, body: Body) -> Body {
        Body::streaming(Watched {
            body,
            interruption: self,
        })
    }
}

struct Watched {
    body: Body,
    interruption: Interruption,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(Err(_)))) {
            self.interruption.0.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
