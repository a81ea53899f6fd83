//! How long the calls of a task wait at most.

use std::future::Future;
use std::time::Duration;

use crate::task::current;

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
}
