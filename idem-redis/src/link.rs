//! The store's own connection to a server, and how it is replaced when it is lost.
//!
//! This is not redis-rs's `ConnectionManager` (1.8), for four reasons. If a reconnect fails for a
//! reason other than I/O (such as a password change), it returns that error to every later call.
//! After an attempt that was given up, the next call gets the stale failure. It never replaces a
//! silently dead connection. It has no way to look up the server's address again. Here, a lost
//! connection is replaced in the background until one succeeds, and calls wait for it as long as
//! their time limit allows.

mod heard;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use self::heard::Heard;
use crate::batch::Batches;
use crate::clock::{self, Jump, ServerClock};
use crate::connect;
use crate::error::{refused, unconnected, unconnected_in_time};
use crate::home::Home;
use crate::place::Watched;
use crate::replicas::Acknowledgements;
use crate::sentinel::{self, Address, Said};
use crate::session::Connected;
pub(crate) use crate::session::Session;
use crate::target::Target;
use crate::wake::{Ear, Hub};

/// Between two attempts to reconnect: doubles from the first to the second. A server that is back
/// is found within the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The same if an operator must fix something first.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// A connection on which a call timed out must answer within this time, or it is replaced: a cut
/// cable gives no notice. It is longer than a call's time limit, so that a slow server does not get
/// new connections in addition.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// Between two looks at the server's clock: seldom enough to cost nothing, and often enough that a
/// clock which is set by more than half a second is noticed.
const CLOCK: Duration = Duration::from_secs(5);

/// A connection that is replaced when it is lost. Cheap to clone; the connection is closed with the
/// last clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    place: Place,
    server: Arc<str>,
    connect_limit: Duration,
    /// A key of the store's, by which the user's rights are looked at.
    sample: Arc<str>,
    home: Home,
    slot: Mutex<Slot>,
    /// Whether the server has taken us before.
    was_up: AtomicBool,
    keepers: Mutex<Keepers>,
    heard: Mutex<Heard>,
    /// Signals that an attempt to connect goes to a former master.
    astray: watch::Sender<()>,
    /// Of whichever server this is: one that takes over has a clock of its own, which is as if it
    /// had been set.
    clock: ServerClock,
    probe: Mutex<Option<Probe>>,
}

/// The tasks that run while the link is held.
#[derive(Default)]
struct Keepers {
    /// Of the place in which they run.
    place: Option<u64>,
    /// One looks at the server's clock, the other hears of failovers.
    tasks: Vec<AbortHandle>,
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
    /// A key of the store's, by which the user's rights are looked at.
    pub(crate) sample: Arc<str>,
    pub(crate) home: Home,
}

enum Place {
    Server(Client),
    Node(Client, Address),
    /// Asked for at each connection.
    Master(Arc<Watched>),
}

enum Slot {
    Up(Session),
    /// It is being replaced. Holds the last attempt's failure; closed when there is a connection,
    /// or the task that makes one is gone.
    Down(watch::Receiver<Option<Failure>>),
}

/// Why an attempt failed.
#[derive(Clone)]
struct Failure {
    error: StoreError,
    /// A person may have to do something first, so calls do not wait for the next attempt.
    is_refusal: bool,
}

