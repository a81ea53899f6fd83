//! A connection, whoever made it, and whether its client still answers.
//!
//! lapin works on the tokio runtime on which it was connected. If that runtime has ended, or nothing
//! drives it, the status of the connection remains "connected", and no request is answered. So
//! requests without an answer are noted here.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use idem_queue::Error;
use lapin::Connection;

/// How many attempts in a row to open a channel may be given up without an answer. A consumer gives
/// one up after five seconds.
const UNANSWERED: u32 = 4;

/// The application's connection, or one that its `reconnect` has made.
#[derive(Debug, Clone)]
pub(crate) struct Line<'c> {
    connection: Origin<'c>,
    pulse: Arc<Health>,
}

#[derive(Debug, Clone)]
enum Origin<'c> {
    Given(&'c Connection),
    Own(Arc<Connection>),
}

#[derive(Debug, Default)]
struct Health {
    /// The last publication, or the last channel for one, got no answer in time.
    silent: AtomicBool,
    unanswered: AtomicU32,
    given_up: AtomicBool,
}

impl<'c> Line<'c> {
    pub(crate) fn given(connection: &'c Connection) -> Self {
        Self { connection: Origin::Given(connection), pulse: Arc::default() }
    }

    pub(crate) fn own(connection: Connection) -> Self {
        Self { connection: Origin::Own(Arc::new(connection)), pulse: Arc::default() }
    }

    /// Whether it can be used.
    pub(crate) fn is_there(&self) -> bool {
        self.status().connected() && !self.is_given_up()
    }

    /// Whether it ended, and does not recover.
    pub(crate) fn is_gone(&self) -> bool {
        self.status().closed() || self.status().errored()
    }

    /// Whether the broker has asked the client to send nothing, because its memory or its disk is
    /// full. lapin then sends nothing at all, so silence means nothing.
    pub(crate) fn is_blocked(&self) -> bool {
        self.status().blocked()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.pulse.given_up.load(Ordering::Relaxed)
    }

    /// Has everything that uses this connection leave it.
    pub(crate) fn give_up(&self) {
        self.pulse.given_up.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.pulse.silent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.pulse.silent.store(silent, Ordering::Relaxed);
    }

    /// Begins a request. If it is dropped without an answer too often, the connection is given up.
    pub(crate) fn ask(&self) -> Unanswered<'_, 'c> {
        Unanswered { line: self, is_answered: false }
    }
}

impl Deref for Line<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.connection {
            Origin::Given(connection) => connection,
            Origin::Own(connection) => connection,
        }
    }
}

/// A request that has no answer yet.
pub(crate) struct Unanswered<'a, 'c> {
    line: &'a Line<'c>,
    is_answered: bool,
}

impl Unanswered<'_, '_> {
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Unanswered<'_, '_> {
    fn drop(&mut self) {
        let unanswered = &self.line.pulse.unanswered;
        if self.is_answered {
            unanswered.store(0, Ordering::Relaxed);
        } else if !self.line.is_blocked() && unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED {
            self.line.give_up();
        }
    }
}

/// The error about a connection that its client has not restored for a quarter of an hour.
pub(crate) fn not_coming_back() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ has not come back for 15 minutes, and the client may have given up: give the consumer `.reconnect(..)`, or start the process again",
    )
}

/// The error about a connection on which nothing is answered.
pub(crate) fn not_answering() -> Error {
    Error::disconnected(
        "the connection to RabbitMQ answers nothing: the tokio runtime on which it was made has ended or stands still, or the broker does. Give the consumer `.reconnect(..)`, or connect again and start another consumer",
    )
}
