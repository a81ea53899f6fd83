//! A connection, whoever made it.

use std::ops::Deref;
use std::sync::Arc;

use idem_queue::Error;
use lapin::Connection;

/// The application's connection, or one that its `reconnect` has made.
#[derive(Debug, Clone)]
pub(crate) enum Line<'c> {
    Given(&'c Connection),
    Own(Arc<Connection>),
}

impl Deref for Line<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Self::Given(connection) => connection,
            Self::Own(connection) => connection,
        }
    }
}

/// The error about a connection that its client has not restored for a quarter of an hour.
pub(crate) fn not_coming_back() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ has not come back for 15 minutes, and the client may have given up: give the consumer `.reconnect(..)`, or start the process again",
    )
}
