//! The connection, and how another one is had when it is gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use idem_queue::{Error, Fault};
use lapin::{Channel, Connection};
use tokio::sync::Mutex;

use crate::session::{Line, not_coming_back};

type Connecting<'c> = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send + 'c>>;

/// How many channels in a row are asked for in vain, two seconds apart: a quarter of an hour.
const GIVEN_UP: u32 = 450;

/// Gives channels.
pub(crate) struct Link<'c> {
    connection: &'c Connection,
    /// How to connect, if the application has said so, and the connections that came of it.
    again: Option<Box<dyn Fn() -> Connecting<'c> + Send + Sync + 'c>>,
    own: Mutex<Own>,
    /// How often in a row the connection was not there.
    failures: AtomicU32,
}

#[derive(Default)]
struct Own {
    present: Option<Arc<Connection>>,
    /// Those that were lost, and may come back: a connection that is dropped meanwhile is restored
    /// and never closed.
    lost: Vec<Arc<Connection>>,
}

impl<'c> Link<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self { connection, again: None, own: Mutex::default(), failures: AtomicU32::new(0) }
    }

    pub(crate) fn reconnects<F>(&mut self, connect: impl Fn() -> F + Send + Sync + 'c)
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.again = Some(Box::new(move || Box::pin(connect())));
    }

    /// Opens a channel. See [`open`](Self::open).
    pub(crate) async fn channel(&self) -> Result<Channel, Fault> {
        let [channel] = self.open().await?.1;
        Ok(channel)
    }

    /// Opens channels of one connection: the application's if it is there, and one of our own
    /// otherwise, if the application has said how to make one.
    pub(crate) async fn open<const N: usize>(&self) -> Result<(Line, [Channel; N]), Fault> {
        let Some(connect) = &self.again else {
            self.still_there()?;
            return self.channels_of(self.connection).await;
        };
        let connection = {
            let mut own = self.own.lock().await;
            let is_there = self.connection.status().connected();
            if let Some(left) = own.present.take_if(|own| is_there || !own.status().connected()) {
                own.lost.push(left);
            }
            own.lost.retain(|connection| connection.status().reconnecting());
            if !is_there && own.present.is_none() {
                own.present = Some(Arc::new(connect().await.map_err(Fault::passing)?));
            }
            own.present.clone()
        };
        self.channels_of(connection.as_deref().unwrap_or(self.connection)).await
    }

    /// Says whether the application's connection is there, and if not, whether it may come back.
    fn still_there(&self) -> Result<(), Fault> {
        if self.connection.status().connected() {
            self.failures.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if is_gone(self.connection) {
            return Err(Fault::Final(Error::disconnected(
                "the connection to RabbitMQ is gone, and nothing restores it: connect with `ConnectionProperties::default().enable_auto_recover()`, or give the consumer `.reconnect(..)`",
            )));
        }
        if self.failures.fetch_add(1, Ordering::Relaxed) >= GIVEN_UP {
            return Err(Fault::Final(not_coming_back()));
        }
        Err(Fault::passing("the connection to RabbitMQ is lost, and not restored yet"))
    }

    async fn channels_of<const N: usize>(&self, connection: &Connection) -> Result<(Line, [Channel; N]), Fault> {
        let mut channels = Vec::with_capacity(N);
        for _ in 0..N {
            channels.push(connection.create_channel().await.map_err(Fault::passing)?);
        }
        let line = Line { connection: connection.status().clone(), reconnects: self.again.is_some() };
        let channels = channels.try_into().map_err(|_| Fault::passing("a channel is missing"))?;
        Ok((line, channels))
    }
}

/// Whether it ended, and does not recover.
fn is_gone(connection: &Connection) -> bool {
    connection.status().closed() || connection.status().errored()
}

impl fmt::Debug for Link<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("connection", &self.connection).finish_non_exhaustive()
    }
}
