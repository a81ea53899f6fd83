//! Publishing from inside a guarded body.

use std::fmt;

use bytes::Bytes;
use idem_queue::{Error, PublishError, Published, child_id};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use serde::Serialize;

use crate::config::of_producer;
use crate::message_id::MESSAGE_ID;
use crate::producer::{Outgoing, Producer};

/// Publishes messages whose ids are the same in each attempt of the guarded body that publishes
/// them.
///
/// The id is in the header `idem-message-id`. Kafka drops no second message with the same id: a
/// consumer of [`idem`](idem_core) drops it by its key, for as long as its operation remembers.
///
/// Clones share a connection, and so should the bodies of a process.
///
/// # Examples
///
/// ```no_run
/// # async fn example(config: idem_kafka::ClientConfig) -> Result<(), Box<dyn std::error::Error>> {
/// let publisher = idem_kafka::Publisher::new(&config)?;
/// // Inside a body: each message has a name of its own. `c-7` is the record key.
/// publisher.publish("order.placed", "orders", Some("c-7"), r#"{"number":7}"#).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Publisher {
    producer: Producer,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher. `acks = all` and `enable.idempotence` are always set; settings of
    /// consumers are left out.
    ///
    /// A message that is not confirmed within 10 s fails, unless the configuration has another
    /// `message.timeout.ms`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the client refuses the configuration.
    pub fn new(config: &ClientConfig) -> Result<Self, Error> {
        let producer = Producer::new(of_producer(config))?;
        Ok(Self { producer })
    }

    /// Publishes a message to a topic, and waits until all its replicas have it.
    ///
    /// The message id is `idem::current()`'s child key with this name. Two messages of one body
    /// need two names. Otherwise the consumer takes the second message for a duplicate.
    ///
    /// Messages with the same record key are in one partition, in their order.
    ///
    /// # Errors
    ///
    /// [`PublishError::NotInside`] outside a guarded body. [`PublishError::Unconfirmed`] if the
    /// topic has not confirmed the message: it may have been published. Return the error from the
    /// body, so that the body runs again.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the message may have been published. The next attempt publishes it
    /// with the same id.
    pub async fn publish(
        &self,
        child_key: &str,
        topic: &str,
        record_key: Option<&str>,
        payload: impl Into<Bytes>,
    ) -> Result<Published, PublishError> {
        let id = child_id(child_key)?;
        let payload = payload.into();
        let header = Header {
            key: MESSAGE_ID,
            value: Some(&id),
        };
        let mut message = Outgoing::to(topic)
            .payload(&payload)
            .headers(OwnedHeaders::new().insert(header));
        message.key = record_key.map(str::as_bytes);
        let sent = self.producer.send(message).await;
        sent.map_err(|error| PublishError::Unconfirmed(error.into()))?;
        Ok(Published::new(id, false))
    }

    /// Publishes a value as JSON. See [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish), and [`PublishError::Unwritable`].
    pub async fn publish_json<T: Serialize + ?Sized>(
        &self,
        child_key: &str,
        topic: &str,
        record_key: Option<&str>,
        value: &T,
    ) -> Result<Published, PublishError> {
        let payload = serde_json::to_vec(value).map_err(PublishError::Unwritable)?;
        self.publish(child_key, topic, record_key, payload).await
    }
}
