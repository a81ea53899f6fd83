//! The deliveries of one connection's channels.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use idem_queue::{Deliveries, Fault};
use lapin::message::DeliveryResult;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::runtime::Handle;

use crate::answered::answered;
use crate::session::{Places, Session};
use crate::ticket::Ticket;

/// A consumer at the broker. Dropped, it is cancelled, now or as soon as that is possible.
struct Subscription {
    consumer: Consumer,
    channel: Channel,
}

impl Subscription {
    async fn begin(channel: Channel, queue: Arc<str>, prefetch: u16) -> lapin::Result<Self> {
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.as_ref().into(), "".into(), options, FieldTable::default()).await?;
        Ok(Self { consumer, channel })
    }
}

impl Drop for Subscription {
    /// Cancels the consumer. Its channel is closed with the last ticket, and what it had returns.
    ///
    /// lapin would cancel a consumer that is dropped, but not while its connection is lost. It then
    /// restores the consumer with the connection, and messages arrive that nobody handles and nobody
    /// returns. So what arrives from here on cancels the consumer too, and is returned. A consumer
    /// with such a delegate is not cancelled by lapin, and keeps its channel open until then.
    fn drop(&mut self) {
        let (channel, tag) = (self.channel.clone(), self.consumer.tag());
        self.consumer.set_delegate(move |arrived: DeliveryResult| {
            let (channel, tag) = (channel.clone(), tag.clone());
            async move {
                let Ok(Some(message)) = arrived else { return };
                // First, so that it does not come back here. If one fails, the channel is closed,
                // and the broker has the message.
                let _ = channel.basic_cancel(tag, BasicCancelOptions::default()).await;
                let _ = message.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await;
            }
        });
        let (channel, tag) = (self.channel.clone(), self.consumer.tag());
        let mut cancelling = Box::pin(async move {
            let _ = channel.basic_cancel(tag, BasicCancelOptions::default()).await;
        });
        // lapin sends at the first poll. A task may never be polled: the runtime may end here.
        let is_over = cancelling.as_mut().now_or_never().is_some();
        if !is_over && let Ok(runtime) = Handle::try_current() {
            runtime.spawn(cancelling);
        }
    }
}

/// Subscribes.
pub(crate) async fn deliveries(
    session: Arc<Session<'_>>,
    places: Places,
    prefetch: u16,
) -> Result<Deliveries<'_, Ticket<'_>>, Fault> {
    // Now, so that what forbids it is said at the start.
    if places.retry_queue.is_none() {
        session.retry_queue(&places, Duration::ZERO).await?;
    }
    // In a task of its own: given up here, a consumer that begins all the same must be cancelled.
    let beginning = answered(Subscription::begin(session.consume.clone(), places.queue.clone(), prefetch));
    let subscription = beginning.await.map_err(Fault::passing)?;
    Ok(Box::pin(stream::unfold(
        (subscription, session, places),
        move |(mut subscription, session, places)| async move {
            let next = tokio::select! {
                delivered = subscription.consumer.next() => match delivered {
                    Some(Ok(message)) => Ok(Ticket::new(message, &session, &places)),
                    Some(Err(error)) => Err(Fault::passing(error)),
                    None => Err(Fault::passing("the broker has cancelled the consumer: its queue was deleted, or moved")),
                },
                fault = session.ended(&places.queue, prefetch) => Err(fault),
            };
            Some((next, (subscription, session, places)))
        },
    )))
}
