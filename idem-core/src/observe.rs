//! Nothing silent: every decision is a tracing event and, with the feature `metrics`, a counter.
//!
//! Events have the target `idem` and the fields `operation`, `key` (a digest unless the runtime
//! logs keys), `decision`, `attempt` where there is one, and `detail`. An operation's invalid name
//! is escaped and cut, and its label is `(invalid)`. The counter is `idem_decisions_total` with the
//! labels `operation` and `decision`; the counter `idem_observed_total` has the labels `operation`
//! and `would`: what a guarded call would have decided where an observing one ran its body. The
//! histograms `idem_body_seconds` and `idem_wait_seconds` have the label `operation`; the gauge
//! `idem_background` has the label `kind`, `steps` or `bodies`.
//!
//! Consumers of queues report their own events (`idem-queue`, `events`). They are counted here: the
//! counter `idem_messages_total` has the labels `source` and `decision`, and the gauge
//! `idem_consumers_lost` the label `source`.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Level, Span};

use crate::base::clock;
use crate::base::printable::{Printable, shown_name};
use crate::record::{RecordId, is_valid_operation};

/// An event about a call: its name, which is also the metrics' label `decision`, and its level.
///
/// It stands where it is reported: a constant if there are several such places. No name has two
/// levels, because each is stated once (`tests/engine/metrics.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    name: &'static str,
    level: Level,
}

impl Event {
    /// An event of ordinary work.
    pub(crate) const fn debug(name: &'static str) -> Self {
        let level = Level::DEBUG;
        Self { name, level }
    }

    /// An event that is rare, and no fault.
    pub(crate) const fn info(name: &'static str) -> Self {
        let level = Level::INFO;
        Self { name, level }
    }

    /// An event that an operator should know of.
    pub(crate) const fn warn(name: &'static str) -> Self {
        let level = Level::WARN;
        Self { name, level }
    }
}

/// The label of all operations whose names are not valid.
const INVALID: &str = "(invalid)";

/// The value of an event's field `decision` if `would` has the actual one.
const OBSERVED: &str = "observed";

/// Returns an operation's name for events, and its label for metrics.
fn shown_and_label(operation: &str) -> (Cow<'_, str>, &str) {
    if is_valid_operation(operation) {
        (Cow::Borrowed(operation), operation)
    } else {
        // An invalid name may be any text, and a metric keeps each of its labels permanently.
        (Cow::Owned(shown_name(operation)), INVALID)
    }
}

/// Calls code of the application, such as its subscriber, its recorder or the `Display` of its
/// errors, and catches its panics. A panic there must not end the guarded call, whose outcome would
/// be lost.
pub fn catch_user_panic(report: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(report));
}

/// Writes an event. Its level is part of its static description, so there is one event for each.
macro_rules! write_event {
    ($level:expr, $($fields:tt)*) => {
        catch_user_panic(|| match $level {
            Level::WARN => tracing::event!(target: "idem", Level::WARN, $($fields)*),
            Level::INFO => tracing::event!(target: "idem", Level::INFO, $($fields)*),
            _ => tracing::event!(target: "idem", Level::DEBUG, $($fields)*),
        })
    };
}

/// The target of a runtime's events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Observer {
    /// Whether logs carry keys as they are.
    pub(crate) plain_keys: bool,
    /// Set in observe mode: a decision is only what a guarded call would have come to.
    pub(crate) observes: bool,
    /// The body was to run again: what becomes of its record is shown to who sees `retried`.
    pub(crate) after_retries: bool,
}

impl Observer {
    /// Reports an event of a record.
    pub(crate) fn decided(self, event: Event, id: &RecordId, attempt: u64) {
        self.report(event, id, attempt, None);
    }

    /// Returns the observer for a call in observe mode, or not.
    pub(crate) fn observing(self, observes: bool) -> Self {
        Self { observes, ..self }
    }

    /// Reports an event of a record, and why, if there is a reason to tell.
    pub(crate) fn report(
        self,
        event: Event,
        id: &RecordId,
        attempt: u64,
        why: Option<&dyn fmt::Display>,
    ) {
        let (Event { name, level }, would) = self.shown(event);
        let key = Label {
            id,
            plain: self.plain_keys,
        };
        write_event!(
            level,
            operation = id.name(),
            key = %key,
            decision = name,
            would,
            attempt = (attempt > 0).then_some(attempt),
            detail = why.map(tracing::field::display),
            "{name}"
        );
        count(id.name(), name, would);
    }

    /// Reports a call without a record: its key is missing, or the runtime has no store.
    pub(crate) fn decided_without_key(event: Event, operation: &str) {
        Self::default().report_without_key(event, operation, None);
    }

    /// Reports what would have become of a call without a record, whose body runs.
    pub(crate) fn observed_without_key(event: Event, operation: &str) {
        let observer = Self::default().observing(true);
        observer.report_without_key(event, operation, None);
    }

    /// Reports a call without a record, and why there is none, if there is a reason to tell.
    pub(crate) fn report_without_key(
        self,
        event: Event,
        operation: &str,
        detail: Option<&'static str>,
    ) {
        let (Event { name, level }, would) = self.shown(event);
        let (operation, label) = shown_and_label(operation);
        write_event!(
            level,
            operation = &*operation,
            decision = name,
            would,
            detail,
            "{name}"
        );
        count(label, name, would);
    }

