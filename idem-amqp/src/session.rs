//! The channels of one connection, and where messages go from there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use idem_queue::{BoxError, Error, Fault};
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ConnectionStatus};
use tokio::sync::{Mutex, Notify};

/// The lengths of pauses, in seconds, each with a queue of its own: messages expire at the head of
/// a queue alone, so one queue holds one length.
const PAUSES: [u64; 4] = [1, 10, 60, 600];
/// How often a channel is looked at from which nothing arrives.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks the client has to restore a channel of a connection that it has restored.
const CHANNEL: u32 = 5;
/// How many looks it has to restore the connection, if another one can be made.
const CONNECTION: u32 = 5;
/// How many looks it has otherwise: lapin gives up after eleven minutes, and does not say so.
const GIVEN_UP: u32 = 15 * 60;

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

/// The connection that channels are on.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) connection: ConnectionStatus,
    /// Whether another connection can be made.
    pub(crate) reconnects: bool,
}

/// The error about a connection that its client has not restored for a quarter of an hour.
pub(crate) fn not_coming_back() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ has not come back for 15 minutes, and the client may have given up: give the consumer `.reconnect(..)`, or start the process again",
    )
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
    connection: ConnectionStatus,
    /// Whether another connection can be made.
    reconnects: bool,
}

impl Session {
    pub(crate) fn new(consume: Channel, publish: Channel, consumer_timeout: Duration, line: Line) -> Self {
        let Line { connection, reconnects } = line;
        let (declared, broken) = (Mutex::default(), Notify::new());
        Self { consume, publish, declared, broken, consumer_timeout, connection, reconnects }
    }

    /// Has new channels opened, if this one for publications is gone. A lost connection is no reason:
    /// the client restores it with both channels.
    pub(crate) fn look(&self) {
        let status = self.publish.status();
        if !status.connected() && !status.reconnecting() {
            self.broken.notify_one();
        }
    }

    /// Ends when the client does not restore what was lost. It restores consumers without a word,
    /// and does not say when it has given up.
    pub(crate) async fn not_restored(&self, queue: &str) -> Fault {
        let (mut channel, mut connection) = (0, 0);
        loop {
            tokio::time::sleep(LOOK).await;
            if self.consume.status().connected() {
                if connection > 0 {
                    tracing::info!(target: "idem", source = queue, decision = "consumer_recovered", "the connection is restored");
                }
                (channel, connection) = (0, 0);
            } else if self.connection.connected() {
                channel += 1;
                if channel == CHANNEL {
                    return Fault::passing("the connection to RabbitMQ is restored, but the consumer's channel is not");
                }
            } else {
                connection += 1;
                if connection == 1 {
                    tracing::warn!(target: "idem", source = queue, decision = "consumer_lost", "the connection is lost; no messages arrive until it is restored");
                }
                if self.reconnects && connection == CONNECTION {
                    return Fault::passing("the connection to RabbitMQ is not restored; making another one");
                }
                if connection == GIVEN_UP {
                    return Fault::Final(not_coming_back());
                }
            }
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
