//! Whether the guarded calls of a future ran their bodies or replayed.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::encoding::key::KeyDigest;
use crate::record::RecordId;
use crate::task::current::Around;

tokio::task_local! {
    static WATCH: Arc<Watch>;
}

/// Runs a future, and reports whether the guarded calls in it ran or replayed.
///
/// A replayed outcome is equal to the first one, so its caller sees no difference. To see it, wrap
/// the call, or the whole handler, as a layer of a web server does.
///
/// Guarded calls inside the body of a guarded call do not count: if the outer body ran, its caller
/// got a new outcome. A `detached` call counts, and one by [`begin`](crate::Operation::begin) does
/// not. A call in a task that the future spawns does not. Watches may be nested, and each counts
/// the calls inside it.
///
/// # Cancellation safety
///
/// The same as that of the future. If it is dropped, the report is lost.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let idempotency = Idempotency::new(MemoryStore::new());
/// // Or an annotated function: `idem::watch(create_order(req)).await`.
/// let create = || async {
///     let outcome = idempotency
///         .operation("orders.create")
///         .key("o-1")
///         .run(|| async { Ok::<_, Error>(7) });
///     outcome.await.map(idem::Outcome::into_inner)
/// };
/// let (receipt, report) = idem::watch(create()).await;
/// assert!(receipt? == 7 && !report.is_replayed());
/// let (receipt, report) = idem::watch(create()).await;
/// assert!(receipt? == 7 && report.is_replayed());
/// # Ok(())
/// # }
/// ```
pub async fn watch<F: Future>(future: F) -> (F::Output, Report) {
    let watch = Arc::new(Watch {
        around: Around::here(),
        outer: current(),
        counts: Default::default(),
        last: Mutex::new(None),
    });
    let output = WATCH.scope(watch.clone(), future).await;
    (output, watch.report())
}

/// The results of the guarded calls inside a [`watch`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    executed: u32,
    replayed: u32,
    failed: u32,
    unrecorded: u32,
    key: Option<KeyDigest>,
}

impl Report {
    /// Returns whether there was a guarded call, and every one returned a recorded outcome: a value
    /// or a kept error.
    pub fn is_replayed(&self) -> bool {
        self.replayed > 0 && self.executed == 0 && self.failed == 0
    }

    /// Returns how often calls ran their bodies, unguarded calls included. Each rerun of a
    /// `transaction` counts; calls of a disabled runtime do not.
    pub fn executed(&self) -> u32 {
        self.executed
    }

    /// Returns how many calls returned a recorded outcome.
    pub fn replayed(&self) -> u32 {
        self.replayed
    }

    /// Returns how many calls failed with an [`Error`](crate::Error): without a body or a replay,
    /// or because their transaction failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// Returns how many executed calls returned an outcome that the store has not recorded. Either
    /// the commit failed and is retried in the background, or it was refused because another caller
    /// has claimed the key. Do not acknowledge such work yet.
    pub fn unrecorded(&self) -> u32 {
        self.unrecorded
    }

    /// Returns the digest of the key of the last call, as the call's events have it; `None` if no
    /// call had a key. `idem show --digest` finds its record.
    pub fn key(&self) -> Option<KeyDigest> {
        self.key
    }
}

/// The result of one call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    Executed,
    Replayed,
    Failed,
    Unrecorded,
}

struct Watch {
    /// The body that the watch is in. It counts the calls of no other.
    around: Around,
    outer: Option<Arc<Watch>>,
    counts: [AtomicU32; 4],
    /// The record of the last call.
    last: Mutex<Option<RecordId>>,
}

impl Watch {
    fn report(&self) -> Report {
        let [executed, replayed, failed, unrecorded] = self
            .counts
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed));
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let key = last.as_ref().map(RecordId::digest);
        Report {
            executed,
            replayed,
            failed,
            unrecorded,
            key,
        }
    }
}

/// Passes the watch of this task on to a body in a task of its own.
pub(crate) fn inherit_watch<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let watch = current();
    async move {
        match watch {
            Some(watch) => WATCH.scope(watch, future).await,
            None => future.await,
        }
    }
}

fn current() -> Option<Arc<Watch>> {
    WATCH.try_with(Arc::clone).ok()
}

/// Reports a call.
#[inline]
pub(crate) fn note(seen: Seen) {
    // Most processes have no watch, and this costs them one look.
    let _ = WATCH.try_with(|watch| {
        let here = Around::here();
        for watch in chain(watch).filter(|watch| watch.around.is(&here)) {
            watch.counts[seen as usize].fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// Reports the record that a call is about.
pub(crate) fn note_record(id: &RecordId) {
    let _ = WATCH.try_with(|watch| {
        let here = Around::here();
        for watch in chain(watch).filter(|watch| watch.around.is(&here)) {
            *watch.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
        }
    });
}

fn chain(watch: &Arc<Watch>) -> impl Iterator<Item = &Watch> {
    std::iter::successors(Some(&**watch), |watch| watch.outer.as_deref())
}
