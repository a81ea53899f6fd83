//! The fast path of a step that one command completes: nearly every claim and commit.
//!
//! [`StepConnection`] handles the rest: slots that move, servers that are not ready, unknown
//! scripts, and replicas. An owner may repeat its step, so there the step starts over.
//!
//! [`StepConnection`]: crate::connection::step_connection::StepConnection

use futures_util::future::FutureExt as _;
use redis::{Cmd, RedisError, RedisResult, Value};

use crate::connection::link::Link;
use crate::connection::session::Session;

/// A session that is ready.
pub(crate) struct FastPath {
    link: Link,
    session: Session,
}

impl FastPath {
    pub(crate) fn new(link: Link, session: Session) -> Self {
        Self { link, session }
    }

    pub(crate) fn server(&self) -> &str {
        self.link.server()
    }

    /// Returns whether the server has `SET .. IFEQ`, as far as is known.
    pub(crate) fn has_ifeq(&self) -> bool {
        self.session.has_ifeq()
    }

    /// Takes note of an error of `SET .. IFEQ`. A server that does not know it, or does not let
    /// this user send it, is not asked again. A lack of memory passes, and so does loading.
    pub(crate) fn note_ifeq_refusal(&self, error: &RedisError) {
        if matches!(error.code(), Some("ERR" | "NOPERM")) {
            self.session.disable_ifeq();
        }
    }

    /// Sends one command, once.
    pub(crate) fn send(&self, command: Cmd) -> impl Future<Output = RedisResult<Value>> {
        let Self { link, session } = self;
        let sending = session.batches.send(&session.connection, command);
        sending.map(|outcome| outcome.inspect_err(|error| link.handle_error(session, error)))
    }
}

/// Returns whether the server refused a command unexecuted: then the step can start over.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    error.code().is_some()
}
