//! Whether the server's clock can be believed: it is the wall clock of a host, and somebody may set it.
//!
//! The age of a lease is read off the expiry of its record. Where the server's clock jumps ahead, every lease is older than it was by as
//! much, and a living owner looks dead until it renews. So the server's time is looked at now and then beside our own monotonic clock,
//! and a take-over is refused by its script where the server's time is later than it can be. After a jump no lease is taken over before
//! one of its lengths has passed by our own clock: whoever is alive has renewed it by then.
//!
//! No clocks of two hosts are compared: only the lengths that passed on each between two looks.
#![allow(clippy::disallowed_methods, reason = "the one place that lays the server's clock beside our own")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What a look cannot tell.
const SLACK: Duration = Duration::from_millis(50);
/// By which part of the time two clocks may part, as is promised: a tenth.
const RATE: u32 = 10;
/// An owner stops after nine tenths of its lease. A jump by less than this part of the lease leaves enough of the last tenth.
const HARMLESS: u32 = 20;
/// How long a command may be on its way, at least. Where that turns out to be too short, it is sent again with more.
const WAY: Duration = Duration::from_millis(50);

/// What is known of a server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    look: Option<Look>,
    /// When a jump ahead was noticed last, and how far it may have gone.
    jumped: Option<(Instant, Duration)>,
}

/// The server's time at some moment between two of ours.
#[derive(Debug, Clone, Copy)]
struct Look {
    server: Duration,
    asked: Instant,
    heard: Instant,
}

/// How the server's clock was set: by no more than so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jump {
    Ahead(Duration),
    Back(Duration),
}

/// Our own clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long the next command may be on its way, after one that was sent then and has been answered.
pub(crate) fn way_since(sent: Instant) -> Duration {
    now().saturating_duration_since(sent).max(WAY)
}

impl ServerClock {
    /// Takes in the server's time, which was asked for at `asked`. Says whether its clock was set since the look before.
    pub(crate) fn looked(&self, server: Duration, asked: Instant) -> Option<Jump> {
        let look = Look { server, asked, heard: now() };
        let mut state = self.lock();
        if state.look.is_some_and(|before| asked < before.asked) {
            // Overtaken by a later one.
            return None;
        }
        let jump = state.look.and_then(|before| before.jump_to(look));
        state.look = Some(look);
        if let Some(Jump::Ahead(by)) = jump {
            state.jumped = Some((look.heard, by));
        }
        jump
    }

    /// The latest that the server's clock can show to a command that is sent now and takes so long to get there; `None` where nobody has
    /// looked yet.
    pub(crate) fn latest(&self, way: Duration) -> Option<Duration> {
        self.lock().look.map(|look| look.latest(now()) + way)
    }

    /// For how long nobody can tell whether a lease of this length has run out.
    pub(crate) fn doubtful(&self, lease: Duration) -> Option<Duration> {
        let (at, by) = self.lock().jumped?;
        let since = now().saturating_duration_since(at);
        lease.checked_sub(since).filter(|left| !left.is_zero() && by > lease / HARMLESS)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    fn latest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.asked);
        self.server + passed + passed / RATE + SLACK
    }

    fn earliest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.heard);
        (self.server + passed).saturating_sub(passed / RATE + SLACK)
    }

    fn jump_to(self, next: Self) -> Option<Jump> {
        if next.server > self.latest(next.heard) {
            let passed = next.asked.saturating_duration_since(self.heard);
            return Some(Jump::Ahead(next.server.saturating_sub(self.server + passed)));
        }
        if next.server < self.earliest(next.asked) {
            let passed = next.heard.saturating_duration_since(self.asked);
            return Some(Jump::Back((self.server + passed).saturating_sub(next.server)));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A server whose clock shows an hour more than the time since the test began, and the milliseconds that it was set by.
    struct Server(Instant);

    impl Server {
        fn look(&self, clock: &ServerClock, set_by: i64) -> Option<Jump> {
            let right = Duration::from_secs(3600) + now().saturating_duration_since(self.0);
            let by = Duration::from_millis(set_by.unsigned_abs());
            clock.looked(if set_by < 0 { right.saturating_sub(by) } else { right + by }, now())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clocks_that_part_as_slowly_as_is_promised_have_not_jumped() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        assert_eq!(clock.latest(MINUTE), None);
        // By nine hundredths of the time, and what a look cannot tell.
        for set_by in [0, 40, 5_400, 10_800, 16_200, 10_800, 5_440, 0] {
            assert_eq!(server.look(&clock, set_by), None, "{set_by}");
            tokio::time::advance(MINUTE).await;
        }
        assert_eq!(clock.doubtful(MINUTE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_jump_ahead_leases_are_doubtful_for_their_length_where_it_matters_to_them() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        server.look(&clock, 0);
        tokio::time::advance(MINUTE).await;
        assert_eq!(server.look(&clock, 10_000), Some(Jump::Ahead(Duration::from_secs(10))));
        assert_eq!(clock.doubtful(MINUTE), Some(MINUTE));
        assert_eq!(clock.doubtful(MINUTE * 60), None, "a tenth of it is much more than the jump");
        tokio::time::advance(MINUTE / 2).await;
        assert_eq!(server.look(&clock, 10_000), None);
        assert_eq!(clock.doubtful(MINUTE), Some(MINUTE / 2));
        assert_eq!(clock.doubtful(MINUTE / 2), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_back_makes_no_lease_older() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        server.look(&clock, 0);
        tokio::time::advance(MINUTE).await;
        assert_eq!(server.look(&clock, -10_000), Some(Jump::Back(Duration::from_secs(10))));
        assert_eq!(clock.doubtful(MINUTE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_was_overtaken_says_nothing() {
        let (clock, asked) = (ServerClock::default(), now());
        tokio::time::advance(MINUTE).await;
        clock.looked(MINUTE * 2, now());
        assert_eq!(clock.looked(MINUTE, asked), None);
        assert_eq!(clock.latest(Duration::ZERO), Some(MINUTE * 2 + SLACK));
    }
}
