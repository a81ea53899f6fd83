//! Channels for publications, with one publication on each at a time.
//!
//! lapin may attribute the confirmations of a channel to the wrong publications: it numbers two of
//! them in another order than it sends them, or gives a returned message to whichever it completes
//! first when the broker confirms several at once. A lost message would then count as published.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use idem_queue::{BoxError, Fault};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::answered::answered;
use crate::line::Line;
use crate::link::{BLOCKED, Link};

/// How many publications wait for their confirmations at the same time, at most. A connection has
/// 2,047 channels unless configured.
const MOST: usize = 64;
/// How long the broker has to open a channel, to declare a queue, or to confirm a message.
const LIMIT: Duration = Duration::from_secs(10);

/// The shortest limit that makes sense.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);

const NO_CHANNEL: &str = "RabbitMQ has not opened a channel or declared a queue in time";

/// The channels for publications of one connection, opened as they are needed.
///
/// A channel on which the broker has not answered in time is not used again.
#[derive(Debug)]
pub(crate) struct Channels<'c> {
    link: Link<'c>,
    free: Free<'c>,
    places: Semaphore,
    limit: Duration,
}

/// Open channels that no publication has.
type Free<'c> = Mutex<Vec<(Line<'c>, Channel)>>;

impl<'c> Channels<'c> {
    pub(crate) fn new(link: Link<'c>) -> Self {
        Self { link, free: Mutex::default(), places: Semaphore::new(MOST), limit: LIMIT }
    }

    /// The connection on which channels are opened.
    pub(crate) fn link_mut(&mut self) -> &mut Link<'c> {
        &mut self.link
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
        let (to, key) = (short(exchange)?, short(routing_key)?);
        let lent = tokio::time::timeout(self.limit.saturating_mul(2), self.take())
            .await
            .unwrap_or_else(|_| Err(NO_CHANNEL.into()))?;
        // One that no queue gets comes back, and would be lost.
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (channel, payload, limit) = (lent.channel.clone(), payload.clone(), self.limit);
        let published = answered(async move {
            let published = async { channel.basic_publish(to, key, options, &payload, properties).await?.await };
            Ok(tokio::time::timeout(limit, published).await.ok())
        });
        let Some(confirmation) = published.await? else {
            if lent.line.is_blocked() {
                return Err(BLOCKED.into());
            }
            lent.line.set_silent(true);
            return Err(format!("the broker has not confirmed the message within {:?}", self.limit).into());
        };
        let confirmation = confirmation?;
        lent.line.set_silent(false);
        lent.give_back();
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
                Err(format!("no queue is bound to the exchange `{exchange}` for the routing key `{routing_key}`")
                    .into())
            }
            Confirmation::Nack(None) => Err("the broker refused the message: a queue is full, or has no leader".into()),
            Confirmation::NotRequested => Err("the channel has no confirmations".into()),
        }
    }

    /// Declares a durable queue. A refusal is a mistake in the configuration.
    pub(crate) async fn declare(&self, queue: &str, arguments: FieldTable) -> Result<(), Fault> {
        let name = short(queue).map_err(Fault::config)?;
        let declared = async {
            let lent = self.take().await.map_err(Fault::passing)?;
            let channel = lent.channel.clone();
            let options = QueueDeclareOptions::durable();
            let declared = answered(async move { channel.queue_declare(name, options, arguments).await });
            declared.await.map_err(|error| {
                if error.is_amqp_soft_error() { Fault::config(error.to_string()) } else { Fault::passing(error) }
            })?;
            lent.give_back();
            Ok(())
        };
        tokio::time::timeout(self.limit.saturating_mul(2), declared)
            .await
            .unwrap_or_else(|_| Err(Fault::passing(NO_CHANNEL)))
    }

    /// Takes a free channel, or opens one. A connection that was silent must open one first.
    async fn take(&self) -> Result<LentChannel<'_, 'c>, BoxError> {
        let place = self.places.acquire().await?;
        let free = {
            let mut free = lock(&self.free);
            free.retain(|(line, channel)| {
                let status = channel.status();
                !line.is_given_up() && (status.connected() || status.reconnecting())
            });
            let usable = |(line, channel): &(Line<'_>, Channel)| channel.status().connected() && !line.is_silent();
            let position = free.iter().rposition(usable);
            position.map(|position| free.swap_remove(position))
        };
        if let Some((line, channel)) = free {
            return Ok(self.lent(line, channel, place));
        }
        let (line, channel) = self.link.channel_now(self.limit).await?;
        let lent = self.lent(line, channel, place);
        lent.channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(lent)
    }

    fn lent<'a>(&'a self, line: Line<'c>, channel: Channel, place: SemaphorePermit<'a>) -> LentChannel<'a, 'c> {
        LentChannel { line, channel, has_answered: false, free: &self.free, _place: place }
    }
}

/// A channel that one publication has.
struct LentChannel<'a, 'c> {
    line: Line<'c>,
    channel: Channel,
    has_answered: bool,
    free: &'a Free<'c>,
    _place: SemaphorePermit<'a>,
}

impl LentChannel<'_, '_> {
    /// Lets the next publication have it.
    fn give_back(mut self) {
        self.has_answered = true;
    }
}

impl Drop for LentChannel<'_, '_> {
    /// The last handle of a channel closes it, except while its connection is lost. lapin then
    /// restores the channel, and nothing would close it.
    fn drop(&mut self) {
        let status = self.channel.status();
        if (self.has_answered && status.connected()) || status.reconnecting() {
            lock(self.free).push((self.line.clone(), self.channel.clone()));
        }
    }
}

/// A name as AMQP has it. lapin panics at a longer one.
pub(crate) fn short(name: &str) -> Result<ShortString, String> {
    ShortString::try_new(name)
        .map_err(|_| format!("`{name}` is too long: names and routing keys of AMQP have at most 255 bytes"))
}

fn lock<'a, 'c>(free: &'a Free<'c>) -> MutexGuard<'a, Vec<(Line<'c>, Channel)>> {
    free.lock().unwrap_or_else(PoisonError::into_inner)
}
