//! Which locks a task holds, so that it does not wait for itself.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError};
use std::thread::{self, ThreadId};

use crate::base::sync::{Mutex, MutexGuard};
use crate::lease::term::Term;
use crate::record::RecordId;
use crate::task::current::{self, Call};

tokio::task_local! {
    /// The innermost lock whose body is running.
    static INSIDE: Arc<Inside>;
    /// The number of a future that does not count as the rest of its task.
    static SEPARATE: u64;
}

/// Runs a future that shares its task with others, such as a handler of messages, as a holder of
/// locks of its own: if another future of the task holds a lock, this one waits for it, as another
/// task would.
pub async fn as_separate_holder<F: Future>(future: F) -> F::Output {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    SEPARATE.scope(number, future).await
}

/// A lock whose body is running.
struct Inside {
    lock: HeldLock,
    outer: Option<Arc<Inside>>,
}

/// A lock that is held in this process.
pub(crate) struct HeldLock {
    /// The address of the runtime: keys of two runtimes have nothing to do with each other.
    pub(crate) runtime: usize,
    pub(crate) term: Arc<Term>,
}

impl HeldLock {
    fn is_held(&self, id: &RecordId, runtime: usize) -> bool {
        self.runtime == runtime && self.term.id == *id && self.term.is_held()
    }
}

/// A task that acquired a lock.
struct Holder {
    lock: HeldLock,
    task: Task,
    /// Bodies of one task may run at the same time, and wait for each other.
    call: Option<Call>,
}

#[derive(PartialEq, Eq)]
struct Task {
    id: TaskId,
    separate: Option<u64>,
}

#[derive(PartialEq, Eq)]
enum TaskId {
    Spawned(tokio::task::Id),
    /// The future of `block_on` has no id, and stays on its thread.
    BlockOn(ThreadId),
}

impl Task {
    fn here() -> Self {
        let spawned = tokio::task::try_id().map(TaskId::Spawned);
        Self {
            id: spawned.unwrap_or_else(|| TaskId::BlockOn(thread::current().id())),
            separate: SEPARATE.try_with(|number| *number).ok(),
        }
    }
}

type Holders = HashMap<RecordId, Vec<Holder>>;

/// The locks of this process that were acquired without a body.
fn holders() -> MutexGuard<'static, Holders> {
    static HOLDERS: LazyLock<Mutex<Holders>> = LazyLock::new(Mutex::default);
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says, until it is dropped, that the current task holds a lock.
pub(crate) struct Holding(Arc<Term>);

impl Holding {
    pub(crate) fn new(lock: HeldLock) -> Self {
        let term = lock.term.clone();
        let holder = Holder {
            lock,
            task: Task::here(),
            call: current::innermost(),
        };
        holders().entry(term.id.clone()).or_default().push(holder);
        Self(term)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut holders = holders();
        let gone = holders.get_mut(&self.0.id).and_then(|of_key| {
            let place = of_key
                .iter()
                .position(|holder| Arc::ptr_eq(&holder.lock.term, &self.0))?;
            Some(of_key.swap_remove(place))
        });
        if holders.get(&self.0.id).is_some_and(Vec::is_empty) {
            holders.remove(&self.0.id);
        }
        drop(holders);
        // Whatever it ends is ended outside of the mutex.
        drop(gone);
    }
}

/// Runs the body of a lock.
pub(crate) fn inside<F: Future>(lock: HeldLock, body: F) -> impl Future<Output = F::Output> {
    let outer = INSIDE.try_with(Clone::clone).ok();
    INSIDE.scope(Arc::new(Inside { lock, outer }), body)
}

/// Whether a task that acquires this key here would wait for itself.
pub(crate) fn is_held_here(id: &RecordId, runtime: usize) -> bool {
    let is_inside = |innermost: &Arc<Inside>| {
        std::iter::successors(Some(innermost), |inside| inside.outer.as_ref())
            .any(|inside| inside.lock.is_held(id, runtime))
    };
    if INSIDE.try_with(is_inside).unwrap_or(false) {
        return true;
    }
    let here = Task::here();
    holders().get(id).is_some_and(|of_key| {
        of_key.iter().any(|holder| {
            holder.task == here
                && holder.lock.is_held(id, runtime)
                && holder.call.as_ref().is_none_or(current::is_inside_of)
        })
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Error, Idempotency, MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn separate_holders_of_one_task_wait_for_each_other_and_not_for_themselves() {
        let idempotency = Idempotency::new(MemoryStore::new());
        let lock = || idempotency.lock("messages").key("k").acquire();
        let handler = || {
            as_separate_holder(async {
                let held = lock().await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(matches!(lock().await, Err(Error::Reentrant { .. })));
                held.fencing_number()
            })
        };
        let (one, two) = tokio::join!(handler(), handler());
        assert_eq!((one.min(two), one.max(two)), (1, 2));
        assert!(holders().values().all(|of_key| !of_key.is_empty()));
    }
}
