//! The messages of a consumer as a stream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use idem_queue::{Deliveries, Delivery, Fault, Place, Room};

use crate::dead_letter::DeadLetters;
use crate::session::disconnected;
use crate::shared::{Phase, Shared};
use crate::ticket::Ticket;

struct Feed {
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    room: Arc<Room>,
    /// Messages that come again.
    pauses: FuturesUnordered<BoxFuture<'static, Place>>,
}

/// Returns the messages as they may begin.
pub(crate) fn deliveries(
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
    room: Arc<Room>,
) -> Deliveries<'static, Ticket> {
    let feed = Box::new(Feed {
        shared,
        dead_letters,
        room,
        pauses: FuturesUnordered::new(),
    });
    Box::pin(stream::unfold(feed, |mut feed| async move {
        let next = feed.next().await;
        Some((next, feed))
    }))
}

impl Feed {
    async fn next(&mut self) -> Result<(Delivery, Ticket), Fault> {
        loop {
            for (place, pause) in self.shared.take_pauses() {
                self.pauses.push(Box::pin(paused(place, pause)));
            }
            if let Some(reason) = self.shared.fatal() {
                return Err(disconnected(reason));
            }
            let has_room = self.room.free() > 0;
            if has_room && let Some(record) = self.shared.begin() {
                return Ok(Ticket::new(
                    record,
                    self.shared.clone(),
                    self.dead_letters.clone(),
                ));
            }
            tokio::select! {
                () = self.shared.notify.notified() => {}
                Some(place) = self.pauses.next(), if !self.pauses.is_empty() => {
                    self.shared.wake(&place);
                }
                () = self.room.until_free(), if !has_room => {}
            }
        }
    }
}

async fn paused(place: Place, pause: Duration) -> Place {
    tokio::time::sleep(pause).await;
    place
}

impl Drop for Feed {
    /// No more messages are wanted: the shutdown has begun.
    fn drop(&mut self) {
        self.shared.enter(Phase::Draining);
    }
}
