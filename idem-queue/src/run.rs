//! The loop of every consumer.
//!
//! The process may die at each await here. A delivery is settled only after its outcome is
//! recorded, so until then the broker has the message, and delivers it again. All handlers run in
//! the consumer's one task, so dropping it stops them all.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, Stream, StreamExt as _, unfold};
use idem_core::adapter::{Backoff, waiting_at_most};
use idem_core::{Dispose, Disposition, watch};
use tokio::sync::watch::{Receiver, Sender, channel};

use crate::broker::{Broker, Deliveries, Fault, Room, Ticket};
use crate::delivery::Delivery;
use crate::error::Error;
use crate::events::{self, Decision, EventFields, Outage, report_with};
use crate::settings::Settings;
use crate::settle::{RETRY_SOON, catch_client_panic, disposition, not_handed_back, settle};

/// The pauses between two tries to open the broker again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long the first subscription may take, with everything that is checked before.
const STARTING: Duration = Duration::from_secs(30);
/// How long it may take to subscribe again.
const OPENING: Duration = Duration::from_secs(5);
/// How long stopped handlers take to hand their messages back, at most.
const HANDING_BACK: Duration = Duration::from_secs(5);

/// Consumes until `shutdown` ends: runs the handler for each delivery, and settles the delivery as
/// the handler's result says.
///
/// After the shutdown has begun, no new handlers start. Handlers that still run after
/// [`Settings::shutdown_timeout`] are dropped, and their messages return to the broker.
///
/// # Errors
///
/// A fault at the start. Later, only a connection that ended and does not recover.
///
/// # Cancellation safety
///
/// If the future is dropped, running handlers are stopped, as in a crash. Their messages are
/// delivered again.
pub async fn run<B, H, E, S>(
    broker: &B,
    settings: &Settings,
    handler: H,
    shutdown: S,
) -> Result<(), Error>
where
    B: Broker,
    H: AsyncFn(Delivery) -> Result<(), E>,
    E: Dispose,
    S: Future,
{
    if settings.concurrency == 0 {
        return Err(Error::Config {
            reason: "`concurrency` is 0, so no message is handled: make it 1 or more".into(),
        });
    }
    events::register_metrics(broker.source());
    let room = Room::new(settings.concurrency);
    let mut shutdown = pin!(shutdown);
    let opened = match select(
        pin!(opened_within(STARTING, broker, &room)),
        shutdown.as_mut(),
    )
    .await
    {
        Either::Left((opened, _)) => opened?,
        Either::Right(_) => return Ok(()),
    };
    let (stop, stopped) = channel(false);
    let mut running = FuturesUnordered::new();
    let start =
        |(delivery, ticket)| handle_delivery(delivery, ticket, &handler, settings, stopped.clone());
    let mut waiting = None;
    let consumed = {
        let mut deliveries = pin!(reopened(broker, opened, room.clone()));
        let received = Received {
            deliveries: deliveries.as_mut(),
            room: &room,
            waiting: &mut waiting,
        };
        let consumed = received
            .handle_until(shutdown, settings.concurrency, &mut running, start)
            .await;
        if B::HANDS_BACK && consumed.is_ok() {
            room.set(0);
            let handing_back = hand_back_all(waiting.take(), deliveries);
            let _ = tokio::time::timeout(HANDING_BACK, handing_back).await;
        }
        consumed
    };
    // After an error nothing can be settled any more, but bodies that run may still record their
    // outcomes.
    finish(running, stop, settings.shutdown_timeout, broker.source()).await;
    consumed?;
    let _ = tokio::time::timeout(HANDING_BACK, broker.flush()).await;
    Ok(())
}

/// The deliveries of a consumer, and the one that arrived when all places were taken.
struct Received<'a, D, T> {
    deliveries: Pin<&'a mut D>,
    room: &'a Room,
    /// The broker is polled also while all places are taken, so that a lost connection is noticed.
    /// Such a poll may bring a delivery, which waits here for a place.
    waiting: &'a mut Option<(Delivery, T)>,
}

