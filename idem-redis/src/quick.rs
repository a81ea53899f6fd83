//! The way of a step that one command does: nearly every claim and commit.
//!
//! Whatever does not go as usual is left to the [`Lane`](crate::lane::Lane), which knows about slots that move, servers that are
//! not ready, scripts that are not known, and replicas. A step may be sent again by the same owner, so it begins anew there.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::link::{Link, Session};

/// A connection that is there.
pub(crate) struct Quick {
    link: Link,
    session: Session,
    connection: MultiplexedConnection,
}

impl Quick {
    pub(crate) fn new(link: Link, session: Session) -> Self {
        let connection = session.connection.clone();
        Self { link, session, connection }
    }

    pub(crate) fn server(&self) -> &str {
        self.link.server()
    }

    /// Whether the server has `SET .. IFEQ`, as far as is known.
    pub(crate) fn compares(&self) -> bool {
        self.session.compares()
    }

    /// Takes note of why the server refused a `SET .. IFEQ`: what it does not know, or does not let this user do, it refuses each time. Not so
    /// for the lack of memory, or while it loads.
    pub(crate) fn refused_to_compare(&self, error: &RedisError) {
        if matches!(error.code(), Some("ERR" | "NOPERM")) {
            self.session.compares_not();
        }
    }

    /// Sends one command, once.
    pub(crate) async fn send(&mut self, command: Cmd) -> RedisResult<Value> {
        let outcome = self.session.batches.send(&mut self.connection, command).await;
        outcome.inspect_err(|error| self.link.judge(&self.session, error))
    }
}

/// Whether the server has said that it did not carry a command out: then the step can begin anew.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    error.code().is_some()
}
