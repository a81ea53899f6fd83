//! Connections that take longer to open than a step may take.
//!
//! sqlx gives up a connection that is being opened together with the future that asked for it. So
//! if opening takes a little longer than a step may, no step would ever get a connection. Here it
//! goes on without the step, and the connection is in the pool for a later one.

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
use super::super::sqlx;

/// How long opening a connection may take in all.
pub(crate) const OPENING: Duration = Duration::from_secs(5);
/// How long a connection that nobody needs now may take to show that it works.
const RETURNING: Duration = Duration::from_secs(1);

type Acquiring<Db> = Pin<Box<dyn Future<Output = Result<PoolConnection<Db>, sqlx::Error>> + Send>>;

/// The connections that one store is opening.
pub(crate) struct Openings {
    /// How many those are.
    under_way: Arc<AtomicU32>,
    /// How many of them may be without a step: half of the pool. If the database cannot be reached,
    /// they occupy their places in the pool, and new steps must still notice its return.
    places: Arc<Semaphore>,
    /// Ends with the store.
    store: watch::Sender<()>,
    /// The longest that one may take.
    limit: Duration,
}

impl Openings {
    /// For a pool of so many connections, and steps that may take so long.
    pub(crate) fn new(connections: u32, limit: Duration) -> Self {
        Self {
            under_way: Arc::default(),
            places: Arc::new(Semaphore::new(connections.div_ceil(2).max(1) as usize)),
            store: watch::Sender::new(()),
            limit: limit.max(OPENING),
        }
    }

    /// How many connections of the pool are being opened.
    pub(crate) fn under_way(&self) -> u32 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Takes a connection out of the pool. If it must be opened first and this future is dropped
    /// meanwhile, it is opened all the same, and goes to the pool.
    pub(crate) async fn connection<Db: Database>(
        &self,
        pool: &Pool<Db>,
        home: &Handle,
    ) -> Result<PoolConnection<Db>, sqlx::Error> {
        let has_room = pool.size() < pool.options().get_max_connections();
        if pool.num_idle() > 0 || !has_room {
            return pool.acquire().await;
        }
        let acquiring = timeout(self.limit, pool.acquire());
        let opening = Opening {
            acquiring: Some(Box::pin(async move { acquiring.await.unwrap_or(Err(sqlx::Error::PoolTimedOut)) })),
            counted: Some(Counted::new(self.under_way.clone())),
            places: self.places.clone(),
            store: self.store.subscribe(),
            pool: pool.clone(),
            home: home.clone(),
        };
        opening.await
    }
}

/// Counts as under way while it lives.
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(all: Arc<AtomicU32>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that is being opened, perhaps. Goes on in a task of its own if it is dropped.
struct Opening<Db: Database> {
    /// `None` when it has ended.
    acquiring: Option<Acquiring<Db>>,
    counted: Option<Counted>,
    places: Arc<Semaphore>,
    store: watch::Receiver<()>,
    pool: Pool<Db>,
    home: Handle,
}

impl<Db: Database> Future for Opening<Db> {
    type Output = Result<PoolConnection<Db>, sqlx::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(acquiring) = &mut self.acquiring else { return Poll::Pending };
        let acquired = ready!(acquiring.as_mut().poll(context));
        self.acquiring = None;
        Poll::Ready(acquired)
    }
}

impl<Db: Database> Drop for Opening<Db> {
    fn drop(&mut self) {
        let Some(acquiring) = self.acquiring.take() else { return };
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        let counted = self.counted.take();
        let mut store = self.store.clone();
        let closed = self.pool.close_event();
        self.home.spawn(async move {
            let _counts = (place, counted);
            tokio::select! {
                opened = acquiring => {
                    if let Ok(mut connection) = opened {
                        let _ = timeout(RETURNING, connection.return_to_pool()).await;
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

    /// The pool of a server that takes connections and says nothing, and four steps on it that had
    /// no time to wait.
    async fn four_steps() -> (TcpListener, Pool<Postgres>, Openings) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let options = PgConnectOptions::new().host("127.0.0.1").port(port).username("idem");
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(options);
        let openings = Openings::new(4, SHORT);
        let home = Handle::current();
        let step = || Box::pin(openings.connection(&pool, &home));
        let steps = timeout(SHORT, async { tokio::join!(step(), step(), step(), step()) });
        assert!(steps.await.is_err());
        (server, pool, openings)
    }

    async fn until_none_is_left(pool: &Pool<Postgres>) {
        let ending = async {
            while pool.size() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(OPENING / 2, ending).await.expect("connections are still being opened");
    }

    #[tokio::test]
    async fn half_of_the_pool_is_opened_without_its_steps_and_no_longer_than_the_store_lives() {
        let (_server, pool, openings) = four_steps().await;
        assert_eq!((pool.size(), openings.under_way()), (2, 2));
        // The places of the others are free again.
        let home = Handle::current();
        let another = timeout(SHORT, openings.connection(&pool, &home));
        assert!(another.await.is_err());
        assert_eq!((pool.size(), openings.under_way()), (2, 2));
        drop(openings);
        until_none_is_left(&pool).await;
    }

    #[tokio::test]
    async fn a_pool_that_is_closed_does_not_wait_for_connections_that_nobody_needs() {
        let (_server, pool, _openings) = four_steps().await;
        timeout(OPENING / 2, pool.close()).await.expect("the pool waits");
        until_none_is_left(&pool).await;
    }
}
