//! The store that is tried: how to get at it, and how time passes for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use idem_core::Store;
use idem_core::record::RecordId;
use idem_core::store::AdminStore;

use crate::check::{BoxError, Failure};
use crate::clock::ManualClock;
use crate::handle::Handle;

/// A store that the [suite](crate::suite) can try.
///
/// [`Clones`] and [`Connections`] are subjects for most stores. Implement the trait for one that
/// needs more, such as [`plant`](Self::plant).
///
/// Each trial makes a subject of its own, and uses ids of its own that differ from those of every
/// other run. So subjects may share a server, which need not be empty, and trials may run at the
/// same time.
///
/// # Examples
///
/// A store in Redis, whose keys other people's data can stand at:
///
/// ```no_run
/// use idem_core::record::RecordId;
/// use idem_testkit::{BoxError, RedisServer, Subject};
/// # use idem_core::MemoryStore as MyStore;
/// # async fn connect(_: &str) -> Result<MyStore, std::io::Error> { Ok(MyStore::new()) }
///
/// struct InRedis;
///
/// impl Subject for InRedis {
///     type Store = MyStore;
///
///     async fn store(&self) -> Result<MyStore, BoxError> {
///         Ok(connect(&RedisServer::shared().await?.url()).await?)
///     }
///
///     async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
///         let key = format!("idem:{}", id.as_str());
///         RedisServer::shared().await?.cli(&[b"SET", key.as_bytes(), value]).await?;
///         Ok(true)
///     }
/// }
///
/// fn main() {
///     idem_testkit::suite::run(|| InRedis);
/// }
/// ```
pub trait Subject: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// A handle on the store. Called several times by some trials: all handles of one subject are
    /// on the same data, as those of several processes are. Called inside the tokio runtime in
    /// which the handle is used.
    fn store(&self) -> impl Future<Output = Result<Self::Store, BoxError>> + Send;

    /// How time passes for the store. Real time unless said otherwise.
    fn time(&self) -> Time {
        Time::real()
    }

    /// Puts a value that is not a record at the place of the record of `id`, for the trials with
    /// another program's data. `false`, the default, skips these trials: this store cannot hold
    /// such a value.
    fn plant(
        &self,
        id: &RecordId,
        value: &[u8],
    ) -> impl Future<Output = Result<bool, BoxError>> + Send {
        let _ = (id, value);
        async { Ok(false) }
    }
}

/// How time passes for a store.
#[derive(Clone)]
pub struct Time(Option<Arc<dyn Fn(Duration) + Send + Sync>>);

impl Time {
    /// By itself. Trials use short leases, and wait until they have run out.
    pub fn real() -> Self {
        Self(None)
    }

    /// Only as the trials move it.
    pub fn moved_by(advance: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(advance)))
    }

    pub(crate) fn is_real(&self) -> bool {
        self.0.is_none()
    }

    /// Moves a clock that has to be moved; says whether it has.
    pub(crate) fn advance(&self, by: Duration) -> bool {
        self.0.as_ref().map(|advance| advance(by)).is_some()
    }
}

impl From<ManualClock> for Time {
    fn from(clock: ManualClock) -> Self {
        Self::moved_by(move |by| clock.advance(by))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_real() {
            "Time::real()"
        } else {
            "Time::moved_by(..)"
        })
    }
}

/// A store whose clones are handles on the same data.
#[derive(Debug, Clone)]
pub struct Clones<S> {
    store: S,
    time: Time,
}

impl<S: Store + Clone> Clones<S> {
    /// A subject for a store, in real time.
    pub fn of(store: S) -> Self {
        Self {
            store,
            time: Time::real(),
        }
    }

    /// With a clock of the store that the trials move.
    #[must_use]
    pub fn with_time(mut self, time: impl Into<Time>) -> Self {
        self.time = time.into();
        self
    }
}

impl<S: Store + Clone> Subject for Clones<S> {
    type Store = S;

    async fn store(&self) -> Result<S, BoxError> {
        Ok(self.store.clone())
    }

    fn time(&self) -> Time {
        self.time.clone()
    }
}

/// A store in a server: each handle makes a new connection. Time is real.
///
/// # Examples
///
/// ```no_run
/// use idem_core::MemoryStore;
/// use idem_testkit::{Connections, RedisServer, suite};
///
/// # async fn connect(_: String) -> Result<MemoryStore, std::io::Error> { Ok(MemoryStore::new()) }
/// fn main() {
///     suite::run(|| {
///         Connections::by(|| async {
///             let server = RedisServer::shared().await?;
///             Ok(connect(server.url()).await?)
///         })
///     });
/// }
/// ```
#[derive(Clone)]
pub struct Connections<F>(F);

impl<F, Fut, S> Connections<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<S, BoxError>> + Send,
    S: Store,
{
    /// A subject whose handles are made by a function.
    pub fn by(connect: F) -> Self {
        Self(connect)
    }
}

impl<F> fmt::Debug for Connections<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl<F, Fut, S> Subject for Connections<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<S, BoxError>> + Send,
    S: Store,
{
    type Store = S;

    async fn store(&self) -> Result<S, BoxError> {
        (self.0)().await
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A [`Subject`] as the trials see it: whatever its types are, the trials are compiled once.
pub(crate) trait DynSubject: Send + Sync {
    fn handle(&self) -> Boxed<'_, Handle>;
    fn plant<'a>(&'a self, id: &'a RecordId, value: &'a [u8]) -> Boxed<'a, bool>;
}

impl<S: Subject> DynSubject for S {
    fn handle(&self) -> Boxed<'_, Handle> {
        Box::pin(async {
            let store = self.store().await.map_err(Failure::subject)?;
            Ok(Handle::new(store, self.time().is_real()))
        })
    }

    fn plant<'a>(&'a self, id: &'a RecordId, value: &'a [u8]) -> Boxed<'a, bool> {
        Box::pin(async {
            Subject::plant(self, id, value)
                .await
                .map_err(Failure::subject)
        })
    }
}

/// A subject whose store can list, as the trials of that see it.
pub(crate) struct Admin<S>(pub(crate) S);

impl<S: Subject<Store: AdminStore>> DynSubject for Admin<S> {
    fn handle(&self) -> Boxed<'_, Handle> {
        Box::pin(async {
            let admin = self.0.store().await.map_err(Failure::subject)?;
            Ok(self.0.handle().await?.with_admin(admin))
        })
    }

    fn plant<'a>(&'a self, id: &'a RecordId, value: &'a [u8]) -> Boxed<'a, bool> {
        DynSubject::plant(&self.0, id, value)
    }
}
