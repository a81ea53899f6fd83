//! Waiting in tests: for events, and never for a length of time on a busy machine.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{self, Instant, advance};

/// A test hangs that waits longer for an event.
pub(crate) const HANGS: Duration = Duration::from_secs(30);
/// tokio's timers fire at full milliseconds, up to one late.
const TICK: Duration = Duration::from_millis(1);

/// Waits until something holds. Also while the [clock stands still](within).
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = std::time::Instant::now();
    while !holds().await {
        assert!(start.elapsed() < HANGS, "not within {HANGS:?}: {what}");
        pause(Duration::from_millis(2)).await;
    }
}

/// Lets real time pass, in which connections are made and servers answer. Also while the
/// [clock stands still](within).
pub(crate) async fn pause(length: Duration) {
    spawn_blocking(move || thread::sleep(length)).await.unwrap();
}

/// Runs a future, and fails unless it ends within this length of tokio's time. That clock stands
/// still meanwhile, unless the future calls [`pass`]: no timer fires, however busy the machine is.
/// So a waiter that returns within no time was woken.
///
/// For runtimes of one thread.
pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    time::pause();
    let (ended, has_ended) = mpsc::channel::<()>();
    // tokio advances a paused clock when it has nothing to do, but not during blocking work.
    let holds = spawn_blocking(move || has_ended.recv_timeout(HANGS));
    let start = Instant::now();
    let result = future.await;
    let took = start.elapsed();
    time::resume();
    drop(ended);
    let _ = holds.await;
    assert!(took <= limit + TICK, "a timer ended it, after {took:?}");
    result
}

/// Lets a clock that [stands still](within) go on by this length, at which timers then fire.
#[allow(dead_code, reason = "one of the test programs does not use it")]
pub(crate) async fn pass(length: Duration) {
    advance(length + TICK).await;
}
