//! The store in PostgreSQL.

use idem_core::StoreError;

use self::sqlx::ConnectOptions as _;
use self::sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use super::super::super::sqlx;
use super::super::dialect::postgres::Postgresql;
use super::super::dialect::{CONNECT_LIMIT, Dialect as _};
use super::super::executor::errors;
use super::super::executor::{Boxed, Executor, Settings};
use super::proxy;

/// How many connections the store's own pool has at most.
const CONNECTIONS: u32 = 10;

super::store! {
    /// Keeps records in a table of PostgreSQL 12 or newer.
    ///
    /// Cheap to clone; clones share the pool. Steps run on the tokio runtime in which the store was
    /// created. A step may take 900 ms, unless the [builder](Self::builder) is given another limit.
    /// In a burst it first waits for its turn. A step that failed for the lack of an answer, or
    /// whose future was dropped, may have been carried out.
    ///
    /// Waiters are woken by `NOTIFY`, through one more connection for each store; it is opened by
    /// the first waiter. While that is down, and behind a proxy that does not carry `LISTEN`, they
    /// look again after 5 ms, then ever more seldom, up to 250 ms.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_sqlx::PostgresStore;
    ///
    /// # async fn example() -> Result<(), idem_core::StoreError> {
    /// let store = PostgresStore::connect("postgres://user@host/shop").await?;
    /// store.migrate().await?;
    /// # fn is_a_store(_: impl idem_core::Store) {}
    /// # is_a_store(store);
    /// # Ok(())
    /// # }
    /// ```
    PostgresStore,
    /// A [`PostgresStore`] with other settings.
    PostgresStoreBuilder,
    Postgresql, PgPool, "../dialect/schema/postgres.sql"
}

impl PostgresStore {
    /// Connects to the database that a URL names (`postgres://user:password@host:port/database`),
    /// with a pool of its own of up to 10 connections.
    ///
    /// Does not create the table: [`migrate`](Self::migrate) does. Takes at most 2 s. Must be
    /// called in a tokio runtime. When the future is dropped, the connection is closed.
    ///
    /// # Errors
    ///
    /// If the URL is malformed, the database is unreachable, or the user is refused. No error shows
    /// the password.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::connecting(url.as_ref()).await
    }

    fn connecting(url: &str) -> Boxed<'_, Self> {
        Box::pin(Self::connect_to(url))
    }

    async fn connect_to(url: &str) -> Result<Self, StoreError> {
        let options: PgConnectOptions = errors::parse_url(
            url,
            &["postgres", "postgresql"],
            "postgres://user:password@host:port/database",
        )?;
        let place = Postgresql::place(&options);
        // Its statements are not for logs: those of MySQL have keys in them.
        let options = options.disable_statement_logging();
        let (options, is_limited) = proxy::connect(&options, &place).await?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECT_LIMIT)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self(Executor::new(
            pool,
            &Settings {
                is_limited,
                ..Settings::of_own_pool()
            },
        )))
    }
}
