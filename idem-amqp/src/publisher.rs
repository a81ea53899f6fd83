//! Publishing from inside a guarded body.

use bytes::Bytes;
use idem_queue::{PublishError, Published, child_id};
use lapin::options::ConfirmSelectOptions;
use lapin::{BasicProperties, Channel, Connection};
use serde::Serialize;
use tokio::sync::Mutex;

use crate::confirmed;

/// Publishes messages whose ids are the same in each attempt of the guarded body that publishes
/// them. RabbitMQ delivers them twice, and consumers drop the second by its key.
///
/// # Examples
///
/// ```no_run
/// # async fn example(connection: &idem_amqp::lapin::Connection) -> Result<(), idem_amqp::PublishError> {
/// let publisher = idem_amqp::Publisher::new(connection);
/// // Inside a body: each message has a name of its own.
/// publisher.publish("order.placed", "shop", "orders.placed", r#"{"number":7}"#).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Publisher<'c> {
    connection: &'c Connection,
    channel: Mutex<Option<Channel>>,
}

impl<'c> Publisher<'c> {
    /// Creates a publisher on a connection. It opens a channel when it is first used, and a new one
    /// after the channel was closed.
    pub fn new(connection: &'c Connection) -> Self {
        Self { connection, channel: Mutex::new(None) }
    }

    /// Publishes a persistent message, and waits until a queue has it. The empty exchange name is
    /// the default exchange, whose routing keys are queue names.
    ///
    /// The message id is `idem::current()`'s child key with this name. Two messages of one body
    /// need two names.
    ///
    /// # Errors
    ///
    /// [`PublishError::NotInside`] outside a guarded body. [`PublishError::Unconfirmed`] if the
    /// broker has not confirmed the message, or no queue is bound for it: it may have been
    /// published. Return the error from the body, so that the body runs again.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the message may have been published. The next attempt publishes it
    /// with the same id.
    pub async fn publish(
        &self,
        child_key: &str,
        exchange: &str,
        routing_key: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Published, PublishError> {
        let id = child_id(child_key)?;
        let channel = tokio::time::timeout(confirmed::LIMIT, self.channel()).await;
        let channel =
            channel.map_err(|_| PublishError::Unconfirmed("RabbitMQ has not opened a channel within 10 s".into()))?;
        let channel = channel.map_err(|error| PublishError::Unconfirmed(error.into()))?;
        let properties = BasicProperties::default().with_message_id(id.as_str().into()).with_delivery_mode(2);
        let published = confirmed::publish(&channel, exchange, routing_key, &payload.into(), properties).await;
        published.map_err(PublishError::Unconfirmed)?;
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
        exchange: &str,
        routing_key: &str,
        value: &T,
    ) -> Result<Published, PublishError> {
        let payload = serde_json::to_vec(value).map_err(PublishError::Unwritable)?;
        self.publish(child_key, exchange, routing_key, payload).await
    }

    async fn channel(&self) -> lapin::Result<Channel> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = channel.as_ref().filter(|channel| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let opened = self.connection.create_channel().await?;
        opened.confirm_select(ConfirmSelectOptions::default()).await?;
        *channel = Some(opened.clone());
        Ok(opened)
    }
}
