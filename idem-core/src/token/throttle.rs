//! Limits how many invalid tokens one subject may send to this process.
//!
//! A window begins with the first failure and ends after its time. Subjects that never fail use no
//! memory. Calls that are under way when the last failure is counted continue.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::time::Instant;

use crate::base::clock;
use crate::base::sync::atomic::{AtomicU32, Ordering};
use crate::encoding::key::KeyDigest;

/// How many subjects are remembered. To exceed it, an attacker needs as many sessions.
const SUBJECTS: u64 = 1 << 16;

pub(crate) struct Throttle {
    max: u32,
    window: Duration,
    failures: Cache<KeyDigest, Arc<Window>, UnitWeighter, RandomState>,
}

/// The failures of a subject since the first of them.
struct Window {
    until: Instant,
    failures: AtomicU32,
}

impl Throttle {
    pub(crate) fn new(max: u32, window: Duration) -> Self {
        let hasher = RandomState::new();
        let lifecycle = DefaultLifecycle::default();
        Self {
            max,
            window,
            failures: Cache::with(1 << 10, SUBJECTS, UnitWeighter, hasher, lifecycle),
        }
    }

    /// Returns how long a subject has to wait, if it has to.
    pub(crate) fn check(
        &self,
        operation: &str,
        subject: KeyDigest,
        now: Instant,
    ) -> Option<Duration> {
        let window = self
            .failures
            .get(&counted(operation, subject))
            .filter(|window| now < window.until)?;
        let is_over = window.failures.load(Ordering::Relaxed) >= self.max;
        is_over.then(|| window.until.saturating_duration_since(now))
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, operation: &str, subject: KeyDigest, now: Instant) {
        let counted = counted(operation, subject);
        self.failures
            .remove_if(&counted, |window| now >= window.until);
        let begun = || {
            Ok(Arc::new(Window {
                until: clock::after(now, self.window),
                failures: AtomicU32::new(0),
            }))
        };
        let window: Result<_, std::convert::Infallible> =
            self.failures.get_or_insert_with(&counted, begun);
        let Ok(window) = window;
        window.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns what failures are counted by. Equal subjects of two operations may be different things,
/// so the operation is part of it.
fn counted(operation: &str, subject: KeyDigest) -> KeyDigest {
    KeyDigest::of(&format!("{operation}:{subject}"))
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("max", &self.max)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
