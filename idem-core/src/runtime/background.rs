//! Work without a caller: steps that are retried at the store, and detached bodies.
//!
//! It is counted, so that its memory is bounded, and so that
//! [`Idempotency::shutdown`](crate::Idempotency::shutdown) can wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::Notify;
use crate::base::sync::atomic::{AtomicUsize, Ordering};
use crate::observe::{self, Event};

pub(crate) const STEPS_LEFT: Event = Event::info("steps_left");

/// How many steps may be retried at the same time, and how many bytes their outcomes may have.
/// Beyond that, steps are dropped and logged.
const MAX_STEPS: usize = 10_000;
const MAX_BYTES: usize = 64 << 20;

/// The work without a caller.
#[derive(Default)]
pub(crate) struct Background {
    /// How much there is of each kind.
    counts: [AtomicUsize; 4],
    /// The bytes of all outcomes that steps hold.
    bytes: AtomicUsize,
    /// Signals the end of any of this work.
    ended: Notify,
}

/// A kind of work. One that ends and leaves another behind comes before it: `unfinished` reads the
/// counts in this order.
#[derive(Clone, Copy)]
enum Work {
    /// A detached body. It leaves a step.
    Body,
    /// A step that is tried again. It leaves a removal.
    Step,
    /// A claim to undo that the store has not answered yet.
    Claim,
    /// The removal of a call's steps.
    Removal,
}

/// The work still under way when [`Idempotency::shutdown`](crate::Idempotency::shutdown) stopped
/// waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// Detached bodies that still run. If the process ends now, they are cut off, and their records
    /// are abandoned.
    pub bodies: usize,
    /// Commits and releases that the store has not accepted. If the process ends now, these
    /// outcomes are not recorded, and the records are abandoned.
    pub steps: usize,
    /// Claims of failed calls that may have been carried out. If the process ends now, their keys
    /// may be locked for one lease.
    pub claims: usize,
    /// Calls that are recorded, and whose [steps](crate::step) are not removed yet. If the process
    /// ends now, those records expire by themselves.
    pub removals: usize,
}

/// Work that counts until it is dropped.
pub(crate) struct Counted {
    background: Arc<Background>,
    work: Work,
    bytes: usize,
}

impl Background {
    /// Counts a step that holds an outcome of `bytes` bytes. Returns `None` if there are too many.
    pub(crate) fn step(self: &Arc<Self>, bytes: usize) -> Option<Counted> {
        let mut step = self.count(Work::Step, MAX_STEPS)?;
        add(&self.bytes, bytes, MAX_BYTES)?;
        step.bytes = bytes;
        Some(step)
    }

    /// Counts a claim to undo.
    pub(crate) fn undo(self: &Arc<Self>) -> Option<Counted> {
        self.count(Work::Claim, usize::MAX)
    }

    /// Counts a detached body.
    pub(crate) fn body(self: &Arc<Self>) -> Option<Counted> {
        self.count(Work::Body, usize::MAX)
    }

    /// Counts the removal of a call's steps. Returns `None` if there are too many.
    pub(crate) fn removal(self: &Arc<Self>) -> Option<Counted> {
        self.count(Work::Removal, MAX_STEPS)
    }

    fn count(self: &Arc<Self>, work: Work, most: usize) -> Option<Counted> {
        add(&self.counts[work as usize], 1, most)?;
        work.report(1.0);
        Some(Counted {
            background: self.clone(),
            work,
            bytes: 0,
        })
    }

    /// Waits until nothing is under way, for at most `limit`. Cancel safe.
    pub(crate) async fn finished(&self, limit: Duration) -> Result<(), Unfinished> {
        let finished = async {
            loop {
                // Subscribes before it looks, so that an end right after the look still wakes it.
                let ended = self.ended.notified();
                if self.unfinished().is_none() {
                    return;
                }
                ended.await;
            }
        };
        match tokio::time::timeout(limit, finished).await {
            Ok(()) => Ok(()),
            // The last work may have ended at the limit.
            Err(_) => self.unfinished().map_or(Ok(()), Err),
        }
    }

