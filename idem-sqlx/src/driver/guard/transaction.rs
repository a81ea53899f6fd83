//! A transaction that begins and commits itself, and runs again after a conflict.

use std::error::Error as StdError;
use std::pin::Pin;
use std::time::Duration;

use idem_core::adapter::{Backoff, Round, Rounds, run_rounds};
use idem_core::store::{TransactionAddress, collect_kept_errors};
use idem_core::{RunsAgain, TransactionBody};

use self::sqlx::{Database, Error, Pool, Transaction};
use super::super::super::sqlx;
use super::super::executor::close_idle;
use super::boundaries::Isolation;
use super::conflict::is_conflict;
use super::kept;
use super::steps::Supported;

/// How often a transaction runs at most, unless `attempts` says otherwise.
const ATTEMPTS: u32 = 20;
/// The pauses before a transaction runs again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(256));

/// The settings of a transaction. From [`transaction_with`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "nothing happens until it is run"]
pub struct TransactionSettings {
    attempts: u32,
    isolation: Option<Isolation>,
}

/// Begins a transaction, runs the body in it and commits. After a conflict, it runs all of it again.
///
/// Use it around annotated functions with `transaction = tx`, and around guards. It runs up to 20
/// times, at the isolation level that the connections of the pool have. [`transaction_with`] sets
/// both.
///
/// | the body ends with | result |
/// | --- | --- |
/// | a value | all is committed, the records of kept errors that the body caught too |
/// | a conflict: a serialization failure, a deadlock, a busy or locked SQLite database | rolled back, and run again after a random pause, which grows |
/// | another error | all rows are rolled back, the errors that guarded calls in the transaction kept are recorded, and the body's error is returned |
///
/// A conflict is recognised in the body's error, in its sources, and at `BEGIN` and `COMMIT`. After
/// the last attempt, the error is the conflict.
///
/// **Kept errors** outlive a roll-back: their records are written in a second, small transaction,
/// before the error is returned. So a duplicate gets the same error, and no row is there. The body
/// may convert the error, or catch it and fail for another reason. If another call claims the key
/// between the two transactions, all of it runs again, as after a conflict: it waits for that call
/// or replays what it recorded. Outcomes of other calls in the transaction are rolled back with
/// their rows, and these calls run again next time. A call in a savepoint of the body's own
/// (`tx.begin()`) is rolled back as well, with its kept error.
///
/// **The body** is an async closure that is `Clone`, and its future is `Send`. What it borrows is
/// shared by all runs, and what it owns is cloned for each. It must not commit or roll back. Its
/// effects outside of the transaction happen once in each run.
///
/// In SQLite, the transaction is the writer from its beginning (`BEGIN IMMEDIATE`). On PostgreSQL,
/// MySQL and MariaDB, one statement before `COMMIT` makes sure that the database has not ended the
/// transaction after an error that the body ignored.
///
/// # Errors
///
/// The body's error, or an error of the database, converted: no connection within two seconds, or a
/// refused `COMMIT`. If the connection is lost during `COMMIT`, nobody knows whether the transaction
/// is committed. So it does not run again, and the error says so. With a guarded call inside, call
/// again with the same key: the call finds its rows and its record, or neither. Without one, read
/// the rows. If a kept error could not be recorded, the error says that in place of the body's.
///
/// # Cancellation safety
///
/// Dropped, the transaction is rolled back, and no kept error is recorded. Dropped during `COMMIT`,
/// it is committed or not.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # mod example {
/// use idem_sqlx::guard::{self, States, Transition};
/// use idem_sqlx::sqlx::{self, SqlitePool};
///
/// const ORDERS: States = States::new("orders", "id", "state");
///
/// pub async fn ship(pool: &SqlitePool, order: i64) -> Result<Transition, sqlx::Error> {
///     guard::transaction(pool, async |tx| {
///         let made = ORDERS.advance(tx, order, &["paid"], "shipped").await?;
///         if made == Transition::Made {
///             sqlx::query("INSERT INTO parcels VALUES (?)")
///                 .bind(order)
///                 .execute(&mut **tx)
///                 .await?;
///         }
///         Ok(made)
///     })
///     .await
/// }
/// # }
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), idem_sqlx::sqlx::Error> {
/// # use idem_sqlx::sqlx;
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// # sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)").execute(&pool).await?;
/// # sqlx::raw_sql("CREATE TABLE parcels (id INTEGER); INSERT INTO orders VALUES (7, 'paid')").execute(&pool).await?;
/// # use idem_sqlx::guard::Transition;
/// # assert_eq!(example::ship(&pool, 7).await?, Transition::Made);
/// # assert_eq!(example::ship(&pool, 7).await?, Transition::AlreadyMade);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub fn transaction<DB, T, E, F>(
    pool: &Pool<DB>,
    body: F,
) -> impl Future<Output = Result<T, E>> + Send
where
    DB: Supported,
    F: AsyncFnOnce(&mut Transaction<'static, DB>) -> Result<T, E>
        + for<'t> TransactionBody<&'t mut Transaction<'static, DB>, Result<T, E>>
        + RunsAgain
        + Send,
    T: Send,
    E: From<Error> + StdError + Send + 'static,
{
    transaction_with().run(pool, body)
}

/// Returns the settings of a transaction: 20 attempts, and the isolation level of the connections.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(pool: &idem_sqlx::sqlx::PgPool) -> Result<i64, idem_sqlx::sqlx::Error> {
/// use idem_sqlx::guard::{self, Isolation};
/// use idem_sqlx::sqlx;
///
/// guard::transaction_with()
///     .attempts(5)
///     .isolation(Isolation::Serializable)
///     .run(pool, async |tx| {
///         let sum = "SELECT coalesce(sum(cents), 0)::bigint FROM accounts";
///         sqlx::query_scalar(sum).fetch_one(&mut **tx).await
///     })
///     .await
/// # }
/// ```
pub const fn transaction_with() -> TransactionSettings {
    TransactionSettings {
        attempts: ATTEMPTS,
        isolation: None,
    }
}

impl TransactionSettings {
    /// Sets how often the transaction runs at most, the first run included: 20 by default. With 1,
    /// it does not run again. 0 is an error of [`run`](Self::run).
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the isolation level. By default it is that of the pool's connections.
    pub const fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// Runs the body in a transaction, as [`transaction`] does.
    ///
    /// # Errors
    ///
    /// As [`transaction`], and `sqlx::Error::Configuration` if there are no attempts.
    ///
    /// # Cancellation safety
    ///
    /// As [`transaction`].
    #[expect(
        clippy::manual_async_fn,
        reason = "the future is promised to be `Send`"
    )]
    pub fn run<DB, T, E, F>(
        self,
        pool: &Pool<DB>,
        body: F,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        DB: Supported,
        F: AsyncFnOnce(&mut Transaction<'static, DB>) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut Transaction<'static, DB>, Result<T, E>>
            + RunsAgain
            + Send,
        T: Send,
        E: From<Error> + StdError + Send + 'static,
    {
        async move {
            if self.attempts == 0 {
                return Err(no_attempts().into());
            }
            let settings = self;
            run_rounds(
                PAUSES,
                Runs {
                    settings,
                    pool,
                    body,
                },
            )
            .await
        }
    }
}

/// The runs of one transaction.
struct Runs<'p, DB: Database, F> {
    settings: TransactionSettings,
    pool: &'p Pool<DB>,
    body: F,
}

