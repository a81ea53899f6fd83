//! The dead-letter subject of a consumer.

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

/// The message that a dead letter is a copy of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OriginalMessage<'a> {
    pub(crate) headers: Option<&'a HeaderMap>,
    pub(crate) stream: &'a str,
    pub(crate) consumer: &'a str,
    pub(crate) sequence: u64,
    /// When the stream received it, in nanoseconds: the same in each delivery.
    pub(crate) published: i64,
}

impl OriginalMessage<'_> {
    /// The headers that a copy keeps.
    ///
    /// The server's headers are instructions for the publication that they came with, such as to
    /// empty a stream, or to expect a sequence. `idem-contents` may be of an earlier dead letter.
    fn copied_headers(&self) -> HeaderMap {
        let is_kept = |name: &str| !name.starts_with("Nats-") && name != CONTENTS;
        let kept = self
            .headers
            .into_iter()
            .flat_map(HeaderMap::iter)
            .filter(|(name, _)| is_kept(name.as_ref()));
        let mut copied = HeaderMap::new();
        for (name, values) in kept {
            for value in values {
                copied.append(name.clone(), value.clone());
            }
        }
        copied
    }

    /// Adds our headers, which say where the message comes from and why it is dead-lettered.
    fn describe(&self, delivery: &Delivery, reason: &str, headers: &mut HeaderMap) {
        let sequence = self.sequence.to_string();
        let ours = [
            (REASON, Some(reason)),
            ("idem-stream", Some(self.stream)),
            ("idem-consumer", Some(self.consumer)),
            ("idem-sequence", Some(&*sequence)),
            ("idem-subject", Some(delivery.subject())),
            (
                "idem-message-id",
                published_id(self.headers).or(delivery.id()),
            ),
        ];
        for (name, value) in ours {
            if let Some(value) = value {
                headers.insert(name, one_line(value).as_str());
            }
        }
    }

    /// The message id of a dead letter.
    ///
    /// It is not the id of the original, because a stream drops a message whose id it has seen on
    /// any of its subjects. It has the time of the publication, because a stream that was deleted
    /// and created again has the same sequences.
    fn dead_letter_id(&self) -> String {
        let Self {
            stream,
            consumer,
            sequence,
            published,
            ..
        } = self;
        format!("idem-dead:{stream}:{consumer}:{sequence}:{published}")
    }
}

/// Publishes the dead letters of a consumer.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    context: Context,
    subject: Arc<str>,
}

impl DeadLetters {
    /// Checks that a stream has the subject, and that the consumer would not receive its own dead
    /// letters.
    pub(crate) async fn checked(
        context: &Context,
        stream: &str,
        config: &Config,
        subject: &str,
    ) -> Result<Self, Fault> {
        let found = context.stream_by_subject(subject).await.map_err(|error| {
            match error.kind() {
                GetStreamByNameErrorKind::NotFound => Fault::config(format!(
                    "no stream has the dead-letter subject `{subject}`, so what is published there \
                 would be lost: create one"
                )),
                GetStreamByNameErrorKind::InvalidSubject => Fault::config(format!(
                    "`{subject}` is an invalid subject, and so no place for dead \
                    letters"
                )),
                _ => Fault::passing(error),
            }
        })?;
        let filter = &config.filter_subject;
        if found == stream && (filter.is_empty() || overlap(filter, subject)) {
            return Err(Fault::config(format!(
                "the dead-letter subject `{subject}` is in the stream `{stream}`, and this \
                 consumer would receive what it put aside: use a subject of another stream, or \
                 give the consumer a `filter_subject`"
            )));
        }
        Ok(Self {
            context: context.clone(),
            subject: subject.into(),
        })
    }

    /// Publishes a copy, and waits until the stream has it.
    ///
    /// If our headers do not fit, the copy is published without them. A dead letter without
    /// contents follows, and names the copy in the header `idem-contents`. If the process dies in
    /// between, the next delivery publishes another copy.
    pub(crate) async fn publish(
        &self,
        delivery: &Delivery,
        original: OriginalMessage<'_>,
        reason: &str,
    ) -> Result<(), BoxError> {
        let letter = |mut headers: HeaderMap, payload: Bytes| {
            original.describe(delivery, reason, &mut headers);
            PublishMessage::build()
                .payload(payload)
                .headers(headers)
                .message_id(original.dead_letter_id())
        };
        let copied = original.copied_headers();
        let whole = letter(copied.clone(), delivery.payload().clone());
        match self.send(whole).await {
            Err(error) if is_too_large(&error) => {
                let contents = PublishMessage::build()
                    .payload(delivery.payload().clone())
                    .headers(copied);
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
        self.context
            .send_publish(self.subject.to_string(), message)
            .await?
            .await
    }
}

/// Whether the server refuses a message because of its size.
fn is_too_large(error: &PublishError) -> bool {
    let code = error
        .source()
        .and_then(|error| error.downcast_ref())
        .map(jetstream::Error::error_code);
    error.kind() == PublishErrorKind::MaxPayloadExceeded
        || code.is_some_and(|code| {
            [
                ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM,
                ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM,
            ]
            .contains(&code)
        })
}

/// Replaces the line breaks of a header's value, at which the client panics.
fn one_line(value: &str) -> String {
    value.replace(['\r', '\n'], " ")
}
