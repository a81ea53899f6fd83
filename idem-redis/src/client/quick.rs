//! The way of a step that one command does: nearly every claim and commit.
//!
//! Unusual cases are left to the [`Lane`](crate::client::lane::Lane): slots that move, servers that are not
//! ready, unknown scripts, and replicas. The same owner may send a step again, so it starts over
//! there.

use futures_util::future::FutureExt as _;
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::client::link::Link;
use crate::client::session::Session;

/// A connection that is there.
pub(crate) struct Quick {
    link: Link,
    session: Session,
}

impl Quick {
    pub(crate) fn new(link: Link, session: Session) -> Self {
        Self { link, session }
    }

    pub(crate) fn server(&self) -> &str {
        self.link.server()
    }

    /// Whether the server has `SET .. IFEQ`, as far as is known.
    pub(crate) fn compares(&self) -> bool {
        self.session.compares()
    }

    /// Takes note of why the server refused a `SET .. IFEQ`: what it does not know, or does not let
    /// this user do, it refuses each time. Not so for the lack of memory, or while it loads.
    pub(crate) fn refused_to_compare(&self, error: &RedisError) {
        if matches!(error.code(), Some("ERR" | "NOPERM")) {
            self.session.compares_not();
        }
    }

    /// Sends one command, once.
    pub(crate) fn send(&self, command: Cmd) -> impl Future<Output = RedisResult<Value>> {
        let Self { link, session } = self;
        let sending = session.batches.send(&session.connection, command);
        sending.map(|outcome| outcome.inspect_err(|error| link.judge(session, error)))
    }
}

/// Returns whether the server refused a command unexecuted: then the step can start over.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    error.code().is_some()
}
