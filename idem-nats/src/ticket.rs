//! The ticket, which settles one delivery.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{AckKind, Message};
use idem_queue::{BoxError, Delivery};

use crate::dead_letter::{DeadLetters, Place};
use crate::message_id::{message_id, published_id};

/// A delivered message. Nothing here is the fence against a second body: the server accepts late
/// acknowledgements of deliveries that another consumer has got meanwhile. The lease of the record
/// is.
#[derive(Debug)]
pub struct Ticket {
    message: Message,
    sequence: String,
    /// When the stream got it, in nanoseconds: the same in each delivery.
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
        let (sequence, consumer, redelivered) =
            (info.stream_sequence.to_string(), info.consumer.to_owned(), info.delivered > 1);
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
        let (stream, dead_letters) = (stream.clone(), dead_letters.clone());
        Ok((delivery, Self { message, sequence, published, consumer, stream, dead_letters, keep_alive }))
    }
}

impl idem_queue::Ticket for Ticket {
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.keep_alive)
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Progress).await
    }

    /// Not waited for: one that is lost brings the message again, and its key tells that it was
    /// handled.
    async fn ack(&self) -> Result<(), BoxError> {
        self.message.ack().await
    }

    async fn retry(&self, _: &Delivery, after: Duration) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Nak(Some(after))).await
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<(), BoxError> {
        let Self { stream, consumer, sequence, published, .. } = self;
        let place = Place { stream, consumer, sequence, published: *published };
        self.dead_letters.publish(delivery, self.message.headers.as_ref(), place, reason).await?;
        // Waited for, so that it is put aside once.
        self.message.double_ack_with(AckKind::Term).await
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        self.message.ack_with(AckKind::Nak(None)).await
    }

    /// Never: the server takes what settles a message by any delivery of it.
    fn is_void(&self) -> bool {
        false
    }
}
