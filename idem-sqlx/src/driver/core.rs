//! A pool, and how a step is carried out on it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

use self::sqlx::Pool;
use self::sqlx::pool::PoolConnection;
use super::super::sqlx;
use super::clock::DatabaseClock;
use super::dialect::{Conn, Dialect, Judgement, Schema};
use super::fault::{self, Stopped, failed, judge, refused};
use super::opening::Openings;
use super::spares::Spares;
use super::sweep::{self, Swept};
use super::turn::{Turn, Turns};
use crate::table::{MARK, Table, VERSION};
use crate::waiters::LocalWaiters;

/// How long a step may take, unless the builder says otherwise.
pub(crate) const TIME_LIMIT: Duration = Duration::from_millis(900);
/// How long connecting may take where nobody waits for more than that: at the start, and for a
/// transaction.
pub(crate) const CONNECTING: Duration = Duration::from_millis(1800);
/// How much longer the caller waits for the runtime that carries the step out.
const GRACE: Duration = Duration::from_millis(100);
/// How often a step is sent again that met another transaction.
const CONFLICTS: u32 = 20;

/// The rest of a method, in a box that is made in this crate: programs that call it need not
/// compile all of it again.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A step's work on a connection.
pub(crate) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, Stopped>> + Send + 'c>>;

/// One store: its pool, its statements, and what goes on in the background.
pub(crate) struct Core<D: Dialect> {
    pub(crate) pool: Pool<D::Db>,
    pub(crate) dialect: D,
    /// The dialect of steps in a caller's transaction.
    pub(crate) within: D,
    pub(crate) waiters: Arc<LocalWaiters>,
    pub(crate) clock: Arc<DatabaseClock>,
    pub(crate) limit: Duration,
    turns: Turns,
    /// The turns of steps that only read, next to those that write one at a time.
    looks: Turns,
    spares: Spares<D::Db>,
    openings: Openings,
    /// The database's address, for messages.
    place: String,
    /// Why the table's name is none.
    invalid: Option<String>,
    table: String,
    /// Whether the table was found to be ours.
    checked: AtomicBool,
    /// The runtime of the store. A connection is bound to the runtime in which it was made, and
    /// fails when that ends.
    home: OnceLock<Handle>,
    listening: OnceLock<Option<(JoinHandle<()>, watch::Receiver<bool>)>>,
    sweeper: Mutex<Option<AbortHandle>>,
}

/// Where a step waits for its turn.
#[derive(Debug, Clone, Copy)]
enum Queue {
    Steps,
    Looks,
}

/// The settings of a store, before it has a pool.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) table: String,
    pub(crate) limit: Duration,
    /// Whether nobody else uses the pool.
    pub(crate) pool_is_own: bool,
    /// Whether its connections limit how long statements wait for locks.
    pub(crate) is_limited: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { table: "idem_records".to_owned(), limit: TIME_LIMIT, pool_is_own: false, is_limited: false }
    }
}

impl Settings {
    /// Of a store with a pool of its own.
    pub(crate) fn of_own_pool() -> Self {
        Self { pool_is_own: true, is_limited: true, ..Self::default() }
    }
}

impl<D: Dialect> Core<D> {
    pub(crate) fn new(pool: Pool<D::Db>, settings: &Settings) -> Arc<Self> {
        Self::changed(pool, settings, |_| {})
    }

    /// With another dialect than its own.
    pub(crate) fn changed(pool: Pool<D::Db>, settings: &Settings, change: impl FnOnce(&mut D)) -> Arc<Self> {
        let table = Table::parse(&settings.table);
        let invalid = table.is_none().then(|| {
            format!(
                "`{}` is not a valid table name; write `name` or `schema.name` with letters, digits and `_`, each at most 63 bytes",
                settings.table
            )
        });
        // With an invalid name no statement is ever sent.
        let table = table.unwrap_or_default();
        // Shorter than the step's own limit: the database says then that it was not carried out.
        let lock_limit = (!settings.is_limited).then_some(settings.limit / 4 * 3);
        let mut dialect = D::new(&table, lock_limit);
        let within = D::within_transactions(&table);
        change(&mut dialect);
        let home = OnceLock::new();
        if let Ok(handle) = Handle::try_current() {
            let _ = home.set(handle);
        }
        let place = D::place(&pool.connect_options());
        let connections = pool.options().get_max_connections();
        let writers = if D::ONE_WRITER { 1 } else { connections };
        let turns = Turns::new(writers);
        let looks = Turns::new(connections.saturating_sub(writers));
        let openings = Openings::new(connections, settings.limit);
        Arc::new(Self {
            pool,
            dialect,
            within,
            waiters: Arc::default(),
            clock: Arc::new(DatabaseClock::new(place.clone())),
            limit: settings.limit,
            turns,
            looks,
            spares: Spares::new(settings.pool_is_own),
            openings,
            place,
            invalid,
            table: settings.table.clone(),
            checked: AtomicBool::new(false),
            home,
            listening: OnceLock::new(),
            sweeper: Mutex::default(),
        })
    }

