//! The ticket, which settles one delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{AckKind, Message};
use idem_queue::{BoxError, Delivery};

use crate::ack_subject::AckSubject;
use crate::dead_letter::{DeadLetters, OriginalMessage};
use crate::message_id::{message_id, published_id};

/// A delivered message.
///
/// Nothing here prevents a second run of the body: the server accepts the late acknowledgement of a
/// message that it has delivered to another consumer meanwhile. The lease of the record prevents
/// it.
#[derive(Debug)]
pub struct Ticket {
    message: Message,
    consumer: Arc<ConsumerTerms>,
}

/// What all deliveries of a consumer share.
#[derive(Debug)]
pub(crate) struct ConsumerTerms {
    pub(crate) stream: Arc<str>,
    pub(crate) dead_letters: DeadLetters,
    /// How often the server is told that a handler runs.
    pub(crate) keep_alive: Duration,
}

impl Ticket {
    pub(crate) fn new(
        message: Message,
        consumer: &Arc<ConsumerTerms>,
    ) -> Result<(Delivery, Self), BoxError> {
        let info = AckSubject::read(message.reply.as_deref())?;
        let id = message_id(published_id(message.headers.as_ref()), info.sequence);
        let mut delivery = Delivery::new(consumer.stream.clone(), message.payload.clone())
            .with_id(id)
            .with_subject(message.subject.as_str())
            .with_redelivered(info.delivered > 1);
        for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
            for value in values {
                delivery = delivery.with_header(name.to_string(), value.as_str());
            }
        }
        Ok((
            delivery,
            Self {
                message,
                consumer: consumer.clone(),
            },
        ))
    }
}

impl idem_queue::Ticket for Ticket {
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.consumer.keep_alive)
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Progress).await
    }

    /// Does not wait for an answer. If the acknowledgement is lost, the message comes again, and
    /// its key shows that it was handled.
    async fn ack(&self) -> Result<(), BoxError> {
        self.message.ack().await
    }

    async fn retry(&self, _: &Delivery, after: Duration) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Nak(Some(after))).await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<(), BoxError> {
        let info = AckSubject::read(self.message.reply.as_deref())?;
        let original = OriginalMessage {
            headers: self.message.headers.as_ref(),
            stream: &self.consumer.stream,
            consumer: info.consumer,
            sequence: info.sequence,
            published: info.published,
        };
        self.consumer
            .dead_letters
            .publish(delivery, original, reason)
            .await?;
        // The answer is waited for, so that the message is dead-lettered once.
        self.message.double_ack_with(AckKind::Term).await
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Nak(None)).await
    }

    /// Never: any delivery of a message can settle it.
    fn is_void(&self) -> bool {
        false
    }
}
