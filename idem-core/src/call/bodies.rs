//! Where the bodies of a call come from: one, or one for each try.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use crate::call::judge::Reruns;

/// Makes the body of a call, which is in a box.
///
/// A future that contained its body would contain all calls in it. The compiler looks through such
/// types, and at 128 levels it gives up: after six calls with `#[tracing::instrument]`.
pub(crate) trait Bodies {
    type Body: Future + Unpin;
    /// Whether the body can run more than once.
    const RERUNS: Reruns;

    /// Returns the body of the next try.
    fn next(&mut self) -> Option<Self::Body>;
}

/// A body that runs once.
pub(crate) struct Once<F>(pub(crate) Option<F>);

impl<F: FnOnce() -> Body, Body: Future + Unpin> Bodies for Once<F> {
    type Body = Body;
    const RERUNS: Reruns = Reruns::Never;

    fn next(&mut self) -> Option<Body> {
        self.0.take().map(|make| make())
    }
}

/// A body that runs again if its error policy says so.
pub(crate) struct Repeated<F>(pub(crate) F);

impl<F: FnMut() -> Body, Body: Future + Unpin> Bodies for Repeated<F> {
    type Body = Body;
    const RERUNS: Reruns = Reruns::Can;

    fn next(&mut self) -> Option<Body> {
        Some(self.0())
    }
}

/// The closure that creates a retryable body. All tries share it. It is called where the body runs,
/// so that its panic counts as a panic of the body.
pub(crate) struct Again<F>(Arc<Mutex<F>>);

impl<F> Again<F> {
    pub(crate) fn new(make: F) -> Self {
        Self(Arc::new(Mutex::new(make)))
    }

    pub(crate) fn call<Body>(&self) -> Body
    where
        F: FnMut() -> Body,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)()
    }
}

impl<F> Clone for Again<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
