//! What is called at each event.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Has a subscriber see the events of this thread, beside tests on other threads.
///
/// While a process has one subscriber, the first thread at an event decides for all threads whether
/// anybody wants it: often one without a subscriber. With a second one, all are asked.
pub(crate) fn logging(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

/// Counts events of `idem`, and calls something at each of them.
pub(crate) struct AtEachEvent<F> {
    call: F,
    events: AtomicU32,
}

impl<F: Fn(&Event<'_>) + 'static> AtEachEvent<F> {
    pub(crate) fn new(call: F) -> Arc<Self> {
        Arc::new(Self {
            call,
            events: AtomicU32::new(0),
        })
    }

    pub(crate) fn count(&self) -> u32 {
        self.events.load(Ordering::SeqCst)
    }
}

impl<F: Fn(&Event<'_>) + 'static> Subscriber for AtEachEvent<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.events.fetch_add(1, Ordering::SeqCst);
        (self.call)(event);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
