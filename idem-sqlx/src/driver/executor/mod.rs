//! Carries out the steps of a store on its pool.
//!
//! A step runs in a task of the store's runtime. So neither the end of the caller's runtime nor a
//! dropped future interrupts it.

mod background;
pub(crate) mod clock;
mod connect;
pub(crate) mod duplicates;
pub(crate) mod errors;
mod idle;
mod pool;
mod queue;
mod retries;
mod settings;
pub(crate) mod sweep;
pub(crate) mod table_check;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::background::BackgroundTasks;
use self::clock::DatabaseClock;
pub(crate) use self::connect::has_idle;
use self::duplicates::{Duplicates, Expected};
use self::errors::{StepError, classify, failed};
pub(crate) use self::pool::close_idle;
use self::pool::{ConnectionPool, PooledConnection};
use self::queue::{StepPermit, StepQueue};
pub(crate) use self::retries::Resend;
use self::retries::{Retries, Retry};
pub(crate) use self::settings::{Settings, TIME_LIMIT};
use self::sqlx::Pool;
use self::sweep::Sweep;
use self::table_check::TableCheck;
use super::super::sqlx;
use super::dialect::{Conn, Dialect, ErrorClass, Schema};
use crate::table::Table;
use crate::waiters::LocalWaiters;

/// How long the first connection of a store may take, and the least that a transaction waits for one.
pub(crate) const CONNECT_WAIT: Duration = Duration::from_millis(1800);
/// How much longer the caller waits for the runtime that carries the step out.
const GRACE: Duration = Duration::from_millis(100);

/// The rest of a method, boxed in this crate so that programs that call it need not compile all of
/// it again.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A step's work on a connection.
pub(crate) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StepError>> + Send + 'c>>;

/// The pool, the statements and the background tasks of one store.
pub(crate) struct Executor<D: Dialect> {
    /// The dialect of separate steps, until they have [`found`](Self::found) the table.
    unqualified: D,
    /// The dialects of separate steps, and of their outcomes in a caller's transaction, for the
    /// schema in which the first step has found the table: other connections of the pool may look
    /// for it in another one.
    found: OnceLock<[D; 2]>,
    make: Box<dyn Fn(&Table) -> D + Send + Sync>,
    /// The dialect of steps in a caller's transaction, which is about the table that its connection
    /// leads to.
    pub(crate) within: D,
    pub(crate) waiters: Arc<LocalWaiters>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) duplicates: Arc<Duplicates>,
    pub(crate) limit: Duration,
    /// How long a transaction waits for a connection that it opens, and then for an answer. Twice as
    /// long as a step, so a limit for a slow database holds there too.
    pub(crate) connect_wait: Duration,
    pub(crate) connections: ConnectionPool<D>,
    table: TableCheck,
    parsed: Table,
    steps: StepQueue,
    /// The queue of steps that only read, where steps that may write come one at a time.
    reads: StepQueue,
    background: BackgroundTasks,
    /// How many transactions begin as [`close_stale`](Self::close_stale) says.
    stale_begins: AtomicU32,
}

/// The queue in which a step waits until it may run.
#[derive(Debug, Clone, Copy)]
enum Queue {
    Steps,
    Reads,
}

/// How a step is carried out.
#[derive(Debug, Clone, Copy)]
struct StepOptions {
    queue: Queue,
    /// Whether the step needs the table of `idem`.
    checks_table: bool,
    resend: Resend,
    limit: Duration,
}

impl<D: Dialect> Executor<D> {
    pub(crate) fn new(pool: Pool<D::Db>, settings: &Settings) -> Arc<Self> {
        Self::with_dialect(pool, settings, |_| {})
    }

    /// Creates an executor whose dialect is changed first.
    pub(crate) fn with_dialect(
        pool: Pool<D::Db>,
        settings: &Settings,
        change: impl Fn(&mut D) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let parsed = Table::parse(&settings.table);
        let check = TableCheck::new(&settings.table, parsed.as_ref());
        // With an invalid name, no statement is ever sent.
        let table = parsed.unwrap_or_default();
        // Shorter than the step's own limit, so that the database can still answer that the step
        // was not carried out.
        let lock_limit = (!settings.is_limited).then_some(settings.limit / 4 * 3);
        let make = move |table: &Table| {
            let mut dialect = D::new(table, lock_limit);
            change(&mut dialect);
            dialect
        };
        let connections = ConnectionPool::new(pool, settings);
        let size = connections.size_limit();
        let writers = if D::ONE_WRITER { 1 } else { size };
        Arc::new(Self {
            unqualified: make(&table),
            found: OnceLock::new(),
            make: Box::new(make),
            within: D::within_transactions(&table),
            waiters: Arc::default(),
            clock: Arc::new(DatabaseClock::new(connections.place().to_owned())),
            duplicates: Arc::default(),
            limit: settings.limit,
            connect_wait: settings.limit.saturating_mul(2).max(CONNECT_WAIT),
            connections,
            table: check,
            parsed: table,
            steps: StepQueue::new(writers),
            reads: StepQueue::new(size.saturating_sub(writers)),
            background: BackgroundTasks::default(),
            stale_begins: AtomicU32::new(0),
        })
    }

