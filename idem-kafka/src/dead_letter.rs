//! The dead-letter topic of a consumer.

use std::fmt;

use idem_queue::{BoxError, Delivery, Fault, REASON};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message;

use crate::config::of_dead_letters;
use crate::message_id::MESSAGE_ID;
use crate::producer::{Outgoing, Producer};
use crate::record::{Header, Original};

/// The header of a dead letter without contents: the partition and the offset of the message that
/// has them.
const CONTENTS: &str = "idem-contents";
const TOPIC: &str = "idem-topic";
const PARTITION: &str = "idem-partition";
const OFFSET: &str = "idem-offset";

/// Publishes the dead letters of a consumer.
pub(crate) struct DeadLetters {
    producer: Producer,
    topic: String,
    /// The header that has the id of a message.
    pub(crate) id_header: String,
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeadLetters").field(&self.topic).finish()
    }
}

impl DeadLetters {
    pub(crate) fn new(
        config: &ClientConfig,
        topic: String,
        id_header: String,
    ) -> Result<Self, Fault> {
        let producer = Producer::new(of_dead_letters(config))?;
        Ok(Self {
            producer,
            topic,
            id_header,
        })
    }

    /// Publishes a copy, and waits until the topic has it.
    ///
    /// If our headers do not fit, the copy is published without them. A dead letter without
    /// contents follows, and names the copy in the header `idem-contents`. If the process dies in
    /// between, the next delivery publishes another copy.
    pub(crate) async fn publish(
        &self,
        original: &Original,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), BoxError> {
        let value = original.value.as_deref();
        let copied = copied_headers(original);
        let ours = self.our_headers(original, delivery, reason);
        let all = [copied.clone(), ours.clone()].concat();
        match self.send(original, value, all).await {
            Err(KafkaError::MessageProduction(
                Code::MessageSizeTooLarge | Code::MessageBatchTooLarge,
            )) => {
                let place = self.send(original, value, copied).await?;
                let headers = [ours, vec![header(CONTENTS, &place)]].concat();
                self.send(original, Some(&[]), headers).await?;
            }
            sent => drop(sent?),
        }
        Ok(())
    }

    /// Where the message comes from, and why it is dead-lettered.
    fn our_headers(&self, original: &Original, delivery: &Delivery, reason: &str) -> Vec<Header> {
        let id = original.text(&self.id_header).filter(|id| !id.is_empty());
        let id = id.or(delivery.id()).unwrap_or_default();
        vec![
            header(REASON, reason),
            header(MESSAGE_ID, id),
            header(TOPIC, delivery.source()),
            header(PARTITION, &original.partition.to_string()),
            header(OFFSET, &original.offset.to_string()),
        ]
    }

    /// Returns the partition and the offset of the copy.
    async fn send(
        &self,
        original: &Original,
        value: Option<&[u8]>,
        headers: Vec<Header>,
    ) -> Result<String, KafkaError> {
        let mut owned = message::OwnedHeaders::new_with_capacity(headers.len());
        for (key, value) in &headers {
            let value = value.as_deref();
            owned = owned.insert(message::Header { key, value });
        }
        let mut message = Outgoing::to(&self.topic).headers(owned);
        message.key = original.key.as_deref();
        message.payload = value;
        let sent = self.producer.send(message).await?;
        Ok(format!("{}-{}", sent.partition, sent.offset))
    }
}

fn header(name: &str, value: &str) -> Header {
    (name.to_owned(), Some(value.as_bytes().to_vec()))
}

/// The headers that a copy keeps: those of an earlier dead letter are replaced.
fn copied_headers(original: &Original) -> Vec<Header> {
    let ours = [REASON, MESSAGE_ID, TOPIC, PARTITION, OFFSET, CONTENTS];
    let headers = original.headers.iter();
    headers
        .filter(|(name, _)| !ours.contains(&name.as_str()))
        .cloned()
        .collect()
}
