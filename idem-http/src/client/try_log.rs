//! What a client knows of the tries of one request, over HTTP and gRPC alike.

use std::time::Duration;

use tokio::time::Instant;

use super::pause::{backoff, now, with_jitter};
use super::verdict::Effect;

const A_YEAR: Duration = Duration::from_secs(31_536_000);

/// The tries of one request so far.
pub(super) struct TryLog {
    /// When all tries and pauses end.
    pub(super) deadline: Instant,
    /// How often the request was sent.
    pub(super) count: u32,
    /// Whether the request may have been carried out, and no response was the answer to its key.
    pub(super) is_uncertain: bool,
}

impl TryLog {
    /// Begins with no tries. `limit` is the time for all tries and pauses together.
    pub(super) fn begin(limit: Duration) -> Self {
        let begun = now();
        Self {
            // If the clock cannot express the deadline, there is none.
            deadline: begun.checked_add(limit).unwrap_or_else(|| begun + A_YEAR),
            count: 0,
            is_uncertain: false,
        }
    }

    /// Takes what a try may have done.
    pub(super) fn note(&mut self, effect: Effect) {
        match effect {
            Effect::Answer => self.is_uncertain = false,
            Effect::Possible => self.is_uncertain = true,
            Effect::None => {}
        }
    }

    /// Returns the pause before the next try: the one that the server suggests, or else a growing
    /// one that begins with `first`. `None` if the deadline comes first.
    pub(super) fn pause(&self, first: Duration, suggested: Option<Duration>) -> Option<Duration> {
        let left = self.deadline.saturating_duration_since(now());
        let pause = match suggested {
            Some(suggested) => Some(with_jitter(suggested))
                .filter(|longer| *longer < left)
                .unwrap_or(suggested),
            None => backoff(first, self.count),
        };
        // The deadline would end the next try immediately.
        (pause < left).then_some(pause)
    }
}
