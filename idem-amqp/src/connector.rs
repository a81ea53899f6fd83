//! Opens channels, on the application's connection or on one that its `reconnect` makes.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt as _, Shared, WeakShared};
use idem_queue::{BoxError, Error, Fault};
use lapin::{Channel, Connection};
use tokio::time::timeout;

use crate::connection::{TrackedConnection, not_answering_error, not_restored_error};

type Connecting<'c> = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send + 'c>>;
type Connect<'c> = Box<dyn Fn() -> Connecting<'c> + Send + Sync + 'c>;
type NextConnection<'c> =
    Pin<Box<dyn Future<Output = lapin::Result<TrackedConnection<'c>>> + Send + 'c>>;

/// How often in a row a lost connection is looked at before it is given up. The looks are two
/// seconds apart, so this is a quarter of an hour.
const GIVE_UP_AFTER: u32 = 450;
/// How long a connection may take to open a channel, if another one can be made.
const OPENING: Duration = Duration::from_secs(10);
/// How long a consumer's `reconnect` may take to connect.
const CONNECTING: Duration = Duration::from_secs(30);

const GONE: &str = "the connection to RabbitMQ is gone, and nothing restores it: give the consumer \
    or publisher `.reconnect(..)`, or connect with \
    `ConnectionProperties::default().enable_auto_recover()`";
const LOST: &str = "the connection to RabbitMQ is lost, and not restored yet";
const NOT_MADE: &str = "`reconnect` has not connected to RabbitMQ in time";
const SILENT: &str = "the connection to RabbitMQ has not opened a channel in time: the broker is \
    slow, or the tokio runtime on which the connection was made has ended or stands still. With \
    `.reconnect(..)`, the next try makes another connection";
pub(crate) const BLOCKED: &str =
    "RabbitMQ blocks publishers, because its memory or its disk is full: it says more in its log";

/// Opens channels.
pub(crate) struct Connector<'c> {
    /// The application's connection.
    given: TrackedConnection<'c>,
    /// The application's `reconnect`, if there is one.
    reconnect: Option<Connect<'c>>,
    /// The connections that `reconnect` has made.
    made: Arc<Mutex<MadeConnections<'c>>>,
    /// How often in a row the application's connection was not connected.
    failures: AtomicU32,
}

#[derive(Default)]
struct MadeConnections<'c> {
    current: Option<TrackedConnection<'c>>,
    /// Lost connections that lapin is restoring. If one were dropped meanwhile, lapin would restore
    /// it all the same, and nothing would close it.
    recovering: Vec<TrackedConnection<'c>>,
    /// The connection that is being made. All callers that wait for it poll it, so a caller that
    /// stops polling does not delay the others. It ends with the last caller.
    next: Option<WeakShared<NextConnection<'c>>>,
    /// Keeps `next` alive between two tries of a consumer, each of which is shorter than connecting
    /// may take. A publisher does not keep it, because its callers may be on several tokio
    /// runtimes.
    next_kept: Option<Shared<NextConnection<'c>>>,
}

/// An open channel, and its connection.
#[derive(Debug, Clone)]
pub(crate) struct OpenedChannel<'c> {
    pub(crate) connection: TrackedConnection<'c>,
    pub(crate) channel: Channel,
}

/// Whether a connection that is being made is kept while no caller waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// For a limited time.
    Yes,
    No,
}

impl<'c> Connector<'c> {
    pub(crate) fn new(given: TrackedConnection<'c>) -> Self {
        Self {
            given,
            reconnect: None,
            made: Arc::default(),
            failures: AtomicU32::new(0),
        }
    }

    pub(crate) fn set_reconnect<F>(&mut self, connect: impl Fn() -> F + Send + Sync + 'c)
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.reconnect = Some(Box::new(move || Box::pin(connect())));
    }

    /// Opens a channel. See [`open`](Self::open).
    pub(crate) async fn channel(&self) -> Result<Channel, Fault> {
        Ok(self.open().await?.channel)
    }

