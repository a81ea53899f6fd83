//! The waiters for records in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use idem_core::store::record::RecordId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The calls of this process that wait at one store, by the record's id.
#[derive(Default)]
pub(crate) struct LocalWaiters(Mutex<HashMap<Arc<str>, Weak<Notify>>>);

/// A call's place among them.
pub(crate) struct LocalWaiter {
    waiters: Arc<LocalWaiters>,
    id: Arc<str>,
    /// `None` only while it is dropped.
    bell: Option<Arc<Notify>>,
}

impl LocalWaiters {
    /// Joins the waiters for a record.
    pub(crate) fn join(self: &Arc<Self>, id: &RecordId) -> LocalWaiter {
        let mut places = self.lock();
        let taken = places.get_key_value(id.as_str()).and_then(|(id, bell)| Some((id.clone(), bell.upgrade()?)));
        let (id, bell) = taken.unwrap_or_else(|| {
            let (id, bell) = (Arc::<str>::from(id.as_str()), Arc::new(Notify::new()));
            places.insert(id.clone(), Arc::downgrade(&bell));
            (id, bell)
        });
        LocalWaiter { waiters: self.clone(), id, bell: Some(bell) }
    }

    /// Wakes the waiters for a record.
    pub(crate) fn wake(&self, id: &str) {
        let bell = self.lock().get(id).and_then(Weak::upgrade);
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    /// Wakes everybody: messages may have been lost.
    #[cfg(feature = "postgres")]
    pub(crate) fn wake_all(&self) {
        let bells: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        for bell in bells {
            bell.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Weak<Notify>>> {
        // Nothing that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalWaiter {
    /// Waits for the next wake-up. Enable it before looking at the record, and none is lost.
    pub(crate) fn woken(&self) -> Option<Notified<'_>> {
        self.bell.as_deref().map(Notify::notified)
    }
}

impl Drop for LocalWaiter {
    fn drop(&mut self) {
        // Left under the lock, under which alone places are handed out.
        let mut places = self.waiters.lock();
        self.bell = None;
        if places.get(&self.id).is_some_and(|bell| bell.strong_count() == 0) {
            places.remove(&self.id);
        }
    }
}
