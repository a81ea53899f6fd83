//! The stores that every promise is tested over.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::missing_panics_doc
)]

pub(crate) mod events;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[cfg(feature = "mysql")]
use idem::sqlx::mysql::MySqlPoolOptions;
#[cfg(feature = "postgres")]
use idem::sqlx::postgres::PgPoolOptions;
#[cfg(feature = "sqlite")]
use idem::sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use idem::store::{Store as _, StoreHandle};
use idem::{Builder, Idempotency, MemoryStore};
use idem_redis::RedisStore;
use idem_testkit::{FaultStore, Faults, RedisServer};

/// One set of records, which several runtimes share as processes would.
pub(crate) enum World {
    Memory(MemoryStore),
    Redis(String),
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteFile),
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// On MariaDB or MySQL.
    #[cfg(feature = "mysql")]
    MySql(String),
}

/// A file that is removed with its world.
pub(crate) struct SqliteFile(std::path::PathBuf);

impl SqliteFile {
    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.0.display())
    }
}

impl Drop for SqliteFile {
    fn drop(&mut self) {
        for end in ["", "-wal", "-shm"] {
            let mut file = self.0.clone().into_os_string();
            file.push(end);
            let _ = std::fs::remove_file(file);
        }
    }
}

impl World {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    /// A Redis of this test process; operations tell its tests apart.
    pub(crate) async fn redis() -> Self {
        Self::Redis(RedisServer::shared().await.unwrap().url())
    }

    #[cfg(feature = "sqlite")]
    pub(crate) async fn sqlite() -> Self {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        let file = FILES.fetch_add(1, Ordering::Relaxed);
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("records-{process}-{file}.db"));
        let file = SqliteFile(file);
        drop(SqliteFile(file.0.clone()));
        connected(async || idem::SqliteStore::connect(file.url()).await).await;
        Self::Sqlite(file)
    }

    #[cfg(feature = "postgres")]
    pub(crate) async fn postgres() -> Self {
        let url = idem_testkit::PostgresServer::shared().await.unwrap().url();
        connected(async || idem::PostgresStore::connect(&url).await?.migrate().await).await;
        Self::Postgres(url)
    }

    #[cfg(feature = "mysql")]
    pub(crate) async fn mariadb() -> Self {
        Self::on_mysql(idem_testkit::MariaDbServer::shared().await.unwrap().url()).await
    }

    #[cfg(feature = "mysql")]
    pub(crate) async fn mysql() -> Self {
        Self::on_mysql(idem_testkit::MySqlServer::shared().await.unwrap().url()).await
    }

    #[cfg(feature = "mysql")]
    async fn on_mysql(url: String) -> Self {
        connected(async || idem::MySqlStore::connect(&url).await?.migrate().await).await;
        Self::MySql(url)
    }

    /// The URL of the store.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Memory(_) => String::new(),
            Self::Redis(url) => url.clone(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.url(),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => url.clone(),
            #[cfg(feature = "mysql")]
            Self::MySql(url) => url.clone(),
        }
    }

    /// Another process, as far as that can be had inside one.
    pub(crate) async fn process(&self) -> Idempotency {
        self.builder().await.build()
    }

    pub(crate) async fn builder(&self) -> Builder {
        match self {
            Self::Memory(store) => Idempotency::builder(store.clone()),
            _ => Idempotency::builder(patient_store(&self.url()).await),
        }
    }

    /// The store alone, for records that no call writes.
    pub(crate) async fn store(&self) -> StoreHandle {
        match self {
            Self::Memory(store) => store.clone().into_handle(),
            _ => patient_store(&self.url()).await,
        }
    }

    /// Another process, whose store fails on demand.
    pub(crate) async fn faulty(&self) -> (Builder, Faults) {
        match self {
            Self::Memory(store) => faulty(FaultStore::new(store.clone())),
            _ => faulty(FaultStore::new(patient_store(&self.url()).await)),
        }
    }
}

