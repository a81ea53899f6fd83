//! A runtime over the store that a URL names.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use idem_core::store::StoreHandle;
use idem_core::{Builder, Idempotency, MemoryStore, Store as _, StoreError, StoreErrorKind};
#[cfg(feature = "mysql")]
use idem_sqlx as on_mysql;
#[cfg(feature = "postgres")]
use idem_sqlx as on_postgres;
#[cfg(feature = "sqlite")]
use idem_sqlx as on_sqlite;
#[cfg(all(feature = "sqlx-08-mysql", not(feature = "mysql")))]
use idem_sqlx::v08 as on_mysql;
#[cfg(all(feature = "sqlx-08-postgres", not(feature = "postgres")))]
use idem_sqlx::v08 as on_postgres;
#[cfg(all(feature = "sqlx-08-sqlite", not(feature = "sqlite")))]
use idem_sqlx::v08 as on_sqlite;

const SCHEMES: &str = "memory:, redis://, rediss://, redis+sentinel://, redis+cluster://, \
                       postgres://, mysql:// or sqlite://";

/// Connects to the store that a URL names, and returns a runtime over it, with the default
/// settings.
///
/// `url` is one of these. Each but the first needs the feature in the second column; with sqlx 0.8
/// it is `sqlx-08-postgres`, `sqlx-08-mysql` or `sqlx-08-sqlite`.
///
/// | URL | feature | store |
/// | --- | --- | --- |
/// | `memory:` | | a new [`MemoryStore`] for each call: records of this process alone |
/// | `redis://127.0.0.1/`, `rediss://`, `redis+sentinel://`, `redis+cluster://`, `unix://` | `redis`; `redis-tls` for `rediss` | `RedisStore`: its builder's `url` has all forms |
/// | `postgres://user:password@host/database` | `postgres` | `PostgresStore` |
/// | `mysql://user:password@host/database`, `mariadb://` | `mysql` | `MySqlStore` |
/// | `sqlite://idem.db` | `sqlite` | `SqliteStore`, in WAL mode; makes the file if there is none |
///
/// A SQL store makes its table if there is none, which is all that needs the right to make tables.
/// Must be called in a tokio runtime: the store runs its steps there. Takes a few seconds at most.
///
/// For other settings use [`builder`]. To share a pool or a connection with the application, or to
/// name the table or a prefix, make the store yourself, and call [`Idempotency::new`].
///
/// # Errors
///
/// [`Refused`](StoreErrorKind::Refused) if the URL is malformed, its feature is off, or the server
/// refuses the user or is not suitable; [`Unavailable`](StoreErrorKind::Unavailable) or
/// [`Timeout`](StoreErrorKind::Timeout) if the server cannot be reached. No error shows a password.
///
/// # Cancellation safety
///
/// Dropped, it closes the connection. File and table may have been made.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = std::env::var("STORE").unwrap_or_else(|_| "memory:".to_owned());
/// # let url = "memory:";
/// let idempotency = idem::connect(url).await?;
/// idem::install(idempotency)?;
/// # Ok(())
/// # }
/// ```
pub async fn connect(url: impl Into<String>) -> Result<Idempotency, StoreError> {
    builder(url).connect().await
}

/// Begins a runtime over the store that a URL names, to set what [`connect`] has by default.
///
/// `url` is as for [`connect`]. Nothing is read or sent before [`UrlBuilder::connect`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem::StoreError> {
/// let idempotency = idem::builder("memory:")
///     .settings(|builder| builder.strict().ttl("1h"))
///     .from_env("IDEM")
///     .connect()
///     .await?;
/// # assert!(!idempotency.is_disabled());
/// # Ok(())
/// # }
/// ```
pub fn builder(url: impl Into<String>) -> UrlBuilder {
    UrlBuilder {
        url: url.into(),
        time_limit: None,
        settings: Box::new(|builder| builder),
        variable: None,
    }
}