impl<DB, T, E, F> Rounds<Result<T, E>> for Runs<'_, DB, F>
where
    DB: Supported,
    F: for<'t> TransactionBody<&'t mut Transaction<'static, DB>, Result<T, E>> + Clone + Send,
    T: Send,
    E: From<Error> + StdError + Send + 'static,
{
    async fn round(&mut self, runs: u32) -> Round<Result<T, E>> {
        let TransactionSettings {
            attempts,
            isolation,
        } = self.settings;
        match run_once(self.pool, isolation, self.body.clone()).await {
            Err(error) if runs < attempts && is_conflict(&error) => {
                tracing::debug!(
                    target: "idem",
                    %error,
                    runs,
                    "the transaction met another one, and runs again"
                );
                Round::Conflict
            }
            result => Round::Over(result),
        }
    }
}

/// Runs the body in one transaction, which has ended by then. If that is not committed, it is rolled
/// back, unless the error says that this is unknown.
async fn run_once<DB, T, E, F>(
    pool: &Pool<DB>,
    isolation: Option<Isolation>,
    body: F,
) -> Result<T, E>
where
    DB: Supported,
    F: for<'t> TransactionBody<&'t mut Transaction<'static, DB>, Result<T, E>> + Send,
    T: Send,
    E: From<Error> + StdError + Send + 'static,
{
    let mut tx = DB::begin(pool, isolation).await?;
    let address = TransactionAddress::of(&tx);
    // In a box: so a caller's future is `Send` whatever the body borrows.
    let running: Pin<Box<dyn Future<Output = Result<T, E>> + Send + '_>> = Box::pin(body(&mut tx));
    let (result, kept) = collect_kept_errors(address, running).await;
    let error = match result {
        Ok(value) => {
            commit(tx).await?;
            return Ok(value);
        }
        Err(error) => error,
    };
    if DB::is_stale(&error) {
        // The other connections lead there too. sqlx closes this one when it gets it back.
        close_idle(pool);
        DB::end_session(&mut tx).await;
    }
    DB::roll_back(tx).await;
    // After a conflict the calls run again, and so may keep other errors.
    if !kept.is_empty() && !is_conflict(&error) {
        // Boxed, because few transactions come here, and the future of each would be larger.
        Box::pin(kept::record(pool, &kept, error.to_string())).await?;
    }
    Err(error)
}

async fn commit<DB: Supported>(mut tx: Transaction<'static, DB>) -> Result<(), Error> {
    match DB::check_open(&mut tx).await {
        Ok(()) => DB::commit(tx).await,
        Err(error) => {
            DB::roll_back(tx).await;
            Err(error)
        }
    }
}

fn no_attempts() -> Error {
    let message = "`attempts(0)` would never run the transaction; `attempts` counts runs, so pass \
                   at least 1";
    Error::Configuration(message.into())
}
