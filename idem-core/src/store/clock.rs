//! Measures how much of a server's time has truly passed.
//!
//! The age of a lease is computed by the clock of the store's server. That is a host's wall clock,
//! and may be set; or another server with another clock takes over. If it jumps ahead, every lease
//! looks older by as much, and a living owner looks dead until it renews. So a store looks at the
//! server's time next to its own monotonic clock, and keeps by how much the server's clock was
//! ahead at each look. A take-over requires that nearly a whole lease has passed by the store's own
//! clock too: [`ServerClock::renewed_by`] gives the latest server time at which the lease may have
//! been renewed last.
//!
//! Between two looks the clock may have been set at any moment, so the smallest lead within the
//! last lease counts. That covers any number of jumps, of any size, and any time without a look.
//! After a jump it costs a wait of at most one lease.
//!
//! No clocks of two hosts are compared: only the lengths that passed on each between two looks.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::base::clock::now;

/// A difference below the precision of a look, which is not worth a warning.
const SLACK: Duration = Duration::from_millis(50);
/// The tenth by which the rates of two clocks may differ, as is promised.
const RATE: u32 = 10;
/// How many hundredths of a lease must have passed on this process's clock. An owner stops after
/// ninety by its own.
const SURE: u32 = 95;
/// The most leads that are kept. A clock with a steady rate needs one.
const MOST: usize = 64;

/// A store's knowledge of its server's clock.
///
/// For stores whose server computes the age of a lease by a wall clock. Look at that clock when a
/// connection is made, every few seconds, and before a take-over.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use std::time::Duration;
///
/// use idem::store::clock::ServerClock;
///
/// # fn ask_the_server() -> Duration { Duration::from_secs(1_700_000_000) }
/// let (clock, lease) = (ServerClock::default(), Duration::from_secs(30));
/// let asked = ServerClock::asking();
/// let time = ask_the_server(); // since 1970
/// assert_eq!(clock.looked(time, asked), None);
///
/// // Renewed a minute ago by the server's clock: that much has passed on ours as well.
/// assert_eq!(clock.doubt(time, Duration::from_secs(60), lease), None);
/// ```
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<State>);

/// The moment at which a server was asked for its time.
#[derive(Debug, Clone, Copy)]
pub struct Asked(Instant);

#[derive(Debug, Default)]
struct State {
    last: Option<Look>,
    /// The moment of this process's clock from which leads are counted.
    origin: Option<Instant>,
    /// Ever larger ones: of two, the earlier counts only if it is smaller.
    leads: VecDeque<Lead>,
}

/// By how much the server's clock was ahead of ours.
#[derive(Debug, Clone, Copy)]
struct Lead {
    by: Duration,
    /// When another lead was seen. The clock may have been set just before.
    until: Option<Instant>,
}

/// The server's time at some moment between two moments of this process's clock.
#[derive(Debug, Clone, Copy)]
struct Look {
    server: Duration,
    asked: Instant,
    answered: Instant,
}

/// How the server's clock was set, with an upper bound of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jump {
    /// Leases look older than they are.
    Ahead(Duration),
    /// Leases look younger than they are, and all records are kept longer.
    Back(Duration),
}

impl ServerClock {
    /// Notes the moment just before the server is asked.
    #[must_use]
    pub fn asking() -> Asked {
        Asked(now())
    }

    /// Takes in the server's time: that since a fixed moment, such as the beginning of 1970. Says
    /// whether its clock was set since the look before.
    pub fn looked(&self, server: Duration, Asked(asked): Asked) -> Option<Jump> {
        let look = Look {
            server,
            asked,
            answered: now(),
        };
        let mut state = self.lock();
        if state.last.is_some_and(|before| asked < before.asked) {
            // Overtaken by a later one.
            return None;
        }
        let jump = state.last.and_then(|before| before.jump_to(look));
        state.last = Some(look);
        state.note(look);
        jump
    }

    /// Returns the latest time, by the server's clock, of the last renewal of a lease of this
    /// length that has run out by our own clock as well. `None` before the first look.
    #[must_use]
    pub fn renewed_by(&self, lease: Duration) -> Option<Duration> {
        let now = now();
        let state = self.lock();
        let is_recent = |lead: &&Lead| {
            lead.until
                .is_none_or(|until| now.saturating_duration_since(until) < lease)
        };
        // They grow, so the first is the smallest.
        let lead = state.leads.iter().find(is_recent)?;
        let sure = lease
            .checked_mul(SURE)
            .map_or(lease, |hundred| hundred / 100);
        Some((lead.by + since(state.origin, now)).saturating_sub(sure))
    }