/// Builds an [`Idempotency`] over the store that a URL names: what [`builder`] returns.
#[must_use = "nothing is connected before `connect`"]
pub struct UrlBuilder {
    url: String,
    time_limit: Option<Duration>,
    settings: Box<dyn FnOnce(Builder) -> Builder + Send>,
    variable: Option<OsString>,
}

impl UrlBuilder {
    /// Sets defaults of all operations, such as `ttl`, and everything else that [`Builder`] has.
    ///
    /// `set` gets the builder over the connected store. Called again, it adds to what was set
    /// before. An invalid setting is an error of [`connect`](Self::connect).
    pub fn settings(mut self, set: impl FnOnce(Builder) -> Builder + Send + 'static) -> Self {
        let before = self.settings;
        self.settings = Box::new(|builder| set(before(builder)));
        self
    }

    /// Sets how long a step of the store may take: 900 ms by default. No effect on a
    /// [`MemoryStore`].
    ///
    /// A database then gets a pool with the defaults of sqlx, which tests each connection after
    /// its use. With Redis, connecting may take as long, if that is more than two seconds.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Lets the environment variable `name` switch the guard: for a first week in which nothing is
    /// to change, or for an emergency. Without this call, no variable is read.
    ///
    /// | value | effect |
    /// | --- | --- |
    /// | `on`, empty, or no such variable | calls are guarded |
    /// | `observe` | as [`Builder::observe`]: every body runs, and events report what would have happened |
    /// | `off` | as [`Idempotency::disabled`]: every body runs, and the store is not even connected to. A warning is logged |
    /// | anything else | [`connect`](Self::connect) fails |
    ///
    /// `connect` reads the variable once. `off` also switches off tokens and locks.
    #[allow(
        clippy::wrong_self_convention,
        reason = "it takes more settings from there"
    )]
    pub fn from_env(mut self, name: impl Into<OsString>) -> Self {
        self.variable = Some(name.into());
        self
    }

    /// Connects to the store, and builds the runtime.
    ///
    /// Must be called in a tokio runtime.
    ///
    /// # Errors
    ///
    /// As the function [`connect`]. [`Refused`](StoreErrorKind::Refused) also if the variable of
    /// [`from_env`](Self::from_env) has an unknown value, or one of the [`settings`](Self::settings)
    /// is invalid.
    ///
    /// # Cancellation safety
    ///
    /// As the function [`connect`].
    pub async fn connect(self) -> Result<Idempotency, StoreError> {
        let mode = match &self.variable {
            Some(name) => mode(name, std::env::var_os(name).as_deref())?,
            None => Mode::On,
        };
        if mode == Mode::Off {
            tracing::warn!(
                target: "idem",
                variable = ?self.variable,
                "disabled: the environment says `off`, so every body runs, without a guard"
            );
            return Ok(Idempotency::disabled());
        }
        // In a box: a database's client makes it large.
        let store = Box::pin(open(&self.url, self.time_limit)).await?;
        let mut builder = (self.settings)(Idempotency::builder(store));
        if mode == Mode::Observe {
            builder = builder.observe();
        }
        builder
            .try_build()
            .map_err(|error| refused(error.to_string()).with_source(error))
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for UrlBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlBuilder")
            .field("time_limit", &self.time_limit)
            .field("variable", &self.variable)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    On,
    Observe,
    Off,
}

/// Reads the value of a variable. The error does not show it: the name may be that of a secret.
fn mode(name: &OsStr, value: Option<&OsStr>) -> Result<Mode, StoreError> {
    match value.map(OsStr::to_str) {
        None | Some(Some("" | "on")) => Ok(Mode::On),
        Some(Some("observe")) => Ok(Mode::Observe),
        Some(Some("off")) => Ok(Mode::Off),
        Some(_) => Err(refused(format!(
            "the environment variable `{}` has an unknown value; write `on`, `observe` or `off`",
            name.display()
        ))),
    }
}

