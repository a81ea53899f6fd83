//! The connection, and how another one is had when it is gone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use idem_queue::{Error, Fault};
use lapin::{Channel, Connection};
use tokio::sync::Mutex;

type Connecting<'c> = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send + 'c>>;

/// Gives channels.
pub(crate) struct Link<'c> {
    connection: &'c Connection,
    /// How to connect, if the application has said so, and the connection that came of it.
    again: Option<Box<dyn Fn() -> Connecting<'c> + Send + Sync + 'c>>,
    own: Mutex<Option<Arc<Connection>>>,
}

impl<'c> Link<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self { connection, again: None, own: Mutex::new(None) }
    }

    pub(crate) fn reconnects<F>(&mut self, connect: impl Fn() -> F + Send + Sync + 'c)
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.again = Some(Box::new(move || Box::pin(connect())));
    }

    /// Opens a channel: on the application's connection while that lives or recovers by itself,
    /// then on one of our own.
    pub(crate) async fn channel(&self) -> Result<Channel, Fault> {
        if !is_gone(self.connection) {
            return self.connection.create_channel().await.map_err(Fault::passing);
        }
        let Some(connect) = &self.again else {
            return Err(Fault::Final(Error::disconnected(
                "the connection to RabbitMQ is gone, and nothing restores it: connect with `ConnectionProperties::default().enable_auto_recover()`, or give the consumer `.reconnect(..)`",
            )));
        };
        let mut own = self.own.lock().await;
        let connection = match &*own {
            Some(connection) if !is_gone(connection) => connection.clone(),
            _ => {
                let connection = Arc::new(connect().await.map_err(Fault::passing)?);
                *own = Some(connection.clone());
                connection
            }
        };
        drop(own);
        connection.create_channel().await.map_err(Fault::passing)
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
