//! The channels of one subscription: one for deliveries, and those for copies.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_queue::{Fault, Outage};
use lapin::Channel;
use lapin::options::BasicQosOptions;
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::Instant;

use crate::connection::{TrackedConnection, not_answering_error, not_restored_error};
use crate::connector::{Connector, OpenedChannel};
use crate::publish_channels::PublishChannels;

/// The lengths of pauses, in seconds, each with a queue of its own: messages expire at the head of
/// a queue alone, so one queue holds one length.
const PAUSES: [i64; 4] = [1, 10, 60, 600];
/// How old a retry queue is before it gets a message. RabbitMQ writes a new queue down later than it
/// confirms the declaration, and messages in it: RabbitMQ 3.10.8, killed 750 ms after a
/// declaration, came back without the message, and after 1 s with it.
const NEW_FOR: Duration = Duration::from_secs(3);
/// How often the status of a channel is checked from which nothing arrives.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// After how many checks a channel is given up that lapin has not restored with its connection.
const CHANNEL_CHECKS: u32 = 5;
/// After how many checks a lost connection is given up, if another one can be made.
const CONNECTION_CHECKS: u32 = 5;
/// After how many checks it is given up otherwise. lapin gives up after eleven minutes, without an
/// event.
const CONNECTION_CHECKS_WITHOUT_RECONNECT: u32 = 15 * 60;
/// How many steps the wait for an answer has. A step ends only when this task runs again, so a
/// thread that was blocked does not use up the whole wait at once.
const ANSWER_STEPS: u32 = 20;

/// A queue that was checked at the start, and where its messages go that are not acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct CheckedQueue {
    pub(crate) name: Arc<str>,
    pub(crate) dead_letter_exchange: Arc<str>,
    /// `None`: a dead letter keeps the routing key of its message.
    pub(crate) dead_letter_routing_key: Option<Arc<str>>,
    /// `None`: the consumer declares retry queues.
    pub(crate) retry_queue: Option<Arc<str>>,
    pub(crate) consumer_timeout: Duration,
    /// How long the broker may leave a request without an answer.
    pub(crate) answer_timeout: Duration,
}

/// The state that the tickets of one subscription share.
#[derive(Debug)]
pub(crate) struct ConsumerChannels<'c> {
    pub(crate) consume: Channel,
    /// Channels of their own, because a refused publication closes its channel, and with it would
    /// end the deliveries.
    pub(crate) publish: PublishChannels<'c>,
    /// The lengths of the retry queues that were declared, and when each may be used.
    declared: Mutex<BTreeMap<i64, Instant>>,
    pub(crate) consumer_timeout: Duration,
    answer_timeout: Duration,
    connection: TrackedConnection<'c>,
    /// Whether another connection can be made.
    reconnects: bool,
}

impl<'c> ConsumerChannels<'c> {
    pub(crate) fn new(opened: OpenedChannel<'c>, queue: &CheckedQueue, reconnects: bool) -> Self {
        let OpenedChannel {
            connection,
            channel: consume,
        } = opened;
        let publish = PublishChannels::new(Connector::new(connection.clone()));
        Self {
            consume,
            publish,
            declared: Mutex::default(),
            consumer_timeout: queue.consumer_timeout,
            answer_timeout: queue.answer_timeout,
            connection,
            reconnects,
        }
    }

    /// Whether no delivery of these channels can be settled any more.
    pub(crate) fn is_over(&self) -> bool {
        !self.connection.is_usable() || !self.consume.status().connected()
    }

    /// Ends when no more messages can arrive, although lapin reports nothing.
    pub(crate) async fn ended(&self, queue: &str, prefetch: u16) -> Fault {
        tokio::select! {
            fault = self.not_restored(queue) => fault,
            fault = self.unanswered(prefetch) => fault,
        }
    }

    /// Ends when a request gets no answer. The tokio runtime of the connection may have ended, or
    /// may not be driven; the status of the connection does not show that.
    async fn unanswered(&self, prefetch: u16) -> Fault {
        loop {
            tokio::time::sleep(self.answer_timeout / 2).await;
            if self.answers(prefetch).await {
                continue;
            }
            self.connection.give_up();
            return if self.reconnects {
                Fault::passing("the connection to RabbitMQ answers nothing; making another one")
            } else {
                Fault::Final(not_answering_error())
            };
        }
    }

