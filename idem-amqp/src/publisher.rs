//! Publishing from inside a guarded body.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use idem_queue::{PublishError, Published, child_id};
use lapin::{BasicProperties, Connection};
use serde::Serialize;

use crate::connection::TrackedConnection;
use crate::connector::Connector;
use crate::publish_channels::PublishChannels;

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
    channels: PublishChannels<'c>,
}

impl<'c> Publisher<'c> {
    /// Creates a publisher on a connection. It opens channels as it needs them: up to 64 messages
    /// wait for their confirmations at the same time, each on a channel of its own.
    ///
    /// To survive a restart of the broker, the publisher needs [`reconnect`](Self::reconnect), or
    /// the connection needs `ConnectionProperties::enable_auto_recover`.
    pub fn new(connection: &'c Connection) -> Self {
        Self {
            channels: PublishChannels::new(Connector::new(TrackedConnection::of_application(
                connection,
            ))),
        }
    }

    /// Sets how to connect again after the connection has ended. Recommended, for the reasons that
    /// [`Consumer::reconnect`](crate::Consumer::reconnect) gives. Connecting may take as long as
    /// [`answer_timeout`](Self::answer_timeout): after that the publication fails, and the next one
    /// connects again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use idem_amqp::{Publisher, lapin};
    ///
    /// let connect = || {
    ///     lapin::Connection::connect(
    ///         "amqp://127.0.0.1:5672/%2f",
    ///         lapin::ConnectionProperties::default(),
    ///     )
    /// };
    /// let connection = connect().await?;
    /// let publisher = Publisher::new(&connection).reconnect(connect);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn reconnect<F>(mut self, connect: impl Fn() -> F + Send + Sync + 'c) -> Self
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.channels.connector_mut().set_reconnect(connect);
        self
    }

    /// Sets how long the broker may take to open a channel, and to confirm a message. Default: 10
    /// s. At least 100 ms: a shorter limit counts as that.
    ///
    /// A publication ends within three times this limit. With [`reconnect`](Self::reconnect), a
    /// connection that has left two requests in a row without an answer is replaced: lapin does not
    /// notice that its tokio runtime has ended, or that nothing drives it.
    #[must_use]
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.channels.set_limit(limit);
        self
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
    /// broker has not confirmed the message in time, or no queue is bound for it: it may have been
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
        let properties = BasicProperties::default()
            .with_message_id(id.as_str().into())
            .with_delivery_mode(2);
        let published = self
            .channels
            .publish(exchange, routing_key, &payload.into(), properties)
            .await;
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
        self.publish(child_key, exchange, routing_key, payload)
            .await
    }
}
