//! The store's own connection to a server, and how it is replaced when it is lost.
//!
//! Not redis-rs's `ConnectionManager` (1.8): after one attempt to reconnect that fails for another reason than I/O (a password that is
//! being changed, say) it gives that error to every call for ever; after one that was given up, the next call gets a failure that is
//! long past; it never replaces a connection that is silently dead; and it cannot ask anew where the server is. Here, a lost
//! connection is replaced in the background until there is one, and calls wait for it as long as their time limit allows.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::batch::Batches;
use crate::clock::{self, Jump, ServerClock};
use crate::connect;
use crate::error::{refused, unconnected, unconnected_in_time};
use crate::place::Watched;
use crate::replicas::Acknowledgements;
use crate::script;
use crate::sentinel::{self, Address, Said};
use crate::target::Target;
use crate::wake::Hub;

/// Between two attempts to reconnect: doubles from the first to the second. A server that is back is found within the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The same where a person has to mend something first.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// A connection on which a call timed out must answer within this time, or it is replaced: a cut cable tells nobody. Longer than a
/// call's time limit, so that a server that is merely slow is not given new connections on top.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// For so long, the news of a fail-over says more than the Sentinels that have not heard it yet; they tell each other every two seconds.
const NEWS: Duration = Duration::from_secs(10);
/// Between two looks at the server's clock: seldom enough to cost nothing, and often enough that a clock which is set by more than half a
/// second is noticed.
const CLOCK: Duration = Duration::from_secs(5);

/// A connection that is replaced when it is lost. Cheap to clone; the connection is closed with the last clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    place: Place,
    server: Arc<str>,
    connect_limit: Duration,
    slot: Mutex<Slot>,
    /// The task that hears of fail-overs.
    listener: OnceLock<AbortHandle>,
    heard: Mutex<Heard>,
    /// Told when an attempt to connect goes to a server that is no longer the master.
    astray: watch::Sender<()>,
    /// Of whichever server this is: one that takes over has a clock of its own, which is as if it had been set.
    clock: ServerClock,
    /// The task that looks at it.
    watch: OnceLock<AbortHandle>,
}

enum Place {
    Server(Client),
    Node(Client, Address),
    /// Asked for at each connection.
    Master(Arc<Watched>),
}

/// Where the master is, as far as Sentinels are listened to.
#[derive(Default)]
struct Heard {
    /// Of the last fail-over, and when that was.
    news: Option<(Address, Instant)>,
    /// Where the last attempt to connect went.
    tried: Option<Address>,
}

enum Slot {
    Up(Session),
    /// It is being replaced. Holds the last attempt's failure; closed when there is a connection, or the task that makes one is gone.
    Down(watch::Receiver<Option<StoreError>>),
}

/// One connection, from its making to its loss. Cheap to clone: every step has one.
#[derive(Clone)]
pub(crate) struct Session(Arc<Connected>);

/// What belongs to one connection.
pub(crate) struct Connected {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) hub: Arc<Hub>,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    pub(crate) batches: Batches,
    /// Whether the server has `SET .. IFEQ`: as it said when the connection was made, until it refuses it.
    compares: AtomicBool,
    /// Where the server is, if Sentinels or the nodes of a cluster named it.
    address: Option<Address>,
    probing: AtomicBool,
}

impl Deref for Session {
    type Target = Connected;

    fn deref(&self) -> &Connected {
        &self.0
    }
}

impl Connected {
    /// The host that was connected to, where the server was looked up.
    pub(crate) fn host(&self) -> Option<&str> {
        self.address.as_ref().map(|(host, _)| host.as_str())
    }

    /// Whether the server writes over a value that is given with the command: `SET .. IFEQ`.
    pub(crate) fn compares(&self) -> bool {
        self.compares.load(Ordering::Relaxed)
    }

    /// The server has refused to, whatever it says of itself, and is not asked again on this connection.
    pub(crate) fn compares_not(&self) {
        self.compares.store(false, Ordering::Relaxed);
    }
}

