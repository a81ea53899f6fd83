//! The connection, and how another one is had when it is gone.

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

use crate::line::{Line, not_answering, not_coming_back};

type Connecting<'c> = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send + 'c>>;
type Connect<'c> = Box<dyn Fn() -> Connecting<'c> + Send + Sync + 'c>;
type Arriving<'c> = Pin<Box<dyn Future<Output = lapin::Result<Line<'c>>> + Send + 'c>>;

/// How many channels in a row are asked for in vain, two seconds apart: a quarter of an hour.
const GIVEN_UP: u32 = 450;
/// How long a connection may take to open a channel, if another one can be made.
const OPENING: Duration = Duration::from_secs(10);
/// How long a consumer's `reconnect` may take to connect.
const CONNECTING: Duration = Duration::from_secs(30);

const GONE: &str = "the connection to RabbitMQ is gone, and nothing restores it: give the consumer or publisher `.reconnect(..)`, or connect with `ConnectionProperties::default().enable_auto_recover()`";
const LOST: &str = "the connection to RabbitMQ is lost, and not restored yet";
const NOT_MADE: &str = "`reconnect` has not connected to RabbitMQ in time";
const SILENT: &str = "the connection to RabbitMQ has not opened a channel in time: the broker is slow, or the tokio runtime on which the connection was made has ended or stands still. With `.reconnect(..)`, the next try makes another connection";
pub(crate) const BLOCKED: &str =
    "RabbitMQ blocks publishers, because its memory or its disk is full: it says more in its log";

/// Gives channels.
pub(crate) struct Link<'c> {
    connection: Line<'c>,
    /// How to connect, if the application has said so, and the connections that came of it.
    again: Option<Connect<'c>>,
    own: Arc<Mutex<Own<'c>>>,
    /// How often in a row the connection was not there.
    failures: AtomicU32,
}

#[derive(Default)]
struct Own<'c> {
    present: Option<Line<'c>>,
    /// Those that were lost, and may come back: a connection that is dropped meanwhile is restored
    /// and never closed.
    lost: Vec<Line<'c>>,
    /// The next one. Every caller that needs it drives it, so one that is polled no more delays no
    /// other, and the last caller that goes away ends it.
    next: Option<WeakShared<Arriving<'c>>>,
    /// The same, of a consumer. It opens again and again, each time for less long than connecting
    /// may take. A publisher does not keep it: its callers may be on several tokio runtimes.
    kept: Option<Shared<Arriving<'c>>>,
}

impl<'c> Link<'c> {
    pub(crate) fn new(connection: Line<'c>) -> Self {
        Self { connection, again: None, own: Arc::default(), failures: AtomicU32::new(0) }
    }

    pub(crate) fn reconnects<F>(&mut self, connect: impl Fn() -> F + Send + Sync + 'c)
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.again = Some(Box::new(move || Box::pin(connect())));
    }

    /// Opens a channel. See [`open`](Self::open).
    pub(crate) async fn channel(&self) -> Result<Channel, Fault> {
        Ok(self.open().await?.1)
    }

    /// Opens a channel of the application's connection if that is there. Otherwise it is one of our
    /// own, if the application has said how to make one.
    pub(crate) async fn open(&self) -> Result<(Line<'c>, Channel), Fault> {
        loop {
            let line = match &self.again {
                None => {
                    self.still_there()?;
                    self.connection.clone()
                }
                Some(connect) => self.present(connect, true).await.map_err(Fault::passing)?,
            };
            let asking = line.ask();
            let opening = line.create_channel();
            let opened = match &self.again {
                None => Ok(opening.await),
                Some(_) => timeout(OPENING, opening).await,
            };
            let Ok(channel) = opened else {
                drop(asking);
                if line.is_blocked() {
                    return Err(Fault::passing(BLOCKED));
                }
                line.give_up();
                continue;
            };
            asking.answered();
            return Ok((line, channel.map_err(Fault::passing)?));
        }
    }

    /// Opens a channel for a publication, or says why that is impossible now. The consumer decides
    /// when to give up.
    ///
    /// A connection that has already left a publication without an answer, and opens no channel in
    /// time, is given up if another one can be made.
    pub(crate) async fn channel_now(&self, limit: Duration) -> Result<(Line<'c>, Channel), BoxError> {
        loop {
            let line = match &self.again {
                Some(connect) => timeout(limit, self.present(connect, false)).await.map_err(|_| NOT_MADE)??,
                None if self.connection.is_gone() => return Err(GONE.into()),
                None if !self.connection.status().connected() => return Err(LOST.into()),
                None => self.connection.clone(),
            };
            let was_silent = line.is_silent();
            match timeout(limit, line.create_channel()).await {
                Ok(channel) => {
                    let channel = channel?;
                    line.set_silent(false);
                    return Ok((line, channel));
                }
                Err(_) if line.is_blocked() => return Err(BLOCKED.into()),
                Err(_) if was_silent && self.again.is_some() => line.give_up(),
                Err(_) => {
                    line.set_silent(true);
                    return Err(SILENT.into());
                }
            }
        }
    }

    /// Whether another connection can be made.
    pub(crate) fn has_reconnect(&self) -> bool {
        self.again.is_some()
    }

    /// The connection that is there, or the next one. `keeps`: it goes on when this is dropped and
    /// called again, for a limited time.
    async fn present(&self, connect: &Connect<'c>, keeps: bool) -> lapin::Result<Line<'c>> {
        let next = {
            let mut own = lock(&self.own);
            let is_there = self.connection.is_there();
            if let Some(left) = own.present.take_if(|own| is_there || !own.is_there()) {
                own.lost.push(left);
            }
            own.lost.retain(|line| line.status().reconnecting());
            if is_there {
                own.kept = None;
                return Ok(self.connection.clone());
            }
            if let Some(present) = &own.present {
                return Ok(present.clone());
            }
            let next = own.next.as_ref().and_then(WeakShared::upgrade);
            let next = next.unwrap_or_else(|| self.next(connect(), keeps.then_some(CONNECTING)));
            own.next = next.downgrade();
            own.kept = keeps.then(|| next.clone());
            next
        };
        next.await
    }

    fn next(&self, connecting: Connecting<'c>, limit: Option<Duration>) -> Shared<Arriving<'c>> {
        // Weak: what it is part of may hold it.
        let own = Arc::downgrade(&self.own);
        let arriving: Arriving<'c> = Box::pin(async move {
            let connected = match limit {
                None => connecting.await,
                Some(limit) => {
                    let connected = timeout(limit, connecting).await;
                    connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, NOT_MADE).into()))
                }
            };
            let connected = connected.map(Line::own);
            if let Some(own) = own.upgrade() {
                let mut own = lock(&own);
                (own.next, own.kept) = (None, None);
                own.present = connected.as_ref().ok().cloned();
            }
            connected
        });
        arriving.shared()
    }

    /// Says whether the application's connection is there, and if not, whether it may come back.
    fn still_there(&self) -> Result<(), Fault> {
        if self.connection.is_given_up() {
            return Err(Fault::Final(not_answering()));
        }
        if self.connection.status().connected() {
            self.failures.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if self.connection.is_gone() {
            return Err(Fault::Final(Error::disconnected(GONE)));
        }
        if self.failures.fetch_add(1, Ordering::Relaxed) >= GIVEN_UP {
            return Err(Fault::Final(not_coming_back()));
        }
        Err(Fault::passing(LOST))
    }
}

fn lock<'a, 'c>(own: &'a Mutex<Own<'c>>) -> MutexGuard<'a, Own<'c>> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Link<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("connection", &self.connection).finish_non_exhaustive()
    }
}