    /// Returns whether the broker answers a small request: to set the prefetch to what it is. A new
    /// prefetch applies to later consumers of the channel, and there are none. An error is an
    /// answer too. A connection that is lost or blocked counts as answering, because it cannot.
    async fn answers(&self, prefetch: u16) -> bool {
        let cannot_answer =
            || !self.connection.status().connected() || self.connection.is_blocked();
        if cannot_answer() {
            return true;
        }
        let mut asked = pin!(self.consume.basic_qos(prefetch, BasicQosOptions::default()));
        for _ in 0..ANSWER_STEPS {
            tokio::select! {
                biased;
                _ = asked.as_mut() => return true,
                () = tokio::time::sleep(self.answer_timeout / ANSWER_STEPS) => {}
            }
            if cannot_answer() {
                return true;
            }
        }
        false
    }

    /// Ends when lapin does not restore a lost connection or channel in time. lapin reports neither
    /// that it has restored a consumer nor that it has given up.
    async fn not_restored(&self, queue: &str) -> Fault {
        let mut channel_checks = 0;
        let mut connection_checks = 0;
        let mut outage: Option<Outage> = None;
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            if !self.connection.status().connected() {
                connection_checks += 1;
                outage.get_or_insert_with(|| {
                    Outage::begin(queue, &"the connection is lost, and not restored yet")
                });
                if self.reconnects && connection_checks == CONNECTION_CHECKS {
                    return Fault::passing(
                        "the connection to RabbitMQ is not restored; making another one",
                    );
                }
                if connection_checks == CONNECTION_CHECKS_WITHOUT_RECONNECT {
                    return Fault::Final(not_restored_error());
                }
            } else if !self.consume.status().connected() {
                channel_checks += 1;
                if channel_checks == CHANNEL_CHECKS {
                    return Fault::passing(
                        "the connection to RabbitMQ is restored, but the consumer's channel is not",
                    );
                }
            } else {
                if let Some(outage) = outage.take() {
                    outage.end();
                }
                channel_checks = 0;
                connection_checks = 0;
            }
        }
    }

    /// The retry queue in which a message waits at least this long, or else the longest. It keeps
    /// what is published to it.
    pub(crate) async fn retry_queue(
        &self,
        queue: &CheckedQueue,
        after: Duration,
    ) -> Result<String, Fault> {
        let (name, usable) = self.declare_retry_queue(queue, after).await?;
        tokio::time::sleep_until(usable).await;
        Ok(name)
    }

    /// Declares that queue, unless this was done before. Returns its name, and when it
    /// may be used.
    pub(crate) async fn declare_retry_queue(
        &self,
        queue: &CheckedQueue,
        after: Duration,
    ) -> Result<(String, Instant), Fault> {
        let long_enough = |pause: &i64| Duration::from_secs(pause.unsigned_abs()) >= after;
        let seconds = PAUSES
            .into_iter()
            .find(long_enough)
            .unwrap_or(PAUSES[PAUSES.len() - 1]);
        let name = format!("{}.retry.{seconds}s", queue.name);
        let usable = self.declared().get(&seconds).copied();
        if let Some(usable) = usable {
            return Ok((name, usable));
        }
        let mut arguments = FieldTable::default();
        let texts = [
            // A classic queue loses messages on their way back when the broker is killed. So
            // does a quorum queue without the next two arguments.
            ("x-queue-type", "quorum"),
            ("x-dead-letter-strategy", "at-least-once"),
            ("x-overflow", "reject-publish"),
            ("x-dead-letter-exchange", ""),
            ("x-dead-letter-routing-key", &queue.name),
        ];
        for (name, value) in texts {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        arguments.insert(
            "x-message-ttl".into(),
            AMQPValue::LongLongInt(seconds * 1000),
        );
        self.publish
            .declare(&name, arguments)
            .await
            .map_err(|fault| match fault {
                Fault::Final(error) => Fault::config(format!(
                    "the retry queue `{name}` cannot be declared; name one of your own with \
                 `.retry_queue(..)`: {error}"
                )),
                passing @ Fault::Passing(_) => passing,
            })?;
        let usable = tokio::time::sleep(NEW_FOR).deadline();
        self.declared().insert(seconds, usable);
        Ok((name, usable))
    }

    /// Makes the retry queues be declared again when they are next needed: one may have been
    /// deleted.
    pub(crate) fn forget_retry_queues(&self) {
        self.declared().clear();
    }

    fn declared(&self) -> MutexGuard<'_, BTreeMap<i64, Instant>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
