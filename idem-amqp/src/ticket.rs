//! The ticket, which settles one delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use idem_queue::{BoxError, Delivery, Fault, REASON};
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable, MAX_SHORT_STRING_LENGTH};
use lapin::{Acker, BasicProperties};

use crate::consumer_channels::{CheckedQueue, ConsumerChannels};

/// The exchange to which a message was first published: a message from a retry queue returns by the
/// default exchange.
const EXCHANGE: &str = "idem-exchange";
const ROUTING_KEY: &str = "idem-routing-key";
/// The delivery mode of messages that outlive a restart of the broker.
const PERSISTENT: u8 = 2;

/// A delivered message.
#[derive(Debug)]
pub struct Ticket<'c> {
    acker: Acker,
    properties: BasicProperties,
    exchange: String,
    routing_key: String,
    channels: Arc<ConsumerChannels<'c>>,
    queue: CheckedQueue,
    /// Whether the copy is published, and only the acknowledgement is missing.
    is_copied: AtomicBool,
}

impl<'c> Ticket<'c> {
    pub(crate) fn new(
        message: lapin::message::Delivery,
        channels: &Arc<ConsumerChannels<'c>>,
        queue: &CheckedQueue,
    ) -> (Delivery, Self) {
        let lapin::message::Delivery {
            exchange,
            routing_key,
            redelivered,
            properties,
            data,
            acker,
            ..
        } = message;
        let header = |name: &str| match properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            _ => None,
        };
        // Any publisher can set our headers, so a value that is too long for a name is ignored.
        let name = |name| header(name).filter(|name| name.len() <= MAX_SHORT_STRING_LENGTH);
        let exchange = name(EXCHANGE).unwrap_or_else(|| exchange.to_string());
        let routing_key = name(ROUTING_KEY).unwrap_or_else(|| routing_key.to_string());
        let mut delivery = Delivery::new(queue.name.clone(), Bytes::from(data))
            .with_subject(routing_key.clone())
            .with_redelivered(redelivered);
        if let Some(id) = properties.message_id() {
            delivery = delivery.with_id(id.to_string());
        }
        for name in properties
            .headers()
            .iter()
            .flat_map(|headers| headers.inner().keys())
        {
            if let Some(value) = header(name.as_str()) {
                delivery = delivery.with_header(name.to_string(), value);
            }
        }
        (
            delivery,
            Self {
                acker,
                properties,
                exchange,
                routing_key,
                channels: channels.clone(),
                queue: queue.clone(),
                is_copied: AtomicBool::new(false),
            },
        )
    }

    /// The properties of a copy. Four kinds of properties of the original are left out:
    ///
    /// - An expiration would end the copy while it waits in the retry queue.
    /// - The user id is that of another connection, so the broker would refuse it.
    /// - The copies that `CC` and `BCC` ask for were made at the first publication.
    /// - RabbitMQ takes a copy with the `x-death` of this queue for a cycle, and drops it.
    fn properties(&self, expiration: Option<Duration>, reason: Option<&str>) -> BasicProperties {
        let mut headers = FieldTable::default();
        for (name, value) in self.properties.headers().iter().flat_map(FieldTable::inner) {
            let is_of_death = ["x-first-death-", "x-last-death-"]
                .iter()
                .any(|start| name.as_str().starts_with(start));
            if !is_of_death && !matches!(name.as_str(), "CC" | "BCC" | "x-death") {
                headers.insert(name.clone(), value.clone());
            }
        }
        let texts = [
            (EXCHANGE, Some(&*self.exchange)),
            (ROUTING_KEY, Some(&*self.routing_key)),
            (REASON, reason),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
        }
        let from = &self.properties;
        let mut copy = BasicProperties::default()
            .with_headers(headers)
            .with_delivery_mode(PERSISTENT);
        macro_rules! keep {
            ($($property:ident $with:ident),*) => {
                $(if let Some(value) = from.$property() { copy = copy.$with(value.clone()); })*
            };
        }
        keep!(
            content_type with_content_type, content_encoding with_content_encoding, priority with_priority,
            correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
            timestamp with_timestamp, kind with_type, app_id with_app_id
        );
        match expiration {
            Some(after) => copy.with_expiration(after.as_millis().to_string().into()),
            None => copy,
        }
    }
}

/// Each copy is confirmed before the original is acknowledged. If the process dies in between,
/// there are both, with one id.
impl idem_queue::Ticket for Ticket<'_> {
    // A quorum queue drops a message after some returns.
    const KEEPS: bool = true;

    /// RabbitMQ has no such request. Each call only reports that the handler takes long.
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.channels.consumer_timeout / 2)
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        let limit = self.channels.consumer_timeout;
        Err(format!(
            "the handler has run for half of RabbitMQ's consumer_timeout ({limit:?}) or \
            longer: raise it, or make the work shorter"
        )
        .into())
    }

    /// Does not wait for an answer. If the acknowledgement is lost, the message comes again, and
    /// its key shows that it was handled.
    ///
    /// lapin sends it once. If it was not sent in time, for instance because the broker blocks the
    /// connection, lapin sends it later, and there is nothing more to do.
    async fn ack(&self) -> Result<(), BoxError> {
        if self.acker.ack(BasicAckOptions::default()).await? || !self.is_void() {
            return Ok(());
        }
        Err("the channel of the delivery is closed".into())
    }

    async fn retry(&self, delivery: &Delivery, after: Duration) -> Result<(), BoxError> {
        if self.is_copied.load(Ordering::Relaxed) {
            return self.ack().await;
        }
        let own_queue = self.queue.retry_queue.as_deref();
        // The consumer declared this queue with an expiry of its messages.
        let expiration = own_queue.map(|_| after);
        let retry_queue = if let Some(name) = own_queue {
            name.to_owned()
        } else {
            let declared = self.channels.retry_queue(&self.queue, after).await;
            declared.map_err(Fault::into_inner)?
        };
        let properties = self.properties(expiration, None);
        let published = self
            .channels
            .publish
            .publish("", &retry_queue, delivery.payload(), properties)
            .await;
        published.inspect_err(|_| self.channels.forget_retry_queues())?;
        self.is_copied.store(true, Ordering::Relaxed);
        self.ack().await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<(), BoxError> {
        if self.is_copied.load(Ordering::Relaxed) {
            return self.ack().await;
        }
        let CheckedQueue {
            dead_letter_exchange: exchange,
            dead_letter_routing_key: routing_key,
            ..
        } = &self.queue;
        let routing_key = routing_key.as_deref().unwrap_or(&self.routing_key);
        let properties = self.properties(None, Some(reason));
        self.channels
            .publish
            .publish(exchange, routing_key, delivery.payload(), properties)
            .await?;
        self.is_copied.store(true, Ordering::Relaxed);
        self.ack().await
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        self.acker
            .nack(BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            })
            .await?;
        Ok(())
    }

    fn is_void(&self) -> bool {
        self.acker.poisoned() || self.channels.is_over()
    }
}
