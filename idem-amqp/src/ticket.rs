//! The ticket, which settles one delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use idem_queue::{BoxError, Delivery, Fault, REASON};
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable, MAX_SHORT_STRING_LENGTH};
use lapin::{Acker, BasicProperties};

use crate::session::{Places, Session};

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
    session: Arc<Session<'c>>,
    places: Places,
    /// Whether the copy is published, so that only the acknowledgement is missing.
    is_copied: AtomicBool,
}

impl<'c> Ticket<'c> {
    pub(crate) fn new(
        message: lapin::message::Delivery,
        session: &Arc<Session<'c>>,
        places: &Places,
    ) -> (Delivery, Self) {
        let lapin::message::Delivery { exchange, routing_key, redelivered, properties, data, acker, .. } = message;
        let header = |name: &str| match properties.headers().as_ref()?.inner().get(name)? {
            AMQPValue::LongString(text) => Some(text.to_string()),
            AMQPValue::ShortString(text) => Some(text.to_string()),
            _ => None,
        };
        // Anybody may have set ours: one that is too long for a name is not used.
        let name = |name| header(name).filter(|name| name.len() <= MAX_SHORT_STRING_LENGTH);
        let exchange = name(EXCHANGE).unwrap_or_else(|| exchange.to_string());
        let routing_key = name(ROUTING_KEY).unwrap_or_else(|| routing_key.to_string());
        let mut delivery = Delivery::new(places.queue.clone(), Bytes::from(data))
            .with_subject(routing_key.clone())
            .with_redelivered(redelivered);
        if let Some(id) = properties.message_id() {
            delivery = delivery.with_id(id.to_string());
        }
        for name in properties.headers().iter().flat_map(|headers| headers.inner().keys()) {
            if let Some(value) = header(name.as_str()) {
                delivery = delivery.with_header(name.to_string(), value);
            }
        }
        let (session, places) = (session.clone(), places.clone());
        (
            delivery,
            Self { acker, properties, exchange, routing_key, session, places, is_copied: AtomicBool::new(false) },
        )
    }

    /// The properties of a copy. An expiration would have it expire where it is to wait, the user
    /// is that of another connection, the copies that `CC` asks for were made when it was published
    /// first, and RabbitMQ takes a copy with the `x-death` of this queue for a cycle, and drops it.
    fn properties(&self, expiration: Option<Duration>, reason: Option<&str>) -> BasicProperties {
        let mut headers = FieldTable::default();
        for (name, value) in self.properties.headers().iter().flat_map(FieldTable::inner) {
            let is_of_death = ["x-first-death-", "x-last-death-"].iter().any(|start| name.as_str().starts_with(start));
            if !is_of_death && !matches!(name.as_str(), "CC" | "BCC" | "x-death") {
                headers.insert(name.clone(), value.clone());
            }
        }
        let texts = [(EXCHANGE, Some(&*self.exchange)), (ROUTING_KEY, Some(&*self.routing_key)), (REASON, reason)];
        for (name, value) in texts {
            if let Some(value) = value {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
        }
        let from = &self.properties;
        let mut copy = BasicProperties::default().with_headers(headers).with_delivery_mode(PERSISTENT);
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

    /// RabbitMQ knows no such thing: what is heard of is that it takes too long.
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.session.consumer_timeout / 2)
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        let limit = self.session.consumer_timeout;
        Err(format!("the handler has run for half of RabbitMQ's consumer_timeout ({limit:?}) or longer: raise it, or make the work shorter").into())
    }

    /// Not waited for: one that is lost brings the message again, and its key tells that it was
    /// handled.
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
        let (queue, expiration) = match &self.places.retry_queue {
            Some(queue) => (queue.to_string(), Some(after)),
            None => (self.session.retry_queue(&self.places, after).await.map_err(Fault::into_inner)?, None),
        };
        let properties = self.properties(expiration, None);
        let published = self.session.publish.publish("", &queue, delivery.payload(), properties).await;
        published.inspect_err(|_| self.session.forget_retry_queues())?;
        self.is_copied.store(true, Ordering::Relaxed);
        self.ack().await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<(), BoxError> {
        if self.is_copied.load(Ordering::Relaxed) {
            return self.ack().await;
        }
        let Places { dead_letter_exchange: exchange, dead_letter_routing_key: routing_key, .. } = &self.places;
        let routing_key = routing_key.as_deref().unwrap_or(&self.routing_key);
        let properties = self.properties(None, Some(reason));
        self.session.publish.publish(exchange, routing_key, delivery.payload(), properties).await?;
        self.is_copied.store(true, Ordering::Relaxed);
        self.ack().await
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        self.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await?;
        Ok(())
    }

    fn is_void(&self) -> bool {
        self.acker.poisoned() || self.session.is_over()
    }
}
