//! The events of consumers. Each is also counted, with the feature `metrics`.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use idem_core::KeyDigest;
use idem_core::adapter::{add_lost_consumers, catch_user_panic, count_message_decision};
use tracing::Level;

use crate::delivery::Delivery;

/// A decision of a consumer: the field `decision` of its events, and the label of the counter
/// `idem_messages_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// The message is acknowledged.
    Acknowledged,
    /// The message is delivered again, after a pause.
    ComesAgain,
    /// The message is dead-lettered.
    DeadLettered,
    /// The handler panicked, or the disposition of its error.
    HandlerPanicked,
    /// The broker has not accepted the settlement of a message.
    NotSettled,
    /// A message was not handed back.
    NotHandedBack,
    /// The broker may not know that a handler still runs.
    NotKeptAlive,
    /// No messages arrive.
    ConsumerLost,
    /// Messages arrive again.
    ConsumerRecovered,
    /// The broker takes messages back before a lease has run out.
    ConsumerTimeoutShort,
    /// Handlers still ran at the end of the shutdown.
    ShutdownTimedOut,
}

impl Decision {
    const ALL: [Self; 11] = [
        Self::Acknowledged,
        Self::ComesAgain,
        Self::DeadLettered,
        Self::HandlerPanicked,
        Self::NotSettled,
        Self::NotHandedBack,
        Self::NotKeptAlive,
        Self::ConsumerLost,
        Self::ConsumerRecovered,
        Self::ConsumerTimeoutShort,
        Self::ShutdownTimedOut,
    ];

    /// The name, the level and the text of an event.
    fn describe(self) -> (&'static str, Level, &'static str) {
        match self {
            Self::Acknowledged => ("acknowledged", Level::DEBUG, "a message is acknowledged"),
            Self::ComesAgain => (
                "comes_again",
                Level::DEBUG,
                "a message is delivered again after a pause",
            ),
            Self::DeadLettered => ("dead_lettered", Level::WARN, "a message is dead-lettered"),
            Self::HandlerPanicked => (
                "handler_panicked",
                Level::ERROR,
                "the handler of a message panicked, or the disposition of its error; the message \
                 comes again",
            ),
            Self::NotSettled => (
                "not_settled",
                Level::WARN,
                "the broker has not accepted the settlement of a message",
            ),
            Self::NotHandedBack => (
                "not_handed_back",
                Level::WARN,
                "the message was not handed back; the broker delivers it again when it notices",
            ),
            Self::NotKeptAlive => (
                "not_kept_alive",
                Level::WARN,
                "the broker may deliver a message again while it is handled",
            ),
            Self::ConsumerLost => ("consumer_lost", Level::WARN, "no messages arrive"),
            Self::ConsumerRecovered => ("consumer_recovered", Level::INFO, "messages arrive again"),
            Self::ConsumerTimeoutShort => (
                "consumer_timeout_short",
                Level::WARN,
                "the broker takes messages back before a lease has run out: raise its consumer \
                 timeout",
            ),
            Self::ShutdownTimedOut => (
                "shutdown_timed_out",
                Level::WARN,
                "handlers are stopped; their messages come again",
            ),
        }
    }
}

/// What an event says besides its decision. Fields without a value are left out.
#[derive(Default)]
pub(crate) struct EventFields<'a> {
    pub(crate) delivery: Option<&'a Delivery>,
    /// The digest of the last guarded call of the handler.
    pub(crate) key: Option<KeyDigest>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) detail: Option<&'a dyn Display>,
    pub(crate) after: Option<Duration>,
    pub(crate) tries: Option<u32>,
    pub(crate) left: Option<usize>,
    /// Whether the delivery was lost with its connection. Then nothing is wrong with the message.
    pub(crate) is_void: bool,
}

/// Reports a decision about a consumer, for adapters: as an event with the target `idem`, and in
/// the counter `idem_messages_total`. `source` is the queue or the stream, and `detail` says more,
/// without contents of messages.
pub fn report(decision: Decision, source: &str, detail: &dyn Display) {
    report_with(
        decision,
        source,
        &EventFields {
            detail: Some(detail),
            ..EventFields::default()
        },
    );
}

pub(crate) fn report_with(decision: Decision, source: &str, fields: &EventFields<'_>) {
    let (name, mut level, mut text) = decision.describe();
    if fields.is_void {
        level = Level::INFO;
        text = "the delivery was lost with its connection; the message comes again";
    }
    // `tracing` needs the level of an event at compile time, so there is one event for each level.
    macro_rules! event {
        ($level:expr) => {
            tracing::event!(
                target: "idem",
                $level,
                source,
                subject = fields.delivery.map(Delivery::subject),
                id = fields.delivery.and_then(Delivery::id),
                decision = name,
                reason = fields.reason,
                key = fields.key.map(tracing::field::display),
                after = fields.after.map(tracing::field::debug),
                tries = fields.tries,
                left = fields.left,
                detail = fields.detail.map(tracing::field::display),
                "{text}"
            )
        };
    }
    catch_user_panic(|| match level {
        Level::ERROR => event!(Level::ERROR),
        Level::WARN => event!(Level::WARN),
        Level::INFO => event!(Level::INFO),
        _ => event!(Level::DEBUG),
    });
    count_message_decision(source, name, 1);
}

/// Registers the metrics of a consumer before they count anything. Prometheus misses the first
/// increase of a counter that appears together with it.
pub(crate) fn register_metrics(source: &str) {
    for decision in Decision::ALL {
        count_message_decision(source, decision.describe().0, 0);
    }
    add_lost_consumers(source, 0.0);
}

/// A time in which a consumer receives no messages, for adapters whose client restores connections
/// by itself. While it exists, the gauge `idem_consumers_lost` counts the consumer.
#[derive(Debug)]
pub struct Outage {
    source: Arc<str>,
}

impl Outage {
    /// Reports `consumer_lost`, and begins the outage.
    #[must_use = "the outage ends when this is dropped"]
    pub fn begin(source: &str, detail: &dyn Display) -> Self {
        report(Decision::ConsumerLost, source, detail);
        add_lost_consumers(source, 1.0);
        Self {
            source: source.into(),
        }
    }

    /// Reports `consumer_lost` once more: another try has failed.
    pub fn continues(&self, detail: &dyn Display) {
        report(Decision::ConsumerLost, &self.source, detail);
    }

    /// Reports `consumer_recovered`, and ends the outage.
    pub fn end(self) {
        report_with(
            Decision::ConsumerRecovered,
            &self.source,
            &EventFields::default(),
        );
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        add_lost_consumers(&self.source, -1.0);
    }
}
