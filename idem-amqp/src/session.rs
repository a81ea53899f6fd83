//! The channels of one connection, and where messages go from there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use idem_queue::BoxError;
use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use tokio::sync::{Mutex, Notify};

/// The lengths of pauses, in seconds, each with a queue of its own: messages expire at the head of
/// a queue alone, so one queue holds one length.
const PAUSES: [u64; 4] = [1, 10, 60, 600];

/// The destination of messages that are not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) queue: Arc<str>,
    pub(crate) dead_letter_exchange: Arc<str>,
    /// `None`: as the message came.
    pub(crate) dead_letter_routing_key: Option<Arc<str>>,
    /// `None`: queues of our own.
    pub(crate) retry_queue: Option<Arc<str>>,
    pub(crate) consumer_timeout: Duration,
}

/// The state that the tickets of one connection share.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) consume: Channel,
    /// Apart, so that a publication which the broker refuses does not take the deliveries along.
    pub(crate) publish: Channel,
    /// Retry queues that were declared.
    declared: Mutex<BTreeSet<u64>>,
    pub(crate) broken: Notify,
    pub(crate) consumer_timeout: Duration,
}

impl Session {
    pub(crate) fn new(consume: Channel, publish: Channel, consumer_timeout: Duration) -> Self {
        Self { consume, publish, declared: Mutex::default(), broken: Notify::new(), consumer_timeout }
    }

    /// Has new channels opened, if this one for publications is gone.
    pub(crate) fn look(&self) {
        if !self.publish.status().connected() {
            self.broken.notify_one();
        }
    }

    /// The queue in which a message waits at least this long, or as long as any.
    pub(crate) async fn retry_queue(&self, places: &Places, after: Duration) -> Result<String, BoxError> {
        let seconds =
            PAUSES.into_iter().find(|pause| Duration::from_secs(*pause) >= after).unwrap_or(PAUSES[PAUSES.len() - 1]);
        let queue = &places.queue;
        let name = format!("{queue}.retry.{seconds}s");
        let mut declared = self.declared.lock().await;
        if !declared.contains(&seconds) {
            let mut arguments = FieldTable::default();
            let texts = [
                // A classic queue loses messages on their way back when the broker is killed; so
                // does this one without the other two.
                ("x-queue-type", "quorum"),
                ("x-dead-letter-strategy", "at-least-once"),
                ("x-overflow", "reject-publish"),
                ("x-dead-letter-exchange", ""),
                ("x-dead-letter-routing-key", queue),
            ];
            for (name, value) in texts {
                arguments.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            let millis = i64::try_from(seconds * 1000)?;
            arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(millis));
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            self.publish.queue_declare(name.as_str().into(), options, arguments).await.map_err(|error| {
                format!(
                    "the retry queue `{name}` cannot be declared; name one of your own with `.retry_queue(..)`: {error}"
                )
            })?;
            declared.insert(seconds);
        }
        Ok(name)
    }
}
