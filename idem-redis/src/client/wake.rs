//! The waiters for records at one server, and their subscriptions.
//!
//! Subscriptions have a separate connection, the ear, which the first waiter opens. To the server,
//! a client with a subscription is a *pubsub* client, whose replies are cut off by another and much
//! smaller limit (`client-output-buffer-limit pubsub`).
//!
//! Waiters take a seat at a channel, one for each record. The first seat asks for the subscription,
//! the last one to leave asks for its end. One task carries both out, one batch after the other,
//! each confirmed by the server before the next: so a waiter that comes while the subscription is
//! being ended gets a new subscription, and never mistakes the old one for its own.
//!
//! No wake-up is lost: a waiter looks at the record after its subscription was confirmed. The look
//! sees a commit before it, and a message announces one after it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::__private::outward;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Within this time the server confirms a subscription, or the ear is taken for lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// The seats at one server. They go with the connection for commands: the next one has its own.
pub(crate) struct Hub {
    seats: Mutex<Seats>,
    /// There are changes to carry out.
    work: Arc<Notify>,
}

#[derive(Default)]
struct Seats {
    closed: bool,
    /// The channels with seats now or a moment ago. A channel's receivers are its seats.
    channels: HashMap<Arc<str>, watch::Sender<Status>>,
    /// Those that may need a subscription, or none any more.
    changed: HashSet<Arc<str>>,
    /// A refused subscription was logged: once is enough.
    warned: bool,
    /// Which ear is in use, and whether it is lost.
    ear: u64,
    is_deaf: bool,
    task: Option<AbortHandle>,
}

