//! How long the calls of a task wait at most, and how often a waiter asks.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::clock;
use crate::task::current;

/// How long a waiter that cannot wait at the store sleeps before it asks again.
pub(crate) const WAIT_WITHOUT_STORE: Duration = Duration::from_millis(100);

tokio::task_local! {
    static LONGEST_WAIT: Duration;
}

/// Limits how long the guarded calls of a future wait for a call in flight, because a waiting call
/// may hold a scarce resource of its caller. Bodies, and the waits of calls inside them, are not
/// limited.
pub async fn waiting_at_most<F: Future>(longest: Duration, future: F) -> F::Output {
    LONGEST_WAIT.scope(longest, future).await
}

/// Returns how long a call of this task waits.
pub(crate) fn bounded_wait(wait: Duration) -> Duration {
    match LONGEST_WAIT.try_with(|longest| wait.min(*longest)) {
        Ok(bounded) if !current::is_inside() => bounded,
        _ => wait,
    }
}

/// Slows a waiter down. A store may end a wait for no reason; a waiter that then finds the same
/// attempt in flight would claim in a busy loop.
pub(crate) struct Pause {
    seen: Option<(u64, Instant)>,
    pauses: Backoff,
}

/// A wait that ended before this had no reason to.
const EARLY: Duration = Duration::from_millis(5);
const PAUSES: Backoff = Backoff::new(EARLY, WAIT_WITHOUT_STORE);

impl Pause {
    pub(crate) const fn new() -> Self {
        let pauses = PAUSES;
        Self { seen: None, pauses }
    }

    pub(crate) async fn before_waiting_again(&mut self, attempt: u64) {
        let early = self
            .seen
            .is_some_and(|(seen, at)| seen == attempt && clock::now() < clock::after(at, EARLY));
        if early {
            tokio::time::sleep(self.pauses.next_pause()).await;
        } else {
            self.pauses = PAUSES;
        }
        self.seen = Some((attempt, clock::now()));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::error::Error;
    use crate::runtime::handle::Idempotency;

    #[tokio::test]
    async fn a_limit_shortens_the_waits_of_its_task_but_not_those_inside_of_a_body() {
        const LONG: Duration = Duration::from_secs(30);
        const SHORT: Duration = Duration::from_secs(1);
        let idempotency = Idempotency::new(MemoryStore::new());
        let limited = waiting_at_most(SHORT, async {
            let body = async || Ok::<_, Error>(bounded_wait(LONG) == LONG);
            let inside = idempotency.operation("orders").key("k").run(body).await;
            assert!(inside.unwrap().into_inner());
            (bounded_wait(LONG), bounded_wait(SHORT / 2))
        });
        assert_eq!(limited.await, (SHORT, SHORT / 2));
        assert_eq!(bounded_wait(LONG), LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_finds_the_same_attempt_at_once_again_and_again_slows_down() {
        let mut pause = Pause::new();
        for (attempt, millis) in [
            (1, 0),
            (1, 5),
            (1, 10),
            (1, 20),
            (1, 40),
            (1, 80),
            (1, 100),
            (1, 100),
            (2, 0),
            (2, 5),
        ] {
            let before = clock::now();
            pause.before_waiting_again(attempt).await;
            let took = clock::now().saturating_duration_since(before).as_millis();
            // Timers may be a millisecond late.
            assert!(
                (millis / 2..=millis + 1).contains(&took),
                "{took} ms, not {millis}"
            );
        }
        // A wait that lasted longer did not end without a reason.
        tokio::time::advance(Duration::from_millis(5)).await;
        let before = clock::now();
        pause.before_waiting_again(2).await;
        assert_eq!(clock::now(), before);
    }
}