impl<D, T> Received<'_, D, T>
where
    D: Stream<Item = Result<(Delivery, T), Error>>,
    T: Ticket,
{
    /// Starts a handler for each delivery, until `shutdown` ends or the broker is lost for good.
    async fn handle_until<F: Future<Output = ()>>(
        mut self,
        mut shutdown: impl Future + Unpin,
        concurrency: usize,
        running: &mut FuturesUnordered<F>,
        start: impl Fn((Delivery, T)) -> F,
    ) -> Result<(), Error> {
        loop {
            let free = concurrency.saturating_sub(running.len());
            self.room.set(free);
            tokio::select! {
                biased;
                _ = &mut shutdown => return Ok(()),
                () = ready(()), if free > 0 && self.waiting.is_some() => {
                    // The broker may have taken it back while it waited for a place.
                    let valid = self.waiting.take().filter(|(_, ticket)| !ticket.is_void());
                    running.extend(valid.map(&start));
                }
                Some(()) = running.next(), if !running.is_empty() => {}
                received = self.deliveries.next(), if self.waiting.is_none() => match received {
                    Some(received) => *self.waiting = Some(received?),
                    None => return Ok(()),
                },
            }
        }
    }
}

/// Hands back what has arrived and has no handler.
async fn hand_back_all<T: Ticket>(
    waiting: Option<(Delivery, T)>,
    mut deliveries: Pin<&mut impl Stream<Item = Result<(Delivery, T), Error>>>,
) {
    if let Some((_, ticket)) = waiting {
        let _ = catch_client_panic(ticket.hand_back()).await;
    }
    while let Some(Some(Ok((_, ticket)))) = deliveries.next().now_or_never() {
        let _ = catch_client_panic(ticket.hand_back()).await;
    }
}

/// Opens the broker. Without a limit, a client may wait without end for a broker that accepts
/// connections and does not answer, or for a connection that ended while it was opened.
async fn opened_within<'b, B: Broker>(
    limit: Duration,
    broker: &'b B,
    room: &Arc<Room>,
) -> Result<Deliveries<'b, B::Ticket>, Fault> {
    // On the heap: it is large, and seldom there.
    let opened = tokio::time::timeout(limit, Box::pin(broker.open(room.clone()))).await;
    opened.unwrap_or_else(|_| {
        Err(Fault::passing(format!(
            "the broker did not answer within {limit:?}"
        )))
    })
}

/// Lets running handlers end. Those that do not are stopped, and hand their messages back.
async fn finish(
    mut running: FuturesUnordered<impl Future<Output = ()>>,
    stop: Sender<bool>,
    limit: Duration,
    source: &str,
) {
    if tokio::time::timeout(limit, async { while running.next().await.is_some() {} })
        .await
        .is_ok()
    {
        return;
    }
    let left = Some(running.len());
    report_with(
        Decision::ShutdownTimedOut,
        source,
        &EventFields {
            left,
            ..EventFields::default()
        },
    );
    stop.send_replace(true);
    let _ = tokio::time::timeout(HANDING_BACK, async {
        while running.next().await.is_some() {}
    })
    .await;
}

/// Deliveries without end: after a fault, the broker is opened again.
fn reopened<'b, B: Broker>(
    broker: &'b B,
    opened: Deliveries<'b, B::Ticket>,
    room: Arc<Room>,
) -> impl Stream<Item = Result<(Delivery, B::Ticket), Error>> + 'b {
    let subscription = Subscription {
        broker,
        room,
        deliveries: Some(opened),
        outage: None,
    };
    unfold(subscription, |mut subscription| async {
        let next = subscription.next().await;
        Some((next, subscription))
    })
}

/// A broker that is open, or is opened again.
struct Subscription<'b, B: Broker> {
    broker: &'b B,
    room: Arc<Room>,
    /// `None` while the broker is not open.
    deliveries: Option<Deliveries<'b, B::Ticket>>,
    outage: Option<Outage>,
}

