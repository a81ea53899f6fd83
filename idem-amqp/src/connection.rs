//! A connection, and whether its requests are still answered.
//!
//! lapin works on the tokio runtime on which it was connected. If that runtime has ended, or
//! nothing drives it, the status of the connection remains "connected", and no request is answered.
//! So requests without an answer are counted here.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use idem_queue::Error;
use lapin::Connection;

/// How many attempts in a row to open a channel may be given up without an answer. A consumer gives
/// one up after five seconds.
const MOST_UNANSWERED: u32 = 4;

/// The application's connection, or one that its `reconnect` has made.
#[derive(Debug, Clone)]
pub(crate) struct TrackedConnection<'c> {
    connection: ConnectionOrigin<'c>,
    health: Arc<ConnectionHealth>,
}

#[derive(Debug, Clone)]
enum ConnectionOrigin<'c> {
    Application(&'c Connection),
    Reconnect(Arc<Connection>),
}

#[derive(Debug, Default)]
struct ConnectionHealth {
    /// Whether the last publication, or the last channel for one, got no answer in time.
    silent: AtomicBool,
    /// How many requests in a row were given up without an answer.
    unanswered: AtomicU32,
    given_up: AtomicBool,
}

impl<'c> TrackedConnection<'c> {
    pub(crate) fn of_application(connection: &'c Connection) -> Self {
        Self {
            connection: ConnectionOrigin::Application(connection),
            health: Arc::default(),
        }
    }

    pub(crate) fn of_reconnect(connection: Connection) -> Self {
        Self {
            connection: ConnectionOrigin::Reconnect(Arc::new(connection)),
            health: Arc::default(),
        }
    }

    /// Whether requests can be sent on it.
    pub(crate) fn is_usable(&self) -> bool {
        self.status().connected() && !self.is_given_up()
    }

    /// Whether it ended and does not recover.
    pub(crate) fn has_ended(&self) -> bool {
        self.status().closed() || self.status().errored()
    }

    /// Whether the broker has asked the client to send nothing, because its memory or its disk is
    /// full. lapin then sends nothing at all, so a missing answer proves nothing.
    pub(crate) fn is_blocked(&self) -> bool {
        self.status().blocked()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.health.given_up.load(Ordering::Relaxed)
    }

    /// Makes everything that uses this connection stop using it.
    pub(crate) fn give_up(&self) {
        self.health.given_up.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.health.silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.health.silent.store(silent, Ordering::Relaxed);
    }

    /// Begins a request. If it is dropped without an answer too often, the connection is given up.
    pub(crate) fn begin_request(&self) -> PendingRequest<'_, 'c> {
        PendingRequest {
            connection: self,
            is_answered: false,
        }
    }
}

impl Deref for TrackedConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.connection {
            ConnectionOrigin::Application(connection) => connection,
            ConnectionOrigin::Reconnect(connection) => connection,
        }
    }
}

/// A request that has no answer yet. Dropped without one, it counts as unanswered.
pub(crate) struct PendingRequest<'a, 'c> {
    connection: &'a TrackedConnection<'c>,
    is_answered: bool,
}

impl PendingRequest<'_, '_> {
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for PendingRequest<'_, '_> {
    fn drop(&mut self) {
        let unanswered = &self.connection.health.unanswered;
        if self.is_answered {
            unanswered.store(0, Ordering::Relaxed);
        } else if !self.connection.is_blocked()
            && unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= MOST_UNANSWERED
        {
            self.connection.give_up();
        }
    }
}

/// The error for a connection that lapin has not restored for a quarter of an hour.
pub(crate) fn not_restored_error() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ has not come back for 15 minutes, and the client may have \
         given up: give the consumer `.reconnect(..)`, or start the process again",
    )
}

/// The error for a connection that answers no request.
pub(crate) fn not_answering_error() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ answers nothing: the tokio runtime on which it was made has \
         ended or stands still, or the broker does. Give the consumer `.reconnect(..)`, or connect \
         again and start another consumer",
    )
}