impl Link {
    /// Connects to a server. One attempt, for at most `connect_limit`.
    pub(crate) async fn connect(target: Target, connect_limit: Duration) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Place::Server(client(target)?), name, connect_limit);
        link.begin().await
    }

    /// Connects to the master that Sentinels name. One attempt, for at most `connect_limit`.
    pub(crate) async fn to_master(watched: Watched, connect_limit: Duration) -> Result<Self, StoreError> {
        let (name, watched) = (watched.name.clone(), Arc::new(watched));
        let link = Self::new(Place::Master(Arc::clone(&watched)), name, connect_limit).begin().await?;
        let inner = Arc::downgrade(&link.0);
        let said = move |said: Said| {
            if let Some(inner) = inner.upgrade() {
                inner.hear(said);
            }
        };
        let _ = link.0.listener.set(tokio::spawn(sentinel::listen(watched, said)).abort_handle());
        Ok(link)
    }

    /// Connects to a cluster's node in the background, for as long as it takes.
    pub(crate) fn start(target: Target, node: Address, connect_limit: Duration) -> Result<Self, StoreError> {
        let name = target.name.clone();
        let link = Self::new(Place::Node(client(target)?, node), name, connect_limit);
        let progress = link.0.replace(Duration::ZERO);
        *link.0.lock() = Slot::Down(progress);
        Ok(link)
    }

    fn new(place: Place, server: Arc<str>, connect_limit: Duration) -> Self {
        let slot = Mutex::new(Slot::Down(watch::channel(None).1));
        let (listener, clock, watch) = (OnceLock::new(), ServerClock::default(), OnceLock::new());
        let (heard, astray) = (Mutex::default(), watch::Sender::default());
        let inner = Arc::new(Inner { place, server, connect_limit, slot, listener, heard, astray, clock, watch });
        let _ = inner.watch.set(tokio::spawn(watch_clock(Arc::downgrade(&inner))).abort_handle());
        Self(inner)
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
        Ok(self)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.0.lock(), Slot::Up(_))
    }

    pub(crate) fn server(&self) -> &str {
        &self.0.server
    }

    /// The connection, as soon as there is one. Waits for as long as it takes, unless the server refuses us.
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        loop {
            let mut progress = match &mut *self.0.lock() {
                Slot::Up(session) => return Ok(session.clone()),
                // Closed, and still no connection: the task ended with the runtime that it ran in.
                Slot::Down(progress) if progress.has_changed().is_err() => {
                    *progress = self.0.replace(Duration::ZERO);
                    progress.clone()
                }
                Slot::Down(progress) => progress.clone(),
            };
            if let Some(error) = &*progress.borrow_and_update()
                && error.kind() == StoreErrorKind::Refused
            {
                return Err(error.clone());
            }
            let _ = progress.changed().await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn ready(&self) -> Option<Session> {
        match &*self.0.lock() {
            Slot::Up(session) => Some(session.clone()),
            Slot::Down(_) => None,
        }
    }

    /// Why there is no connection, if there is none and an attempt has failed.
    pub(crate) fn failure(&self) -> Option<StoreError> {
        match &*self.0.lock() {
            Slot::Up(_) => None,
            Slot::Down(progress) => progress.borrow().clone(),
        }
    }

    /// Replaces the connection, if an error says that it is of no more use.
    pub(crate) fn judge(&self, session: &Session, error: &RedisError) {
        if error.is_unrecoverable_error() {
            self.0.lost(&session.hub, Duration::ZERO);
        } else if error.kind() == ServerErrorKind::ReadOnly.into() {
            // A fail-over made a replica of it. The name may stand for another server by now, or soon.
            self.0.lost(&session.hub, PAUSE.1);
        }
    }

    /// Finds out whether a connection on which a call timed out still answers, and replaces it if not.
    pub(crate) fn probe(&self) {
        let Some(session) = self.ready() else { return };
        if session.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut connection = session.connection.clone();
            // An error is an answer.
            let silent = timeout(SILENCE, redis::cmd("PING").query_async::<Value>(&mut connection)).await.is_err();
            session.probing.store(false, Ordering::Relaxed);
            if silent && let Some(inner) = inner.upgrade() {
                inner.lost(&session.hub, Duration::ZERO);
            }
        });
    }
}

