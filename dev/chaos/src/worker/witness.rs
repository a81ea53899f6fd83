//! Hears what the runtime reports: each decision, and for which call; and the beginning of each
//! poll of a call.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event as Report, Metadata, Subscriber};
use tracing_core::span::Current;

use crate::history::{Event, Journal};
use crate::worker::stamp::poll_begins;

tokio::task_local! {
    /// The call that a task makes.
    pub(crate) static CALL: u64;
}

thread_local! {
    /// The span that this thread is in: its id is the call's.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// Spans of no call have ids from here on.
const OTHERS: u64 = 1 << 62;

/// A subscriber for the target `idem`.
#[derive(Debug)]
pub(crate) struct Witness {
    journal: Journal,
    others: AtomicU64,
    /// The metadata of the spans, which are all of one kind.
    described: OnceLock<&'static Metadata<'static>>,
}

impl Witness {
    pub(crate) fn new(journal: Journal) -> Self {
        Self {
            journal,
            others: AtomicU64::new(OTHERS),
            described: OnceLock::new(),
        }
    }
}

impl Subscriber for Witness {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.described.get_or_init(|| span.metadata());
        let other = || self.others.fetch_add(1, Ordering::Relaxed);
        Id::from_u64(CALL.try_with(|call| *call).unwrap_or_else(|_| other()))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, report: &Report<'_>) {
        let mut decision = Decision::default();
        report.record(&mut decision);
        let inside = Some(INSIDE.get()).filter(|span| (1..OTHERS).contains(span));
        let call = inside.or_else(|| CALL.try_with(|call| *call).ok());
        let Decision { key, name, attempt } = decision;
        if !name.is_empty() {
            self.journal.write(Event::Decided {
                key,
                decision: name,
                attempt,
                call,
            });
        }
    }

    /// A detached body takes the span along into its own task.
    fn current_span(&self) -> Current {
        match (INSIDE.get(), self.described.get()) {
            (0, _) | (_, None) => Current::none(),
            (span, Some(described)) => Current::new(Id::from_u64(span), described),
        }
    }

    fn enter(&self, span: &Id) {
        poll_begins();
        INSIDE.set(span.into_u64());
    }

    fn exit(&self, _: &Id) {
        // Calls are not nested here.
        INSIDE.set(0);
    }
}

#[derive(Default)]
struct Decision {
    key: String,
    name: String,
    attempt: u64,
}

impl Visit for Decision {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "attempt" {
            self.attempt = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "decision" {
            self.name = value.into();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "key" {
            self.key = format!("{value:?}");
        }
    }
}