    /// Carries a step out on the store's own runtime, so that neither the end of the caller's
    /// runtime nor a dropped future cuts it off.
    ///
    /// Work whose fate is unknown is sent once more if `repeat` says that this changes nothing.
    pub(crate) async fn step<T: Send + 'static>(
        self: &Arc<Self>,
        repeat: bool,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        self.queued(true, repeat, work).await
    }

    /// The same, before all others: for what must not wait behind a burst.
    pub(crate) async fn urgent_step<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        self.carry_out(Queue::Steps, (true, true), None, work).await
    }

    /// Whether a step that only reads had better not wait for those that may write: they come one at
    /// a time, and one is under way.
    pub(crate) fn looks_first(&self) -> bool {
        D::ONE_WRITER && self.pool.options().get_max_connections() > 1 && self.turns.are_all_taken()
    }

    /// Carries out a step that only reads, next to those that may write.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.keep_swept();
        self.in_turn(Queue::Looks, (true, true), work).await
    }

    /// In its turn, whatever the table is unless it is checked.
    pub(crate) async fn queued<T: Send + 'static>(
        self: &Arc<Self>,
        check: bool,
        repeat: bool,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        self.in_turn(Queue::Steps, (check, repeat), work).await
    }

    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        queue: Queue,
        how: (bool, bool),
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        if let Some(turn) = self.turns(queue).free(self.limit) {
            return self.carry_out(queue, how, Some(turn), work).await;
        }
        // In a task: this future may be left alone, and the turn that comes meanwhile would be
        // nobody else's.
        let core = self.clone();
        let (begins, mut begun) = oneshot::channel();
        let step = self.home().spawn(async move { core.when_it_is_its_turn(queue, how, begins, &work).await });
        // A little longer than the task itself, which may stand still with its tokio runtime.
        let waited = self.turns(queue).patiently(self.limit.saturating_add(GRACE), &mut begun).await;
        let limit = waited.map_or_else(
            || {
                // From here on it does not begin any more.
                begun.close();
                begun.try_recv().map_err(|_| fault::no_turn::<D>(&self.place, self.limit))
            },
            // It has ended, if it does not say that it begins.
            |(begun, _)| Ok(begun.unwrap_or_default()),
        )?;
        self.answer(limit, step).await
    }

    /// Carries a step out when its turn has come, unless its caller has gone by then.
    async fn when_it_is_its_turn<T>(
        self: Arc<Self>,
        queue: Queue,
        how: (bool, bool),
        mut begins: oneshot::Sender<Duration>,
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        let turn = tokio::select! {
            biased;
            () = begins.closed() => None,
            turn = self.turns(queue).take(self.limit) => turn,
        };
        let no_turn = || fault::no_turn::<D>(&self.place, self.limit);
        let turn = turn.ok_or_else(no_turn)?;
        // A caller that was told that there is none must be right.
        begins.send(turn.limit).map_err(|_| no_turn())?;
        self.carry_out_here(queue, how, turn.limit, work).await
    }

    fn turns(&self, queue: Queue) -> &Turns {
        match queue {
            Queue::Steps => &self.turns,
            Queue::Looks => &self.looks,
        }
    }

    async fn carry_out<T: Send + 'static>(
        self: &Arc<Self>,
        queue: Queue,
        how: (bool, bool),
        turn: Option<Turn>,
        work: impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let core = self.clone();
        let limit = turn.as_ref().map_or(self.limit, |turn| turn.limit);
        let step = self.home().spawn(async move {
            let _turn = turn;
            core.carry_out_here(queue, how, limit, &work).await
        });
        self.answer(limit, step).await
    }

    /// Carries a step out within its limit, in a task of the store's own runtime.
    async fn carry_out_here<T>(
        &self,
        queue: Queue,
        how: (bool, bool),
        limit: Duration,
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        if let Some(why) = &self.invalid {
            return Err(refused(why.as_str()));
        }
        let sent = AtomicBool::new(false);
        let answered = || self.turns(queue).answered();
        let result = match timeout(limit, self.attempt(how, &sent, &answered, work)).await {
            Ok(result) => result,
            Err(_) if sent.load(Ordering::Relaxed) => Err(fault::timed_out::<D>(&self.place, self.limit)),
            Err(_) => Err(self.unconnected_in_time()),
        };
        let has_timed_out = result.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Timeout);
        if D::ONE_WRITER && has_timed_out && matches!(queue, Queue::Steps) {
            self.turns(queue).blocked();
        }
        result
    }

    /// Waits for the answer of a step that has this limit, in whatever runtime the caller is.
    async fn answer<T>(&self, limit: Duration, step: JoinHandle<Result<T, StoreError>>) -> Result<T, StoreError> {
        match timeout(limit.saturating_add(GRACE), step).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(fault::runtime_ended::<D>(&self.place)),
            Err(_) => Err(fault::timed_out::<D>(&self.place, self.limit)),
        }
    }

    /// As where the database's messages do not come through.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn without_messages(&self) {
        drop(self.listening.set(None));
    }

    /// How many steps were answered.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    pub(crate) fn answers(&self) -> u64 {
        self.turns.answers()
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    pub(crate) fn home(&self) -> &Handle {
        self.home.get_or_init(Handle::current)
    }

    /// Whether messages of the database wake waiters now.
    pub(crate) fn listening(&self) -> Option<&watch::Receiver<bool>> {
        let listen = || {
            let _home = self.home().enter();
            self.dialect.listen(&self.pool, self.waiters.clone())
        };
        self.listening.get_or_init(listen).as_ref().map(|(_, connected)| connected)
    }

    /// Refuses a table's name that is none.
    pub(crate) fn is_valid(&self) -> Result<(), StoreError> {
        self.invalid.as_ref().map_or(Ok(()), |why| Err(refused(why.as_str())))
    }

    pub(crate) fn keep_swept(self: &Arc<Self>) {
        let mut sweeper = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner);
        if sweeper.is_none() {
            let task = self.home().spawn(sweep::keep_swept(Arc::downgrade(self)));
            *sweeper = Some(task.abort_handle());
        }
    }

    async fn attempt<T>(
        &self,
        (check, repeat): (bool, bool),
        sent: &AtomicBool,
        answered: &(impl Fn() + Sync),
        work: &(impl for<'c> Fn(&'c D, &'c mut Conn<D>) -> Work<'c, T> + Sync),
    ) -> Result<T, StoreError> {
        // After a restart of the server, each idle connection of the pool is lost.
        let most_losses = self.pool.options().get_max_connections().saturating_add(1);
        let (mut conflicts, mut losses) = (0, 0);
        loop {
            let mut lent = self.lend().await?;
            let done = match self.check(check, &mut lent).await {
                Ok(()) => {
                    sent.store(true, Ordering::Relaxed);
                    work(&self.dialect, lent.connection()?).await
                }
                Err(stopped) => Err(stopped),
            };
            let stopped = match done {
                Ok(done) => {
                    answered();
                    lent.leave_to_next(&self.spares);
                    return Ok(done);
                }
                Err(stopped) => stopped,
            };
            let (error, repeat) = match stopped {
                Stopped::Sql(error) => (error, repeat),
                Stopped::Unsent(error) => (error, true),
                Stopped::Store(error) => {
                    answered();
                    lent.give_back();
                    return Err(error);
                }
            };
            match judge::<D>(&error) {
                Judgement::Conflict if conflicts < CONFLICTS => {
                    conflicts += 1;
                    lent.give_back();
                    sleep(Duration::from_micros(fastrand::u64(..1000 * u64::from(conflicts)))).await;
                }
                Judgement::Lost if repeat && losses < most_losses => losses += 1,
                Judgement::Ended(_) if losses < most_losses => losses += 1,
                Judgement::Lost | Judgement::Ended(_) => return Err(failed::<D>(&self.place, error)),
                Judgement::Schema => {
                    self.checked.store(false, Ordering::Relaxed);
                    let missing = match self.check(true, &mut lent).await {
                        Err(Stopped::Store(missing)) => missing,
                        Ok(()) | Err(_) => failed::<D>(&self.place, error),
                    };
                    lent.give_back();
                    return Err(missing);
                }
                _ => {
                    lent.give_back();
                    return Err(failed::<D>(&self.place, error));
                }
            }
        }
    }

    async fn lend(&self) -> Result<PooledConnection<D>, StoreError> {
        let _wanted = match self.spares.take() {
            Ok(connection) => return Ok(PooledConnection(Some(connection))),
            Err(wanted) => wanted,
        };
        match self.openings.connection(&self.pool, self.home()).await {
            Ok(connection) => Ok(PooledConnection(Some(connection))),
            Err(sqlx::Error::PoolTimedOut) => Err(self.unconnected_in_time()),
            Err(error) => Err(fault::unconnected::<D>(&self.place, error)),
        }
    }

    /// Returns connections that no step uses to the pool, which closes those that are too old or
    /// were idle for too long.
    fn return_spares(&self) {
        for connection in self.spares.take_all() {
            let mut lent = PooledConnection::<D>(Some(connection));
            let _home = self.home().enter();
            lent.give_back();
        }
    }

    fn unconnected_in_time(&self) -> StoreError {
        let in_use = self.pool.size().saturating_sub(self.openings.under_way());
        let exhausted = in_use >= self.pool.options().get_max_connections() && self.pool.num_idle() == 0;
        fault::unconnected_in_time::<D>(&self.place, self.limit, exhausted)
    }

    /// Looks once whether the table is there, and ours, if the step needs that.
    async fn check(&self, is_needed: bool, lent: &mut PooledConnection<D>) -> Result<(), Stopped> {
        if !is_needed || self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let schema = self.dialect.schema(lent.connection()?).await.map_err(Stopped::Unsent)?;
        self.judge_schema(schema)?;
        // The first look at the clock, with the first step.
        self.clock.look(&self.dialect, lent.connection()?).await.map_err(Stopped::Unsent)?;
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Looks once whether the table is ours, on the connection of a caller's transaction. The first
    /// step looks at the clock as well; a claim does so where it matters.
    pub(crate) async fn check_within(&self, on: &mut Conn<D>) -> Result<(), Stopped> {
        if !self.checked.load(Ordering::Relaxed) {
            self.judge_schema(self.within.schema(on).await?)?;
            self.checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn judge_schema(&self, schema: Schema) -> Result<(), StoreError> {
        let (name, place, table) = (D::NAME, &self.place, &self.table);
        match schema {
            Schema::Marked(mark) if mark == VERSION => Ok(()),
            Schema::Missing => Err(refused(format!(
                "{name} ({place}): there is no table `{table}`; call `migrate()` once at start-up, or run the statements of `SCHEMA`"
            ))),
            Schema::Marked(mark) if mark.starts_with(MARK) => Err(refused(format!(
                "{name} ({place}): the table `{table}` is marked `{mark}`, and this version of idem needs `{VERSION}`; use the version of idem that made the table, or another table"
            ))),
            Schema::Marked(_) => Err(refused(format!(
                "{name} ({place}): the table `{table}` is not marked as one of idem (`{VERSION}`, in its comment): it is another program's, or has lost its comment; name another table, or restore the comment"
            ))),
            Schema::Unusable(why) => Err(refused(format!("{name} ({place}): {why}"))),
        }
    }

    /// Creates the table where there is none, and says whether it can be used then.
    pub(crate) async fn migrate(self: &Arc<Self>) -> Result<(), StoreError> {
        self.queued(false, true, |dialect, on| {
            Box::pin(async move {
                if dialect.schema(on).await? == Schema::Missing {
                    dialect.create(on).await?;
                }
                Ok(())
            })
        })
        .await?;
        self.queued(true, true, |_, _| Box::pin(async { Ok(()) })).await
    }
}

impl<D: Dialect> Swept for Core<D> {
    const ONE_WRITER: bool = D::ONE_WRITER;

    #[allow(clippy::disallowed_methods, reason = "how long a batch took, compared with nothing of the database")]
    async fn sweep_batch(self: &Arc<Self>, limit: i64) -> Result<(u64, Duration), StoreError> {
        self.return_spares();
        let clock = self.clock.clone();
        self.queued(true, true, move |dialect, on| {
            let clock = clock.clone();
            Box::pin(async move {
                clock.look(dialect, on).await?;
                let begun = Instant::now();
                Ok((dialect.sweep(on, limit).await?, begun.elapsed()))
            })
        })
        .await
    }
}

impl<D: Dialect> fmt::Debug for Core<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(D::NAME)
            .field("place", &self.place)
            .field("table", &self.table)
            .field("time_limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl<D: Dialect> Drop for Core<D> {
    fn drop(&mut self) {
        if let Some((task, _)) = self.listening.take().flatten() {
            task.abort();
        }
        if let Some(sweeper) = self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take() {
            sweeper.abort();
        }
    }
}

/// A connection out of the pool. Unless it is given back, it is closed: sqlx would wait for the end
/// of what was going on there, and a server that is gone never ends anything.
struct PooledConnection<D: Dialect>(Option<PoolConnection<D::Db>>);

impl<D: Dialect> PooledConnection<D> {
    fn connection(&mut self) -> Result<&mut Conn<D>, StoreError> {
        let connection = self.0.as_deref_mut();
        connection.ok_or_else(|| {
            StoreError::new(StoreErrorKind::Unavailable, "the connection was given back before its time")
        })
    }

    /// Leaves the connection to the next step, after one that was carried out. The pool gets it if
    /// another step waits there.
    fn leave_to_next(&mut self, spares: &Spares<D::Db>) {
        self.0 = self.0.take().and_then(|connection| spares.keep(connection));
        self.give_back();
    }

    /// Gives the connection back, as its drop would: after a ping, for which that would wait
    /// without a limit.
    fn give_back(&mut self) {
        if let Some(mut connection) = self.0.take() {
            tokio::spawn(timeout(TIME_LIMIT, connection.return_to_pool()));
        }
    }
}

impl<D: Dialect> Drop for PooledConnection<D> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}
