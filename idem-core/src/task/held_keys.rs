//! The keys that are held by the bodies that run here and have no outcome, so that such a body does
//! not wait for itself.

use std::future::Future;
use std::sync::Arc;

use crate::lease::term::Term;
use crate::record::RecordId;

tokio::task_local! {
    /// The innermost key whose body is running.
    static INSIDE: Inside;
}

/// The keys whose bodies are running here, the innermost first.
#[derive(Clone, Default)]
pub(crate) struct Inside(Option<Arc<(HeldKey, Inside)>>);

impl Inside {
    pub(crate) fn here() -> Self {
        INSIDE.try_with(Clone::clone).unwrap_or_default()
    }

    /// Runs a future in another task as if it were here.
    pub(crate) fn around<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        INSIDE.scope(self, future)
    }
}

/// A key that is held in this process.
pub(crate) struct HeldKey {
    /// The address of the runtime: keys of two runtimes have nothing to do with each other.
    pub(crate) runtime: usize,
    pub(crate) term: Arc<Term>,
}

impl HeldKey {
    fn is_held(&self, id: &RecordId, runtime: usize) -> bool {
        self.runtime == runtime && self.term.id == *id && self.term.is_held()
    }
}

/// Runs the body of a key.
pub(crate) fn inside<F: Future>(key: HeldKey, body: F) -> impl Future<Output = F::Output> {
    let outer = Inside::here();
    Inside(Some(Arc::new((key, outer)))).around(body)
}

/// Whether this code runs in the body of this key, and would wait for itself.
pub(crate) fn is_inside(id: &RecordId, runtime: usize) -> bool {
    let is_inside = |innermost: &Inside| {
        std::iter::successors(innermost.0.as_ref(), |inside| inside.1.0.as_ref())
            .any(|inside| inside.0.is_held(id, runtime))
    };
    INSIDE.try_with(is_inside).unwrap_or(false)
}
