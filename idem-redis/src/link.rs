//! The store's own connection to a server, and how it is replaced when it is lost.
//!
//! Not redis-rs's `ConnectionManager` (1.8): after one attempt to reconnect that fails for another reason than I/O (a password that is
//! being changed, say) it gives that error to every call for ever; after one that was given up, the next call gets a failure that is
//! long past; it never replaces a connection that is silently dead; and it cannot ask anew where the server is. Here, a lost
//! connection is replaced in the background until there is one, and calls wait for it as long as their time limit allows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::error::{refused, unconnected, unconnected_in_time};
use crate::script;
use crate::target::Target;
use crate::wake::Hub;

/// Between two attempts to reconnect: doubles from the first to the second. A server that is back is found within the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The same where a person has to mend something first.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// A connection on which a call timed out must answer within this time, or it is replaced: a cut cable tells nobody. Longer than a
/// call's time limit, so that a server that is merely slow is not given new connections on top.
const SILENCE: Duration = Duration::from_secs(3);

/// A connection that is replaced when it is lost. Cheap to clone; the connection is closed with the last clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    server: Arc<str>,
    connect_limit: Duration,
    slot: Mutex<Slot>,
}

enum Slot {
    Up(Session),
    /// It is being replaced. Holds the last attempt's failure; closed when there is a connection, or the task that makes one is gone.
    Down(watch::Receiver<Option<StoreError>>),
}

/// One connection, from its making to its loss. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) hub: Arc<Hub>,
    probing: Arc<AtomicBool>,
}

impl Link {
    /// Connects. One attempt, for at most `connect_limit`.
    pub(crate) async fn connect(target: Target, connect_limit: Duration) -> Result<Self, StoreError> {
        #[cfg(feature = "tls")]
        if target.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
            // rustls panics where it cannot tell which provider to use, which is so as soon as another crate switches on a second one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let client = Client::open(target.info).map_err(|error| {
            refused(format!("the Redis URL `{}` cannot be used: {error}", target.name)).with_source(error)
        })?;
        let slot = Mutex::new(Slot::Down(watch::channel(None).1));
        let inner = Arc::new(Inner { client, server: target.name, connect_limit, slot });
        let session = inner.open().await?;
        // Lost again already: then the first call replaces it.
        inner.publish(session);
        Ok(Self(inner))
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
        let session = match &*self.0.lock() {
            Slot::Up(session) => session.clone(),
            Slot::Down(_) => return,
        };
        if session.probing.swap(true, Ordering::Relaxed) {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let Session { mut connection, hub, probing } = session;
            // An error is an answer.
            let silent = timeout(SILENCE, redis::cmd("PING").query_async::<Value>(&mut connection)).await.is_err();
            probing.store(false, Ordering::Relaxed);
            if silent && let Some(inner) = inner.upgrade() {
                inner.lost(&hub, Duration::ZERO);
            }
        });
    }
}

impl Inner {
    async fn open(self: &Arc<Self>) -> Result<Session, StoreError> {
        let hub = Hub::new();
        let (inner, pushes) = (Arc::downgrade(self), Arc::downgrade(&hub));
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
            // This function has one limit for it all.
            .set_connection_timeout(None)
            // Each step of the store has one limit around all that it sends (`server.rs`).
            .set_response_timeout(None)
            .set_push_sender(receive);
        let connecting = async {
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            // Where this is refused, the scripts are loaded when they are needed, or the error comes then.
            let _ = script::load_all().query_async::<Value>(&mut connection).await;
            Ok(connection)
        };
        let connection = timeout(self.connect_limit, connecting)
            .await
            .map_err(|_| unconnected_in_time(&self.server, self.connect_limit))?
            .map_err(|error| unconnected(&self.server, error))?;
        hub.serve(connection.clone());
        Ok(Session { connection, hub, probing: Arc::default() })
    }

    /// Puts a new connection to use; `false` if it is lost already.
    fn publish(&self, session: Session) -> bool {
        let mut slot = self.lock();
        // Whoever loses it from here on waits for the lock, and finds it.
        let alive = !session.hub.is_closed();
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

/// Makes a new connection, until there is one or nobody holds the link any more.
async fn replace(inner: Weak<Inner>, progress: watch::Sender<Option<StoreError>>, mut pause: Duration) {
    let mut next = PAUSE.0;
    let mut warned = false;
    loop {
        sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        match inner.open().await {
            Ok(session) => {
                if inner.publish(session) {
                    tracing::info!(target: "idem", server = %inner.server, "connected to Redis again");
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
