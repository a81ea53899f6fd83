//! The queue of a store's steps.
//!
//! A burst of a thousand calls must not fail because there are ten connections; a database that is
//! stopped must fail each call in time. So a step waits for its turn as long as the steps before it
//! are answered, and no longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The number of parts of a step's limit: the precision of the time since the last answer.
const PARTS: u32 = 6;
/// How many of these a step waits in all: ten times its limit.
const MOST_PARTS: u32 = 10 * PARTS;

/// The turns of the steps.
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    /// How many steps were answered.
    answered: AtomicU64,
    /// How many steps could not write in time, because another connection does.
    blocked: AtomicU64,
}

/// A step's turn. The next one's begins when this is dropped.
pub(crate) struct Turn {
    _place: OwnedSemaphorePermit,
    /// How long the step may take now.
    pub(crate) limit: Duration,
}

impl Turns {
    /// So many steps at once.
    pub(crate) fn new(at_once: u32) -> Self {
        Self {
            places: Arc::new(Semaphore::new(at_once.max(1) as usize)),
            answered: AtomicU64::default(),
            blocked: AtomicU64::default(),
        }
    }

    /// Takes a turn that is free now: nobody waits for one then.
    pub(crate) fn free(&self, limit: Duration) -> Option<Turn> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some(Turn { _place: place, limit })
    }

    /// Waits for a turn, in the order of the callers. `None`: no step was answered for `limit`, or
    /// it took ten times as long, or a step before it was [blocked](Self::blocked). The turn is the
    /// longer, the shorter it is that one was.
    ///
    /// A turn belongs to the one who comes next from the moment when it is free, polled or not. So
    /// await this only in a task of the store's.
    pub(crate) async fn take(&self, limit: Duration) -> Option<Turn> {
        let (place, limit) = self.patiently(limit, self.places.clone().acquire_owned()).await?;
        Some(Turn { _place: place.ok()?, limit })
    }

    /// Waits for something while steps are answered. Gives what is left of the limit, or `None` as
    /// [`take`](Self::take).
    pub(crate) async fn patiently<T>(&self, limit: Duration, what: impl Future<Output = T>) -> Option<(T, Duration)> {
        let mut what = std::pin::pin!(what);
        let part = limit / PARTS;
        let (mut silent, mut answered) = (0, self.answered.load(Ordering::Relaxed));
        let blocked = self.blocked.load(Ordering::Relaxed);
        for _ in 0..MOST_PARTS {
            let came = timeout(part, what.as_mut()).await;
            if self.blocked.load(Ordering::Relaxed) != blocked {
                return None;
            }
            if let Ok(came) = came {
                return Some((came, limit.saturating_sub(part * silent)));
            }
            let now = self.answered.load(Ordering::Relaxed);
            silent = if now == answered { silent + 1 } else { 0 };
            answered = now;
            if silent == PARTS {
                return None;
            }
        }
        None
    }

    /// Whether the next step waits.
    pub(crate) fn are_all_taken(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// How many steps were answered.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn answers(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// A step was answered.
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// A step could not write in time. Neither could those that wait behind it: that some step
    /// before them is answered, which only reads, says nothing of that.
    pub(crate) fn blocked(&self) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(900);

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_while_others_are_answered_and_no_longer() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.take(LIMIT).await.unwrap();
        assert_eq!(first.limit, LIMIT);
        let answering = tokio::spawn({
            let turns = turns.clone();
            async move {
                for _ in 0..20 {
                    tokio::time::sleep(LIMIT / 8).await;
                    turns.answered();
                }
            }
        });
        let waiting = turns.take(LIMIT);
        tokio::pin!(waiting);
        // For more than twice the limit.
        assert!(timeout(LIMIT * 2, waiting.as_mut()).await.is_err());
        answering.await.unwrap();
        assert!(timeout(LIMIT * 5 / 4, waiting).await.unwrap().is_none());
        drop(first);
        assert!(turns.take(LIMIT).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_after_a_silence_is_shorter_by_as_much() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.take(LIMIT).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(LIMIT / 2 + LIMIT / 12).await;
            drop(first);
        });
        assert_eq!(turns.take(LIMIT).await.unwrap().limit, LIMIT / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_could_not_write_ends_the_wait_of_those_behind_it() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.take(LIMIT).await.unwrap();
        let (second, third) = (turns.take(LIMIT), turns.take(LIMIT));
        let ending = async {
            tokio::time::sleep(LIMIT / 2).await;
            turns.answered();
            turns.blocked();
            drop(first);
        };
        let (second, third, ()) = tokio::join!(second, third, ending);
        assert!(second.is_none() && third.is_none());
        assert_eq!(turns.take(LIMIT).await.unwrap().limit, LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_ten_times_the_limit() {
        let turns = Arc::new(Turns::new(1));
        let _first = turns.take(LIMIT).await.unwrap();
        let answering = turns.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LIMIT / 8).await;
                answering.answered();
            }
        });
        assert!(timeout(LIMIT * 11, turns.take(LIMIT)).await.unwrap().is_none());
    }
}