    fn options(&self, resend: Resend) -> StepOptions {
        StepOptions {
            queue: Queue::Steps,
            checks_table: true,
            resend,
            limit: self.limit,
        }
    }

    /// Carries out a step.
    pub(crate) async fn step<T: Send + 'static>(
        self: &Arc<Self>,
        resend: Resend,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        self.run_queued(self.options(resend), work).await
    }

    /// Carries out a step before all others, because it must not wait behind a burst.
    pub(crate) async fn urgent_step<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        self.run(self.options(Resend::Harmless), None, work).await
    }

    /// Whether a claim should look in a step that only reads, before it waits for those that may
    /// write: they come one at a time, and one runs now, or this claim will hardly write.
    pub(crate) fn reads_first(&self, expected: Expected) -> bool {
        let is_useful = expected == Expected::Record || self.steps.is_full();
        D::ONE_WRITER && self.connections.size_limit() > 1 && is_useful
    }

    /// Carries out a step that only reads, concurrently with those that may write.
    pub(crate) async fn read_step<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        let options = StepOptions {
            queue: Queue::Reads,
            ..self.options(Resend::Reads)
        };
        self.run_queued(options, work).await
    }

    async fn run_queued<T: Send + 'static>(
        self: &Arc<Self>,
        options: StepOptions,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let queue = self.queue(options);
        if let Some(permit) = queue.try_acquire(options.limit) {
            return self.run(options, Some(permit), work).await;
        }
        // In a task: if the caller stops polling this future, a permit that arrives meanwhile would
        // stay with it, and block the queue.
        let executor = self.clone();
        let (starts, mut started) = oneshot::channel();
        let step = self
            .runtime()
            .spawn(async move { executor.run_when_permitted(options, starts, &work).await });
        // A little longer than the task itself, whose runtime may be blocked.
        let patience = options.limit.saturating_add(GRACE);
        let waited = queue.wait_while_answered(patience, &mut started).await;
        let limit = if let Some(waited) = waited {
            // A task that drops the channel without a limit has ended.
            waited.output.unwrap_or_default()
        } else {
            // From here on the task cannot start the work.
            started.close();
            let no_permit = |_| errors::no_permit::<D>(self.place(), options.limit);
            started.try_recv().map_err(no_permit)?
        };
        self.wait_for_result(limit, step).await
    }

    /// Carries a step out as soon as it has a permit, unless its caller is gone by then.
    async fn run_when_permitted<T>(
        self: Arc<Self>,
        options: StepOptions,
        mut starts: oneshot::Sender<Duration>,
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        let permit = tokio::select! {
            biased;
            () = starts.closed() => None,
            permit = self.queue(options).acquire(options.limit) => permit,
        };
        let no_permit = || errors::no_permit::<D>(self.place(), options.limit);
        let permit = permit.ok_or_else(no_permit)?;
        // If this fails, the caller has already answered that the step was not carried out.
        starts.send(permit.limit).map_err(|_| no_permit())?;
        self.run_in_limit(options, permit.limit, work).await
    }

    fn queue(&self, options: StepOptions) -> &StepQueue {
        match options.queue {
            Queue::Steps => &self.steps,
            Queue::Reads => &self.reads,
        }
    }

    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        options: StepOptions,
        permit: Option<StepPermit>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let executor = self.clone();
        let limit = permit.as_ref().map_or(options.limit, |permit| permit.limit);
        let step = self.runtime().spawn(async move {
            let _permit = permit;
            executor.run_in_limit(options, limit, &work).await
        });
        self.wait_for_result(limit, step).await
    }

    /// Carries a step out within its limit, in a task of the store's runtime.
    async fn run_in_limit<T>(
        &self,
        options: StepOptions,
        limit: Duration,
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        self.validate_table_name()?;
        let sent = AtomicBool::new(false);
        let result = match timeout(limit, self.run_attempts(options, &sent, work)).await {
            Ok(result) => result,
            Err(_) if sent.load(Ordering::Relaxed) => {
                Err(errors::timed_out::<D>(self.place(), options.limit))
            }
            Err(_) => Err(self.connections.unconnected_in_time().unsent()),
        };
        let has_timed_out = result
            .as_ref()
            .is_err_and(|error| error.kind() == StoreErrorKind::Timeout);
        if D::ONE_WRITER && has_timed_out && matches!(options.queue, Queue::Steps) {
            self.steps.note_blocked();
        }
        result
    }

    /// Waits for the result of a step that has this limit, whatever runtime the caller is in.
    async fn wait_for_result<T>(
        &self,
        limit: Duration,
        step: JoinHandle<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match timeout(limit.saturating_add(GRACE), step).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(errors::runtime_ended::<D>(self.place())),
            Err(_) => Err(errors::timed_out::<D>(self.place(), self.limit)),
        }
    }

    /// Sends the work until it succeeds, or fails with an error that another attempt cannot avoid.
    async fn run_attempts<T>(
        &self,
        options: StepOptions,
        sent: &AtomicBool,
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        let mut retries = Retries::new(self.connections.size_limit());
        loop {
            let mut connection = match self.connections.acquire().await {
                Ok(connection) => connection,
                // An earlier attempt of this step may have been carried out.
                Err(error) if sent.load(Ordering::Relaxed) => return Err(error),
                Err(error) => return Err(error.unsent()),
            };
            let done = match self.check_table(options, &mut connection).await {
                Ok(()) => {
                    sent.store(true, Ordering::Relaxed);
                    work(self.dialect(), connection.get()?).await
                }
                Err(error) => Err(error),
            };
            let (error, resend) = match done {
                Ok(done) => {
                    self.queue(options).note_answer();
                    self.connections.keep_idle(connection);
                    return Ok(done);
                }
                Err(StepError::Store(error)) => {
                    self.queue(options).note_answer();
                    connection.return_to_pool();
                    return Err(retries.settle(error));
                }
                Err(StepError::Sql(error)) => (error, options.resend),
                Err(StepError::Unsent(error)) => (error, Resend::Reads),
            };
            match retries.decide(classify::<D>(&error), resend) {
                Retry::After(pause) => {
                    connection.return_to_pool();
                    sleep(pause).await;
                }
                Retry::OnAnotherConnection => {}
                Retry::OnNewConnection => {
                    self.connections.close_idle();
                    self.background.reconnect_messages();
                }
                Retry::Never => {
                    let error = self.final_error(options, error, connection).await;
                    return Err(retries.settle(error));
                }
            }
        }
    }

    /// Returns the error of a step that is not sent again.
    async fn final_error(
        &self,
        options: StepOptions,
        error: sqlx::Error,
        mut connection: PooledConnection<D>,
    ) -> StoreError {
        let error_class = classify::<D>(&error);
        let mut failure = failed::<D>(self.place(), error);
        if matches!(
            error_class,
            ErrorClass::Lost | ErrorClass::Ended(_) | ErrorClass::Stale(..)
        ) {
            return failure;
        }
        if error_class == ErrorClass::Schema && options.checks_table {
            self.table.reset();
            if let Err(StepError::Store(missing)) = self.check_table(options, &mut connection).await
            {
                failure = missing;
            }
        }
        connection.return_to_pool();
        failure
    }

    /// Checks once whether the table exists and belongs to `idem`, if the step needs that.
    async fn check_table(
        &self,
        options: StepOptions,
        connection: &mut PooledConnection<D>,
    ) -> Result<(), StepError> {
        if !options.checks_table || self.found.get().is_some() && self.table.has_passed() {
            return Ok(());
        }
        let schema = self
            .dialect()
            .schema(connection.get()?)
            .await
            .map_err(StepError::Unsent)?;
        let schema = self.table.check::<D>(self.place(), schema)?;
        self.found.get_or_init(|| {
            let table = self.parsed.found_in(schema);
            [(self.make)(&table), D::within_transactions(&table)]
        });
        // The first step also compares the clocks for the first time.
        self.clock
            .observe(self.dialect(), connection.get()?)
            .await
            .map_err(StepError::Unsent)?;
        self.table.pass();
        Ok(())
    }

    /// Notes that a transaction of the application was on a connection that leads to nothing. The
    /// pool may get it back at any time, so more transactions than it has connections begin as
    /// [`close_stale`](Self::close_stale) says.
    pub(crate) fn note_stale(&self) {
        let begins = self.connections.size_limit().saturating_add(1);
        self.stale_begins.store(begins, Ordering::Relaxed);
    }

    /// Closes the idle connections of the pool where a transaction begins, if one was met that
    /// leads to nothing. Returns whether its own is to be closed after it as well.
    pub(crate) fn close_stale(&self, pool: &Pool<D::Db>) -> bool {
        let one_less = |begins: u32| begins.checked_sub(1);
        let (relaxed, begins) = (Ordering::Relaxed, &self.stale_begins);
        // Nearly every call finds 0, and only reads.
        let is_suspicious =
            begins.load(relaxed) > 0 && begins.fetch_update(relaxed, relaxed, one_less).is_ok();
        if is_suspicious {
            close_idle(pool);
        }
        is_suspicious
    }

    /// The dialect of separate steps.
    pub(crate) fn dialect(&self) -> &D {
        let found = self.found.get();
        found.map_or(&self.unqualified, |[steps, _]| steps)
    }

    /// The dialect of outcomes that a caller's transaction writes for a separate step's claim, once
    /// a step has found its table.
    pub(crate) fn of_leases(&self) -> Option<&D> {
        self.found.get().map(|[_, within]| within)
    }

    /// Whether the table was found to belong to `idem`.
    pub(crate) fn has_passed_check(&self) -> bool {
        self.table.has_passed()
    }

    /// Checks once whether the table belongs to `idem`, on the connection of a caller's
    /// transaction. Does not look at the clock: a claim does so where it matters.
    pub(crate) async fn check_table_within(&self, on: &mut Conn<D>) -> Result<(), StepError> {
        if !self.table.has_passed() {
            let schema = self.within.schema(on).await?;
            self.table.check::<D>(self.place(), schema)?;
            self.table.pass();
        }
        Ok(())
    }

    /// Creates the table if it does not exist, and checks whether it can be used.
    pub(crate) async fn migrate(self: &Arc<Self>) -> Result<(), StoreError> {
        let checked = self.options(Resend::Harmless);
        // A process does it once, when it starts, and a table takes longer to create than a row.
        let unchecked = StepOptions {
            checks_table: false,
            limit: self.limit.saturating_mul(2),
            ..checked
        };
        self.run_queued(unchecked, |dialect, on| {
            Box::pin(async move {
                if dialect.schema(on).await? == Schema::Missing {
                    dialect.create(on).await?;
                }
                Ok(())
            })
        })
        .await?;
        self.run_queued(checked, |_, _| Box::pin(async { Ok(()) }))
            .await
    }

    pub(crate) fn place(&self) -> &str {
        self.connections.place()
    }

    pub(crate) fn table(&self) -> &str {
        self.table.name()
    }

    pub(crate) fn validate_table_name(&self) -> Result<(), StoreError> {
        self.table.validate_name()
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        self.connections.runtime()
    }

    /// Whether messages of the database wake waiters now. `None`: it never sends any.
    pub(crate) fn messages(&self) -> Option<&watch::Receiver<bool>> {
        self.background.messages(|| {
            let _runtime = self.runtime().enter();
            self.dialect()
                .listen(&self.connections.pool, self.waiters.clone())
        })
    }

    pub(crate) fn keep_swept(self: &Arc<Self>) {
        self.background.keep_swept(|| {
            let sweeping = sweep::keep_swept(Arc::downgrade(self));
            self.runtime().spawn(sweeping).abort_handle()
        });
    }

    /// Makes the store wait as where the database's messages do not arrive.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn disable_messages(&self) {
        let _ = self.background.messages(|| None);
    }

    /// How many steps were answered.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn answers(&self) -> u64 {
        self.steps.answers()
    }
}

impl<D: Dialect> Sweep for Executor<D> {
    const ONE_WRITER: bool = D::ONE_WRITER;

    #[allow(
        clippy::disallowed_methods,
        reason = "how long a batch took, compared with nothing of the database"
    )]
    async fn sweep_batch(self: &Arc<Self>, limit: i64) -> Result<(u64, Duration), StoreError> {
        self.connections.return_idle();
        let clock = self.clock.clone();
        self.run_queued(self.options(Resend::Harmless), move |dialect, on| {
            let clock = clock.clone();
            Box::pin(async move {
                clock.observe(dialect, on).await?;
                let begun = Instant::now();
                Ok((dialect.sweep(on, limit).await?, begun.elapsed()))
            })
        })
        .await
    }
}

impl<D: Dialect> fmt::Debug for Executor<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(D::NAME)
            .field("place", &self.place())
            .field("table", &self.table())
            .field("time_limit", &self.limit)
            .finish_non_exhaustive()
    }
}
