//! What is called at each event.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Counts events of `idem`, and calls something at each of them.
pub(crate) struct AtEachEvent<F> {
    call: F,
    events: AtomicU32,
}

impl<F: Fn(&Event<'_>) + 'static> AtEachEvent<F> {
    pub(crate) fn new(call: F) -> Arc<Self> {
        Arc::new(Self { call, events: AtomicU32::new(0) })
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