impl Inner {
    async fn open(self: &Arc<Self>) -> Result<Session, StoreError> {
        let opening = async {
            match &self.place {
                Place::Server(client) => Arc::clone(self).open_at(client.clone(), None).await,
                Place::Node(client, node) => Arc::clone(self).open_at(client.clone(), Some(node.clone())).await,
                Place::Master(watched) => {
                    let address = match self.news() {
                        Some(address) => address,
                        None => sentinel::most_say(watched, None, self.connect_limit).await?,
                    };
                    self.heard().tried = Some(address.clone());
                    let target = watched.data.at(&address.0, address.1);
                    Arc::clone(self).open_at(client(target)?, Some(address)).await
                }
            }
        };
        let session = timeout(self.connect_limit, opening)
            .await
            .map_err(|_| unconnected_in_time(&self.server, self.connect_limit))??;
        session.hub.serve(session.connection.clone());
        Ok(session)
    }

    async fn open_at(self: Arc<Self>, client: Client, address: Option<Address>) -> Result<Session, StoreError> {
        let hub = Hub::new();
        let (inner, pushes) = (Arc::downgrade(&self), Arc::downgrade(&hub));
        let receive = move |push: PushInfo| -> Result<(), ()> {
            let Some(hub) = pushes.upgrade() else { return Ok(()) };
            match (&push.kind, inner.upgrade()) {
                (PushKind::Disconnection, Some(inner)) => inner.lost(&hub, Duration::ZERO),
                (PushKind::Disconnection, None) => hub.close(),
                _ => hub.receive(&push),
            }
            Ok(())
        };
        // The line of commands stays as short as redis-rs has it: a longer one made no difference to ten thousand callers.
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
        // Where this is refused, the scripts are loaded when they are needed, or the error comes then; and every commit is one. What the
        // server is was asked before, perhaps: of another one, on another connection.
        let mut greeting = script::load_all();
        greeting.cmd("INFO").arg("server");
        let answers: RedisResult<Vec<RedisResult<Value>>> = greeting.query_async(&mut connection).await;
        let info = answers.ok().and_then(|mut answers| answers.pop()?.ok());
        let compares = AtomicBool::new(info.is_some_and(|info| connect::compares(&info)));
        // Where this is refused, the clock is believed.
        if let Err(error) = self.look_at_clock(connection.clone()).await
            && error.code() == Some("NOPERM")
        {
            tracing::warn!(target: "idem", server = %self.server, "this user may not ask Redis for the TIME, so idem cannot tell when the server's clock is set (ACL SETUSER .. +time)");
        }
        let acknowledgements = Arc::default();
        let (batches, probing) = (Batches::new(), AtomicBool::new(false));
        Ok(Session(Arc::new(Connected { connection, hub, acknowledgements, batches, compares, address, probing })))
    }

    async fn look_at_clock(&self, mut connection: MultiplexedConnection) -> RedisResult<()> {
        let asked = clock::now();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
        match self.clock.looked(time, asked) {
            Some(Jump::Ahead(by)) => tracing::warn!(
                target: "idem",
                server = %self.server,
                "the clock of Redis was set ahead by {by:.1?}, or another server with another clock took over: for one length of its lease, no key is taken over to whose lease that matters; keep the clocks of Redis in step (NTP)"
            ),
            Some(Jump::Back(by)) => tracing::warn!(
                target: "idem",
                server = %self.server,
                "the clock of Redis was set back by {by:.1?}, or another server with another clock took over: records stay so much longer, abandoned ones too; keep the clocks of Redis in step (NTP)"
            ),
            None => {}
        }
        Ok(())
    }

    /// Hears where the master is. Whatever is believed is but a reason to ask them all.
    fn hear(self: &Arc<Self>, said: Said) {
        match said {
            Said::Switched(address) => {
                self.heard().news = Some((address.clone(), clock::now()));
                self.master_is_at(&address);
            }
            Said::Believes(address) => {
                let Place::Master(watched) = &self.place else { return };
                let now = match self.goes_to() {
                    Some(now) if now != address => now,
                    _ => return,
                };
                let (inner, watched, limit) = (Arc::downgrade(self), Arc::clone(watched), self.connect_limit);
                tokio::spawn(async move {
                    let Ok(address) = sentinel::most_say(&watched, Some(&now), limit).await else { return };
                    if let Some(inner) = inner.upgrade()
                        && inner.news().is_none_or(|news| news == address)
                    {
                        inner.master_is_at(&address);
                    }
                });
            }
        }
    }

