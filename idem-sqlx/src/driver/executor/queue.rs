//! The queue of a store's steps.
//!
//! A burst of a thousand calls must not fail because there are ten connections. If the database is
//! stopped, each call must fail in time. So a step waits for a permit as long as the steps before
//! it are answered, and no longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// How often a step that waits looks for answers to the steps before it, within its limit.
const LOOKS: u32 = 6;
/// How many limits a step waits in all.
const MOST_LIMITS: u32 = 10;

/// Limits how many steps run at once.
pub(crate) struct StepQueue {
    permits: Arc<Semaphore>,
    /// How many steps were answered.
    answered: AtomicU64,
    /// How many steps could not write in time, because another connection does.
    blocked: AtomicU64,
}

/// A step's permit. When it is dropped, the next step gets it.
pub(crate) struct StepPermit {
    _permit: OwnedSemaphorePermit,
    /// How long the step may take now.
    pub(crate) limit: Duration,
}

/// The output of a future, and what is left of the limit.
pub(crate) struct Waited<T> {
    pub(crate) output: T,
    pub(crate) limit: Duration,
}

impl StepQueue {
    pub(crate) fn new(at_once: u32) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(at_once.max(1) as usize)),
            answered: AtomicU64::default(),
            blocked: AtomicU64::default(),
        }
    }

    /// Takes a permit that is free now. Then no other step waits for one.
    pub(crate) fn try_acquire(&self, limit: Duration) -> Option<StepPermit> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        Some(StepPermit {
            _permit: permit,
            limit,
        })
    }

    /// Waits for a permit, first come first served. Returns `None` if no step was answered for
    /// `limit`, if it took ten times as long, or if a step before it was
    /// [blocked](Self::note_blocked). The permit's limit is what was left since the last answer.
    ///
    /// A free permit is assigned to the next waiter even if nobody polls it. So await this only in
    /// a task of the store.
    pub(crate) async fn acquire(&self, limit: Duration) -> Option<StepPermit> {
        let acquiring = self.permits.clone().acquire_owned();
        let waited = self.wait_while_answered(limit, acquiring).await?;
        Some(StepPermit {
            _permit: waited.output.ok()?,
            limit: waited.limit,
        })
    }

    /// Waits for a future while steps are answered. Returns `None` as [`acquire`](Self::acquire)
    /// does.
    #[allow(
        clippy::disallowed_methods,
        reason = "how long a step waited, compared with nothing of the database"
    )]
    pub(crate) async fn wait_while_answered<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Option<Waited<T>> {
        let mut future = std::pin::pin!(future);
        let begun = Instant::now();
        let mut silent_since = begun;
        let mut answered = self.answered.load(Ordering::Relaxed);
        let blocked = self.blocked.load(Ordering::Relaxed);
        while begun.elapsed() < limit.saturating_mul(MOST_LIMITS) {
            let left = || limit.saturating_sub(silent_since.elapsed());
            let ready = timeout(left().min(limit / LOOKS), future.as_mut()).await;
            if self.blocked.load(Ordering::Relaxed) != blocked {
                return None;
            }
            if let Ok(output) = ready {
                let limit = left();
                return Some(Waited { output, limit });
            }
            let latest = self.answered.load(Ordering::Relaxed);
            if latest != answered {
                answered = latest;
                silent_since = Instant::now();
            } else if left().is_zero() {
                return None;
            }
        }
        None
    }

    /// Whether the next step has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.permits.available_permits() == 0
    }

    /// How many steps were answered.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn answers(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Notes that a step was answered.
    pub(crate) fn note_answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a step could not write in time. The steps behind it could not either: answers to
    /// steps that only read do not show that writing is possible.
    pub(crate) fn note_blocked(&self) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(900);

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_waited_for_while_others_are_answered_and_no_longer() {
        let queue = Arc::new(StepQueue::new(1));
        let first = queue.acquire(LIMIT).await.unwrap();
        assert_eq!(first.limit, LIMIT);
        let answering = tokio::spawn({
            let queue = queue.clone();
            async move {
                for _ in 0..20 {
                    tokio::time::sleep(LIMIT / 8).await;
                    queue.note_answer();
                }
            }
        });
        let waiting = queue.acquire(LIMIT);
        tokio::pin!(waiting);
        // For more than twice the limit.
        assert!(timeout(LIMIT * 2, waiting.as_mut()).await.is_err());
        answering.await.unwrap();
        assert!(timeout(LIMIT * 5 / 4, waiting).await.unwrap().is_none());
        drop(first);
        assert!(queue.acquire(LIMIT).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_after_a_silence_is_shorter_by_as_much() {
        let queue = Arc::new(StepQueue::new(1));
        let first = queue.acquire(LIMIT).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(LIMIT / 2 + LIMIT / 12).await;
            drop(first);
        });
        assert_eq!(queue.acquire(LIMIT).await.unwrap().limit, LIMIT * 5 / 12);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_could_not_write_ends_the_wait_of_those_behind_it() {
        let queue = Arc::new(StepQueue::new(1));
        let first = queue.acquire(LIMIT).await.unwrap();
        let second = queue.acquire(LIMIT);
        let third = queue.acquire(LIMIT);
        let ending = async {
            tokio::time::sleep(LIMIT / 2).await;
            queue.note_answer();
            queue.note_blocked();
            drop(first);
        };
        let (second, third, ()) = tokio::join!(second, third, ending);
        assert!(second.is_none() && third.is_none());
        assert_eq!(queue.acquire(LIMIT).await.unwrap().limit, LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_ten_times_the_limit() {
        let queue = Arc::new(StepQueue::new(1));
        let _first = queue.acquire(LIMIT).await.unwrap();
        let answering = queue.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LIMIT / 8).await;
                answering.note_answer();
            }
        });
        assert!(
            timeout(LIMIT * 11, queue.acquire(LIMIT))
                .await
                .unwrap()
                .is_none()
        );
    }
}
