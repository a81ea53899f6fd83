//! The background tasks of a link: they replace a lost session, watch the server's clock, and
//! listen to the Sentinels.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use idem_core::adapter::catch_user_panic;
use idem_core::{StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::{Inner, LinkState, Peer, SILENCE};
use crate::connection::sentinel::{self, Statement};
use crate::connection::session::Session;
use crate::connection::subscriptions::Subscriptions;

/// The first pause between two attempts to connect. Each pause is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A server that is back is found within this time.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The pause if an operator must fix something first.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// The time between two looks at the server's clock. It costs nothing, and a clock that is set by
/// more than half a second is noticed.
const CLOCK_INTERVAL: Duration = Duration::from_secs(5);

/// The tasks that run for as long as the link exists.
#[derive(Default)]
pub(super) struct BackgroundTasks {
    /// The number of the runtime in which they run.
    runtime: Option<u64>,
    /// The clock's task, and under Sentinel the one that listens for failovers.
    tasks: Vec<AbortHandle>,
}

/// Why an attempt failed.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// An operator must fix something first, so calls do not wait for the next attempt.
    pub(super) is_refusal: bool,
}

impl Inner {
    /// Uses a new session from now on. Returns `false` if it is lost already, or if another master
    /// was announced meanwhile.
    pub(super) fn publish(&self, session: Session) -> bool {
        let mut state = self.lock();
        // Both are checked under the lock: a loss or an announcement after this finds the session.
        let is_current_master = self.announced_master().is_none_or(|announced_master| {
            session.address.as_ref() == Some(&announced_master.address)
        });
        let is_usable = is_current_master && !session.subscriptions.is_closed();
        if is_usable {
            self.was_up.store(true, Ordering::Relaxed);
            *state = LinkState::Up(session);
        }
        is_usable
    }

    /// Wakes the waiters of a lost session, and replaces it unless another caller did.
    pub(super) fn lost(self: &Arc<Self>, subscriptions: &Arc<Subscriptions>, pause: Duration) {
        subscriptions.close();
        let mut state = self.lock();
        if matches!(&*state, LinkState::Up(session) if Arc::ptr_eq(&session.subscriptions, subscriptions))
        {
            let down = LinkState::Down(self.replace(pause));
            let old = std::mem::replace(&mut *state, down);
            drop(state);
            drop(old);
            catch_user_panic(|| {
                tracing::warn!(target: "idem", server = %self.server, "the connection to Redis is lost; connecting again");
            });
        }
    }

    pub(super) fn replace(self: &Arc<Self>, pause: Duration) -> watch::Receiver<Option<Failure>> {
        let (progress, receiver) = watch::channel(None);
        self.options
            .runtime
            .spawn(replace(Arc::downgrade(self), progress, pause));
        self.start_tasks();
        receiver
    }

    /// Starts the replacement again in another runtime, if its task is stuck in the old one.
    pub(super) fn restart_replacement(self: &Arc<Self>) {
        let mut state = self.lock();
        if matches!(&*state, LinkState::Down(_)) {
            *state = LinkState::Down(self.replace(Duration::ZERO));
        }
    }

    /// Starts the background tasks in the runtime of the connections, unless they run there
    /// already.
    pub(super) fn start_tasks(self: &Arc<Self>) {
        let runtime = self.options.runtime.runtime();
        let mut background_tasks = self
            .background_tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if background_tasks.runtime.replace(runtime.number()) == Some(runtime.number()) {
            return;
        }
        background_tasks.stop();
        background_tasks.tasks.push(
            runtime
                .spawn(watch_clock(Arc::downgrade(self)))
                .abort_handle(),
        );
        if let Peer::Master(watched) = &self.peer {
            let inner = Arc::downgrade(self);
            let report = move |statement: Statement| {
                if let Some(inner) = inner.upgrade() {
                    inner.handle_statement(statement);
                }
            };
            background_tasks.tasks.push(
                runtime
                    .spawn(sentinel::listen(Arc::clone(watched), report))
                    .abort_handle(),
            );
        }
    }

    /// Returns the failure of an attempt, as calls see it.
    pub(super) fn failure(&self, error: StoreError) -> Failure {
        let is_refusal = error.kind() == StoreErrorKind::Refused;
        if !is_refusal || !self.was_up.load(Ordering::Relaxed) {
            return Failure { error, is_refusal };
        }
        // The settings were right before, so this may pass: a password is being changed, or a new
        // master is not set up yet.
        let text =
            format!("{error} (it accepted this connection's settings before; connecting again)");
        Failure {
            error: StoreError::new(StoreErrorKind::Unavailable, text)
                .with_source(error)
                .unsent(),
            is_refusal,
        }
    }
}

impl BackgroundTasks {
    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Looks at the server's clock every few seconds.
async fn watch_clock(inner: Weak<Inner>) {
    loop {
        sleep(CLOCK_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let connection = match &*inner.lock() {
            LinkState::Up(session) => session.connection.clone(),
            LinkState::Down(_) => continue,
        };
        let _ = timeout(SILENCE, inner.look_at_clock(connection)).await;
    }
}

/// Connects, until that succeeds or the link is dropped.
async fn replace(
    inner: Weak<Inner>,
    progress: watch::Sender<Option<Failure>>,
    mut pause: Duration,
) {
    let mut next = FIRST_PAUSE;
    let mut warned = false;
    let Some(mut wrong_master) = inner.upgrade().map(|inner| inner.wrong_master.subscribe()) else {
        return;
    };
    loop {
        sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        wrong_master.mark_unchanged();
        // An attempt at a dead server takes the whole limit. It is given up as soon as another
        // server is announced as the master.
        let opened = tokio::select! {
            biased;
            _ = wrong_master.changed() => {
                pause = Duration::ZERO;
                continue;
            }
            opened = inner.open() => opened,
        };
        match opened {
            Ok(session) => {
                if inner.publish(session) {
                    catch_user_panic(|| {
                        tracing::info!(target: "idem", server = %inner.server, "connected to Redis");
                    });
                    return;
                }
                pause = LONGEST_PAUSE;
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    catch_user_panic(|| {
                        tracing::warn!(target: "idem", %error, "the connection to Redis cannot \
                            be replaced yet; trying again");
                    });
                }
                let failure = inner.failure(error);
                let is_refusal = failure.is_refusal;
                progress.send_replace(Some(failure));
                // Half of the pause is random: otherwise all processes that lost a server would
                // return at the same moment.
                pause = if is_refusal {
                    REFUSED_PAUSE
                } else {
                    next.mul_f64(0.5 + fastrand::f64() / 2.0)
                };
                next = (next * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
