//! The store in a SQLite file.

use std::time::Duration;

use idem_core::StoreError;
use tokio::time::{sleep, timeout};

use self::sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use self::sqlx::{ConnectOptions as _, Connection as _, Error};
use super::super::super::sqlx;
use super::super::dialect::Dialect as _;
use super::super::dialect::sqlite::SqliteFile;
use super::super::executor::errors::{self, refused};
use super::super::executor::{Boxed, Executor, Settings, TIME_LIMIT};

/// How many connections the store's own pool has at most. One writes at a time, so that more gain
/// little.
const CONNECTIONS: u32 = 4;
/// How long a connection waits for another one that writes: less than a step may take.
const BUSY: Duration = Duration::from_millis(700);
/// The middle of the pause before a locked file is opened again.
const AGAIN: Duration = Duration::from_millis(10);

super::store! {
    /// Keeps records in a file, or in a table of a SQLite database that the application has: they
    /// survive restarts, with nothing installed.
    ///
    /// Several processes on one machine may share the file; not over a network file system. Cheap
    /// to clone; clones share the pool. Steps run on the tokio runtime in which the store was
    /// created. A step may take 900 ms, unless the [builder](Self::builder) is given another limit.
    /// In a burst it first waits for its turn. A step that failed for the lack of an answer, or
    /// whose future was dropped, may have been carried out.
    ///
    /// Time is the clock of this machine. A waiter is woken at once by a commit through the same
    /// store. It asks for others: after 5 ms, then after growing pauses of up to 250 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// use idem_sqlx::SqliteStore;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite://{}/idem.db", dir.path().display());
    /// let store = SqliteStore::connect(url).await?; // such as "sqlite://idem.db"
    /// # fn is_a_store(_: impl idem_core::Store) {}
    /// # is_a_store(store);
    /// # Ok(())
    /// # }
    /// ```
    SqliteStore,
    /// A [`SqliteStore`] with other settings.
    SqliteStoreBuilder,
    SqliteFile, SqlitePool, "../dialect/schema/sqlite.sql"
}

impl SqliteStore {
    /// Opens the file that a URL names (`sqlite://idem.db`, relative to the working directory, or
    /// `sqlite:///var/lib/idem.db`), and creates file and table where there are none.
    ///
    /// The file is in WAL mode, and each commit is on the disk when it returns
    /// (`synchronous = FULL`). Must be called in a tokio runtime. When the future is dropped, the
    /// file may or may not have been created.
    ///
    /// # Errors
    ///
    /// If the URL is malformed or names a database in memory, the file fails to open or is not an
    /// SQLite database, or its table has another version.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::connecting(url.as_ref()).await
    }

    fn connecting(url: &str) -> Boxed<'_, Self> {
        Box::pin(Self::connect_to(url))
    }

    async fn connect_to(url: &str) -> Result<Self, StoreError> {
        let options: SqliteConnectOptions = errors::parse_url(
            url,
            &["sqlite"],
            "sqlite://idem.db` or `sqlite:///var/lib/idem.db",
        )?;
        // Each connection would have a database of its own.
        if url.contains(":memory:") || url.contains("mode=memory") {
            return Err(refused(
                "a SQLite database in memory is not shared by the connections of a pool; use \
                 `MemoryStore`, or a file",
            ));
        }
        let options = options
            .create_if_missing(true)
            .busy_timeout(BUSY)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let place = SqliteFile::place(&options);
        // Directly, because the pool would hide why.
        let mut locked = None;
        let first = match timeout(TIME_LIMIT, open(&options, &mut locked)).await {
            Ok(first) => first.map_err(|error| errors::unconnected::<SqliteFile>(&place, error))?,
            Err(_) => {
                return Err(match locked {
                    Some(error) => errors::unconnected::<SqliteFile>(&place, error),
                    None => errors::unconnected_in_time::<SqliteFile>(&place, TIME_LIMIT, false),
                });
            }
        };
        let _ = timeout(Duration::from_millis(100), first.close()).await;
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(TIME_LIMIT)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let store = Self(Executor::new(pool, &Settings::of_own_pool()));
        store.migrate().await?;
        Ok(store)
    }
}

/// Opens the file, again while another connection has it locked: SQLite does not wait for its
/// `busy_timeout` while a new file gets its WAL mode. Dropped, it leaves in `locked` why it was not
/// done.
async fn open(
    options: &SqliteConnectOptions,
    locked: &mut Option<Error>,
) -> Result<SqliteConnection, Error> {
    loop {
        match options.connect().await {
            Err(Error::Database(error)) if SqliteFile::is_lock_timeout(&*error) => {
                *locked = Some(Error::Database(error));
                sleep(AGAIN.mul_f64(0.5 + fastrand::f64())).await;
            }
            opened => return opened,
        }
    }
}
