//! Connections that take longer to open than a step may take.
//!
//! If a future that asks sqlx for a connection is dropped, sqlx stops opening it. So if opening
//! takes a little longer than a step may, no step would ever get a connection. Here it continues
//! without the step, and the pool keeps the connection for a later one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use self::sqlx::pool::PoolConnection;
use self::sqlx::{Database, Pool};
use super::super::super::sqlx;
use super::super::dialect::CONNECT_LIMIT;

/// How long the pool's test of a returned connection may take.
const RETURN_LIMIT: Duration = Duration::from_secs(1);

type Acquiring<Db> = Pin<Box<dyn Future<Output = Result<PoolConnection<Db>, sqlx::Error>> + Send>>;

/// The connections that one store is opening.
pub(crate) struct PendingConnects {
    count: Arc<AtomicU32>,
    /// Limits how many continue without a step to half of the pool. While the database is
    /// unreachable, each occupies a place in the pool, and new steps must still notice its return.
    detached: Arc<Semaphore>,
    /// Is dropped with the store.
    store: watch::Sender<()>,
    /// How long one may take.
    limit: Duration,
}

impl PendingConnects {
    /// For a pool of this size, and steps with this limit.
    pub(crate) fn new(connections: u32, limit: Duration) -> Self {
        Self {
            count: Arc::default(),
            detached: Arc::new(Semaphore::new(connections.div_ceil(2).max(1) as usize)),
            store: watch::Sender::new(()),
            limit: limit.max(CONNECT_LIMIT),
        }
    }

    /// How many connections of the pool are being opened.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes a connection from the pool. If it must be opened, and this future is dropped
    /// meanwhile, it is opened all the same, and goes to the pool.
    pub(crate) async fn acquire<Db: Database>(
        &self,
        pool: &Pool<Db>,
        runtime: &Handle,
    ) -> Result<PoolConnection<Db>, sqlx::Error> {
        let has_room = pool.size() < pool.options().get_max_connections();
        if has_idle(pool) || !has_room {
            return pool.acquire().await;
        }
        let acquiring = timeout(self.limit, pool.acquire());
        let connecting = PendingConnect {
            acquiring: Some(Box::pin(async move {
                acquiring.await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
            })),
            guard: Some(CountGuard::new(self.count.clone())),
            detached: self.detached.clone(),
            store: self.store.subscribe(),
            pool: pool.clone(),
            runtime: runtime.clone(),
        };
        connecting.await
    }
}

/// Whether a pool has an idle connection. If one that is being returned is already in use again,
/// sqlx counts fewer than none for a moment, which is nearly 2^64
/// (<https://github.com/transact-rs/sqlx/pull/4289>, after 0.9.0).
pub(crate) fn has_idle<Db: Database>(pool: &Pool<Db>) -> bool {
    (1..=pool.options().get_max_connections() as usize).contains(&pool.num_idle())
}

/// Counts a connection while it is being opened.
struct CountGuard(Arc<AtomicU32>);

impl CountGuard {
    fn new(count: Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Acquires a connection, which may have to be opened. Continues in a separate task if it is
/// dropped.
struct PendingConnect<Db: Database> {
    /// `None` when it has ended.
    acquiring: Option<Acquiring<Db>>,
    guard: Option<CountGuard>,
    detached: Arc<Semaphore>,
    store: watch::Receiver<()>,
    pool: Pool<Db>,
    runtime: Handle,
}

impl<Db: Database> Future for PendingConnect<Db> {
    type Output = Result<PoolConnection<Db>, sqlx::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(acquiring) = &mut self.acquiring else {
            return Poll::Pending;
        };
        let acquired = ready!(acquiring.as_mut().poll(context));
        self.acquiring = None;
        Poll::Ready(acquired)
    }
}

impl<Db: Database> Drop for PendingConnect<Db> {
    fn drop(&mut self) {
        let Some(acquiring) = self.acquiring.take() else {
            return;
        };
        let Ok(permit) = self.detached.clone().try_acquire_owned() else {
            return;
        };
        let guard = self.guard.take();
        let mut store = self.store.clone();
        let closed = self.pool.close_event();
        self.runtime.spawn(async move {
            let _permit = permit;
            let _guard = guard;
            tokio::select! {
                opened = acquiring => {
                    if let Ok(mut connection) = opened {
                        let _ = timeout(RETURN_LIMIT, connection.return_to_pool()).await;
                    }
                }
                _ = store.changed() => {}
                () = closed => {}
            }
        });
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::net::TcpListener;

    use self::sqlx::Postgres;
    use self::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    /// The pool of a server that accepts connections and never answers.
    struct SilentServer {
        _listener: TcpListener,
        pool: Pool<Postgres>,
        pending: PendingConnects,
    }

    /// Has four steps ask for a connection that have no time to wait.
    async fn after_four_steps() -> SilentServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = PgConnectOptions::new()
            .host("127.0.0.1")
            .port(port)
            .username("idem");
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect_lazy_with(options);
        let pending = PendingConnects::new(4, SHORT);
        let runtime = Handle::current();
        let step = || Box::pin(pending.acquire(&pool, &runtime));
        let steps = timeout(SHORT, async {
            tokio::join!(step(), step(), step(), step())
        });
        assert!(steps.await.is_err());
        SilentServer {
            _listener: listener,
            pool,
            pending,
        }
    }

    async fn until_none_is_left(pool: &Pool<Postgres>) {
        let ending = async {
            while pool.size() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(CONNECT_LIMIT * 4 / 5, ending)
            .await
            .expect("connections are still being opened");
    }

    #[tokio::test]
    async fn half_of_the_pool_is_opened_without_its_steps_and_no_longer_than_the_store_lives() {
        let SilentServer {
            _listener,
            pool,
            pending,
        } = after_four_steps().await;
        assert_eq!((pool.size(), pending.count()), (2, 2));
        // The places of the others are free again.
        let runtime = Handle::current();
        let another = timeout(SHORT, pending.acquire(&pool, &runtime));
        assert!(another.await.is_err());
        assert_eq!((pool.size(), pending.count()), (2, 2));
        drop(pending);
        until_none_is_left(&pool).await;
    }

    #[tokio::test]
    async fn a_pool_that_is_closed_does_not_wait_for_connections_that_nobody_needs() {
        let server = after_four_steps().await;
        timeout(CONNECT_LIMIT * 4 / 5, server.pool.close())
            .await
            .expect("the pool waits");
        until_none_is_left(&server.pool).await;
    }
}