#[allow(
    clippy::unused_async,
    unused_variables,
    reason = "without any other store"
)]
async fn open(url: &str, limit: Option<Duration>) -> Result<StoreHandle, StoreError> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    match scheme {
        "memory" if matches!(url, "memory" | "memory:" | "memory://") => {
            Ok(MemoryStore::new().into_handle())
        }
        #[cfg(feature = "redis")]
        _ if is_redis(scheme) => redis(url, limit).await,
        #[cfg(any(feature = "postgres", feature = "sqlx-08-postgres"))]
        "postgres" | "postgresql" => postgres(url, limit).await,
        #[cfg(any(feature = "mysql", feature = "sqlx-08-mysql"))]
        "mysql" | "mariadb" => mysql(url, limit).await,
        #[cfg(any(feature = "sqlite", feature = "sqlx-08-sqlite"))]
        "sqlite" => sqlite(url, limit).await,
        _ => Err(unopened(scheme)),
    }
}

fn is_redis(scheme: &str) -> bool {
    let server = scheme.split('+').next();
    matches!(
        server,
        Some("redis" | "rediss" | "valkey" | "valkeys" | "unix")
    )
}

/// The error for a store that this build cannot open.
fn unopened(scheme: &str) -> StoreError {
    let feature = match scheme {
        "rediss" | "valkeys" => "redis-tls",
        _ if is_redis(scheme) => "redis",
        "postgres" | "postgresql" => "postgres",
        "mysql" | "mariadb" => "mysql",
        "sqlite" => "sqlite",
        // The text is not shown: it may be a password without its URL.
        _ => return refused(format!("the store's URL begins with none of {SCHEMES}")),
    };
    let older = match feature {
        "redis" | "redis-tls" => String::new(),
        _ => format!(", or `sqlx-08-{feature}` for sqlx 0.8"),
    };
    refused(format!(
        "a store at `{scheme}://` needs the feature `{feature}` of `idem-rs`{older}: `cargo add \
         idem-rs --features {feature}`"
    ))
}

fn refused(reason: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, reason.into())
}

#[cfg(feature = "redis")]
async fn redis(url: &str, limit: Option<Duration>) -> Result<StoreHandle, StoreError> {
    let mut builder = idem_redis::RedisStore::builder().url(url);
    if let Some(limit) = limit {
        builder = builder.time_limit(limit);
        if limit > Duration::from_secs(2) {
            builder = builder.connect_time_limit(limit);
        }
    }
    Ok(builder.connect().await?.into_handle())
}

#[cfg(any(feature = "postgres", feature = "sqlx-08-postgres"))]
async fn postgres(url: &str, limit: Option<Duration>) -> Result<StoreHandle, StoreError> {
    use on_postgres::PostgresStore;
    use on_postgres::sqlx::postgres::PgPoolOptions;
    let store = match limit {
        None => PostgresStore::connect(url).await?,
        Some(limit) => {
            let pool = PgPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect_lazy(url).map_err(unreadable)?;
            PostgresStore::builder(pool).time_limit(limit).build()
        }
    };
    store.migrate().await?;
    Ok(store.into_handle())
}

#[cfg(any(feature = "mysql", feature = "sqlx-08-mysql"))]
async fn mysql(url: &str, limit: Option<Duration>) -> Result<StoreHandle, StoreError> {
    use on_mysql::MySqlStore;
    use on_mysql::sqlx::mysql::MySqlPoolOptions;
    let store = match limit {
        None => MySqlStore::connect(url).await?,
        Some(limit) => {
            let pool = MySqlPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect_lazy(url).map_err(unreadable)?;
            MySqlStore::builder(pool).time_limit(limit).build()
        }
    };
    store.migrate().await?;
    Ok(store.into_handle())
}

#[cfg(any(feature = "sqlite", feature = "sqlx-08-sqlite"))]
async fn sqlite(url: &str, limit: Option<Duration>) -> Result<StoreHandle, StoreError> {
    use on_sqlite::SqliteStore;
    use on_sqlite::sqlx::sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
    };
    // One in memory is refused there.
    let is_file = !(url.contains(":memory:") || url.contains("mode=memory"));
    let Some(limit) = limit.filter(|_| is_file) else {
        return Ok(SqliteStore::connect(url).await?.into_handle());
    };
    let options: SqliteConnectOptions = url.parse().map_err(unreadable)?;
    let options = options
        .create_if_missing(true)
        .busy_timeout(limit.mul_f64(0.75))
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().test_before_acquire(false);
    let pool = pool.max_connections(4).connect_lazy_with(options);
    let store = SqliteStore::builder(pool).time_limit(limit).build();
    store.migrate().await?;
    Ok(store.into_handle())
}

