//! The link to a server: a session, and the task that replaces it when it is lost.
//!
//! redis-rs has a `ConnectionManager` (1.8), which the store cannot use for four reasons:
//!
//! - If a reconnect fails for a reason other than I/O, such as a password change, it returns that
//!   error to every later call.
//! - After an attempt that was given up, the next call gets the old failure.
//! - It never replaces a connection that is dead without notice.
//! - It cannot look up the server's address again.
//!
//! A link tries in the background until it has a session. Calls wait for it within their limit.

mod master_hint;
mod opening;
mod upkeep;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::clock::ServerClock;
use redis::{Client, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use self::master_hint::MasterHint;
use self::upkeep::{BackgroundTasks, Failure, LONGEST_PAUSE};
use crate::connection::clock;
use crate::connection::dial::client;
use crate::connection::handshake::Handshake;
use crate::connection::location::Watched;
use crate::connection::runtime::ConnectionRuntime;
use crate::connection::session::Session;
use crate::connection::target::{Address, Target};

/// A session on which a call timed out must answer within this time, or it is replaced: a cut cable
/// gives no notice. It is longer than a call's time limit, so that a slow server does not get more
/// connections on top.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// A session with one server, replaced when it is lost. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    peer: Peer,
    server: Arc<str>,
    options: LinkOptions,
    state: Mutex<LinkState>,
    /// Whether there was a session before, so that the settings were right.
    was_up: AtomicBool,
    background_tasks: Mutex<BackgroundTasks>,
    master_hint: Mutex<MasterHint>,
    /// Signals that an attempt to connect goes to a former master.
    wrong_master: watch::Sender<()>,
    /// What is known of the clock of the server in use. The clock of another server, after a
    /// failover, looks like this clock after it was set.
    clock: ServerClock,
    probe: Mutex<Option<Probe>>,
}

/// A question to the server, asked to find out whether the session still works.
struct Probe {
    task: AbortHandle,
    since: Instant,
}

/// The state that all links of a store share.
#[derive(Clone)]
pub(crate) struct LinkOptions {
    pub(crate) connect_limit: Duration,
    pub(crate) handshake: Handshake,
    pub(crate) runtime: ConnectionRuntime,
}

/// The server that a link goes to.
enum Peer {
    Server(Client),
    Node(Client, Address),
    /// Looked up at each attempt.
    Master(Arc<Watched>),
}

enum LinkState {
    Up(Session),
    /// A task makes a new session. The channel holds the failure of its last attempt, and is closed
    /// when the task ends.
    Down(watch::Receiver<Option<Failure>>),
}

