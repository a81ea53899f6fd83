//! The subscriptions at one server, by which waiters are woken.
//!
//! Subscriptions have a separate connection, which the first waiter opens. To the server, a client
//! with a subscription is a *pubsub* client, whose replies are cut off by another and much smaller
//! limit (`client-output-buffer-limit pubsub`).
//!
//! Waiters subscribe to a channel, one for each record. The first one asks the server for the
//! channel, the last one to leave gives it up. One task carries out both, in batches, and the
//! server confirms each batch before the next is sent. So a waiter that comes while a channel is
//! given up gets a new confirmation, and never mistakes the old one for its own.
//!
//! No wake-up is lost: a waiter looks at the record after its subscription was confirmed. It sees a
//! commit before that look, and a message announces one after it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::adapter::catch_user_panic;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// If the server does not confirm a subscription within this time, the connection counts as lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// The subscriptions of a session. The session that replaces it has its own.
pub(crate) struct Subscriptions {
    channels: Mutex<Channels>,
    /// Signals that `changed` or `is_disconnected` was set.
    work: Arc<Notify>,
}

#[derive(Default)]
struct Channels {
    is_closed: bool,
    /// The channels with waiters now or a moment ago. Each waiter holds a receiver.
    by_name: HashMap<Arc<str>, watch::Sender<ChannelStatus>>,
    /// The channels that may have to be subscribed to, or given up.
    changed: HashSet<Arc<str>>,
    /// A refused subscription was logged: once is enough.
    warned: bool,
    /// The number of the connection in use. A loss of an earlier one changes nothing.
    connection: u64,
    is_disconnected: bool,
    task: Option<AbortHandle>,
}

