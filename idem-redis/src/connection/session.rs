//! A session: one connection, from its making to its loss.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;

use crate::connection::batch::Batches;
use crate::connection::replicas::Acknowledgements;
use crate::connection::runtime::RuntimeAlive;
use crate::connection::subscriptions::Subscriptions;
use crate::connection::target::Address;

/// One connection, from its making to its loss. Cheap to clone: every step holds a clone.
#[derive(Clone)]
pub(crate) struct Session(pub(crate) Arc<Connected>);

/// The state of a session.
pub(crate) struct Connected {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    pub(crate) batches: Batches,
    /// Whether the server has `SET .. IFEQ`, by its version, until it refuses that command.
    pub(crate) has_ifeq: AtomicBool,
    /// The server's address, if Sentinels or the nodes of a cluster named it.
    pub(crate) address: Option<Address>,
    /// Whether the tokio runtime that drives the connection still exists.
    pub(crate) alive: RuntimeAlive,
}

impl Deref for Session {
    type Target = Connected;

    fn deref(&self) -> &Connected {
        &self.0
    }
}

impl Connected {
    /// Returns the host, if Sentinels or the nodes of a cluster named it.
    pub(crate) fn host(&self) -> Option<&str> {
        self.address.as_ref().map(|(host, _)| host.as_str())
    }

    /// Returns whether the tokio runtime that drove the connection has ended. Then a command would
    /// never be sent.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.alive.has_ended()
    }

    /// Returns whether the server has `SET .. IFEQ`, as far as is known.
    pub(crate) fn has_ifeq(&self) -> bool {
        self.has_ifeq.load(Ordering::Relaxed)
    }

    /// Takes note that the server refused `SET .. IFEQ`, whatever its version says.
    pub(crate) fn disable_ifeq(&self) {
        self.has_ifeq.store(false, Ordering::Relaxed);
    }
}
