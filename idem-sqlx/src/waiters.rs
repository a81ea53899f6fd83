//! The waiters for records in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use idem_core::store::record::RecordId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The calls of this process that wait for records of one store, by the record's id.
#[derive(Default)]
pub(crate) struct LocalWaiters(Mutex<HashMap<Arc<str>, Weak<Notify>>>);

/// A call that waits for a record.
pub(crate) struct LocalWaiter {
    waiters: Arc<LocalWaiters>,
    id: Arc<str>,
    /// `None` only while it is dropped.
    notify: Option<Arc<Notify>>,
}

impl LocalWaiters {
    /// Joins the waiters for a record.
    pub(crate) fn join(self: &Arc<Self>, id: &RecordId) -> LocalWaiter {
        let mut waiters = self.lock();
        let taken = waiters
            .get_key_value(id.as_str())
            .and_then(|(id, notify)| Some((id.clone(), notify.upgrade()?)));
        let (id, notify) = taken.unwrap_or_else(|| {
            let id = Arc::<str>::from(id.as_str());
            let notify = Arc::new(Notify::new());
            waiters.insert(id.clone(), Arc::downgrade(&notify));
            (id, notify)
        });
        LocalWaiter {
            waiters: self.clone(),
            id,
            notify: Some(notify),
        }
    }

    /// Wakes the waiters for a record.
    pub(crate) fn wake(&self, id: &str) {
        let notify = self.lock().get(id).and_then(Weak::upgrade);
        if let Some(notify) = notify {
            notify.notify_waiters();
        }
    }

    /// Wakes all waiters, because messages may have been lost.
    #[cfg(feature = "postgres")]
    pub(crate) fn wake_all(&self) {
        let notifies: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        for notify in notifies {
            notify.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Weak<Notify>>> {
        // Nothing that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalWaiter {
    /// Waits for the next wake-up. Enable it before reading the record, so that none is lost.
    pub(crate) fn woken(&self) -> Option<Notified<'_>> {
        self.notify.as_deref().map(Notify::notified)
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        // Under the lock, so that no call joins between the check and the removal.
        let mut waiters = self.waiters.lock();
        self.notify = None;
        if waiters
            .get(&self.id)
            .is_some_and(|notify| notify.strong_count() == 0)
        {
            waiters.remove(&self.id);
        }
    }
}
