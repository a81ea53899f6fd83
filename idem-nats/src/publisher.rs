//! Publishing from inside a guarded body.

use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use bytes::Bytes;
use idem_queue::{PublishError, Published, child_id};
use serde::Serialize;

/// Publishes messages whose ids are the same in each attempt of the guarded body that publishes
/// them.
///
/// The stream drops a message whose id it has seen within its duplicate window (two minutes unless
/// configured). A consumer of [`idem`](idem_core) drops it by its key, for as long as its operation
/// remembers.
///
/// # Examples
///
/// ```no_run
/// # async fn example(context: async_nats::jetstream::Context) -> Result<(), idem_nats::PublishError> {
/// let publisher = idem_nats::Publisher::new(&context);
/// // Inside a body: each message has a name of its own.
/// publisher.publish("order.placed", "orders.placed", r#"{"number":7}"#).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Publisher {
    context: Context,
}

impl Publisher {
    /// Creates a publisher on a JetStream context.
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
        }
    }

    /// Publishes a message to a subject, and waits until its stream has it.
    ///
    /// The message id is `idem::current()`'s child key with this name. Two messages of one body
    /// need two names. Otherwise the stream drops the second message, whatever its subject is, and
    /// [`Published::is_duplicate`] returns true.
    ///
    /// # Errors
    ///
    /// [`PublishError::NotInside`] outside a guarded body. [`PublishError::Unconfirmed`] if no
    /// stream has confirmed the message: it may have been published. Return the error from the
    /// body, so that the body runs again.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the message may have been published. The next attempt publishes it
    /// with the same id.
    pub async fn publish(
        &self,
        child_key: &str,
        subject: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Result<Published, PublishError> {
        let id = child_id(child_key)?;
        let publish = PublishMessage::build()
            .payload(payload.into())
            .message_id(&id);
        let sent = self.context.send_publish(subject.into(), publish).await;
        let ack = match sent {
            Ok(confirmed) => confirmed.await,
            Err(error) => Err(error),
        };
        let ack = ack.map_err(|error| PublishError::Unconfirmed(error.into()))?;
        Ok(Published::new(id, ack.duplicate))
    }

    /// Publishes a value as JSON. See [`publish`](Self::publish).
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish), and [`PublishError::Unwritable`].
    pub async fn publish_json<T: Serialize + ?Sized>(
        &self,
        child_key: &str,
        subject: impl Into<String>,
        value: &T,
    ) -> Result<Published, PublishError> {
        let payload = serde_json::to_vec(value).map_err(PublishError::Unwritable)?;
        self.publish(child_key, subject, payload).await
    }
}
