//! A pool of channels for publications, with one publication on each at a time.
//!
//! With several publications on a channel, lapin may attribute a confirmation to the wrong one. It
//! may number two publications in another order than it sends them. If the broker confirms several
//! at once, lapin gives a returned message to the publication that it completes first. A lost
//! message would then count as published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use idem_queue::{BoxError, Fault};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Confirmation};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::connector::{BLOCKED, Connector, OpenedChannel};
use crate::request::run_to_end;

/// How many publications wait for their confirmations at the same time, at most. A connection has
/// 2,047 channels unless configured.
const MOST_CHANNELS: usize = 64;
/// How long the broker has to open a channel, to declare a queue, or to confirm a message, unless
/// [`Publisher::answer_timeout`](crate::Publisher::answer_timeout) says otherwise.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest limit: a setting below it counts as this.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

const NO_CHANNEL: &str = "RabbitMQ has not opened a channel or declared a queue in time";

/// The channels for publications of one connection, opened as they are needed.
///
/// A channel on which the broker has not answered in time is not used again.
#[derive(Debug)]
pub(crate) struct PublishChannels<'c> {
    connector: Connector<'c>,
    free: FreeChannels<'c>,
    permits: Semaphore,
    limit: Duration,
}

/// Open channels that no publication uses.
type FreeChannels<'c> = Mutex<Vec<OpenedChannel<'c>>>;

impl<'c> PublishChannels<'c> {
    pub(crate) fn new(connector: Connector<'c>) -> Self {
        Self {
            connector,
            free: Mutex::default(),
            permits: Semaphore::new(MOST_CHANNELS),
            limit: ANSWER_TIMEOUT,
        }
    }

    /// What opens the channels.
    pub(crate) fn connector_mut(&mut self) -> &mut Connector<'c> {
        &mut self.connector
    }

    /// Sets how long the broker may take for each answer.
    pub(crate) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit.max(SHORTEST);
    }

    /// Publishes a message, and waits until queues have it, for three times the limit at most: for
    /// a channel of a connection that may be silent, for one of another connection, and for the
    /// confirmation.
    ///
    /// If this is dropped, or the process dies, the message may have been published or not.
    pub(crate) async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        payload: &Bytes,
        properties: BasicProperties,
    ) -> Result<(), BoxError> {
        let exchange_name = short(exchange)?;
        let key = short(routing_key)?;
        let pooled = tokio::time::timeout(self.limit.saturating_mul(2), self.acquire())
            .await
            .unwrap_or_else(|_| Err(NO_CHANNEL.into()))?;
        // Without this, the broker would confirm a message that no queue gets.
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let channel = pooled.opened.channel.clone();
        let payload = payload.clone();
        let limit = self.limit;
        let published = run_to_end(async move {
            let published = async {
                channel
                    .basic_publish(exchange_name, key, options, &payload, properties)
                    .await?
                    .await
            };
            Ok(tokio::time::timeout(limit, published).await.ok())
        });
        let Some(confirmation) = published.await? else {
            if pooled.opened.connection.is_blocked() {
                return Err(BLOCKED.into());
            }
            pooled.opened.connection.set_silent(true);
            return Err(format!(
                "the broker has not confirmed the message within {:?}",
                self.limit
            )
            .into());
        };
        let confirmation = confirmation?;
        pooled.opened.connection.set_silent(false);
        pooled.return_to_pool();
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Err(format!(
                "no queue is bound to the exchange `{exchange}` for the routing key `{routing_key}`"
            )
            .into()),
            Confirmation::Nack(None) => {
                Err("the broker refused the message: a queue is full, or has no leader".into())
            }
            Confirmation::NotRequested => Err("the channel has no confirmations".into()),
        }
    }

    /// Declares a durable queue. A refusal is a mistake in the configuration.
    pub(crate) async fn declare(&self, queue: &str, arguments: FieldTable) -> Result<(), Fault> {
        let name = short(queue).map_err(Fault::config)?;
        let declared = async {
            let pooled = self.acquire().await.map_err(Fault::passing)?;
            let channel = pooled.opened.channel.clone();
            let options = QueueDeclareOptions::durable();
            let declared =
                run_to_end(async move { channel.queue_declare(name, options, arguments).await });
            declared.await.map_err(|error| {
                if error.is_amqp_soft_error() {
                    Fault::config(error.to_string())
                } else {
                    Fault::passing(error)
                }
            })?;
            pooled.return_to_pool();
            Ok(())
        };
        tokio::time::timeout(self.limit.saturating_mul(2), declared)
            .await
            .unwrap_or_else(|_| Err(Fault::passing(NO_CHANNEL)))
    }

    /// Takes a free channel, or opens one. A connection that was silent must open one first.
    async fn acquire(&self) -> Result<PooledChannel<'_, 'c>, BoxError> {
        let permit = self.permits.acquire().await?;
        let free = {
            let mut free = lock(&self.free);
            free.retain(|opened| {
                let status = opened.channel.status();
                !opened.connection.is_given_up() && (status.connected() || status.reconnecting())
            });
            let position = free.iter().rposition(|opened| {
                opened.channel.status().connected() && !opened.connection.is_silent()
            });
            position.map(|position| free.swap_remove(position))
        };
        if let Some(opened) = free {
            return Ok(self.pooled(opened, permit));
        }
        let opened = self.connector.open_for_publication(self.limit).await?;
        let pooled = self.pooled(opened, permit);
        let options = ConfirmSelectOptions::default();
        pooled.opened.channel.confirm_select(options).await?;
        Ok(pooled)
    }

    fn pooled<'a>(
        &'a self,
        opened: OpenedChannel<'c>,
        permit: SemaphorePermit<'a>,
    ) -> PooledChannel<'a, 'c> {
        PooledChannel {
            opened,
            has_answered: false,
            free: &self.free,
            _permit: permit,
        }
    }
}

/// A channel that one publication uses.
struct PooledChannel<'a, 'c> {
    opened: OpenedChannel<'c>,
    has_answered: bool,
    free: &'a FreeChannels<'c>,
    _permit: SemaphorePermit<'a>,
}

impl PooledChannel<'_, '_> {
    /// Lets another publication use the channel.
    fn return_to_pool(mut self) {
        self.has_answered = true;
    }
}

impl Drop for PooledChannel<'_, '_> {
    /// Keeps a channel that works, and one whose connection is lost: lapin restores such a channel,
    /// and nothing would close it later. Any other channel is closed here, with its last handle.
    fn drop(&mut self) {
        let status = self.opened.channel.status();
        if (self.has_answered && status.connected()) || status.reconnecting() {
            lock(self.free).push(self.opened.clone());
        }
    }
}

/// A name as AMQP has it. lapin panics at a longer one.
pub(crate) fn short(name: &str) -> Result<ShortString, String> {
    ShortString::try_new(name).map_err(|_| {
        format!("`{name}` is too long: names and routing keys of AMQP have at most 255 bytes")
    })
}

fn lock<'a, 'c>(free: &'a FreeChannels<'c>) -> MutexGuard<'a, Vec<OpenedChannel<'c>>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}
