//! The store in MySQL or MariaDB.

use std::time::Duration;

use idem_core::StoreError;
use tokio::time::timeout;

use self::sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use self::sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use super::super::super::sqlx;
use super::super::dialect::mysql::Mysql;
use super::super::dialect::{CONNECT_LIMIT, Dialect as _};
use super::super::executor::errors;
use super::super::executor::{Boxed, CONNECT_WAIT, Executor, Settings};

/// How many connections the store's own pool has at most.
const CONNECTIONS: u32 = 10;

super::store! {
    /// Keeps records in a table of MySQL, tested with 9.7, or of MariaDB 10.6 or newer.
    ///
    /// Cheap to clone; clones share the pool. Steps run on the tokio runtime in which the store was
    /// created. A step may take 900 ms, unless the [builder](Self::builder) is given another limit.
    /// In a burst it first waits for its turn. A step that failed for the lack of an answer, or
    /// whose future was dropped, may have been carried out.
    ///
    /// A waiter is woken at once by a commit through the same store. It asks for others: after 5
    /// ms, then after growing pauses of up to 250 ms.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_sqlx::MySqlStore;
    ///
    /// # async fn example() -> Result<(), idem_core::StoreError> {
    /// let store = MySqlStore::connect("mysql://user@host/shop").await?;
    /// store.migrate().await?;
    /// # fn is_a_store(_: impl idem_core::Store) {}
    /// # is_a_store(store);
    /// # Ok(())
    /// # }
    /// ```
    MySqlStore,
    /// A [`MySqlStore`] with other settings.
    MySqlStoreBuilder,
    Mysql, MySqlPool, "../dialect/schema/mysql.sql"
}

impl MySqlStore {
    /// Connects to the database that a URL names (`mysql://user:password@host:port/database`), with
    /// a pool of its own of up to 10 connections.
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
        let options: MySqlConnectOptions = errors::parse_url(
            url,
            &["mysql", "mariadb"],
            "mysql://user:password@host:port/database",
        )?;
        let place = Mysql::place(&options);
        // Its statements are not for logs: those of MySQL have keys in them.
        let options = options.disable_statement_logging();
        // Directly, because the pool would try again and hide why.
        let first = match timeout(CONNECT_WAIT, options.connect()).await {
            Ok(first) => first.map_err(|error| errors::unconnected::<Mysql>(&place, error))?,
            Err(_) => {
                return Err(errors::unconnected_in_time::<Mysql>(
                    &place,
                    CONNECT_WAIT,
                    false,
                ));
            }
        };
        let _ = timeout(Duration::from_millis(100), first.close()).await;
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(CONNECT_LIMIT)
            .test_before_acquire(false)
            // Limits the server's work for callers that have gone.
            .after_connect(|on, _| {
                Box::pin(async move {
                    on.execute("SET SESSION innodb_lock_wait_timeout = 1")
                        .await
                        .map(drop)
                })
            })
            .connect_lazy_with(options);
        Ok(Self(Executor::new(pool, &Settings::of_own_pool())))
    }
}