    /// Opens a channel of the application's connection if that is usable, or else of one that its
    /// `reconnect` has made.
    pub(crate) async fn open(&self) -> Result<OpenedChannel<'c>, Fault> {
        loop {
            let connection = match &self.reconnect {
                None => {
                    self.check_given()?;
                    self.given.clone()
                }
                Some(reconnect) => self
                    .usable(reconnect, Keep::Yes)
                    .await
                    .map_err(Fault::passing)?,
            };
            let pending = connection.begin_request();
            let opening = connection.create_channel();
            let opened = match &self.reconnect {
                None => Ok(opening.await),
                Some(_) => timeout(OPENING, opening).await,
            };
            let Ok(channel) = opened else {
                drop(pending);
                if connection.is_blocked() {
                    return Err(Fault::passing(BLOCKED));
                }
                connection.give_up();
                continue;
            };
            pending.answered();
            let channel = channel.map_err(Fault::passing)?;
            return Ok(OpenedChannel {
                connection,
                channel,
            });
        }
    }

    /// Opens a channel for a publication, or says why that is impossible now. The consumer decides
    /// when to give up.
    ///
    /// A connection that has already left a publication without an answer, and opens no channel in
    /// time, is given up if another one can be made.
    pub(crate) async fn open_for_publication(
        &self,
        limit: Duration,
    ) -> Result<OpenedChannel<'c>, BoxError> {
        loop {
            let connection = match &self.reconnect {
                Some(reconnect) => timeout(limit, self.usable(reconnect, Keep::No))
                    .await
                    .map_err(|_| NOT_MADE)??,
                None if self.given.has_ended() => return Err(GONE.into()),
                None if !self.given.status().connected() => return Err(LOST.into()),
                None => self.given.clone(),
            };
            let was_silent = connection.is_silent();
            match timeout(limit, connection.create_channel()).await {
                Ok(channel) => {
                    let channel = channel?;
                    connection.set_silent(false);
                    return Ok(OpenedChannel {
                        connection,
                        channel,
                    });
                }
                Err(_) if connection.is_blocked() => return Err(BLOCKED.into()),
                Err(_) if was_silent && self.reconnect.is_some() => connection.give_up(),
                Err(_) => {
                    connection.set_silent(true);
                    return Err(SILENT.into());
                }
            }
        }
    }

    /// Whether another connection can be made.
    pub(crate) fn has_reconnect(&self) -> bool {
        self.reconnect.is_some()
    }

    /// Returns a usable connection, and makes one if there is none.
    async fn usable(
        &self,
        reconnect: &Connect<'c>,
        keep: Keep,
    ) -> lapin::Result<TrackedConnection<'c>> {
        let next = {
            let mut made = lock(&self.made);
            let is_given_usable = self.given.is_usable();
            let unneeded = made
                .current
                .take_if(|current| is_given_usable || !current.is_usable());
            made.recovering.extend(unneeded);
            made.recovering
                .retain(|connection| connection.status().reconnecting());
            if is_given_usable {
                made.next_kept = None;
                return Ok(self.given.clone());
            }
            if let Some(current) = &made.current {
                return Ok(current.clone());
            }
            let keeps = keep == Keep::Yes;
            let next = made.next.as_ref().and_then(WeakShared::upgrade);
            let next = next.unwrap_or_else(|| self.next(reconnect(), keeps.then_some(CONNECTING)));
            made.next = next.downgrade();
            made.next_kept = keeps.then(|| next.clone());
            next
        };
        next.await
    }

    fn next(
        &self,
        connecting: Connecting<'c>,
        limit: Option<Duration>,
    ) -> Shared<NextConnection<'c>> {
        // Weak, because `made` may hold this very future.
        let made = Arc::downgrade(&self.made);
        let next: NextConnection<'c> = Box::pin(async move {
            let connected = match limit {
                None => connecting.await,
                Some(limit) => {
                    let connected = timeout(limit, connecting).await;
                    connected.unwrap_or_else(|_| {
                        Err(io::Error::new(io::ErrorKind::TimedOut, NOT_MADE).into())
                    })
                }
            };
            let connected = connected.map(TrackedConnection::of_reconnect);
            if let Some(made) = made.upgrade() {
                let mut made = lock(&made);
                made.next = None;
                made.next_kept = None;
                made.current = connected.as_ref().ok().cloned();
            }
            connected
        });
        next.shared()
    }

    /// Fails if the application's connection is not connected. The fault is final if the connection
    /// cannot recover.
    fn check_given(&self) -> Result<(), Fault> {
        if self.given.is_given_up() {
            return Err(Fault::Final(not_answering_error()));
        }
        if self.given.status().connected() {
            self.failures.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if self.given.has_ended() {
            return Err(Fault::Final(Error::disconnected(GONE)));
        }
        if self.failures.fetch_add(1, Ordering::Relaxed) >= GIVE_UP_AFTER {
            return Err(Fault::Final(not_restored_error()));
        }
        Err(Fault::passing(LOST))
    }
}

fn lock<'a, 'c>(made: &'a Mutex<MadeConnections<'c>>) -> MutexGuard<'a, MadeConnections<'c>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Connector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("given", &self.given)
            .finish_non_exhaustive()
    }
}
