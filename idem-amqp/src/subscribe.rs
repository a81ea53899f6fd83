//! The deliveries of one connection's channels.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use idem_queue::{Deliveries, Fault};
use lapin::Consumer;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;

use crate::session::{Places, Session};
use crate::ticket::Ticket;

/// Subscribes.
pub(crate) async fn deliveries(
    session: Arc<Session>,
    places: Places,
    prefetch: u16,
) -> Result<Deliveries<Ticket>, Fault> {
    // Now, so that what forbids it is said at the start.
    if places.retry_queue.is_none() {
        session.retry_queue(&places, Duration::ZERO).await.map_err(|error| Fault::config(error.to_string()))?;
    }
    let channel = &session.consume;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(Fault::passing)?;
    let consuming = channel.basic_consume(
        places.queue.as_ref().into(),
        "".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let consumer: Consumer = consuming.await.map_err(Fault::passing)?;
    Ok(Box::pin(stream::unfold((session, places, consumer), |(session, places, mut consumer)| async move {
        let next = tokio::select! {
            () = session.broken.notified() => Err(Fault::passing("the channel for publications is closed")),
            delivered = consumer.next() => match delivered {
                Some(Ok(message)) => Ok(Ticket::new(message, &session, &places)),
                Some(Err(error)) => Err(Fault::passing(error)),
                None => Err(Fault::passing("the broker has cancelled the consumer: its queue was deleted, or moved")),
            },
        };
        Some((next, (session, places, consumer)))
    })))
}
