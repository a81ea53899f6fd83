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

use crate::consumer_channels::{CheckedQueue, ConsumerChannels};
use crate::request::run_to_end;
use crate::ticket::Ticket;

/// A consumer at the broker. It is cancelled when this is dropped, or as soon as possible after.
struct Subscription {
    consumer: Consumer,
    channel: Channel,
}

impl Subscription {
    async fn begin(channel: Channel, queue: Arc<str>, prefetch: u16) -> lapin::Result<Self> {
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel
            .basic_consume(
                queue.as_ref().into(),
                "".into(),
                options,
                FieldTable::default(),
            )
            .await?;
        Ok(Self { consumer, channel })
    }
}

impl Drop for Subscription {
    /// Cancels the consumer. Its channel is closed with the last ticket, and the broker takes back
    /// the messages that are not settled.
    ///
    /// lapin cancels a dropped consumer, but not while its connection is lost. It then restores the
    /// consumer together with the connection, and messages arrive that nothing handles or returns.
    /// So the delegate below cancels the consumer at the next message, and returns that message.
    /// lapin does not cancel a consumer with a delegate, so the request at the end does.
    fn drop(&mut self) {
        let channel = self.channel.clone();
        let tag = self.consumer.tag();
        self.consumer.set_delegate(move |arrived: DeliveryResult| {
            let channel = channel.clone();
            let tag = tag.clone();
            async move {
                let Ok(Some(message)) = arrived else { return };
                // Cancelled first, so that the message does not come back here. If a request fails,
                // the channel is closed, and the broker has the message.
                let _ = channel
                    .basic_cancel(tag, BasicCancelOptions::default())
                    .await;
                let _ = message
                    .acker
                    .nack(BasicNackOptions {
                        requeue: true,
                        ..BasicNackOptions::default()
                    })
                    .await;
            }
        });
        let channel = self.channel.clone();
        let tag = self.consumer.tag();
        let mut cancelling = Box::pin(async move {
            let _ = channel
                .basic_cancel(tag, BasicCancelOptions::default())
                .await;
        });
        // lapin sends the request at the first poll. That poll is here, because a tokio runtime
        // that is shutting down may never poll a new task.
        let is_over = cancelling.as_mut().now_or_never().is_some();
        if !is_over && let Ok(runtime) = Handle::try_current() {
            runtime.spawn(cancelling);
        }
    }
}

/// Begins to consume.
pub(crate) async fn deliveries(
    channels: Arc<ConsumerChannels<'_>>,
    queue: CheckedQueue,
    prefetch: u16,
) -> Result<Deliveries<'_, Ticket<'_>>, Fault> {
    // Declared now, so that a refusal is an error of the start.
    if queue.retry_queue.is_none() {
        channels.declare_retry_queue(&queue, Duration::ZERO).await?;
    }
    // To its end: if this future is dropped, a consumer that has begun must still be cancelled.
    let beginning = run_to_end(Subscription::begin(
        channels.consume.clone(),
        queue.name.clone(),
        prefetch,
    ));
    let subscription = beginning.await.map_err(Fault::passing)?;
    Ok(Box::pin(stream::unfold(
        (subscription, channels, queue),
        move |(mut subscription, channels, queue)| async move {
            let next = tokio::select! {
                // The deliveries first: the checks set timers.
                biased;
                delivered = subscription.consumer.next() => match delivered {
                    Some(Ok(message)) => Ok(Ticket::new(message, &channels, &queue)),
                    Some(Err(error)) => Err(Fault::passing(error)),
                    None => Err(Fault::passing("the broker has cancelled the consumer: its queue \
                        was deleted, or moved")),
                },
                fault = channels.ended(&queue.name, prefetch) => Err(fault),
            };
            Some((next, (subscription, channels, queue)))
        },
    )))
}