/// Connects a store that has the usual limits. They are short for a machine that does much else, so
/// there may be several tries.
pub(crate) async fn connected<S, E: std::fmt::Debug>(connect: impl AsyncFn() -> Result<S, E>) -> S {
    for _ in 0..20 {
        if let Ok(store) = connect().await {
            return store;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    connect().await.unwrap()
}

/// How long a step may take where its limit does not matter: a machine may be busy.
const PATIENT: Duration = Duration::from_secs(15);

pub(crate) async fn patient_store(url: &str) -> StoreHandle {
    limited_store(url, PATIENT).await
}

/// A store whose steps may take this long. It has as much time as any to connect.
pub(crate) async fn limited_store(url: &str, limit: Duration) -> StoreHandle {
    match url.split("://").next() {
        #[cfg(feature = "postgres")]
        Some("postgres") => {
            let pool = PgPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect(url).await.unwrap();
            let store = idem::PostgresStore::builder(pool).time_limit(limit);
            store.build().into_handle()
        }
        #[cfg(feature = "mysql")]
        Some("mysql") => {
            let pool = MySqlPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect(url).await.unwrap();
            let store = idem::MySqlStore::builder(pool).time_limit(limit);
            store.build().into_handle()
        }
        #[cfg(feature = "sqlite")]
        Some("sqlite") => {
            let options: SqliteConnectOptions = url.parse().unwrap();
            let options = options
                .busy_timeout(limit.mul_f64(0.75))
                // Nobody turns the machine off.
                .synchronous(SqliteSynchronous::Off);
            let pool = idem::sqlx::SqlitePool::connect_with(options).await.unwrap();
            let store = idem::SqliteStore::builder(pool).time_limit(limit);
            store.build().into_handle()
        }
        _ => {
            let store = RedisStore::builder().url(url).time_limit(limit);
            let store = store.connect_time_limit(PATIENT).connect();
            store.await.unwrap().into_handle()
        }
    }
}

fn faulty<S: idem::Store>(store: FaultStore<S>) -> (Builder, Faults) {
    let faults = store.faults();
    (Idempotency::builder(store), faults)
}

/// Writes each test once, and runs it over every store.
#[macro_export]
macro_rules! over_both_stores {
    ($(
        $(#[doc = $doc:literal])*
        async fn $name:ident($world:ident: World $(,)?) $body:block
    )*) => {
        $($(#[doc = $doc])* async fn $name($world: World) $body)*

        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::memory()).await;
            })*
        }

        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::redis().await).await;
            })*
        }
    };
}

/// The same, over the SQL stores besides, as far as the features are there.
#[macro_export]
macro_rules! over_all_stores {
    ($(
        $(#[doc = $doc:literal])*
        async fn $name:ident($world:ident: World $(,)?) $body:block
    )*) => {
        $crate::over_both_stores! { $($(#[doc = $doc])* async fn $name($world: World) $body)* }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::sqlite().await).await;
            })*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::postgres().await).await;
            })*
        }

        #[cfg(feature = "mysql")]
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::mariadb().await).await;
            })*
        }

        #[cfg(feature = "mysql")]
        mod real_mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::World::mysql().await).await;
            })*
        }
    };
}

/// Counts bodies, and how many run at once.
#[derive(Default)]
pub(crate) struct Bodies {
    running: AtomicU32,
    most: AtomicU32,
    begun: AtomicU32,
}

impl Bodies {
    pub(crate) async fn run<T>(&self, body: impl Future<Output = T>) -> T {
        let _running = self.begin();
        body.await
    }

    pub(crate) fn begin(&self) -> impl Drop + '_ {
        struct Running<'a>(&'a Bodies);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.running.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Running(self)
    }

    pub(crate) fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }

    pub(crate) fn most_at_once(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

/// Short enough for a test to wait for its end, long enough for a busy machine to renew it.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// Longer than anything here takes: a test that comes here hangs.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Waits for a condition that something else brings about, looking now and then.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let looking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(LONG, looking).await.is_ok(),
        "not so after {LONG:?}: {what}"
    );
}

/// The error of the bodies of tests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("declined")]
    Declined,
    #[error("asked: {0}")]
    Asked(&'static str),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}