    /// How much longer a lease of this length may be alive by our own clock, although it has run
    /// out by the server's. `age` is the time since its last renewal, and `server` is now, both by
    /// the server's clock.
    #[must_use]
    pub fn doubt(&self, server: Duration, age: Duration, lease: Duration) -> Option<Duration> {
        let left = server
            .saturating_sub(age)
            .saturating_sub(self.renewed_by(lease)?);
        // From the look on, at most a whole lease is left.
        Some(left.min(lease)).filter(|left| !left.is_zero())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is used on: nothing that could panic half-way runs under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes by how much the server's clock is ahead, if that differs from what was known.
    fn note(&mut self, look: Look) {
        let origin = Some(*self.origin.get_or_insert(look.asked));
        // The answer took its time: it was ahead by something between these two.
        let least = look.server.saturating_sub(since(origin, look.answered));
        let most = look.server.saturating_sub(since(origin, look.asked));
        if let Some(lead) = self.leads.back_mut() {
            if (least..=most).contains(&lead.by) {
                return;
            }
            lead.until = Some(look.answered);
        }
        while self.leads.back().is_some_and(|lead| lead.by >= least) {
            self.leads.pop_back();
        }
        self.leads.push_back(Lead {
            by: least,
            until: None,
        });
        if self.leads.len() > MOST
            && let Some(second) = self.leads.remove(1)
            && let Some(first) = self.leads.front_mut()
        {
            // Too small a lead for some time more, which costs waiting alone.
            first.until = second.until;
        }
    }
}

fn since(origin: Option<Instant>, at: Instant) -> Duration {
    origin.map_or(Duration::ZERO, |origin| {
        at.saturating_duration_since(origin)
    })
}

impl Look {
    fn latest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.asked);
        self.server + passed + passed / RATE + SLACK
    }

    fn earliest(self, at: Instant) -> Duration {
        let passed = at.saturating_duration_since(self.answered);
        (self.server + passed).saturating_sub(passed / RATE + SLACK)
    }

    fn jump_to(self, next: Self) -> Option<Jump> {
        if next.server > self.latest(next.answered) {
            let passed = next.asked.saturating_duration_since(self.answered);
            return Some(Jump::Ahead(
                next.server.saturating_sub(self.server + passed),
            ));
        }
        if next.server < self.earliest(next.asked) {
            let passed = next.answered.saturating_duration_since(self.asked);
            return Some(Jump::Back(
                (self.server + passed).saturating_sub(next.server),
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    /// A server whose clock shows an hour more than the time since the test began, and the
    /// milliseconds that it was set by.
    struct Server {
        clock: ServerClock,
        begun: Instant,
        set_by: i64,
    }

    impl Server {
        fn new() -> Self {
            Self {
                clock: ServerClock::default(),
                begun: now(),
                set_by: 0,
            }
        }

        fn time(&self) -> Duration {
            let right = 60 * MINUTE + now().saturating_duration_since(self.begun);
            let by = Duration::from_millis(self.set_by.unsigned_abs());
            if self.set_by < 0 {
                right.saturating_sub(by)
            } else {
                right + by
            }
        }

        fn look(&self) -> Option<Jump> {
            self.clock.looked(self.time(), ServerClock::asking())
        }

        /// Whether a lease that was renewed at this time by the server's clock may be taken over,
        /// as the script decides.
        fn gives_up(&self, renewed: Duration, lease: Duration) -> bool {
            renewed + lease <= self.time()
                && self
                    .clock
                    .renewed_by(lease)
                    .is_none_or(|latest| renewed <= latest)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p1_a_small_jump_does_not_hide_a_large_one() {
        let mut server = Server::new();
        server.look();
        let renewed = server.time();
        for set_by in [200_000, 202_000] {
            server.set_by = set_by;
            tokio::time::advance(SECOND).await;
            server.look();
            assert!(!server.gives_up(renewed, MINUTE), "{set_by}");
        }
        tokio::time::advance(51 * SECOND).await;
        assert!(
            !server.gives_up(renewed, MINUTE),
            "its owner runs until the 54th second"
        );
        tokio::time::advance(5 * SECOND).await;
        assert!(server.gives_up(renewed, MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn p1_small_jumps_add_up() {
        let mut server = Server::new();
        server.look();
        let renewed = server.time();
        let lease = 40 * SECOND;
        for second in 1..=37 {
            tokio::time::advance(SECOND).await;
            if second % 5 == 0 && second <= 30 {
                server.set_by += 1000;
                server.look();
            }
            assert!(
                !server.gives_up(renewed, lease),
                "after {second} s; its owner runs until the 36th"
            );
        }
        tokio::time::advance(2 * SECOND).await;
        assert!(server.gives_up(renewed, lease));
    }

    #[tokio::test(start_paused = true)]
    async fn p1_a_jump_in_a_long_time_without_a_look_counts_as_one_of_just_now() {
        let mut server = Server::new();
        let lease = 6 * SECOND;
        server.look();
        tokio::time::advance(66 * SECOND).await;
        // Renewed a moment before, and after.
        let before = server.time();
        server.set_by = 6000;
        let after = server.time();
        for is_looked_at in [false, true] {
            assert!(
                !server.gives_up(before, lease) && !server.gives_up(after, lease),
                "{is_looked_at}"
            );
            server.look();
        }
        tokio::time::advance(5 * SECOND).await;
        assert!(!server.gives_up(before, lease) && !server.gives_up(after, lease));
        tokio::time::advance(SECOND).await;
        assert!(server.gives_up(before, lease), "truly run out");
        assert!(server.gives_up(after, lease), "the jump is a lease ago");
    }

    #[tokio::test(start_paused = true)]
    async fn p1_a_jump_after_the_last_look_is_noticed_by_what_was_renewed_since() {
        let mut server = Server::new();
        let lease = MINUTE;
        server.look();
        tokio::time::advance(300 * SECOND).await;
        server.set_by = 90_000;
        let renewed = server.time();
        tokio::time::advance(30 * SECOND).await;
        server.set_by = 180_000;
        assert!(!server.gives_up(renewed, lease), "thirty seconds old");
    }

    #[tokio::test(start_paused = true)]
    async fn p5_beside_clocks_that_part_as_slowly_as_is_promised_leases_run_out() {
        for hundredths in [-9, 9] {
            let mut server = Server::new();
            let lease = 3 * SECOND;
            server.look();
            let mut renewed = server.time();
            for tenth in 1..=9000_i64 {
                tokio::time::advance(SECOND / 10).await;
                server.set_by = tenth * hundredths;
                if tenth % 50 == 0 {
                    assert_eq!(server.look(), None, "{hundredths}");
                }
                let age = server.time().saturating_sub(renewed);
                assert!(
                    age < 2 * lease || server.gives_up(renewed, lease),
                    "{hundredths} {tenth}"
                );
                if age >= 2 * lease {
                    renewed = server.time();
                }
            }
            assert!(server.clock.lock().leads.len() <= MOST);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn p5_what_ran_out_before_a_jump_waits_no_longer_for_it() {
        let mut server = Server::new();
        server.look();
        let renewed = server.time();
        tokio::time::advance(MINUTE).await;
        server.set_by = 10_000;
        assert_eq!(server.look(), Some(Jump::Ahead(Duration::from_secs(10))));
        assert!(server.gives_up(renewed, MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_back_makes_no_lease_older() {
        let mut server = Server::new();
        server.look();
        let renewed = server.time();
        tokio::time::advance(MINUTE).await;
        server.set_by = -10_000;
        assert_eq!(server.look(), Some(Jump::Back(Duration::from_secs(10))));
        assert!(!server.gives_up(renewed, MINUTE));
        tokio::time::advance(10 * SECOND).await;
        assert!(server.gives_up(renewed, MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_was_overtaken_says_nothing() {
        let clock = ServerClock::default();
        let asked = ServerClock::asking();
        assert_eq!(clock.renewed_by(MINUTE), None);
        tokio::time::advance(MINUTE).await;
        clock.looked(MINUTE * 2, ServerClock::asking());
        assert_eq!(clock.looked(MINUTE, asked), None);
        assert_eq!(clock.renewed_by(Duration::ZERO), Some(MINUTE * 2));
        assert_eq!(clock.renewed_by(Duration::MAX), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_took_long_hides_no_jump() {
        let server = Server::new();
        server.look();
        let asked = ServerClock::asking();
        let renewed = server.time();
        tokio::time::advance(20 * SECOND).await;
        // It may be five seconds ahead, or fifteen behind.
        server.clock.looked(renewed + 5 * SECOND, asked);
        assert_eq!(
            server.clock.renewed_by(MINUTE),
            Some(server.time().saturating_sub(MINUTE * SURE / 100))
        );
    }
}
