//! The ticket, which settles one delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{AckKind, Message};
use idem_queue::{BoxError, Delivery};

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
    sequence: String,
    /// When the stream received it, in nanoseconds: the same in each delivery.
    published: i128,
    consumer: String,
    stream: Arc<str>,
    dead_letters: DeadLetters,
    keep_alive: Duration,
}

impl Ticket {
    pub(crate) fn new(
        message: Message,
        stream: &Arc<str>,
        dead_letters: &DeadLetters,
        keep_alive: Duration,
    ) -> Result<(Delivery, Self), BoxError> {
        let info = message.info()?;
        let sequence = info.stream_sequence.to_string();
        let consumer = info.consumer.to_owned();
        let redelivered = info.delivered > 1;
        let published = info.published.unix_timestamp_nanos();
        let id = message_id(published_id(message.headers.as_ref()), &sequence);
        let mut delivery = Delivery::new(stream.clone(), message.payload.clone())
            .with_id(id)
            .with_subject(message.subject.as_str())
            .with_redelivered(redelivered);
        for (name, values) in message.headers.iter().flat_map(HeaderMap::iter) {
            for value in values {
                delivery = delivery.with_header(name.to_string(), value.as_str());
            }
        }
        Ok((
            delivery,
            Self {
                message,
                sequence,
                published,
                consumer,
                stream: stream.clone(),
                dead_letters: dead_letters.clone(),
                keep_alive,
            },
        ))
    }
}

impl idem_queue::Ticket for Ticket {
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.keep_alive)
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
        let Self {
            stream,
            consumer,
            sequence,
            published,
            ..
        } = self;
        let original = OriginalMessage {
            headers: self.message.headers.as_ref(),
            stream,
            consumer,
            sequence,
            published: *published,
        };
        self.dead_letters
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