impl Link {
    /// Connects to a server. One attempt, for at most the limit.
    pub(crate) async fn connect(target: Target, terms: Terms) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Place::Server(client(target)?), name, terms);
        link.begin().await
    }

    /// Connects to the master that Sentinels name. One attempt, for at most the limit.
    pub(crate) async fn to_master(watched: Watched, terms: Terms) -> Result<Self, StoreError> {
        let name = watched.name.clone();
        Self::new(Place::Master(Arc::new(watched)), name, terms).begin().await
    }

    /// Connects to a cluster's node in the background, for as long as it takes.
    pub(crate) fn start(target: Target, node: Address, terms: Terms) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Place::Node(client(target)?, node), name, terms);
        let progress = link.0.replace(Duration::ZERO);
        *link.0.lock() = Slot::Down(progress);
        Ok(link)
    }

    fn new(place: Place, server: Arc<str>, terms: Terms) -> Self {
        let Terms { connect_limit, sample, home } = terms;
        Self(Arc::new(Inner {
            place,
            server,
            connect_limit,
            sample,
            home,
            slot: Mutex::new(Slot::Down(watch::channel(None).1)),
            was_up: AtomicBool::new(false),
            keepers: Mutex::default(),
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
        matches!(&*self.0.lock(), Slot::Up(_))
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
                Slot::Up(_) => continue,
                // Closed, and still no connection: the task ended with the runtime that it ran in.
                Slot::Down(progress) if progress.has_changed().is_err() => {
                    *progress = self.0.replace(Duration::ZERO);
                    progress.clone()
                }
                Slot::Down(progress) => progress.clone(),
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
            Slot::Up(session) if session.is_orphaned() => Arc::clone(&session.hub),
            Slot::Up(session) => return Some(session.clone()),
            Slot::Down(_) => return None,
        };
        self.0.lost(&orphaned, Duration::ZERO);
        None
    }

    /// Returns the reason if an attempt has failed and no connection exists.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match &*self.0.lock() {
            Slot::Up(_) => None,
            Slot::Down(progress) => progress.borrow().as_ref().map(|failure| failure.error.clone()),
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
    /// Makes a connection, in the current runtime.
    async fn open(self: &Arc<Self>) -> Result<Session, StoreError> {
        let opening = async {
            match &self.place {
                Place::Server(client) => Arc::clone(self).open_at(client.clone(), None).await,
                Place::Node(client, node) => Arc::clone(self).open_at(client.clone(), Some(node.clone())).await,
                Place::Master(watched) => {
                    if let Some(news) = self.news() {
                        return self.open_at_news(watched, news).await;
                    }
                    let address = sentinel::most_say(watched, None, self.connect_limit).await?;
                    self.open_at_master(watched, address).await
                }
            }
        };
        timeout(self.connect_limit, opening).await.map_err(|_| unconnected_in_time(&self.server, self.connect_limit))?
    }

    async fn open_at(self: Arc<Self>, client: Client, address: Option<Address>) -> Result<Session, StoreError> {
        let place = self.home.place();
        let is_node = matches!(self.place, Place::Node(..));
        let ear = Ear { client: client.clone(), server: Arc::clone(&self.server), limit: self.connect_limit };
        let hub = Hub::new();
        let (inner, lost) = (Arc::downgrade(&self), Arc::downgrade(&hub));
        let receive = move |push: PushInfo| -> Result<(), ()> {
            let (PushKind::Disconnection, Some(hub)) = (&push.kind, lost.upgrade()) else { return Ok(()) };
            match inner.upgrade() {
                Some(inner) => inner.lost(&hub, Duration::ZERO),
                None => hub.close(),
            }
            Ok(())
        };
        // The line of commands stays as short as redis-rs has it: a longer one made no difference
        // to ten thousand callers.
        let config = AsyncConnectionConfig::new()
            // `open` has one limit for it all.
            .set_connection_timeout(None)
            // Each step of the store has one limit around all that it sends (`server.rs`).
            .set_response_timeout(None)
            .set_push_sender(receive);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| unconnected(&self.server, error))?;
        if matches!(self.place, Place::Master(_)) {
            sentinel::must_be_master(&mut connection, &self.server).await?;
        }
        let compares = AtomicBool::new(connect::greet(&mut connection, &self.server, &self.sample, is_node).await?);
        // If this is refused, the clock is trusted.
        if let Err(error) = self.look_at_clock(connection.clone()).await
            && error.code() == Some("NOPERM")
        {
            tracing::warn!(target: "idem", server = %self.server, "this user may not ask Redis for the TIME, so idem cannot tell when the server's clock is set (ACL SETUSER .. +time)");
        }
        hub.serve(ear);
        Ok(Session(Arc::new(Connected {
            connection,
            hub,
            acknowledgements: Arc::new(Acknowledgements::here()),
            batches: Batches::new(),
            compares,
            address,
            pulse: place.pulse().clone(),
        })))
    }

    async fn look_at_clock(&self, mut connection: MultiplexedConnection) -> RedisResult<()> {
        let asked = clock::now();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
        match self.clock.looked(time, asked) {
            Some(Jump::Ahead(by)) => tracing::warn!(
                target: "idem",
                server = %self.server,
                "the clock of Redis was set ahead by {by:.1?}, or another server with another clock took over: keys that it affects are taken over up to one lease later; keep the clocks of Redis in step (NTP)"
            ),
            Some(Jump::Back(by)) => tracing::warn!(
                target: "idem",
                server = %self.server,
                "the clock of Redis was set back by {by:.1?}, or another server with another clock took over: all records, abandoned ones too, are kept that much longer; keep the clocks of Redis in step (NTP)"
            ),
            None => {}
        }
        Ok(())
    }

    /// Puts a new connection to use; `false` if it is lost already, or goes to a former master.
    fn publish(&self, session: Session) -> bool {
        let mut slot = self.lock();
        // From here on, a loss of the connection and news of a failover wait for the lock, and find
        // the session.
        let is_right = self.news().is_none_or(|news| session.address.as_ref() == Some(&news.address));
        let alive = is_right && !session.hub.is_closed();
        if alive {
            self.was_up.store(true, Ordering::Relaxed);
            *slot = Slot::Up(session);
        }
        alive
    }

    /// Wakes the waiters of a connection, and replaces it if that has not been done.
    fn lost(self: &Arc<Self>, hub: &Arc<Hub>, pause: Duration) {
        hub.close();
        let mut slot = self.lock();
        if matches!(&*slot, Slot::Up(session) if Arc::ptr_eq(&session.hub, hub)) {
            let down = Slot::Down(self.replace(pause));
            let old = std::mem::replace(&mut *slot, down);
            drop(slot);
            drop(old);
            tracing::warn!(target: "idem", server = %self.server, "the connection to Redis is lost; connecting again");
        }
    }

    fn replace(self: &Arc<Self>, pause: Duration) -> watch::Receiver<Option<Failure>> {
        let (progress, receiver) = watch::channel(None);
        self.home.spawn(replace(Arc::downgrade(self), progress, pause));
        self.tend();
        receiver
    }

    /// Begins again to make a connection, where the task that did has no runtime to run in.
    fn replace_elsewhere(self: &Arc<Self>) {
        let mut slot = self.lock();
        if matches!(&*slot, Slot::Down(_)) {
            *slot = Slot::Down(self.replace(Duration::ZERO));
        }
    }

    /// Has the tasks that go on run where the connections live.
    fn tend(self: &Arc<Self>) {
        let place = self.home.place();
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        if keepers.place.replace(place.number()) == Some(place.number()) {
            return;
        }
        keepers.stop();
        keepers.tasks.push(place.spawn(watch_clock(Arc::downgrade(self))).abort_handle());
        if let Place::Master(watched) = &self.place {
            let inner = Arc::downgrade(self);
            let said = move |said: Said| {
                if let Some(inner) = inner.upgrade() {
                    inner.hear(said);
                }
            };
            keepers.tasks.push(place.spawn(sentinel::listen(Arc::clone(watched), said)).abort_handle());
        }
    }

    /// Returns an attempt's failure, for the calls.
    fn failure(&self, error: StoreError) -> Failure {
        let is_refusal = error.kind() == StoreErrorKind::Refused;
        if !is_refusal || !self.was_up.load(Ordering::Relaxed) {
            return Failure { error, is_refusal };
        }
        // It took us before: a password that is being changed, a master that is not set up yet.
        let text = format!("{error} (it accepted this connection's settings before; connecting again)");
        Failure { error: StoreError::new(StoreErrorKind::Unavailable, text).with_source(error).unsent(), is_refusal }
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // Nothing that could panic half-way runs under the lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keepers {
    fn stop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Keepers {
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
            Slot::Up(session) => session.connection.clone(),
            Slot::Down(_) => continue,
        };
        let _ = timeout(SILENCE, inner.look_at_clock(connection)).await;
    }
}

/// Opens a connection without upkeep. The caller sets a time limit around it.
pub(crate) async fn plain(target: &Target, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, StoreError> {
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    let connection = client(target.clone())?.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| unconnected(&target.name, error))
}

fn client(target: Target) -> Result<Client, StoreError> {
    #[cfg(feature = "tls")]
    if target.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // rustls panics where it cannot tell which provider to use, which is so as soon as another
        // crate switches on a second one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Client::open(target.info)
        .map_err(|error| refused(format!("the Redis URL `{}` cannot be used: {error}", target.name)).with_source(error))
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
                    tracing::info!(target: "idem", server = %inner.server, "connected to Redis");
                    return;
                }
                pause = PAUSE.1;
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(target: "idem", %error, "the connection to Redis cannot be replaced yet; trying again");
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