/// The error for a URL of a database that cannot be read. Its reason is left out, because it may
/// quote the URL.
#[cfg(any(
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "sqlx-08-postgres",
    feature = "sqlx-08-mysql",
    feature = "sqlx-08-sqlite",
))]
fn unreadable<E>(_: E) -> StoreError {
    refused(
        "the store's URL cannot be read; it has the form `scheme://user:password@host/database`, \
         or `sqlite://file.db`, with special characters percent-encoded",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ffi::OsStr;

    use super::{Mode, SCHEMES, builder, connect, mode, unopened};

    #[test]
    fn a_variable_switches_the_guard_and_an_unknown_value_is_refused_without_showing_it() {
        let read = |value: Option<&str>| mode(OsStr::new("IDEM"), value.map(OsStr::new));
        for (value, wanted) in [
            (None, Mode::On),
            (Some(""), Mode::On),
            (Some("on"), Mode::On),
            (Some("observe"), Mode::Observe),
            (Some("off"), Mode::Off),
        ] {
            assert_eq!(read(value).unwrap(), wanted, "{value:?}");
        }
        for value in ["OFF", "false", "0", "hunter2"] {
            let error = read(Some(value)).unwrap_err().to_string();
            assert!(error.contains("`IDEM`"), "{error}");
            assert!(!error.contains(value), "{error}");
        }
    }

    #[test]
    fn a_store_that_is_not_built_in_names_its_feature() {
        for (scheme, feature) in [
            ("redis", "`redis`"),
            ("redis+cluster", "`redis`"),
            ("redis+sentinel", "`redis`"),
            ("rediss", "`redis-tls`"),
            ("postgres", "`postgres`"),
            ("postgresql", "`postgres`"),
            ("mariadb", "`sqlx-08-mysql`"),
            ("sqlite", "`sqlite`"),
        ] {
            let error = unopened(scheme).to_string();
            assert!(error.contains(feature), "{scheme}: {error}");
        }
        assert!(unopened("hunter2").to_string().contains(SCHEMES));
    }

    #[tokio::test]
    async fn no_error_and_no_debug_output_shows_the_url() {
        for url in ["hunter2", "hunter2@host", "mongodb://hunter2@host/", ""] {
            let error = connect(url).await.unwrap_err().to_string();
            assert!(
                error.contains(SCHEMES) && !error.contains("hunter2"),
                "{error}"
            );
        }
        assert!(!format!("{:?}", builder("redis://:hunter2@host/")).contains("hunter2"));
        assert!(connect("memory://somewhere").await.is_err());
    }

    #[tokio::test]
    async fn settings_add_up_and_an_invalid_one_is_an_error() {
        let built = builder("memory:")
            .settings(|builder| builder.lease("10s"))
            .settings(|builder| builder.ttl("1h"))
            .connect()
            .await
            .unwrap();
        assert_eq!(built.lease(), Some(std::time::Duration::from_secs(10)));
        let error = builder("memory:")
            .settings(|builder| builder.ttl("soon"))
            .connect()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("`ttl`"), "{error}");
    }

    #[tokio::test]
    async fn a_variable_is_read_only_if_it_was_named() {
        // It is set in every process of cargo, and to none of the three words.
        let named = builder("memory:").from_env("CARGO_MANIFEST_DIR");
        assert!(named.connect().await.is_err());
        let unset = builder("memory:").from_env("IDEM_IS_SET_BY_NO_TEST");
        assert!(!unset.connect().await.unwrap().is_disabled());
        assert!(connect("memory:").await.is_ok());
    }
}
