//! The loop of every consumer.
//!
//! The process may die at each await here. A delivery is settled only after its outcome is
//! recorded, so until then the broker has the message, and delivers it again. All handlers run in
//! the consumer's one task, so dropping it stops them all.

use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, Stream, StreamExt as _, unfold};
use idem_core::__private::waiting_at_most;
use idem_core::{Dispose, Disposition, watch};
use tokio::sync::watch::{Receiver, Sender, channel};

use crate::broker::{Broker, Deliveries, Fault, Room, Ticket};
use crate::delivery::Delivery;
use crate::error::Error;
use crate::events::{self, Decision, Facts, Outage, report_with};
use crate::settings::Settings;
use crate::settle::{SOON, caught, disposition, not_handed_back, settle};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long the first subscription may take, with everything that is checked before.
const STARTING: Duration = Duration::from_secs(30);
/// How long it may take to subscribe again.
const OPENING: Duration = Duration::from_secs(5);
/// How long stopped handlers take to hand their messages back, at most.
const HANDING_BACK: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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
pub async fn run<B, H, E, S>(broker: &B, settings: &Settings, handler: H, shutdown: S) -> Result<(), Error>
where
    B: Broker,
    H: AsyncFn(Delivery) -> Result<(), E>,
    E: Dispose,
    S: Future,
{
    if settings.concurrency == 0 {
        return Err(Error::Config { reason: "`concurrency` is 0, so no message is handled: make it 1 or more".into() });
    }
    events::begin(broker.source());
    let room = Room::new(settings.concurrency);
    let mut shutdown = pin!(shutdown);
    let opened = match select(pin!(opened_within(STARTING, broker, &room)), shutdown.as_mut()).await {
        Either::Left((opened, _)) => opened?,
        Either::Right(_) => return Ok(()),
    };
    let (stop, stopped) = channel(false);
    let mut running = FuturesUnordered::new();
    // A delivery that does not fit yet: all places are taken, and the broker is listened to all the
    // same, so that a lost connection is noticed.
    let mut early = None;
    {
        let mut deliveries = pin!(received(broker, opened, room.clone()));
        loop {
            let free = settings.concurrency.saturating_sub(running.len());
            room.set(free);
            tokio::select! {
                biased;
                _ = shutdown.as_mut() => break,
                () = ready(()), if free > 0 && early.is_some() => {
                    // The broker may have taken it back while it waited for a place.
                    if let Some((delivery, ticket)) = early.take_if(|(_, ticket): &mut (_, B::Ticket)| !ticket.is_void()) {
                        running.push(one(delivery, ticket, &handler, settings, stopped.clone()));
                    }
                    early = None;
                }
                Some(()) = running.next(), if !running.is_empty() => {}
                received = deliveries.next(), if early.is_none() => match received {
                    Some(Ok(received)) => early = Some(received),
                    Some(Err(error)) => {
                        // Nothing can be settled any more, but bodies that run may still record
                        // their outcomes.
                        finish(running, stop, settings.shutdown_timeout, broker.source()).await;
                        return Err(error);
                    }
                    None => break,
                }
            }
        }
        if B::HANDS_BACK {
            room.set(0);
            let handing_back = async {
                if let Some((_, ticket)) = early.take() {
                    let _ = caught(ticket.hand_back()).await;
                }
                while let Some(Some(Ok((_, ticket)))) = deliveries.next().now_or_never() {
                    let _ = caught(ticket.hand_back()).await;
                }
            };
            let _ = tokio::time::timeout(HANDING_BACK, handing_back).await;
        }
    }
    finish(running, stop, settings.shutdown_timeout, broker.source()).await;
    let _ = tokio::time::timeout(HANDING_BACK, broker.flush()).await;
    Ok(())
}

/// Opens the broker. A client may wait for ever for a broker that accepts connections and does not
/// answer, or for a connection that ended while it was opened.
async fn opened_within<'b, B: Broker>(
    limit: Duration,
    broker: &'b B,
    room: &Arc<Room>,
) -> Result<Deliveries<'b, B::Ticket>, Fault> {
    // On the heap: it is large, and seldom there.
    let opened = tokio::time::timeout(limit, Box::pin(broker.open(room.clone()))).await;
    opened.unwrap_or_else(|_| Err(Fault::passing(format!("the broker did not answer within {limit:?}"))))
}

