//! The destination of messages that no redelivery helps.

use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::Config;
use async_nats::jetstream::context::GetStreamByNameErrorKind;
use async_nats::jetstream::message::PublishMessage;
use idem_queue::{BoxError, Delivery, Fault, REASON};

use crate::subject::overlap;

/// The dead-letter subject of a consumer.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    context: Context,
    subject: Arc<str>,
}

impl DeadLetters {
    /// Makes sure that a stream has the subject, and that the consumer does not get from it what it
    /// put aside.
    pub(crate) async fn checked(
        context: &Context,
        stream: &str,
        config: &Config,
        subject: &str,
    ) -> Result<Self, Fault> {
        let found = context.stream_by_subject(subject).await.map_err(|error| match error.kind() {
            GetStreamByNameErrorKind::NotFound => Fault::config(format!(
                "no stream has the dead-letter subject `{subject}`, so what is published there would be lost: create one"
            )),
            GetStreamByNameErrorKind::InvalidSubject => {
                Fault::config(format!("`{subject}` is an invalid subject, and so no place for dead letters"))
            }
            _ => Fault::passing(error),
        })?;
        let filter = &config.filter_subject;
        if found == stream && (filter.is_empty() || overlap(filter, subject)) {
            return Err(Fault::config(format!(
                "the dead-letter subject `{subject}` is in the stream `{stream}`, and this consumer would receive what it put aside: use a subject of another stream, or give the consumer a `filter_subject`"
            )));
        }
        Ok(Self { context: context.clone(), subject: subject.into() })
    }

    /// Publishes a copy, and waits until the stream has it. `place` is where the original is:
    /// stream, consumer and sequence.
    pub(crate) async fn publish(
        &self,
        delivery: &Delivery,
        original: Option<&HeaderMap>,
        place: [&str; 3],
        reason: &str,
    ) -> Result<(), BoxError> {
        let [stream, consumer, sequence] = place;
        let mut headers = HeaderMap::new();
        // Those of the server mean something for the publication that they came with: a stream to
        // be emptied, a sequence to be expected.
        let kept =
            original.into_iter().flat_map(HeaderMap::iter).filter(|(name, _)| !name.to_string().starts_with("Nats-"));
        for (name, values) in kept {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
        for (name, value) in [
            (REASON, reason),
            ("idem-stream", stream),
            ("idem-consumer", consumer),
            ("idem-sequence", sequence),
            ("idem-subject", delivery.subject()),
        ] {
            headers.insert(name, value);
        }
        if let Some(id) = delivery.id() {
            headers.insert("idem-message-id", id);
        }
        // Of its own: the stream drops a message whose id it has seen, on whatever subject.
        let id = format!("idem-dead:{stream}:{consumer}:{sequence}");
        let publish = PublishMessage::build().payload(delivery.payload().clone()).headers(headers).message_id(id);
        self.context.send_publish(self.subject.to_string(), publish).await?.await?;
        Ok(())
    }
}
