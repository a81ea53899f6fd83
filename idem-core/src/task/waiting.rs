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
