//! The tasks of a store that no caller waits for. They end with the store.

use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::super::dialect::MessageTask;

#[derive(Default)]
pub(crate) struct BackgroundTasks {
    /// `None` inside: this database sends no messages.
    messages: OnceLock<Option<MessageTask>>,
    sweeper: Mutex<Option<AbortHandle>>,
}

impl BackgroundTasks {
    /// Starts the task that receives messages, unless it was started before. Returns whether it is
    /// connected now.
    pub(crate) fn messages(
        &self,
        start: impl FnOnce() -> Option<MessageTask>,
    ) -> Option<&watch::Receiver<bool>> {
        self.messages
            .get_or_init(start)
            .as_ref()
            .map(|messages| &messages.is_connected)
    }

    /// Has messages arrive on another connection.
    pub(crate) fn reconnect_messages(&self) {
        if let Some(Some(messages)) = self.messages.get() {
            messages.reconnect.notify_one();
        }
    }

    /// Starts the task that deletes expired rows, unless it was started before.
    pub(crate) fn keep_swept(&self, start: impl FnOnce() -> AbortHandle) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        sweeper.get_or_insert_with(start);
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        if let Some(messages) = self.messages.take().flatten() {
            messages.task.abort();
        }
        let sweeper = self
            .sweeper
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(sweeper) = sweeper.take() {
            sweeper.abort();
        }
    }
}
