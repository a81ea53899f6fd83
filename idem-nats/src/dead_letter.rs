//! The destination of messages that no redelivery helps.

use std::error::Error as _;
use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::Config;
use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, Context, ErrorCode};
use bytes::Bytes;
use idem_queue::{BoxError, Delivery, Fault, REASON};

use crate::message_id::published_id;
use crate::subject::overlap;

/// The header of a dead letter without contents: the sequence of the message that has them.
const CONTENTS: &str = "idem-contents";

/// Where and when the original was published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) stream: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) sequence: &'a str,
    pub(crate) published: i128,
}

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

    /// Publishes a copy, and waits until the stream has it.
    ///
    /// If our headers do not fit, the copy is published without them, and the dead letter after it
    /// has no contents. If the process dies in between, the next delivery publishes another copy.
    pub(crate) async fn publish(
        &self,
        delivery: &Delivery,
        original: Option<&HeaderMap>,
        place: Place<'_>,
        reason: &str,
    ) -> Result<(), BoxError> {
        let Place { stream, consumer, sequence, published } = place;
        let mut copied = HeaderMap::new();
        // Those of the server mean something for the publication that they came with: a stream to
        // be emptied, a sequence to be expected. Ours may be those of an earlier dead letter.
        let is_kept = |name: &str| !name.starts_with("Nats-") && name != CONTENTS;
        let kept = original.into_iter().flat_map(HeaderMap::iter).filter(|(name, _)| is_kept(name.as_ref()));
        for (name, values) in kept {
            for value in values {
                copied.append(name.clone(), value.clone());
            }
        }
        let ours = [
            (REASON, Some(reason)),
            ("idem-stream", Some(stream)),
            ("idem-consumer", Some(consumer)),
            ("idem-sequence", Some(sequence)),
            ("idem-subject", Some(delivery.subject())),
            ("idem-message-id", published_id(original).or(delivery.id())),
        ];
        let letter = |mut headers: HeaderMap, payload: Bytes| {
            for (name, value) in ours {
                if let Some(value) = value {
                    headers.insert(name, one_line(value).as_str());
                }
            }
            // Of its own: the stream drops a message whose id it has seen, on whatever subject. A
            // stream that was made again has the same sequences, but at other times.
            let id = format!("idem-dead:{stream}:{consumer}:{sequence}:{published}");
            PublishMessage::build().payload(payload).headers(headers).message_id(id)
        };
        match self.send(letter(copied.clone(), delivery.payload().clone())).await {
            Err(error) if is_too_large(&error) => {
                let contents = PublishMessage::build().payload(delivery.payload().clone()).headers(copied);
                let contents = self.send(contents).await?;
                let mut headers = HeaderMap::new();
                headers.insert(CONTENTS, contents.sequence.to_string());
                self.send(letter(headers, Bytes::new())).await?;
            }
            sent => drop(sent?),
        }
        Ok(())
    }

    async fn send(&self, message: PublishMessage) -> Result<PublishAck, PublishError> {
        self.context.send_publish(self.subject.to_string(), message).await?.await
    }
}

/// Whether the server does not take a message of that size.
fn is_too_large(error: &PublishError) -> bool {
    let code = error.source().and_then(|error| error.downcast_ref()).map(jetstream::Error::error_code);
    error.kind() == PublishErrorKind::MaxPayloadExceeded
        || code.is_some_and(|code| {
            [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM].contains(&code)
        })
}

/// The value of a header: the client panics at line breaks.
fn one_line(value: &str) -> String {
    value.replace(['\r', '\n'], " ")
}