    /// Leaves a server that is no longer the master: it may not have noticed yet, or be silent.
    fn master_is_at(self: &Arc<Self>, master: &Address) {
        if self.goes_to().is_none_or(|now| now == *master) {
            return;
        }
        let hub = match &*self.lock() {
            Slot::Up(session) => Some(Arc::clone(&session.hub)),
            Slot::Down(_) => None,
        };
        match hub {
            Some(hub) => self.lost(&hub, Duration::ZERO),
            None => self.astray.send_replace(()),
        }
    }

    /// Where the connection goes, or the last attempt to make one.
    fn goes_to(&self) -> Option<Address> {
        if let Slot::Up(session) = &*self.lock() {
            return session.address.clone();
        }
        self.heard().tried.clone()
    }

    /// Where the master went, while the Sentinels may not all know it yet.
    fn news(&self) -> Option<Address> {
        let heard = self.heard();
        let (address, at) = heard.news.as_ref()?;
        (clock::now().saturating_duration_since(*at) < NEWS).then(|| address.clone())
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        // Nothing that could panic runs under the lock.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a new connection to use; `false` if it is lost already, or goes to a server that is no longer the master.
    fn publish(&self, session: Session) -> bool {
        let mut slot = self.lock();
        // Whoever loses it from here on waits for the lock, and finds it; so does whoever hears of a fail-over from here on.
        let is_right = self.news().is_none_or(|news| session.address.as_ref() == Some(&news));
        let alive = is_right && !session.hub.is_closed();
        if alive {
            *slot = Slot::Up(session);
        }
        alive
    }

    /// Wakes whoever waits on a connection, and replaces it if that has not been done.
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

    fn replace(self: &Arc<Self>, pause: Duration) -> watch::Receiver<Option<StoreError>> {
        let (progress, receiver) = watch::channel(None);
        tokio::spawn(replace(Arc::downgrade(self), progress, pause));
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Slot> {
        // Nothing that could panic half-way runs under the lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in [&self.listener, &self.watch].into_iter().filter_map(OnceLock::get) {
            task.abort();
        }
    }
}

/// Looks at the server's clock now and then, for as long as somebody holds the link.
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

/// A connection that nobody looks after. The caller sets a limit around it.
pub(crate) async fn plain(target: &Target, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, StoreError> {
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    let connection = client(target.clone())?.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| unconnected(&target.name, error))
}

fn client(target: Target) -> Result<Client, StoreError> {
    #[cfg(feature = "tls")]
    if target.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // rustls panics where it cannot tell which provider to use, which is so as soon as another crate switches on a second one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Client::open(target.info)
        .map_err(|error| refused(format!("the Redis URL `{}` cannot be used: {error}", target.name)).with_source(error))
}

/// Makes a new connection, until there is one or nobody holds the link any more.
async fn replace(inner: Weak<Inner>, progress: watch::Sender<Option<StoreError>>, mut pause: Duration) {
    let mut next = PAUSE.0;
    let mut warned = false;
    let Some(mut astray) = inner.upgrade().map(|inner| inner.astray.subscribe()) else { return };
    loop {
        sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        astray.mark_unchanged();
        // An attempt at a server that is dead or cut off takes as long as it may, while another is the master by now.
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
                    tracing::warn!(target: "idem", %error, "the connection to Redis cannot be replaced yet; trying on");
                }
                let refused = error.kind() == StoreErrorKind::Refused;
                progress.send_replace(Some(error));
                // Half of it by chance, or all processes that lost a server would come back to it at once.
                pause = if refused { REFUSED_PAUSE } else { next.mul_f64(0.5 + fastrand::f64() / 2.0) };
                next = (next * 2).min(PAUSE.1);
            }
        }
    }
}