#[derive(Clone, Copy, Default)]
struct Status {
    subscription: Subscription,
    /// How many messages there were.
    messages: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Subscription {
    #[default]
    No,
    Confirmed,
    Refused,
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { seats: Mutex::default(), work: Arc::new(Notify::new()) })
    }

    /// Starts the task that keeps the subscriptions, in the current runtime.
    pub(crate) fn serve(self: &Arc<Self>, ear: Ear) {
        let task = tokio::spawn(keep_subscriptions(Arc::downgrade(self), self.work.clone(), ear));
        self.lock().task = Some(task.abort_handle());
    }

    /// Takes a seat; `None` if the connection is lost.
    pub(crate) fn sit(self: &Arc<Self>, channel: &str) -> Option<Seat> {
        let mut seats = self.lock();
        if seats.closed {
            return None;
        }
        let (channel, status) = if let Some((channel, status)) = seats.channels.get_key_value(channel) {
            (channel.clone(), status.subscribe())
        } else {
            let (channel, sender) = (Arc::<str>::from(channel), watch::Sender::new(Status::default()));
            let status = sender.subscribe();
            seats.channels.insert(channel.clone(), sender);
            seats.changed.insert(channel.clone());
            self.work.notify_one();
            (channel, status)
        };
        let seen = status.borrow().messages;
        Some(Seat { hub: self.clone(), channel, status: Some(status), seen })
    }

    /// Takes in what the server pushed.
    pub(crate) fn receive(&self, push: &PushInfo) {
        let (PushKind::Message, [Value::BulkString(channel), ..]) = (&push.kind, push.data.as_slice()) else { return };
        let seats = self.lock();
        if let Some(status) = std::str::from_utf8(channel).ok().and_then(|channel| seats.channels.get(channel)) {
            status.send_modify(|status| status.messages += 1);
        }
    }

    /// An ear is lost: its waiters look again, and later waiters have another.
    fn is_deaf(&self, ear: u64) {
        let mut seats = self.lock();
        if seats.ear == ear && !seats.closed {
            seats.is_deaf = true;
            seats.channels.clear();
            seats.changed.clear();
            self.work.notify_one();
        }
    }

    /// The number of a new ear, if that of before is lost or there was none.
    fn next_ear(&self, has_one: bool) -> Option<u64> {
        let mut seats = self.lock();
        let is_deaf = std::mem::take(&mut seats.is_deaf);
        (is_deaf || !has_one).then(|| {
            seats.ear += 1;
            seats.ear
        })
    }

    /// The connection is lost: its waiters look again.
    pub(crate) fn close(&self) {
        let mut seats = self.lock();
        seats.closed = true;
        seats.channels.clear();
        if let Some(task) = seats.task.take() {
            task.abort();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns the channels to subscribe to, and those to leave.
    fn changes(&self) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let mut seats = self.lock();
        let (mut joined, mut left) = (Vec::new(), Vec::new());
        for channel in std::mem::take(&mut seats.changed) {
            let Some(status) = seats.channels.get(&channel) else { continue };
            let subscription = status.borrow().subscription;
            if status.receiver_count() == 0 {
                // Forgotten at once, so that later waiters ask for a new subscription.
                seats.channels.remove(&channel);
                if subscription == Subscription::Confirmed {
                    left.push(channel);
                }
            } else if subscription == Subscription::No {
                joined.push(channel);
            }
        }
        (joined, left)
    }

    fn subscribed(&self, channels: &[Arc<str>], outcome: RedisResult<()>) {
        let mut seats = self.lock();
        let subscription = if outcome.is_ok() { Subscription::Confirmed } else { Subscription::Refused };
        for status in channels.iter().filter_map(|channel| seats.channels.get(channel)) {
            status.send_modify(|status| status.subscription = subscription);
        }
        if let Err(error) = outcome
            && !seats.closed
            && !std::mem::replace(&mut seats.warned, true)
        {
            if error.code().is_some() {
                outward(|| {
                    tracing::warn!(
                        target: "idem",
                        %error,
                        "Redis refused a subscription: waiters ask again and again instead of being woken; give the user the right to the channels of the prefix (ACL SETUSER .. &idem:*) and to SUBSCRIBE and UNSUBSCRIBE"
                    );
                });
            } else {
                outward(|| {
                    tracing::warn!(
                        target: "idem",
                        %error,
                        "there is no second connection to Redis on which waiters are woken: they ask again and again instead; see that the server takes more clients (maxclients)"
                    );
                });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        // Nothing that could panic runs under the lock.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The task holds a clone of the connection, which would otherwise stay open.
        self.close();
    }
}

/// A waiter's place at a channel.
pub(crate) struct Seat {
    hub: Arc<Hub>,
    channel: Arc<str>,
    /// Always there until the seat is dropped.
    status: Option<watch::Receiver<Status>>,
    /// How many messages there were when the seat was taken.
    seen: u64,
}

impl Seat {
    /// Waits for the server's confirmation. `false`: refused, or the connection is lost.
    pub(crate) async fn subscribed(&mut self) -> bool {
        let Some(status) = &mut self.status else { return false };
        let settled = status.wait_for(|status| status.subscription != Subscription::No).await;
        settled.is_ok_and(|status| status.subscription == Subscription::Confirmed)
    }

    /// Waits for a message that came after the seat was taken, or the loss of the connection.
    pub(crate) async fn woken(&mut self) {
        let seen = self.seen;
        if let Some(status) = &mut self.status {
            let _ = status.wait_for(|status| status.messages != seen).await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Left and counted under the lock, under which alone seats are handed out.
        let mut seats = self.hub.lock();
        self.status = None;
        if seats.channels.get(&self.channel).is_some_and(|status| status.receiver_count() == 0) {
            seats.changed.insert(self.channel.clone());
            self.hub.work.notify_one();
        }
    }
}

/// How the connection for subscriptions is made.
pub(crate) struct Ear {
    pub(crate) client: Client,
    pub(crate) server: Arc<str>,
    pub(crate) limit: Duration,
}

impl Ear {
    async fn open(&self, hub: &Weak<Hub>, number: u64) -> RedisResult<MultiplexedConnection> {
        let hub = hub.clone();
        let receive = move |push: PushInfo| -> Result<(), ()> {
            let Some(hub) = hub.upgrade() else { return Ok(()) };
            match &push.kind {
                PushKind::Disconnection => hub.is_deaf(number),
                _ => hub.receive(&push),
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(receive);
        let opening = self.client.get_multiplexed_async_connection_with_config(&config);
        let opened = timeout(self.limit, opening).await.unwrap_or_else(|_| Err(late()));
        opened.inspect_err(|error| {
            outward(
                || tracing::debug!(target: "idem", server = %self.server, %error, "no connection for subscriptions"),
            );
        })
    }
}

async fn keep_subscriptions(hub: Weak<Hub>, work: Arc<Notify>, ear: Ear) {
    let mut connection: Option<MultiplexedConnection> = None;
    let mut number = 0;
    loop {
        work.notified().await;
        loop {
            let Some(next) = hub.upgrade().map(|hub| hub.next_ear(connection.is_some())) else { return };
            if let Some(next) = next {
                (connection, number) = (None, next);
            }
            let Some((joined, left)) = hub.upgrade().map(|hub| hub.changes()) else { return };
            if joined.is_empty() && left.is_empty() {
                break;
            }
            let mut outcome = Ok(());
            if !joined.is_empty() {
                if connection.is_none() {
                    match ear.open(&hub, number).await {
                        Ok(opened) => connection = Some(opened),
                        Err(error) => outcome = Err(error),
                    }
                }
                if let Some(connection) = &mut connection {
                    let subscribing = timeout(CONFIRMED_WITHIN, connection.subscribe(names(&joined)));
                    outcome = subscribing.await.unwrap_or_else(|_| Err(late()));
                }
            }
            if let (Some(connection), false) = (&mut connection, left.is_empty()) {
                // If this fails, the connection is lost, and the subscription with it.
                let _ = timeout(CONFIRMED_WITHIN, connection.unsubscribe(names(&left))).await;
            }
            let Some(hub) = hub.upgrade() else { return };
            let is_lost = outcome.as_ref().is_err_and(|error| error.code().is_none());
            hub.subscribed(&joined, outcome);
            if is_lost && connection.is_some() {
                hub.is_deaf(number);
            }
        }
    }
}

/// No answer.
fn late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn names(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(|channel| &**channel).collect()
}