/// Lets running handlers end. Those that do not are stopped, and hand their messages back.
async fn finish(
    mut running: FuturesUnordered<impl Future<Output = ()>>,
    stop: Sender<bool>,
    limit: Duration,
    source: &str,
) {
    if tokio::time::timeout(limit, async { while running.next().await.is_some() {} }).await.is_ok() {
        return;
    }
    let left = Some(running.len());
    report_with(Decision::ShutdownTimedOut, source, &Facts { left, ..Facts::default() });
    stop.send_replace(true);
    let _ = tokio::time::timeout(HANDING_BACK, async { while running.next().await.is_some() {} }).await;
}

/// Deliveries without end: after a fault, the broker is opened again.
fn received<'b, B: Broker>(
    broker: &'b B,
    opened: Deliveries<'b, B::Ticket>,
    room: Arc<Room>,
) -> impl Stream<Item = Result<(Delivery, B::Ticket), Error>> + 'b {
    unfold((Some(opened), room, None::<Outage>), move |(mut current, room, mut outage)| async move {
        let mut pause = FIRST_PAUSE;
        let source = broker.source();
        loop {
            let fault = match &mut current {
                Some(deliveries) => match deliveries.next().await {
                    Some(Ok(delivered)) => return Some((Ok(delivered), (current, room, outage))),
                    Some(Err(fault)) => fault,
                    None => Fault::passing("the broker has ended the subscription"),
                },
                // What is subscribed to while nothing fits would be taken from other consumers.
                None if room.free() == 0 => {
                    room.until_free().await;
                    continue;
                }
                None => match opened_within(OPENING, broker, &room).await {
                    Ok(deliveries) => {
                        if let Some(outage) = outage.take() {
                            outage.end();
                        }
                        current = Some(deliveries);
                        continue;
                    }
                    Err(fault) => fault,
                },
            };
            // Before the pause: what it holds returns to the broker.
            current = None;
            let error = match fault {
                Fault::Final(error @ Error::Disconnected { .. }) => {
                    return Some((Err(error), (None, room, outage)));
                }
                // Conditions that were right at the start may be right again: a queue that is being
                // created, a stream without a leader.
                fault => fault.into_inner(),
            };
            match &outage {
                Some(outage) => outage.continues(&error),
                None => outage = Some(Outage::begin(source, &error)),
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    })
}

/// One delivery, from its arrival to its end.
async fn one<T, H, E>(delivery: Delivery, ticket: T, handler: &H, settings: &Settings, mut stopped: Receiver<bool>)
where
    T: Ticket,
    H: AsyncFn(Delivery) -> Result<(), E>,
    E: Dispose,
{
    // In a block: the part of a handler before its future may panic as well.
    let outcome = AssertUnwindSafe(async { handler(delivery.clone()).await }).catch_unwind();
    let outcome = watch(waiting_at_most(settings.wait, outcome));
    let outcome = while_kept_alive(&ticket, &delivery, outcome);
    let outcome = match select(pin!(outcome), pin!(stopped.wait_for(|stopped| *stopped))).await {
        Either::Left((outcome, _)) => Some(outcome),
        Either::Right(_) => None,
    };
    // The handler is dropped by here, so it is stopped before another consumer can get the message.
    let Some((outcome, report)) = outcome else {
        if let Err(error) = caught(ticket.hand_back()).await {
            not_handed_back(&delivery, &error);
        }
        return;
    };
    let disposed = outcome.and_then(|ended| catch_unwind(AssertUnwindSafe(move || disposition(&ended, report))));
    let disposition = disposed.unwrap_or_else(|_| {
        let facts = Facts { delivery: Some(&delivery), key: report.key(), ..Facts::default() };
        report_with(Decision::HandlerPanicked, delivery.source(), &facts);
        Disposition::Retry { after: SOON }
    });
    settle(&ticket, &delivery, &disposition, report.key()).await;
}

/// Tells the broker, while a handler runs, that it does.
async fn while_kept_alive<T: Ticket, F: Future>(ticket: &T, delivery: &Delivery, handled: F) -> F::Output {
    let Some(every) = ticket.keep_alive_every() else { return handled.await };
    let kept_alive = async {
        loop {
            tokio::time::sleep(every).await;
            let kept_alive = tokio::time::timeout(every, caught(ticket.keep_alive())).await;
            if let Err(error) = kept_alive.unwrap_or_else(|_| Err("the broker did not answer in time".into())) {
                let facts = Facts { delivery: Some(delivery), detail: Some(&error), ..Facts::default() };
                report_with(Decision::NotKeptAlive, delivery.source(), &facts);
            }
        }
    };
    match select(pin!(handled), pin!(kept_alive)).await {
        Either::Left((output, _)) => output,
        Either::Right((never, _)) => never,
    }
}