impl<B: Broker> Subscription<'_, B> {
    /// Waits for the next delivery. Fails when the connection ended and does not recover.
    async fn next(&mut self) -> Result<(Delivery, B::Ticket), Error> {
        let mut pauses = PAUSES;
        loop {
            let fault = match &mut self.deliveries {
                Some(deliveries) => match deliveries.next().await {
                    Some(Ok(delivered)) => return Ok(delivered),
                    Some(Err(fault)) => fault,
                    None => Fault::passing("the broker has ended the subscription"),
                },
                // Without a free place, a new subscription would only take messages from other
                // consumers.
                None if self.room.free() == 0 => {
                    self.room.until_free().await;
                    continue;
                }
                None => match opened_within(OPENING, self.broker, &self.room).await {
                    Ok(deliveries) => {
                        if let Some(outage) = self.outage.take() {
                            outage.end();
                        }
                        self.deliveries = Some(deliveries);
                        continue;
                    }
                    Err(fault) => fault,
                },
            };
            // Dropped before the pause, so that its unhandled messages return to the broker.
            self.deliveries = None;
            let error = match fault {
                Fault::Final(error @ Error::Disconnected { .. }) => return Err(error),
                // A setting that was right at the start may be right again: a queue is being
                // created, or a stream has no leader yet.
                fault => fault.into_inner(),
            };
            match &self.outage {
                Some(outage) => outage.continues(&error),
                None => self.outage = Some(Outage::begin(self.broker.source(), &error)),
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }
}

/// Runs the handler for one delivery, and settles it.
async fn handle_delivery<T, H, E>(
    delivery: Delivery,
    ticket: T,
    handler: &H,
    settings: &Settings,
    mut stopped: Receiver<bool>,
) where
    T: Ticket,
    H: AsyncFn(Delivery) -> Result<(), E>,
    E: Dispose,
{
    // In a block, because a handler that is a plain function may panic before it returns its
    // future.
    // On the heap, because it may be large, and each of the futures around it would move it.
    let outcome = Box::pin(AssertUnwindSafe(async { handler(delivery.clone()).await }));
    let outcome = outcome.catch_unwind();
    let outcome = waiting_at_most(settings.wait, outcome);
    let outcome = watch(outcome);
    let outcome = while_kept_alive(&ticket, &delivery, outcome);
    let outcome = match select(pin!(outcome), pin!(stopped.wait_for(|stopped| *stopped))).await {
        Either::Left((outcome, _)) => Some(outcome),
        Either::Right(_) => None,
    };
    // The handler is dropped by now, so it no longer runs when another consumer gets the message.
    let Some((outcome, report)) = outcome else {
        if let Err(error) = Box::pin(catch_client_panic(ticket.hand_back())).await {
            not_handed_back(&delivery, &error);
        }
        return;
    };
    let disposed = outcome
        .and_then(|ended| catch_unwind(AssertUnwindSafe(move || disposition(&ended, report))));
    let disposition = disposed.unwrap_or_else(|_| {
        let fields = EventFields {
            delivery: Some(&delivery),
            key: report.key(),
            ..EventFields::default()
        };
        report_with(Decision::HandlerPanicked, delivery.source(), &fields);
        Disposition::Retry { after: RETRY_SOON }
    });
    settle(&ticket, &delivery, &disposition, report.key()).await;
}

/// Runs a handler, and tells the broker at intervals that it still runs.
async fn while_kept_alive<T: Ticket, F: Future>(
    ticket: &T,
    delivery: &Delivery,
    handled: F,
) -> F::Output {
    let Some(every) = ticket.keep_alive_every() else {
        return handled.await;
    };
    let kept_alive = async {
        loop {
            tokio::time::sleep(every).await;
            let telling = Box::pin(catch_client_panic(ticket.keep_alive()));
            let kept_alive = tokio::time::timeout(every, telling).await;
            if let Err(error) =
                kept_alive.unwrap_or_else(|_| Err("the broker did not answer in time".into()))
            {
                let fields = EventFields {
                    delivery: Some(delivery),
                    detail: Some(&error),
                    ..EventFields::default()
                };
                report_with(Decision::NotKeptAlive, delivery.source(), &fields);
            }
        }
    };
    match select(pin!(handled), pin!(kept_alive)).await {
        Either::Left((output, _)) => output,
        Either::Right((never, _)) => never,
    }
}
