//! Opens the store that a URL names. It creates nothing there.

use std::time::Duration;

use futures_util::future::BoxFuture;
use idem_core::record::{RecordId, RecordInfo};
use idem_core::store::AdminStore;
use idem_core::store::admin::{Counts, Cursor, Intervened, Intervention, Listing, Page};
use idem_core::store::trail::{Decision, Ended, Entry, Noted, Trail};
use idem_core::{KeyDigest, Store, StoreError, StoreErrorKind};
use idem_redis::RedisStore;
use idem_sqlx::sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, ConnectOptions as _};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use tokio::time::timeout;

use crate::args::Args;
use crate::failure::Failure;

/// How long a step of the store may take, and making a connection.
const LIMIT: Duration = Duration::from_secs(5);
const TABLE: &str = "idem_records";
/// The advice if a connection fails.
const SERVER: &str = "check the URL, and that the server runs and can be reached from here";
const FILE: &str = "check the path and its rights, because this program creates no file";
const SCHEMES: &str =
    "redis://, rediss://, redis+sentinel://, redis+cluster://, postgres://, mysql:// or sqlite://";

/// A store. An SQL store comes with its pool, which the doctor uses.
pub(crate) enum AnyStore {
    Redis(RedisStore),
    Postgres(PostgresStore, PgPool),
    MySql(MySqlStore, MySqlPool),
    Sqlite(SqliteStore, SqlitePool),
}

/// Calls a method of the store, whichever it is.
macro_rules! each {
    ($any:expr, $store:ident => $step:expr) => {
        match $any {
            AnyStore::Redis($store) => Box::pin($step),
            AnyStore::Postgres($store, _) => Box::pin($step),
            AnyStore::MySql($store, _) => Box::pin($step),
            AnyStore::Sqlite($store, _) => Box::pin($step),
        }
    };
}

/// The operator and the reason of a decision.
#[derive(Clone, Copy)]
pub(crate) struct Operator<'a> {
    pub(crate) who: &'a str,
    pub(crate) why: &'a str,
}

impl AnyStore {
    /// Connects to the store that the arguments name.
    pub(crate) async fn open(args: &Args) -> Result<Self, Failure> {
        let Some(url) = args.store.as_deref().filter(|url| !url.is_empty()) else {
            return Err(Failure::Arguments(format!(
                "no store: give `--store URL` or set IDEM_STORE ({SCHEMES})"
            )));
        };
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let is_redis = matches!(scheme.split('+').next(), Some("redis" | "rediss" | "unix"));
        if args.prefix.is_some() && !is_redis {
            return Err(Failure::Arguments(
                "`--prefix` is for Redis; SQL stores have `--table`".to_owned(),
            ));
        }
        if args.table.is_some() && is_redis {
            return Err(Failure::Arguments(
                "`--table` is for SQL stores; Redis has `--prefix`".to_owned(),
            ));
        }
        let table = table_of(args);
        match scheme {
            _ if is_redis => open_redis(url, args.prefix.as_deref()).await,
            "postgres" | "postgresql" => open_postgres(url, table).await,
            "mysql" | "mariadb" => open_mysql(url, table).await,
            "sqlite" => open_sqlite(url, table).await,
            // The text is not shown: it may be a password without its URL.
            _ => Err(Failure::Arguments(format!(
                "the store's URL begins with none of {SCHEMES}"
            ))),
        }
    }

    pub(crate) fn list<'a>(
        &'a self,
        listing: &'a Listing,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        each!(self, store => store.list(listing))
    }

    pub(crate) fn count<'a>(
        &'a self,
        after: Option<&'a Cursor>,
    ) -> BoxFuture<'a, Result<Option<Counts>, StoreError>> {
        each!(self, store => store.count(after))
    }

    pub(crate) fn inspect<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>> {
        each!(self, store => store.inspect(id))
    }

    /// Carries a decision out. `intervention` says who decided and why.
    pub(crate) fn intervene<'a>(
        &'a self,
        intervention: &'a Intervention,
    ) -> BoxFuture<'a, Result<Intervened, StoreError>> {
        each!(self, store => store.intervene(intervention))
    }

    /// Carries a decision out, with an entry in the trail.
    pub(crate) fn intervene_noted<'a>(
        &'a self,
        intervention: &'a Intervention,
        keep_for: Duration,
    ) -> BoxFuture<'a, Result<Intervened, StoreError>> {
        each!(self, store => async move {
            Trail::new(store).keep_for(keep_for).intervene(intervention).await
        })
    }

    /// Writes the entry of a decision about many records.
    pub(crate) fn note<'a>(
        &'a self,
        decision: &'a Decision,
        by: Operator<'a>,
        keep_for: Duration,
    ) -> BoxFuture<'a, Result<Noted, StoreError>> {
        each!(self, store => async move {
            Trail::new(store).keep_for(keep_for).note(decision, by.who, by.why).await
        })
    }

    /// Adds the result to the entry of a decision about many records.
    pub(crate) fn end(
        &self,
        noted: Noted,
        ended: Ended,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        each!(self, store => async move {
            Trail::new(store).keep_for(keep_for).end(noted, &ended).await
        })
    }

    /// The latest decisions about the record with a digest.
    pub(crate) fn decisions(
        &self,
        digest: KeyDigest,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Entry>, StoreError>> {
        each!(self, store => async move { Trail::new(store).of_digest(digest, limit).await })
    }

    /// The latest decisions about many records of an operation.
    pub(crate) fn purges<'a>(
        &'a self,
        operation: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Entry>, StoreError>> {
        each!(self, store => async move { Trail::new(store).of_operation(operation, limit).await })
    }

    /// Reads a record of the trail; `None` if the record is not one.
    pub(crate) fn entry<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        each!(self, store => async move { Trail::new(store).entry(id).await })
    }
}

