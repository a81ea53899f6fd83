//! The connection, and how another one is had when it is gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use idem_queue::{BoxError, Error, Fault};
use lapin::{Channel, Connection};
use tokio::sync::Mutex;

use crate::line::{Line, not_coming_back};

type Connecting<'c> = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send + 'c>>;
type Connect<'c> = Box<dyn Fn() -> Connecting<'c> + Send + Sync + 'c>;

/// How many channels in a row are asked for in vain, two seconds apart: a quarter of an hour.
const GIVEN_UP: u32 = 450;

const GONE: &str = "the connection to RabbitMQ is gone, and nothing restores it: give the consumer or publisher `.reconnect(..)`, or connect with `ConnectionProperties::default().enable_auto_recover()`";
const LOST: &str = "the connection to RabbitMQ is lost, and not restored yet";

/// Gives channels.
pub(crate) struct Link<'c> {
    connection: Line<'c>,
    /// How to connect, if the application has said so, and the connections that came of it.
    again: Option<Connect<'c>>,
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
    pub(crate) fn new(connection: Line<'c>) -> Self {
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
        Ok(self.open().await?.1)
    }

    /// Opens a channel of the application's connection if that is there. Otherwise it is one of our
    /// own, if the application has said how to make one.
    pub(crate) async fn open(&self) -> Result<(Line<'c>, Channel), Fault> {
        let line = match &self.again {
            None => {
                self.still_there()?;
                self.connection.clone()
            }
            Some(connect) => self.present(connect).await.map_err(Fault::passing)?,
        };
        let channel = line.create_channel().await.map_err(Fault::passing)?;
        Ok((line, channel))
    }

    /// Opens a channel for a publication, or says why that is impossible now. The consumer decides
    /// when to give up.
    pub(crate) async fn channel_now(&self) -> Result<Channel, BoxError> {
        let line = match &self.again {
            Some(connect) => self.present(connect).await?,
            None if is_gone(&self.connection) => return Err(GONE.into()),
            None if !self.connection.status().connected() => return Err(LOST.into()),
            None => self.connection.clone(),
        };
        Ok(line.create_channel().await?)
    }

    /// Whether another connection can be made.
    pub(crate) fn has_reconnect(&self) -> bool {
        self.again.is_some()
    }

    async fn present(&self, connect: &Connect<'c>) -> lapin::Result<Line<'c>> {
        let mut own = self.own.lock().await;
        let is_there = self.connection.status().connected();
        if let Some(left) = own.present.take_if(|own| is_there || !own.status().connected()) {
            own.lost.push(left);
        }
        own.lost.retain(|connection| connection.status().reconnecting());
        if is_there {
            return Ok(self.connection.clone());
        }
        let connection = match own.present.take() {
            Some(connection) => connection,
            None => Arc::new(connect().await?),
        };
        own.present = Some(connection.clone());
        Ok(Line::Own(connection))
    }

    /// Says whether the application's connection is there, and if not, whether it may come back.
    fn still_there(&self) -> Result<(), Fault> {
        if self.connection.status().connected() {
            self.failures.store(0, Ordering::Relaxed);
            return Ok(());
        }
        if is_gone(&self.connection) {
            return Err(Fault::Final(Error::disconnected(GONE)));
        }
        if self.failures.fetch_add(1, Ordering::Relaxed) >= GIVEN_UP {
            return Err(Fault::Final(not_coming_back()));
        }
        Err(Fault::passing(LOST))
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
