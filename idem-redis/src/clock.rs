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

/// How far two clocks that run well may be apart some time after a look: what a look cannot tell, and a thousandth of the time, as NTP slews
/// a clock by half of that at most. Too little does no harm: a lease is waited for that need not be.
const SLACK: Duration = Duration::from_millis(50);
const DRIFT: u32 = 1000;

/// What is known of a server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    look: Option<Look>,
    /// When a jump ahead was noticed last.
    jumped: Option<Instant>,
}

/// The server's time at some moment between two of ours.
#[derive(Debug, Clone, Copy)]
struct Look {
    server: Duration,
    asked: Instant,
    heard: Instant,
}

/// How the server's clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jump {
    /// Ahead, by at least so much.
    Ahead(Duration),
    /// Back, by at least so much.
    Back(Duration),
}

/// How long a question may be on its way at first. Where that turns out to be too short, it is asked again with more.
pub(crate) const WAY: Duration = Duration::from_millis(50);

/// Our own clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}

impl ServerClock {
    /// Takes in the server's time, which was asked for at `asked`. Says whether its clock was set since the look before.
    pub(crate) fn looked(&self, server: Duration, asked: Instant) -> Option<Jump> {
        let look = Look { server, asked, heard: now() };
        let mut state = self.lock();
        let jump = state.look.and_then(|before| before.jump_to(look));
        state.look = Some(look);
        if let Some(Jump::Ahead(_)) = jump {
            state.jumped = Some(look.heard);
        }
        jump
    }

    /// The latest that the server's clock can show to a question that is asked now and takes so long to get there; `None` where nobody has
    /// looked yet.
    pub(crate) fn latest(&self, way: Duration) -> Option<Duration> {
        self.lock().look.map(|look| look.latest(now()) + way)
    }

    /// For how long nobody can tell whether a lease of this length has run out.
    pub(crate) fn doubtful(&self, lease: Duration) -> Option<Duration> {
        let since = now().saturating_duration_since(self.lock().jumped?);
        lease.checked_sub(since).filter(|left| !left.is_zero())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    fn latest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.asked);
        self.server + passed + passed / DRIFT + SLACK
    }

    fn earliest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.heard);
        (self.server + passed).saturating_sub(passed / DRIFT + SLACK)
    }

    fn jump_to(self, next: Self) -> Option<Jump> {
        let ahead = next.server.checked_sub(self.latest(next.heard)).map(Jump::Ahead);
        let back = self.earliest(next.asked).checked_sub(next.server).map(Jump::Back);
        ahead.or(back)
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
    async fn a_clock_that_runs_well_has_not_jumped() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        assert_eq!(clock.latest(MINUTE), None);
        for set_by in [0, 40, 0, -40] {
            assert_eq!(server.look(&clock, set_by), None, "{set_by}");
            tokio::time::advance(MINUTE).await;
        }
        assert_eq!(clock.doubtful(MINUTE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_jump_ahead_leases_are_doubtful_for_their_length() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        server.look(&clock, 0);
        tokio::time::advance(MINUTE).await;
        assert!(matches!(server.look(&clock, 600), Some(Jump::Ahead(by)) if by > Duration::from_millis(400)));
        assert_eq!(clock.doubtful(MINUTE), Some(MINUTE));
        tokio::time::advance(MINUTE / 2).await;
        assert_eq!(server.look(&clock, 600), None);
        assert_eq!(clock.doubtful(MINUTE), Some(MINUTE / 2));
        assert_eq!(clock.doubtful(MINUTE / 2), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_back_makes_no_lease_older() {
        let (clock, server) = (ServerClock::default(), Server(now()));
        server.look(&clock, 0);
        tokio::time::advance(MINUTE).await;
        assert!(matches!(server.look(&clock, -600), Some(Jump::Back(_))));
        assert_eq!(clock.doubtful(MINUTE), None);
    }
}