    /// Returns the event as it is written, and the name of what a guarded call would have come to.
    fn shown(self, event: Event) -> (Event, Option<&'static str>) {
        let Event { name, level } = event;
        let level = if self.observes || self.after_retries {
            level.min(Level::INFO)
        } else {
            level
        };
        let would = self.observes.then_some(name);
        let name = would.map_or(name, |_| OBSERVED);
        (Event { name, level }, would)
    }

    /// Makes the span around a call, which contains the events of its body. Also returns whether a
    /// subscriber records it.
    pub(crate) fn span(self, id: &RecordId) -> (Span, bool) {
        let mut span = Span::none();
        catch_user_panic(|| {
            span = tracing::debug_span!(
                target: "idem",
                "idempotent",
                operation = id.name(),
                key = %Label { id, plain: self.plain_keys },
                attempt = tracing::field::Empty,
            );
        });
        let is_traced = !span.is_disabled();
        (span, is_traced)
    }
}

/// Adds the attempt to the span of the call.
pub(crate) fn span_has_attempt(attempt: u64) {
    catch_user_panic(|| {
        Span::current().record("attempt", attempt);
    });
}

/// Checks that leases are long enough for the round trip to the store. With fewer than three round
/// trips in a lease, one slow renewal loses it.
///
/// A slow store makes all leases too short at once, so the event comes at most once in
/// [`QUIET`](Self::QUIET), with the number of cases.
pub(crate) struct RoundTrips {
    observer: Observer,
    reported: Mutex<Reported>,
}

#[derive(Default)]
struct Reported {
    last: Option<Instant>,
    /// How many cases there were since.
    others: u64,
}

impl RoundTrips {
    const QUIET: Duration = Duration::from_secs(1);

    pub(crate) fn new(observer: Observer) -> Self {
        Self {
            observer,
            reported: Mutex::default(),
        }
    }

    pub(crate) fn observer(&self) -> Observer {
        self.observer
    }

    /// A claim or renewal took this long.
    pub(crate) fn took(&self, id: &RecordId, attempt: u64, lease: Duration, trip: Range<Instant>) {
        let round_trip = trip.end.saturating_duration_since(trip.start);
        if lease >= round_trip.saturating_mul(3) {
            return;
        }
        let others = {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            let quiet_until = reported.last.map(|last| clock::after(last, Self::QUIET));
            if quiet_until.is_some_and(|until| trip.end < until) {
                reported.others += 1;
                return;
            }
            reported.last = Some(trip.end);
            std::mem::take(&mut reported.others)
        };
        let why = format!(
            "the lease is {lease:?} and a round trip to the store took {round_trip:.1?}; make \
             `lease` longer than three of them; {others} more since the last report"
        );
        self.observer
            .report(Event::warn("lease_too_short"), id, attempt, Some(&why));
    }
}

/// Measures how long a body runs, if a metric is kept.
pub(crate) struct BodyWatch {
    #[cfg(feature = "metrics")]
    began: tokio::time::Instant,
}

impl BodyWatch {
    pub(crate) fn start() -> Self {
        Self {
            #[cfg(feature = "metrics")]
            began: crate::base::clock::now(),
        }
    }

    #[cfg_attr(not(feature = "metrics"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn stop(self, id: &RecordId) {
        #[cfg(feature = "metrics")]
        {
            let time = crate::base::clock::now().saturating_duration_since(self.began);
            catch_user_panic(|| {
                metrics::histogram!("idem_body_seconds", "operation" => id.name().to_owned())
                    .record(time);
            });
        }
    }
}

/// Reports how long a call waited for another.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn wait_took(id: &RecordId, time: Duration) {
    #[cfg(feature = "metrics")]
    catch_user_panic(|| {
        metrics::histogram!("idem_wait_seconds", "operation" => id.name().to_owned()).record(time);
    });
}

/// Changes how much work of one kind is under way without a caller.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn unattended(kind: &'static str, more: f64) {
    #[cfg(feature = "metrics")]
    catch_user_panic(|| metrics::gauge!("idem_background", "kind" => kind).increment(more));
}

/// Counts an event, or what a guarded call would have come to.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
fn count(operation: &str, decision: &'static str, would: Option<&'static str>) {
    #[cfg(feature = "metrics")]
    catch_user_panic(|| {
        let operation = operation.to_owned();
        let counter = match would {
            Some(would) => {
                metrics::counter!("idem_observed_total", "operation" => operation, "would" => would)
            }
            None => {
                metrics::counter!("idem_decisions_total", "operation" => operation, "decision" => decision)
            }
        };
        counter.increment(1);
    });
}

/// Counts a decision of a queue's consumer. With `times` 0 the counter is only registered.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub fn count_message_decision(source: &str, decision: &'static str, times: u64) {
    #[cfg(feature = "metrics")]
    catch_user_panic(|| {
        metrics::counter!("idem_messages_total", "source" => source.to_owned(), "decision" => decision)
            .increment(times);
    });
}

/// Adds to the number of consumers that receive no messages from this source.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub fn add_lost_consumers(source: &str, more: f64) {
    #[cfg(feature = "metrics")]
    catch_user_panic(|| {
        metrics::gauge!("idem_consumers_lost", "source" => source.to_owned()).increment(more);
    });
}

/// The key as it is logged. The digest is computed only if the event is written.
struct Label<'a> {
    id: &'a RecordId,
    plain: bool,
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.plain {
            Printable(self.id.key()).fmt(f)
        } else {
            self.id.digest().fmt(f)
        }
    }
}