#[derive(Clone, Copy, Default)]
struct ChannelStatus {
    confirmation: Confirmation,
    /// How many messages there were.
    messages: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Confirmation {
    #[default]
    Pending,
    Confirmed,
    Refused,
}

/// The next batch of requests to the server.
#[derive(Default)]
struct Changes {
    subscribe: Vec<Arc<str>>,
    unsubscribe: Vec<Arc<str>>,
}

impl Subscriptions {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            channels: Mutex::default(),
            work: Arc::new(Notify::new()),
        })
    }

    /// Starts the task that carries out the changes, in the current runtime.
    pub(crate) fn start(self: &Arc<Self>, connection: SubscriberConnection) {
        let work = self.work.clone();
        let task = tokio::spawn(keep_subscriptions(Arc::downgrade(self), work, connection));
        self.lock().task = Some(task.abort_handle());
    }

    /// Subscribes to a channel; `None` if the session is lost.
    pub(crate) fn subscribe(self: &Arc<Self>, channel: &str) -> Option<Subscription> {
        let mut channels = self.lock();
        if channels.is_closed {
            return None;
        }
        let known = channels
            .by_name
            .get_key_value(channel)
            .map(|(channel, status)| (channel.clone(), status.subscribe()));
        let (channel, status) = known.unwrap_or_else(|| {
            let channel = Arc::<str>::from(channel);
            let sender = watch::Sender::new(ChannelStatus::default());
            let status = sender.subscribe();
            channels.by_name.insert(channel.clone(), sender);
            channels.changed.insert(channel.clone());
            self.work.notify_one();
            (channel, status)
        });
        let seen = status.borrow().messages;
        Some(Subscription {
            subscriptions: self.clone(),
            channel,
            status: Some(status),
            seen,
        })
    }

    /// Counts a message that the server pushed.
    pub(crate) fn receive(&self, push: &PushInfo) {
        let (PushKind::Message, [Value::BulkString(channel), ..]) =
            (&push.kind, push.data.as_slice())
        else {
            return;
        };
        let channels = self.lock();
        if let Some(status) = std::str::from_utf8(channel)
            .ok()
            .and_then(|channel| channels.by_name.get(channel))
        {
            status.send_modify(|status| status.messages += 1);
        }
    }

    /// Wakes the waiters of a lost connection, which look again. Later waiters get a new one.
    fn mark_disconnected(&self, connection: u64) {
        let mut channels = self.lock();
        if channels.connection == connection && !channels.is_closed {
            channels.is_disconnected = true;
            channels.by_name.clear();
            channels.changed.clear();
            self.work.notify_one();
        }
    }

    /// Returns the number of a new connection, if there was none or the last one is lost.
    fn next_connection(&self, has_one: bool) -> Option<u64> {
        let mut channels = self.lock();
        let is_disconnected = std::mem::take(&mut channels.is_disconnected);
        (is_disconnected || !has_one).then(|| {
            channels.connection += 1;
            channels.connection
        })
    }

    /// Wakes all waiters, because the session is lost: they look again.
    pub(crate) fn close(&self) {
        let mut channels = self.lock();
        channels.is_closed = true;
        channels.by_name.clear();
        if let Some(task) = channels.task.take() {
            task.abort();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn take_changes(&self) -> Changes {
        let mut channels = self.lock();
        let mut changes = Changes::default();
        for channel in std::mem::take(&mut channels.changed) {
            let Some(status) = channels.by_name.get(&channel) else {
                continue;
            };
            let confirmation = status.borrow().confirmation;
            if status.receiver_count() == 0 {
                // Removed before the server is asked, so that later waiters subscribe again.
                channels.by_name.remove(&channel);
                if confirmation == Confirmation::Confirmed {
                    changes.unsubscribe.push(channel);
                }
            } else if confirmation == Confirmation::Pending {
                changes.subscribe.push(channel);
            }
        }
        changes
    }

    /// Tells the waiters of these channels how their subscription ended.
    fn settle(&self, subscribed: &[Arc<str>], outcome: RedisResult<()>) {
        let mut channels = self.lock();
        let confirmation = if outcome.is_ok() {
            Confirmation::Confirmed
        } else {
            Confirmation::Refused
        };
        for status in subscribed
            .iter()
            .filter_map(|channel| channels.by_name.get(channel))
        {
            status.send_modify(|status| status.confirmation = confirmation);
        }
        if let Err(error) = outcome
            && !channels.is_closed
            && !std::mem::replace(&mut channels.warned, true)
        {
            warn_of_polling(&error);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Channels> {
        // Nothing that could panic runs under the lock.
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn_of_polling(error: &RedisError) {
    if error.code().is_some() {
        catch_user_panic(|| {
            tracing::warn!(
                target: "idem",
                %error,
                "Redis refused a subscription: waiters ask again and again instead of being woken; \
                 give the user the right to the channels of the prefix (ACL SETUSER .. &idem:*) \
                 and to SUBSCRIBE and UNSUBSCRIBE"
            );
        });
    } else {
        catch_user_panic(|| {
            tracing::warn!(
                target: "idem",
                %error,
                "there is no second connection to Redis on which waiters are woken: they ask again \
                 and again instead; see that the server takes more clients (maxclients)"
            );
        });
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        // The task holds a clone of the connection, which would otherwise stay open.
        self.close();
    }
}

/// A waiter's subscription to a channel. It ends when this is dropped.
pub(crate) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    channel: Arc<str>,
    /// `None` only while this is dropped.
    status: Option<watch::Receiver<ChannelStatus>>,
    /// How many messages there were when the subscription began.
    seen: u64,
}

impl Subscription {
    /// Waits for the server's confirmation. `false`: it refused, or the connection is lost.
    pub(crate) async fn confirmed(&mut self) -> bool {
        let Some(status) = &mut self.status else {
            return false;
        };
        let settled = status
            .wait_for(|status| status.confirmation != Confirmation::Pending)
            .await;
        settled.is_ok_and(|status| status.confirmation == Confirmation::Confirmed)
    }

    /// Waits for a message since the subscription began, or for the loss of the connection.
    pub(crate) async fn woken(&mut self) {
        let seen = self.seen;
        if let Some(status) = &mut self.status {
            let _ = status.wait_for(|status| status.messages != seen).await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // The receiver is dropped and the rest are counted under one lock. A waiter subscribes
        // under the same lock, so it cannot come in between.
        let mut channels = self.subscriptions.lock();
        self.status = None;
        if channels
            .by_name
            .get(&self.channel)
            .is_some_and(|status| status.receiver_count() == 0)
        {
            channels.changed.insert(self.channel.clone());
            self.subscriptions.work.notify_one();
        }
    }
}

/// How the connection for subscriptions is made.
pub(crate) struct SubscriberConnection {
    pub(crate) client: Client,
    pub(crate) server: Arc<str>,
    pub(crate) limit: Duration,
}

impl SubscriberConnection {
    async fn open(
        &self,
        subscriptions: &Weak<Subscriptions>,
        number: u64,
    ) -> RedisResult<MultiplexedConnection> {
        let subscriptions = subscriptions.clone();
        let receive = move |push: PushInfo| -> Result<(), ()> {
            let Some(subscriptions) = subscriptions.upgrade() else {
                return Ok(());
            };
            match &push.kind {
                PushKind::Disconnection => subscriptions.mark_disconnected(number),
                _ => subscriptions.receive(&push),
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(receive);
        let opening = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        let opened = timeout(self.limit, opening)
            .await
            .unwrap_or_else(|_| Err(no_answer()));
        opened.inspect_err(|error| {
            catch_user_panic(|| {
                tracing::debug!(
                    target: "idem",
                    server = %self.server,
                    %error,
                    "no connection for subscriptions"
                );
            });
        })
    }
}

async fn keep_subscriptions(
    subscriptions: Weak<Subscriptions>,
    work: Arc<Notify>,
    subscriber: SubscriberConnection,
) {
    let mut connection: Option<MultiplexedConnection> = None;
    let mut number = 0;
    loop {
        work.notified().await;
        loop {
            // Not held over an `await`: it ends with the session.
            let next = subscriptions
                .upgrade()
                .map(|subscriptions| subscriptions.next_connection(connection.is_some()));
            let Some(next) = next else { return };
            if let Some(next) = next {
                connection = None;
                number = next;
            }
            let changes = subscriptions
                .upgrade()
                .map(|subscriptions| subscriptions.take_changes());
            let Some(changes) = changes else { return };
            if changes.subscribe.is_empty() && changes.unsubscribe.is_empty() {
                break;
            }
            let mut outcome = Ok(());
            if !changes.subscribe.is_empty() {
                if connection.is_none() {
                    match subscriber.open(&subscriptions, number).await {
                        Ok(opened) => connection = Some(opened),
                        Err(error) => outcome = Err(error),
                    }
                }
                if let Some(connection) = &mut connection {
                    let subscribing = connection.subscribe(names(&changes.subscribe));
                    outcome = timeout(CONFIRMED_WITHIN, subscribing)
                        .await
                        .unwrap_or_else(|_| Err(no_answer()));
                }
            }
            if let Some(connection) = &mut connection
                && !changes.unsubscribe.is_empty()
            {
                // If this fails, the connection is lost, and the subscription with it.
                let unsubscribing = connection.unsubscribe(names(&changes.unsubscribe));
                let _ = timeout(CONFIRMED_WITHIN, unsubscribing).await;
            }
            let Some(subscriptions) = subscriptions.upgrade() else {
                return;
            };
            let is_lost = outcome.as_ref().is_err_and(|error| error.code().is_none());
            subscriptions.settle(&changes.subscribe, outcome);
            if is_lost && connection.is_some() {
                subscriptions.mark_disconnected(number);
            }
        }
    }
}

fn no_answer() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn names(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(|channel| &**channel).collect()
}
