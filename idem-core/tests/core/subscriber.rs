//! Subscribers of `tracing`, for one thread each.

use std::sync::LazyLock;

use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Subscriber};

/// Has a subscriber see the events of this thread, beside tests on other threads.
///
/// While a process has one subscriber, the first thread at an event decides for all threads whether
/// anybody wants it: often one without a subscriber. With a second one, all are asked.
pub(crate) fn of_this_thread(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}
