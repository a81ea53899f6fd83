//! The connections of a store: its pool, and what it keeps of it between steps.

use std::sync::OnceLock;
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::time::timeout;

use self::sqlx::pool::PoolConnection;
use self::sqlx::{Database, Pool};
use super::super::super::sqlx;
use super::super::dialect::{Conn, Dialect};
use super::connect::{PendingConnects, has_idle};
use super::errors;
use super::idle::IdleConnections;
use super::settings::{Settings, TIME_LIMIT};

pub(crate) struct ConnectionPool<D: Dialect> {
    pub(crate) pool: Pool<D::Db>,
    idle: IdleConnections<D::Db>,
    pending: PendingConnects,
    /// The database's address, for messages.
    place: String,
    /// How long a step may take.
    limit: Duration,
    /// The store's runtime. A connection belongs to the runtime in which it was opened, and fails
    /// when that ends.
    runtime: OnceLock<Handle>,
}

impl<D: Dialect> ConnectionPool<D> {
    pub(crate) fn new(pool: Pool<D::Db>, settings: &Settings) -> Self {
        let runtime = Handle::try_current().map_or_else(|_| OnceLock::new(), OnceLock::from);
        let place = D::place(&pool.connect_options());
        let pending = PendingConnects::new(pool.options().get_max_connections(), settings.limit);
        Self {
            pool,
            idle: IdleConnections::new(settings.pool_is_own),
            pending,
            place,
            limit: settings.limit,
            runtime,
        }
    }

    pub(crate) fn size_limit(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.get_or_init(Handle::current)
    }

    pub(crate) async fn acquire(&self) -> Result<PooledConnection<D>, StoreError> {
        // Until this is dropped, steps that end return their connections to the pool.
        let _waiter = match self.idle.try_take() {
            Ok(connection) => return Ok(PooledConnection(Some(connection))),
            Err(waiter) => waiter,
        };
        match self.pending.acquire(&self.pool, self.runtime()).await {
            Ok(connection) => Ok(PooledConnection(Some(connection))),
            Err(sqlx::Error::PoolTimedOut) => Err(self.unconnected_in_time()),
            Err(error) => Err(errors::unconnected::<D>(&self.place, error)),
        }
    }

    /// Keeps the connection of a step that succeeded for the next step. The pool gets it if another
    /// step waits there.
    pub(crate) fn keep_idle(&self, mut connection: PooledConnection<D>) {
        connection.0 = connection.0.take().and_then(|used| self.idle.keep(used));
        connection.return_to_pool();
    }

    /// Returns idle connections to the pool, which closes those that are too old or were idle for
    /// too long.
    pub(crate) fn return_idle(&self) {
        for connection in self.idle.take_all() {
            let _runtime = self.runtime().enter();
            PooledConnection::<D>(Some(connection)).return_to_pool();
        }
    }

    /// Closes the idle connections, because one of them has shown that it leads to nothing: where
    /// an address has moved on, all of them do.
    pub(crate) fn close_idle(&self) {
        for connection in self.idle.take_all() {
            drop(connection.detach());
        }
        close_idle(&self.pool);
    }

    pub(crate) fn unconnected_in_time(&self) -> StoreError {
        let in_use = self.pool.size().saturating_sub(self.pending.count());
        let exhausted = in_use >= self.size_limit() && !has_idle(&self.pool);
        errors::unconnected_in_time::<D>(&self.place, self.limit, exhausted)
    }
}

/// Closes the idle connections of a pool.
pub(crate) fn close_idle<Db: Database>(pool: &Pool<Db>) {
    // No more, because the pool may open others meanwhile. As many as it counts may be any number.
    let most = pool.options().get_max_connections() as usize;
    let idle = std::iter::from_fn(|| pool.try_acquire()).take(most);
    idle.for_each(|connection| drop(connection.detach()));
}

/// A connection of the pool. Unless it is returned, it is closed: sqlx would wait for the end of
/// the statement that runs on it, and a server that is gone never ends any.
pub(crate) struct PooledConnection<D: Dialect>(Option<PoolConnection<D::Db>>);

impl<D: Dialect> PooledConnection<D> {
    pub(crate) fn get(&mut self) -> Result<&mut Conn<D>, StoreError> {
        let connection = self.0.as_deref_mut();
        connection.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unavailable,
                "the connection was given back before its time",
            )
        })
    }

    /// Returns the connection to the pool, as its drop would. That first sends a ping, and would
    /// wait for the answer without a limit.
    pub(crate) fn return_to_pool(mut self) {
        if let Some(mut connection) = self.0.take() {
            tokio::spawn(timeout(TIME_LIMIT, connection.return_to_pool()));
        }
    }
}

impl<D: Dialect> Drop for PooledConnection<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, mpsc};
    use std::task::{Context, Poll, Wake, Waker};

    use self::sqlx::Sqlite;
    use self::sqlx::sqlite::SqlitePoolOptions;
    use super::*;

    type Acquiring = dyn Future<Output = Result<PoolConnection<Sqlite>, sqlx::Error>> + Send;

    /// A step that waits for a connection, and takes it in the middle of its return to the pool: it
    /// may be used again, and is not yet counted as idle.
    struct TakesAtOnce {
        pool: Pool<Sqlite>,
        acquiring: Mutex<Pin<Box<Acquiring>>>,
        has_closed: mpsc::Sender<bool>,
    }

    impl Wake for TakesAtOnce {
        fn wake(self: Arc<Self>) {
            let mut context = Context::from_waker(Waker::noop());
            let mut acquiring = self.acquiring.lock().unwrap();
            let Poll::Ready(Ok(_connection)) = acquiring.as_mut().poll(&mut context) else {
                return;
            };
            assert!(!has_idle(&self.pool));
            let (ends, ended) = mpsc::channel();
            let pool = self.pool.clone();
            std::thread::spawn(move || {
                close_idle(&pool);
                ends.send(()).unwrap();
            });
            let ended = ended.recv_timeout(Duration::from_secs(10));
            self.has_closed.send(ended.is_ok()).unwrap();
        }
    }

    #[tokio::test]
    async fn idle_connections_are_closed_though_the_pool_counts_fewer_than_none() {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let mut connection = pool.acquire().await.unwrap();
        let (has_closed, closed) = mpsc::channel();
        let step = Arc::new(TakesAtOnce {
            pool: pool.clone(),
            acquiring: Mutex::new(Box::pin({
                let pool = pool.clone();
                async move { pool.acquire().await }
            })),
            has_closed,
        });
        let waker = Waker::from(step.clone());
        let mut context = Context::from_waker(&waker);
        let polled = step.acquiring.lock().unwrap().as_mut().poll(&mut context);
        assert!(polled.is_pending());
        connection.return_to_pool().await;
        assert_eq!(closed.recv(), Ok(true));
    }
}
