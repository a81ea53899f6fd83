//! The channels of one connection, and where messages go from there.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_queue::{Fault, Outage};
use lapin::Channel;
use lapin::options::BasicQosOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::channels::Channels;
use crate::line::{Line, not_answering, not_coming_back};
use crate::link::Link;

/// The lengths of pauses, in seconds, each with a queue of its own: messages expire at the head of
/// a queue alone, so one queue holds one length.
const PAUSES: [i64; 4] = [1, 10, 60, 600];
/// How often a channel is looked at from which nothing arrives.
const LOOK: Duration = Duration::from_secs(1);
/// How many looks the client has to restore a channel of a connection that it has restored.
const CHANNEL: u32 = 5;
/// How many looks it has to restore the connection, if another one can be made.
const CONNECTION: u32 = 5;
/// How many looks it has otherwise: lapin gives up after eleven minutes, and does not say so.
const GIVEN_UP: u32 = 15 * 60;
/// How many steps the wait for an answer has. A step ends only when this task runs again, so a
/// thread that was blocked does not use up the whole wait at once.
const STEPS: u32 = 20;

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
    /// How long the broker may leave a request without an answer.
    pub(crate) answer_timeout: Duration,
}

/// The state that the tickets of one subscription share.
#[derive(Debug)]
pub(crate) struct Session<'c> {
    pub(crate) consume: Channel,
    /// Apart, so that a publication which the broker refuses does not take the deliveries along.
    pub(crate) publish: Channels<'c>,
    /// Retry queues that were declared.
    declared: Mutex<BTreeSet<i64>>,
    pub(crate) consumer_timeout: Duration,
    answer_timeout: Duration,
    connection: Line<'c>,
    /// Whether another connection can be made.
    reconnects: bool,
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: Line<'c>, consume: Channel, places: &Places, reconnects: bool) -> Self {
        let publish = Channels::new(Link::new(connection.clone()));
        let Places { consumer_timeout, answer_timeout, .. } = *places;
        Self { consume, publish, declared: Mutex::default(), consumer_timeout, answer_timeout, connection, reconnects }
    }

    /// Whether no delivery of this session can be settled any more.
    pub(crate) fn is_over(&self) -> bool {
        !self.connection.is_there() || !self.consume.status().connected()
    }

    /// Ends when no messages can arrive any more, although the client says nothing of it.
    pub(crate) async fn ended(&self, queue: &str, prefetch: u16) -> Fault {
        tokio::select! {
            fault = self.not_restored(queue) => fault,
            fault = self.silent(prefetch) => fault,
        }
    }

    /// Ends when the client leaves a request without an answer. Its tokio runtime may have ended, or
    /// may not be driven; the status of the connection remains as it was.
    async fn silent(&self, prefetch: u16) -> Fault {
        loop {
            tokio::time::sleep(self.answer_timeout / 2).await;
            if self.answers(prefetch).await {
                continue;
            }
            self.connection.give_up();
            return if self.reconnects {
                Fault::passing("the connection to RabbitMQ answers nothing; making another one")
            } else {
                Fault::Final(not_answering())
            };
        }
    }

    /// Asks for the prefetch that the channel has. It applies to later consumers of the channel, of
    /// which there are none. An error is an answer too; what is lost or blocked cannot answer.
    async fn answers(&self, prefetch: u16) -> bool {
        let cannot_answer = || !self.connection.status().connected() || self.connection.is_blocked();
        if cannot_answer() {
            return true;
        }
        let mut asked = pin!(self.consume.basic_qos(prefetch, BasicQosOptions::default()));
        for _ in 0..STEPS {
            tokio::select! {
                biased;
                _ = asked.as_mut() => return true,
                () = tokio::time::sleep(self.answer_timeout / STEPS) => {}
            }
            if cannot_answer() {
                return true;
            }
        }
        false
    }

    /// Ends when the client does not restore what was lost. It restores consumers without a word,
    /// and does not say when it has given up.
    async fn not_restored(&self, queue: &str) -> Fault {
        let (mut channel, mut connection) = (0, 0);
        let mut outage: Option<Outage> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            if !self.connection.status().connected() {
                connection += 1;
                outage.get_or_insert_with(|| Outage::begin(queue, &"the connection is lost, and not restored yet"));
                if self.reconnects && connection == CONNECTION {
                    return Fault::passing("the connection to RabbitMQ is not restored; making another one");
                }
                if connection == GIVEN_UP {
                    return Fault::Final(not_coming_back());
                }
            } else if !self.consume.status().connected() {
                channel += 1;
                if channel == CHANNEL {
                    return Fault::passing("the connection to RabbitMQ is restored, but the consumer's channel is not");
                }
            } else {
                if let Some(outage) = outage.take() {
                    outage.end();
                }
                (channel, connection) = (0, 0);
            }
        }
    }

    /// The queue in which a message waits at least this long, or as long as any.
    pub(crate) async fn retry_queue(&self, places: &Places, after: Duration) -> Result<String, Fault> {
        let long_enough = |pause: &i64| Duration::from_secs(pause.unsigned_abs()) >= after;
        let seconds = PAUSES.into_iter().find(long_enough).unwrap_or(PAUSES[PAUSES.len() - 1]);
        let queue = &places.queue;
        let name = format!("{queue}.retry.{seconds}s");
        if !self.declared().contains(&seconds) {
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
            arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(seconds * 1000));
            self.publish.declare(&name, arguments).await.map_err(|fault| match fault {
                Fault::Final(error) => Fault::config(format!(
                    "the retry queue `{name}` cannot be declared; name one of your own with `.retry_queue(..)`: {error}"
                )),
                passing @ Fault::Passing(_) => passing,
            })?;
            self.declared().insert(seconds);
        }
        Ok(name)
    }

    /// Has the retry queues declared again when they are next needed: one may have been deleted.
    pub(crate) fn forget_retry_queues(&self) {
        self.declared().clear();
    }

    fn declared(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
