//! Replaces a connection that is lost, and runs the tasks of a link.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use idem_core::__private::outward;
use idem_core::{StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::{Inner, LinkState, Peer, SILENCE};
use crate::client::sentinel::{self, Statement};
use crate::client::session::Session;
use crate::client::wake::Hub;

/// Between two attempts to reconnect: doubles from the first to the second. A server that is back
/// is found within the second.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The same if an operator must fix something first.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// Between two looks at the server's clock: seldom enough to cost nothing, and often enough that a
/// clock which is set by more than half a second is noticed.
const CLOCK: Duration = Duration::from_secs(5);

/// The tasks that run while the link is held.
#[derive(Default)]
pub(super) struct Chores {
    /// The number of the runtime in which they run.
    runtime: Option<u64>,
    /// One looks at the server's clock, the other hears of failovers.
    tasks: Vec<AbortHandle>,
}

/// Why an attempt failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// A person may have to do something first, so calls do not wait for the next attempt.
    pub(super) is_refusal: bool,
}

impl Inner {
    /// Puts a new connection to use; `false` if it is lost already, or goes to a former master.
    pub(super) fn publish(&self, session: Session) -> bool {
        let mut state = self.lock();
        // From here on, a loss of the connection and news of a failover wait for the lock, and find
        // the session.
        let is_right = self.news().is_none_or(|news| session.address.as_ref() == Some(&news.address));
        let alive = is_right && !session.hub.is_closed();
        if alive {
            self.was_up.store(true, Ordering::Relaxed);
            *state = LinkState::Up(session);
        }
        alive
    }

    /// Wakes the waiters of a connection, and replaces it if that has not been done.
    pub(super) fn lost(self: &Arc<Self>, hub: &Arc<Hub>, pause: Duration) {
        hub.close();
        let mut state = self.lock();
        if matches!(&*state, LinkState::Up(session) if Arc::ptr_eq(&session.hub, hub)) {
            let down = LinkState::Down(self.replace(pause));
            let old = std::mem::replace(&mut *state, down);
            drop(state);
            drop(old);
            outward(
                || tracing::warn!(target: "idem", server = %self.server, "the connection to Redis is lost; connecting again"),
            );
        }
    }

    pub(super) fn replace(self: &Arc<Self>, pause: Duration) -> watch::Receiver<Option<Failure>> {
        let (progress, receiver) = watch::channel(None);
        self.home.spawn(replace(Arc::downgrade(self), progress, pause));
        self.tend();
        receiver
    }

    /// Begins again to make a connection, where the task that did has no runtime to run in.
    pub(super) fn replace_elsewhere(self: &Arc<Self>) {
        let mut state = self.lock();
        if matches!(&*state, LinkState::Down(_)) {
            *state = LinkState::Down(self.replace(Duration::ZERO));
        }
    }

    /// Has the tasks that go on run where the connections live.
    pub(super) fn tend(self: &Arc<Self>) {
        let runtime = self.home.runtime();
        let mut chores = self.chores.lock().unwrap_or_else(PoisonError::into_inner);
        if chores.runtime.replace(runtime.number()) == Some(runtime.number()) {
            return;
        }
        chores.stop();
        chores.tasks.push(runtime.spawn(watch_clock(Arc::downgrade(self))).abort_handle());
        if let Peer::Master(watched) = &self.peer {
            let inner = Arc::downgrade(self);
            let said = move |statement: Statement| {
                if let Some(inner) = inner.upgrade() {
                    inner.hear(statement);
                }
            };
            chores.tasks.push(runtime.spawn(sentinel::listen(Arc::clone(watched), said)).abort_handle());
        }
    }

    /// Returns an attempt's failure, for the calls.
    pub(super) fn failure(&self, error: StoreError) -> Failure {
        let is_refusal = error.kind() == StoreErrorKind::Refused;
        if !is_refusal || !self.was_up.load(Ordering::Relaxed) {
            return Failure { error, is_refusal };
        }
        // It took us before: a password that is being changed, a master that is not set up yet.
        let text = format!("{error} (it accepted this connection's settings before; connecting again)");
        Failure { error: StoreError::new(StoreErrorKind::Unavailable, text).with_source(error).unsent(), is_refusal }
    }
}

impl Chores {
    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Looks at the server's clock regularly, while the link is held.
async fn watch_clock(inner: Weak<Inner>) {
    loop {
        sleep(CLOCK).await;
        let Some(inner) = inner.upgrade() else { return };
        let connection = match &*inner.lock() {
            LinkState::Up(session) => session.connection.clone(),
            LinkState::Down(_) => continue,
        };
        let _ = timeout(SILENCE, inner.look_at_clock(connection)).await;
    }
}

/// Tries to connect until it succeeds or the link is dropped.
async fn replace(inner: Weak<Inner>, progress: watch::Sender<Option<Failure>>, mut pause: Duration) {
    let mut next = PAUSE.0;
    let mut warned = false;
    let Some(mut astray) = inner.upgrade().map(|inner| inner.astray.subscribe()) else { return };
    loop {
        sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        astray.mark_unchanged();
        // An attempt at a server that is dead or cut off takes as long as it may, while another is
        // the master by now.
        let opened = tokio::select! {
            biased;
            _ = astray.changed() => {
                pause = Duration::ZERO;
                continue;
            }
            opened = inner.open() => opened,
        };
        match opened {
            Ok(session) => {
                if inner.publish(session) {
                    outward(|| tracing::info!(target: "idem", server = %inner.server, "connected to Redis"));
                    return;
                }
                pause = PAUSE.1;
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    outward(
                        || tracing::warn!(target: "idem", %error, "the connection to Redis cannot be replaced yet; trying again"),
                    );
                }
                let failure = inner.failure(error);
                let is_refusal = failure.is_refusal;
                progress.send_replace(Some(failure));
                // Half of it by chance, or all processes that lost a server would come back to it
                // at once.
                pause = if is_refusal { REFUSED_PAUSE } else { next.mul_f64(0.5 + fastrand::f64() / 2.0) };
                next = (next * 2).min(PAUSE.1);
            }
        }
    }
}
