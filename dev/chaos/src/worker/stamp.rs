//! When the poll of a call began: before anything in it looked at the lease.
//!
//! A body takes its own time at the beginning of each of its polls. The process can be stopped
//! between the check of the lease and that moment. No code can exclude that: a body is stopped
//! between two polls, not inside one. So the checker compares the beginning of the whole poll. If
//! the key had another owner by then, the check came later still, and must have seen it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

use crate::clock;

thread_local! {
    static BEGAN: Cell<u64> = const { Cell::new(0) };
}

/// A poll begins on this thread.
pub(crate) fn poll_begins() {
    BEGAN.set(clock::now());
}

/// When the poll that is under way on this thread began.
pub(crate) fn poll_began() -> u64 {
    BEGAN.get()
}

/// Notes the beginning of each poll of a future that is in no span of `idem`.
pub(crate) async fn stamped<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        poll_begins();
        future.as_mut().poll(context)
    })
    .await
}
