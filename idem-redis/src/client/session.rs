//! One connection, from its making to its loss.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;

use crate::client::batch::Batches;
use crate::client::home::Pulse;
use crate::client::replicas::Acknowledgements;
use crate::client::target::Address;
use crate::client::wake::Hub;

/// One connection, from its making to its loss. Cheap to clone: every step has one.
#[derive(Clone)]
pub(crate) struct Session(pub(crate) Arc<Connected>);

/// The state of one connection.
pub(crate) struct Connected {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) hub: Arc<Hub>,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    pub(crate) batches: Batches,
    /// Whether the server has `SET .. IFEQ`: as it said when the connection was made, until it
    /// refuses it.
    pub(crate) compares: AtomicBool,
    /// The server's address, if Sentinels or the nodes of a cluster named it.
    pub(crate) address: Option<Address>,
    /// Of the tokio runtime that drives the connection.
    pub(crate) pulse: Pulse,
}

impl Deref for Session {
    type Target = Connected;

    fn deref(&self) -> &Connected {
        &self.0
    }
}

impl Connected {
    /// The host that was connected to, where the server was looked up.
    pub(crate) fn host(&self) -> Option<&str> {
        self.address.as_ref().map(|(host, _)| host.as_str())
    }

    /// Whether the tokio runtime that drove the connection has ended: what is sent would not
    /// arrive.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.pulse.has_stopped()
    }

    /// Whether the server writes over a value that is given with the command: `SET .. IFEQ`.
    pub(crate) fn compares(&self) -> bool {
        self.compares.load(Ordering::Relaxed)
    }

    /// The server has refused to, whatever it says of itself, and is not asked again on this
    /// connection.
    pub(crate) fn compares_not(&self) {
        self.compares.store(false, Ordering::Relaxed);
    }
}
