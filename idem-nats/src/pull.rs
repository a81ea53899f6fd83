//! Pulls as many messages as can be handled now.
//!
//! The `ack_wait` of a message begins when it is pulled, so a message that waits for its handler
//! could be delivered again meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use idem_queue::{BoxError, Deliveries, Delivery, Fault, Room};

use crate::ticket::Ticket;

/// How long the server keeps a request for messages, unless the consumer has a shorter limit.
const EXPIRES: Duration = Duration::from_secs(20);
/// How often the client's connection is compared with that of the request: after a reconnect, the
/// server no longer knows the request.
const CHECK_EVERY: Duration = Duration::from_millis(250);

struct Pull<F> {
    client: Client,
    consumer: PullConsumer,
    room: Arc<Room>,
    ticket: F,
    batch: Option<Batch>,
    /// How many connections the client had made when the request was sent.
    connects: u64,
}

/// Returns the messages of a consumer as a stream.
pub(crate) fn deliveries<F>(
    client: Client,
    consumer: PullConsumer,
    room: Arc<Room>,
    ticket: F,
) -> Deliveries<'static, Ticket>
where
    F: Fn(Message) -> Result<(Delivery, Ticket), BoxError> + Send + 'static,
{
    // On the heap: the stream moves it with each message.
    let pull = Box::new(Pull {
        client,
        consumer,
        room,
        ticket,
        batch: None,
        connects: 0,
    });
    Box::pin(stream::unfold(pull, |mut pull| async move {
        let next = pull.next().await;
        Some((next, pull))
    }))
}

impl<F> Pull<F>
where
    F: Fn(Message) -> Result<(Delivery, Ticket), BoxError> + Send,
{
    async fn next(&mut self) -> Result<(Delivery, Ticket), Fault> {
        loop {
            let connects = self.connects();
            let Some(batch) = &mut self.batch else {
                // Never during the shutdown: then no more messages are requested.
                self.room.until_free().await;
                self.connects = self.connects();
                self.batch = Some(self.request().await?);
                continue;
            };
            match tokio::time::timeout(CHECK_EVERY, batch.next()).await {
                Ok(Some(message)) => return self.delivered(message),
                Ok(None) => self.batch = None,
                Err(_) if connects != self.connects => match batch.next().now_or_never() {
                    Some(Some(message)) => return self.delivered(message),
                    _ => self.batch = None,
                },
                Err(_) => {}
            }
        }
    }

    fn delivered(
        &mut self,
        message: Result<Message, async_nats::Error>,
    ) -> Result<(Delivery, Ticket), Fault> {
        (self.ticket)(message.map_err(Fault::passing)?).map_err(Fault::passing)
    }

    fn request(&self) -> impl Future<Output = Result<Batch, Fault>> + Send + use<F> {
        let config = &self.consumer.cached_info().config;
        let most = usize::try_from(config.max_batch)
            .ok()
            .filter(|most| *most > 0)
            .unwrap_or(usize::MAX);
        let expires = if config.max_expires.is_zero() {
            EXPIRES
        } else {
            EXPIRES.min(config.max_expires)
        };
        let free = self.room.free().clamp(1, most);
        let consumer = self.consumer.clone();
        async move {
            consumer
                .batch()
                .max_messages(free)
                .expires(expires)
                .messages()
                .await
                .map_err(Fault::passing)
        }
    }

    fn connects(&self) -> u64 {
        self.client
            .statistics()
            .connects
            .load(std::sync::atomic::Ordering::Relaxed)
    }
}