async fn open_redis(url: &str, prefix: Option<&str>) -> Result<AnyStore, Failure> {
    let builder = RedisStore::builder().url(url).time_limit(LIMIT);
    let builder = match prefix {
        Some(prefix) => builder.prefix(prefix),
        None => builder,
    };
    Ok(AnyStore::Redis(builder.connect().await.map_err(of_url)?))
}

async fn open_postgres(url: &str, table: &str) -> Result<AnyStore, Failure> {
    let options: PgConnectOptions = parsed(url, "postgres://user:password@host:port/database")?;
    let options = options.disable_statement_logging();
    try_connection("PostgreSQL", SERVER, options.connect()).await?;
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(LIMIT)
        .connect_lazy_with(options);
    let store = PostgresStore::builder(pool.clone())
        .table(table)
        .time_limit(LIMIT)
        .build();
    Ok(AnyStore::Postgres(store, pool))
}

async fn open_mysql(url: &str, table: &str) -> Result<AnyStore, Failure> {
    let options: MySqlConnectOptions = parsed(url, "mysql://user:password@host:port/database")?;
    let options = options.disable_statement_logging();
    try_connection("MySQL", SERVER, options.connect()).await?;
    let pool = MySqlPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(LIMIT)
        .connect_lazy_with(options);
    let store = MySqlStore::builder(pool.clone())
        .table(table)
        .time_limit(LIMIT)
        .build();
    Ok(AnyStore::MySql(store, pool))
}

async fn open_sqlite(url: &str, table: &str) -> Result<AnyStore, Failure> {
    let options: SqliteConnectOptions = parsed(url, "sqlite:///var/lib/idem.db")?;
    // A mistyped path must not create a database.
    let options = options
        .create_if_missing(false)
        .busy_timeout(LIMIT / 2)
        .disable_statement_logging();
    try_connection("SQLite", FILE, options.connect()).await?;
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .acquire_timeout(LIMIT)
        .connect_lazy_with(options);
    let store = SqliteStore::builder(pool.clone())
        .table(table)
        .time_limit(LIMIT)
        .build();
    Ok(AnyStore::Sqlite(store, pool))
}

/// The table of SQL stores.
pub(crate) fn table_of(args: &Args) -> &str {
    args.table.as_deref().unwrap_or(TABLE)
}

/// Quotes each part of a table's name.
pub(crate) fn quoted(table: &str, mark: char) -> String {
    let part = |part: &str| format!("{mark}{}{mark}", part.replace(mark, ""));
    table.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// The failure of a connection to Redis: an unreadable URL is a wrong argument.
fn of_url(error: StoreError) -> Failure {
    let text = error.to_string();
    if error.kind() == StoreErrorKind::Refused && text.starts_with("the Redis URL `") {
        return Failure::Arguments(text);
    }
    error.into()
}

/// Reads the options in a URL. The error does not show the URL, because it has the password.
fn parsed<O: std::str::FromStr>(url: &str, example: &str) -> Result<O, Failure> {
    url.parse().map_err(|_| {
        Failure::Arguments(format!(
            "the store's URL cannot be read; it has the form `{example}`, with special characters \
             percent-encoded"
        ))
    })
}

/// Connects once without the pool, which would try again and hide why it fails.
async fn try_connection<C: sqlx::Connection>(
    name: &str,
    remedy: &str,
    connecting: impl Future<Output = Result<C, sqlx::Error>>,
) -> Result<(), Failure> {
    match timeout(LIMIT, connecting).await {
        Ok(Ok(connection)) => {
            let _ = timeout(Duration::from_millis(200), connection.close()).await;
            Ok(())
        }
        Ok(Err(error)) => Err(Failure::Unavailable(format!(
            "{name} cannot be reached: {error}; {remedy}"
        ))),
        Err(_) => Err(Failure::Unavailable(format!(
            "{name} did not answer within {} s",
            LIMIT.as_secs()
        ))),
    }
}
