//! The store's own connection to a server, and how it is replaced when it is lost.
//!
//! This is not redis-rs's `ConnectionManager` (1.8), for four reasons. If a reconnect fails for a
//! reason other than I/O (such as a password change), it returns that error to every later call.
//! After an attempt that was given up, the next call gets the stale failure. It never replaces a
//! silently dead connection. It has no way to look up the server's address again. Here, a lost
//! connection is replaced in the background until one succeeds, and calls wait for it as long as
//! their time limit allows.

mod heard;
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

use self::heard::Heard;
use self::upkeep::{Chores, Failure, PAUSE};
use crate::client::clock;
use crate::client::dial::client;
use crate::client::greeting::Greeting;
use crate::client::home::Home;
use crate::client::location::Watched;
use crate::client::session::Session;
use crate::client::target::{Address, Target};

/// A connection on which a call timed out must answer within this time, or it is replaced: a cut
/// cable gives no notice. It is longer than a call's time limit, so that a slow server does not get
/// new connections in addition.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// A connection that is replaced when it is lost. Cheap to clone; the connection is closed with the
/// last clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    peer: Peer,
    server: Arc<str>,
    connect_limit: Duration,
    greeting: Greeting,
    home: Home,
    state: Mutex<LinkState>,
    /// Whether the server has taken us before.
    was_up: AtomicBool,
    chores: Mutex<Chores>,
    heard: Mutex<Heard>,
    /// Signals that an attempt to connect goes to a former master.
    astray: watch::Sender<()>,
    /// Of whichever server this is: one that takes over has a clock of its own, which is as if it
    /// had been set.
    clock: ServerClock,
    probe: Mutex<Option<Probe>>,
}

/// The question whether a connection is silent.
struct Probe {
    task: AbortHandle,
    since: Instant,
}

/// The purpose of a link.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) connect_limit: Duration,
    pub(crate) greeting: Greeting,
    pub(crate) home: Home,
}

/// The server that a link goes to.
enum Peer {
    Server(Client),
    Node(Client, Address),
    /// Asked for at each connection.
    Master(Arc<Watched>),
}

enum LinkState {
    Up(Session),
    /// It is being replaced. Holds the last attempt's failure; closed when there is a connection,
    /// or the task that makes one is gone.
    Down(watch::Receiver<Option<Failure>>),
}

impl Link {
    /// Connects to a server. One attempt, for at most the limit.
    pub(crate) async fn connect(target: Target, terms: Terms) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Peer::Server(client(target)?), name, terms);
        link.begin().await
    }

    /// Connects to the master that Sentinels name. One attempt, for at most the limit.
    pub(crate) async fn to_master(watched: Watched, terms: Terms) -> Result<Self, StoreError> {
        let name = watched.name.clone();
        Self::new(Peer::Master(Arc::new(watched)), name, terms).begin().await
    }

    /// Connects to a cluster's node in the background, for as long as it takes.
    pub(crate) fn start(target: Target, node: Address, terms: Terms) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Peer::Node(client(target)?, node), name, terms);
        let progress = link.0.replace(Duration::ZERO);
        *link.0.lock() = LinkState::Down(progress);
        Ok(link)
    }

    fn new(peer: Peer, server: Arc<str>, terms: Terms) -> Self {
        let Terms { connect_limit, greeting, home } = terms;
        Self(Arc::new(Inner {
            peer,
            server,
            connect_limit,
            greeting,
            home,
            state: Mutex::new(LinkState::Down(watch::channel(None).1)),
            was_up: AtomicBool::new(false),
            chores: Mutex::default(),
            heard: Mutex::default(),
            astray: watch::Sender::default(),
            clock: ServerClock::default(),
            probe: Mutex::default(),
        }))
    }

    /// What is known of the server's clock.
    pub(crate) fn clock(&self) -> &ServerClock {
        &self.0.clock
    }

    /// Looks at the server's clock. The caller sets a limit around it.
    pub(crate) async fn look_at_clock(&self, session: &Session) -> RedisResult<()> {
        self.0.look_at_clock(session.connection.clone()).await
    }

    async fn begin(self) -> Result<Self, StoreError> {
        let session = self.0.open().await?;
        // Lost again already: then the first call replaces it.
        self.0.publish(session);
        self.0.tend();
        Ok(self)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.0.lock(), LinkState::Up(_))
    }

    pub(crate) fn server(&self) -> &str {
        &self.0.server
    }

    /// The connection, as soon as there is one. Waits for as long as it takes, unless the server
    /// refuses us.
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        loop {
            if let Some(session) = self.ready() {
                return Ok(session);
            }
            let mut progress = match &mut *self.0.lock() {
                LinkState::Up(_) => continue,
                // Closed, and still no connection: the task ended with the runtime that it ran in.
                LinkState::Down(progress) if progress.has_changed().is_err() => {
                    *progress = self.0.replace(Duration::ZERO);
                    progress.clone()
                }
                LinkState::Down(progress) => progress.clone(),
            };
            if let Some(Failure { error, is_refusal: true }) = &*progress.borrow_and_update() {
                return Err(error.clone());
            }
            let _ = progress.changed().await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn ready(&self) -> Option<Session> {
        let orphaned = match &*self.0.lock() {
            LinkState::Up(session) if session.is_orphaned() => Arc::clone(&session.hub),
            LinkState::Up(session) => return Some(session.clone()),
            LinkState::Down(_) => return None,
        };
        self.0.lost(&orphaned, Duration::ZERO);
        None
    }

    /// Returns the reason if an attempt has failed and no connection exists.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match &*self.0.lock() {
            LinkState::Up(_) => None,
            LinkState::Down(progress) => progress.borrow().as_ref().map(|failure| failure.error.clone()),
        }
    }

    /// Replaces the connection, if an error says that it is of no more use.
    pub(crate) fn judge(&self, session: &Session, error: &RedisError) {
        if error.is_unrecoverable_error() {
            self.0.lost(&session.hub, Duration::ZERO);
        } else if error.kind() == ServerErrorKind::ReadOnly.into() {
            // A failover made a replica of it. The name may stand for another server by now, or
            // soon.
            self.0.lost(&session.hub, PAUSE.1);
        }
    }

    /// Finds out whether a connection on which a call timed out still answers, and replaces it if
    /// not; and whether the runtime in which connections live runs at all.
    pub(crate) fn probe(&self) {
        let session = self.ready();
        let mut probe = self.0.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        // Its runtime, which is a caller's, may have ended or stand still.
        let goes_on = |Probe { task, since }: &Probe| {
            !task.is_finished() && now.saturating_duration_since(*since) < SILENCE + SILENCE / 2
        };
        if probe.as_ref().is_some_and(goes_on) {
            return;
        }
        let (inner, home) = (Arc::downgrade(&self.0), self.0.home.clone());
        let task = tokio::spawn(async move {
            let is_silent = async {
                let Some(session) = &session else { return false };
                let mut connection = session.connection.clone();
                // An error is an answer.
                timeout(SILENCE, redis::cmd("PING").query_async::<Value>(&mut connection)).await.is_err()
            };
            let (is_silent, is_stuck) = tokio::join!(is_silent, home.leave_if_stuck(SILENCE));
            let Some(inner) = inner.upgrade() else { return };
            match session {
                Some(session) if is_silent || is_stuck => inner.lost(&session.hub, Duration::ZERO),
                None if is_stuck => inner.replace_elsewhere(),
                _ => {}
            }
        });
        *probe = Some(Probe { task: task.abort_handle(), since: now });
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
