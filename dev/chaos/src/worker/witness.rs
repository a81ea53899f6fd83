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
    /// The span that this thread is in: its id is the call's, and its steps' as well.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
    /// How many spans this thread is in: those of a call and of its steps.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
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
        // The span of a step is inside that of its call.
        if INSIDE.get() != 0 {
            return Id::from_u64(INSIDE.get());
        }
        let other = || self.others.fetch_add(1, Ordering::Relaxed);
        Id::from_u64(CALL.try_with(|call| *call).unwrap_or_else(|_| other()))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, report: &Report<'_>) {
        let mut decision = Decision::default();
        report.record(&mut decision);
        let inside = Some(INSIDE.get()).filter(|span| (1..OTHERS).contains(span));
        let mut call = inside.or_else(|| CALL.try_with(|call| *call).ok());
        let Decision {
            operation,
            key,
            mut name,
            attempt,
        } = decision;
        // A decision about a step explains neither the call's answer nor its outcome.
        if operation.contains('/') && !name.is_empty() {
            name.insert_str(0, "step: ");
            call = None;
        }
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
        // The only calls inside of a call are its steps.
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            poll_begins();
            INSIDE.set(span.into_u64());
        }
    }

    fn exit(&self, _: &Id) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
        if DEPTH.get() == 0 {
            INSIDE.set(0);
        }
    }
}

#[derive(Default)]
struct Decision {
    operation: String,
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
        match field.name() {
            "operation" => self.operation = value.into(),
            "decision" => self.name = value.into(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "key" {
            self.key = format!("{value:?}");
        }
    }
}