    fn unfinished(&self) -> Option<Unfinished> {
        let counts = self.counts.each_ref();
        let [bodies, steps, claims, removals] = counts.map(|count| count.load(Ordering::SeqCst));
        (bodies + steps + claims + removals > 0).then_some(Unfinished {
            bodies,
            steps,
            claims,
            removals,
        })
    }
}

impl Work {
    /// Changes the gauge of this kind, if it has one.
    fn report(self, more: f64) {
        match self {
            Self::Body => observe::unattended("bodies", more),
            Self::Step => observe::unattended("steps", more),
            Self::Claim | Self::Removal => {}
        }
    }
}

/// Adds to a count, unless that would take it above its limit. A single item may be above the
/// limit.
fn add(count: &AtomicUsize, more: usize, limit: usize) -> Option<()> {
    let added = |count: usize| {
        count
            .checked_add(more)
            .filter(|sum| *sum <= limit || count == 0)
    };
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, added)
        .ok()
        .map(drop)
}

impl Drop for Counted {
    fn drop(&mut self) {
        let background = &self.background;
        background.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        background.counts[self.work as usize].fetch_sub(1, Ordering::SeqCst);
        background.ended.notify_waiters();
        self.work.report(-1.0);
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bodies,
            steps,
            claims,
            removals,
        } = self;
        write!(
            f,
            "{bodies} detached bodies still run, {steps} commits or releases are not taken by the \
             store yet, of {claims} failed claims it has not said whether they were carried out, \
             and the steps of {removals} calls are not removed yet; give `shutdown` more time, or \
             see why the store does not answer"
        )
    }
}

impl std::error::Error for Unfinished {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_bounded_in_number_and_in_bytes() {
        let background = Arc::new(Background::default());
        let many: Vec<_> = (0..MAX_STEPS)
            .map(|_| background.step(0).unwrap())
            .collect();
        assert!(background.step(0).is_none());
        drop(many);
        let large = background.step(MAX_BYTES).unwrap();
        assert!(background.step(1).is_none());
        let empty = background.step(0).unwrap();
        assert_eq!(
            background.unfinished(),
            Some(Unfinished {
                bodies: 0,
                steps: 2,
                claims: 0,
                removals: 0
            })
        );
        drop((large, empty));
        assert_eq!(background.unfinished(), None);
        assert!(background.step(MAX_BYTES).is_some());
        // However large it is, one outcome is tried again.
        let alone = background.step(MAX_BYTES * 2).unwrap();
        assert!(background.step(1).is_none());
        drop(alone);
    }

    #[test]
    fn claims_to_undo_take_no_room_from_outcomes_and_are_waited_for_until_the_store_has_answered() {
        let background = Arc::new(Background::default());
        let mut claims: Vec<_> = (0..MAX_STEPS * 2).map(|_| background.undo()).collect();
        assert!(background.step(1).is_some());
        claims.truncate(1);
        assert_eq!(
            background.unfinished(),
            Some(Unfinished {
                bodies: 0,
                steps: 0,
                claims: 1,
                removals: 0
            })
        );
        drop(claims);
        assert_eq!(background.unfinished(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_waited_for_and_what_does_not_is_said() {
        let background = Arc::new(Background::default());
        let body = background.body();
        let step = background.step(7).unwrap();
        let limit = Duration::from_secs(1);
        assert_eq!(
            background.finished(limit).await,
            Err(Unfinished {
                bodies: 1,
                steps: 1,
                claims: 0,
                removals: 0
            })
        );
        let ending = async {
            drop(body);
            tokio::task::yield_now().await;
            drop(step);
        };
        let (finished, ()) = tokio::join!(background.finished(limit), ending);
        assert_eq!(finished, Ok(()));
    }
}
