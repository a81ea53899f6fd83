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

use crate::adapter::engine::clock;
use crate::adapter::engine::sync::atomic::{AtomicU32, Ordering};
use crate::bounds::IntoDuration;
use crate::{Builder, KeyDigest};

/// How many subjects are remembered. To exceed it, an attacker needs as many sessions.
const SUBJECTS: u64 = 1 << 16;

impl Builder {
    /// Limits invalid tokens. After a subject has sent `max` invalid tokens (unknown, forged or
    /// another subject's, but not expired ones), each of its submissions gets
    /// [`Error::Throttled`](crate::Error::Throttled), until `window` has passed since the first of
    /// them. Default: no limit. Neither may be zero.
    ///
    /// The 128 random bits of a token prevent guessing, with or without a limit. The limit saves
    /// the store a command for each try, and makes such clients visible. So each process counts for
    /// itself, for each operation, and remembers the last 65,536 such subjects. Calls that run at
    /// the same time are not counted yet.
    ///
    /// The caller must not be able to choose the subject, and other sites must not be able to send
    /// its forms (use a cookie with `SameSite`). Otherwise other people can lock the subject out.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// # fn example(store: impl idem::Store) {
    /// let idempotency = idem::Idempotency::builder(store)
    ///     .limit_token_failures(10, Duration::from_secs(60))
    ///     .build();
    /// # }
    /// ```
    #[must_use]
    pub fn limit_token_failures(mut self, max: u32, window: impl IntoDuration) -> Self {
        match window.into_duration() {
            Ok(window) if max == 0 || window.is_zero() => self.note(
                "`limit_token_failures` is given a zero; allow at least one failure, in a window \
                 of some seconds or minutes"
                    .into(),
            ),
            Ok(window) => self.share(Throttle::new(max, window)),
            Err(reason) => self.note(format!("the window of `limit_token_failures`: {reason}")),
        }
        self
    }
}

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
    KeyDigest::hash(&format!("{operation}:{subject}"))
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("max", &self.max)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