impl Link {
    /// Connects to a server. One attempt, for at most the limit.
    pub(crate) async fn connect(target: Target, options: LinkOptions) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Peer::Server(client(target)?), name, options);
        link.open_first().await
    }

    /// Connects to the master that Sentinels name. One attempt, for at most the limit.
    pub(crate) async fn to_master(
        watched: Watched,
        options: LinkOptions,
    ) -> Result<Self, StoreError> {
        let name = watched.name.clone();
        Self::new(Peer::Master(Arc::new(watched)), name, options)
            .open_first()
            .await
    }

    /// Connects to a cluster's node in the background, for as long as it takes.
    pub(crate) fn start(
        target: Target,
        node: Address,
        options: LinkOptions,
    ) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Peer::Node(client(target)?, node), name, options);
        let progress = link.0.replace(Duration::ZERO);
        *link.0.lock() = LinkState::Down(progress);
        Ok(link)
    }

    fn new(peer: Peer, server: Arc<str>, options: LinkOptions) -> Self {
        Self(Arc::new(Inner {
            peer,
            server,
            options,
            state: Mutex::new(LinkState::Down(watch::channel(None).1)),
            was_up: AtomicBool::new(false),
            background_tasks: Mutex::default(),
            master_hint: Mutex::default(),
            wrong_master: watch::Sender::default(),
            clock: ServerClock::default(),
            probe: Mutex::default(),
        }))
    }

    /// Returns what is known of the server's clock.
    pub(crate) fn clock(&self) -> &ServerClock {
        &self.0.clock
    }

    /// Looks at the server's clock. The caller sets a limit around it.
    pub(crate) async fn look_at_clock(&self, session: &Session) -> RedisResult<()> {
        self.0.look_at_clock(session.connection.clone()).await
    }

    async fn open_first(self) -> Result<Self, StoreError> {
        let session = self.0.open().await?;
        // If it is lost already, the first call replaces it.
        self.0.publish(session);
        self.0.start_tasks();
        Ok(self)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.0.lock(), LinkState::Up(_))
    }

    pub(crate) fn server(&self) -> &str {
        &self.0.server
    }

    /// Waits for a session for as long as it takes, unless the server refuses the settings.
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        loop {
            if let Some(session) = self.ready() {
                return Ok(session);
            }
            let mut progress = match &mut *self.0.lock() {
                LinkState::Up(_) => continue,
                // The task ended without a session, because its runtime ended: start another.
                LinkState::Down(progress) if progress.has_changed().is_err() => {
                    *progress = self.0.replace(Duration::ZERO);
                    progress.clone()
                }
                LinkState::Down(progress) => progress.clone(),
            };
            if let Some(Failure {
                error,
                is_refusal: true,
            }) = &*progress.borrow_and_update()
            {
                return Err(error.clone());
            }
            let _ = progress.changed().await;
        }
    }

    /// Returns the session, if there is one.
    pub(crate) fn ready(&self) -> Option<Session> {
        let orphaned = match &*self.0.lock() {
            LinkState::Up(session) if session.is_orphaned() => Arc::clone(&session.subscriptions),
            LinkState::Up(session) => return Some(session.clone()),
            LinkState::Down(_) => return None,
        };
        self.0.lost(&orphaned, Duration::ZERO);
        None
    }

    /// Returns why there is no session, if an attempt has failed.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match &*self.0.lock() {
            LinkState::Up(_) => None,
            LinkState::Down(progress) => progress
                .borrow()
                .as_ref()
                .map(|failure| failure.error.clone()),
        }
    }

    /// Replaces the session, if an error says that it is of no use any more.
    pub(crate) fn handle_error(&self, session: &Session, error: &RedisError) {
        if error.is_unrecoverable_error() {
            self.0.lost(&session.subscriptions, Duration::ZERO);
        } else if error.kind() == ServerErrorKind::ReadOnly.into() {
            // A failover made the server a replica. The address may lead to the new master soon.
            self.0.lost(&session.subscriptions, LONGEST_PAUSE);
        }
    }

    /// Asks the server whether the session, on which a call timed out, still works, and replaces it
    /// if not. Also checks that the runtime in which connections live runs anything.
    pub(crate) fn probe(&self) {
        let session = self.ready();
        let mut probe = self.0.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        // The probe runs in the runtime of a caller, which may have ended or be blocked.
        let is_running = |Probe { task, since }: &Probe| {
            !task.is_finished() && now.saturating_duration_since(*since) < SILENCE + SILENCE / 2
        };
        if probe.as_ref().is_some_and(is_running) {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        let runtime = self.0.options.runtime.clone();
        let task = tokio::spawn(async move {
            let is_silent = async {
                let Some(session) = &session else {
                    return false;
                };
                let mut connection = session.connection.clone();
                // An error is an answer too.
                timeout(
                    SILENCE,
                    redis::cmd("PING").query_async::<Value>(&mut connection),
                )
                .await
                .is_err()
            };
            let (is_silent, is_stuck) = tokio::join!(is_silent, runtime.leave_if_stuck(SILENCE));
            let Some(inner) = inner.upgrade() else { return };
            match session {
                Some(session) if is_silent || is_stuck => {
                    inner.lost(&session.subscriptions, Duration::ZERO);
                }
                None if is_stuck => inner.restart_replacement(),
                _ => {}
            }
        });
        *probe = Some(Probe {
            task: task.abort_handle(),
            since: now,
        });
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, LinkState> {
        // Nothing that could panic half-way runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
