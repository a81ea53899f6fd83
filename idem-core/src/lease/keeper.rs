//! One keeper renews all leases that were claimed on one tokio runtime, in batches.
//!
//! A lease is renewed when a third of it has passed, so a shorter body costs only an entry of a
//! schedule. Leases that are due at about the same time are renewed together, at most 24 times per
//! length of the shortest lease, and about once a second if that is long. The keeper watches the
//! deadlines while renewals are under way, so a store that does not answer cannot delay it. A
//! keeper that has ended or is delayed cannot delay the end of a body, because bodies have timers
//! of their own. If very many leases are due, the keeper pauses between batches, so that it does
//! not delay calls.
//!
//! A keeper ends with its tokio runtime, as do the bodies there. So each tokio runtime has its own
//! keeper; most processes have one.

mod renewing;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use self::renewing::keep;
use crate::base::clock;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Mutex, MutexGuard, Notify, RwLock};
use crate::lease::schedule::Schedule;
use crate::lease::term::{Due, Term};
use crate::observe::{Observer, RoundTrips};
use crate::store::AnyStore;

/// The bounds of the interval in which a keeper looks although nothing is due. The interval is a
/// twelfth of the shortest lease that it has seen lately.
const LOOK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// How long a keeper keeps looking without leases.
const LINGER: Duration = Duration::from_secs(60);
/// How long a short lease makes the keeper look often.
const LATELY: Duration = Duration::from_secs(10);
/// How many leases the keeper looks at under one lock, and renews by one step of the store. Every
/// claim takes that lock.
const BATCH: usize = 500;
/// The pause of a keeper that has more than a batch to renew. Without it, a thread that waits for
/// the lock or shares the processor might wait for all batches.
const PAUSE: Duration = Duration::from_millis(1);

/// The keepers of a runtime.
pub(crate) struct LeaseKeepers {
    store: AnyStore,
    round_trips: Arc<RoundTrips>,
    known: Arc<Known>,
}

/// The tokio runtimes on which this idempotency runtime was used, each with its keeper. A keeper
/// ends with its tokio runtime.
#[derive(Default)]
pub(crate) struct Known(RwLock<Vec<(Handle, Arc<LeaseKeeper>)>>);

/// Renews the leases that are enrolled with it.
struct LeaseKeeper {
    store: AnyStore,
    round_trips: Arc<RoundTrips>,
    state: Mutex<State>,
    /// Whether the keeper's task has ended with its tokio runtime. Written while the state is
    /// locked.
    ended: AtomicBool,
    /// Signals that something is due earlier than planned, or that the runtime is gone.
    wake: Notify,
}

struct State {
    leases: Schedule<Arc<Term>>,
    /// The shortest lease that was seen since the given time.
    shortest: Duration,
    shortest_since: Instant,
    /// When the keeper looks next. `None`: when it is woken.
    planned: Option<Instant>,
    /// When it looked last.
    looked: Instant,
    /// When the keeper began to pause although leases were due.
    pausing_since: Option<Instant>,
    /// Whether the runtime is gone.
    closed: bool,
    /// How many leases were looked at, and how often.
    #[cfg(test)]
    visits: (usize, usize),
}

/// A lease's entry with its keeper. Dropping it ends the renewal.
pub(crate) struct Enrolled {
    /// `None` without a tokio runtime: the lease is not renewed.
    entry: Option<KeeperEntry>,
    pub(crate) term: Arc<Term>,
}

struct KeeperEntry {
    keeper: Arc<LeaseKeeper>,
    place: usize,
}

impl LeaseKeepers {
    pub(crate) fn new(store: AnyStore, observer: Observer) -> Self {
        Self {
            store,
            round_trips: Arc::new(RoundTrips::new(observer)),
            known: Arc::default(),
        }
    }

    /// Lets a keeper renew a lease.
    pub(crate) fn enrol(&self, term: Term) -> Enrolled {
        let term = Arc::new(term);
        match Handle::try_current() {
            Ok(handle) => self.enrol_on(&handle, term),
            Err(_) => Enrolled { entry: None, term },
        }
    }

    /// Lets the keeper of this tokio runtime renew a lease.
    pub(crate) fn enrol_on(&self, handle: &Handle, term: Arc<Term>) -> Enrolled {
        // The second time if that tokio runtime has ended: another one may have its id now.
        for _ in 0..2 {
            let keeper = self.keeper_of(handle);
            let Some((place, is_earlier)) = keeper.take(&term) else {
                continue;
            };
            if is_earlier {
                // This is rare: once the keeper knows how long leases are, it looks often enough by
                // itself.
                let keeper = keeper.clone();
                run_off_worker(handle, move || keeper.wake.notify_one());
            }
            let entry = Some(KeeperEntry { keeper, place });
            return Enrolled { entry, term };
        }
        Enrolled { entry: None, term }
    }

    pub(crate) fn round_trips(&self) -> &RoundTrips {
        &self.round_trips
    }

    pub(crate) fn known(&self) -> &Arc<Known> {
        &self.known
    }

    /// Makes a tokio runtime known.
    pub(crate) fn learn(&self, handle: &Handle) {
        self.keeper_of(handle);
    }

    fn keeper_of(&self, handle: &Handle) -> Arc<LeaseKeeper> {
        let find = |keepers: &[(Handle, Arc<LeaseKeeper>)]| {
            let mut of_id = keepers.iter().filter(|(of, _)| of.id() == handle.id());
            of_id
                .find(|(_, keeper)| !keeper.has_ended())
                .map(|(_, keeper)| keeper.clone())
        };
        if let Some(keeper) = find(&self.known.0.read().unwrap_or_else(PoisonError::into_inner)) {
            return keeper;
        }
        let keeper = {
            let mut keepers = self.known.0.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(keeper) = find(&keepers) {
                return keeper;
            }
            keepers.retain(|(_, keeper)| !keeper.has_ended());
            let keeper = Arc::new(LeaseKeeper::new(
                self.store.clone(),
                self.round_trips.clone(),
            ));
            keepers.push((handle.clone(), keeper.clone()));
            keeper
        };
        let running = Running(keeper.clone());
        let on = handle.clone();
        run_off_worker(handle, move || drop(on.spawn(keep(running))));
        keeper
    }
}

impl Known {
    /// Returns a tokio runtime that has not ended, other than this one. Of several, it is the one
    /// that was last seen to be driven.
    pub(crate) fn another(&self, than: Option<tokio::runtime::Id>) -> Option<Handle> {
        let keepers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let there = keepers
            .iter()
            .filter(|(handle, keeper)| Some(handle.id()) != than && !keeper.has_ended());
        there
            .max_by_key(|(_, keeper)| keeper.state().looked)
            .map(|(handle, _)| handle.clone())
    }
}

/// Runs `work` off the worker threads: tokio's LIFO slot could queue it behind a blocking body. If
/// all threads for blocking work are busy, a worker runs it after all.
fn run_off_worker(handle: &Handle, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(std::sync::Mutex::new(Some(work)));
    let once = move || {
        // Takes the work out first, so that the lock is not held while the work runs.
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            work();
        }
    };
    drop(handle.spawn_blocking(once.clone()));
    drop(handle.spawn(async move { once() }));
}

impl Drop for LeaseKeepers {
    fn drop(&mut self) {
        for (_, keeper) in self
            .known
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            keeper.close();
        }
    }
}

impl Enrolled {
    /// Takes the place with the keeper, which stays.
    pub(crate) fn take(&mut self) -> Self {
        let (entry, term) = (self.entry.take(), self.term.clone());
        Self { entry, term }
    }

    /// Ends the renewal: the lease expires.
    pub(crate) fn stop(&mut self) {
        if let Some(KeeperEntry { keeper, place }) = self.entry.take() {
            let mut state = keeper.state();
            let removed = state.leases.remove(place);
            let closed = state.closed;
            drop(state);
            drop(removed);
            if closed {
                keeper.wake.notify_one();
            }
        }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        self.stop();
    }
}

impl LeaseKeeper {
    fn new(store: AnyStore, round_trips: Arc<RoundTrips>) -> Self {
        let now = clock::now();
        let state = State {
            leases: Schedule::new(now),
            shortest: Duration::MAX,
            shortest_since: now,
            planned: None,
            looked: now,
            pausing_since: None,
            closed: false,
            #[cfg(test)]
            visits: (0, 0),
        };
        Self {
            store,
            round_trips,
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    /// Enrols a lease. Returns its place, and whether the keeper must be woken because it plans to
    /// look too late. Returns `None` if the keeper has ended.
    fn take(&self, term: &Arc<Term>) -> Option<(usize, bool)> {
        let first = term.renewal_due();
        let mut state = self.state();
        if self.has_ended() {
            return None;
        }
        state.shortest = state.shortest.min(term.length());
        let is_earlier = state.planned.is_none_or(|planned| first < planned);
        if is_earlier {
            state.planned = Some(first);
        }
        Some((
            state.leases.insert(term.clone(), first, slack(term)),
            is_earlier,
        ))
    }

    /// Lets the keeper end after its last lease.
    fn close(&self) {
        self.state().closed = true;
        self.wake.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns what is due now, the most urgent first. Returns `None` if there is nothing left to
    /// keep.
    ///
    /// While there are leases, and for a while after, the keeper looks from time to time even if
    /// nothing is due, so that it seldom has to be woken.
    fn look(&self, idle_since: &mut Option<Instant>) -> Option<Look> {
        let now = clock::now();
        let mut due = Vec::new();
        loop {
            let mut state = self.state();
            if state.closed && state.leases.is_empty() {
                return None;
            }
            state.looked = now;
            let (lost, is_all) = state.due(now, &mut due);
            let next = if is_all {
                Some(Next::At(state.plan(now, idle_since)))
            } else {
                state.may_pause(now).then_some(Next::Soon)
            };
            drop(state);
            for term in lost {
                term.wake_waiters();
            }
            if let Some(next) = next {
                due.sort_by_key(|renewing| renewing.deadline);
                return Some(Look { due, next });
            }
        }
    }

    /// Sets when to look at these leases again.
    fn plan_again(&self, leases: &[Renewing]) {
        for leases in leases.chunks(BATCH) {
            let mut state = self.state();
            for Renewing { place, term, .. } in leases {
                // The place may belong to another lease by now.
                if state
                    .leases
                    .get(*place)
                    .is_some_and(|there| Arc::ptr_eq(there, term))
                    && let Some(at) = term.look_at()
                {
                    state.leases.plan(*place, at, slack(term));
                }
            }
        }
    }
}

/// The findings of the keeper.
struct Look {
    due: Vec<Renewing>,
    next: Next,
}

/// When to look again.
enum Next {
    /// After a pause, because more is due.
    Soon,
    /// At this instant, or when the keeper is woken.
    At(Option<Instant>),
}

/// A lease whose renewal is due.
struct Renewing {
    place: usize,
    term: Arc<Term>,
    deadline: Instant,
}

/// How much later than due a lease may be renewed.
fn slack(term: &Term) -> Duration {
    term.length() / 12
}

impl State {
    /// Takes at most a batch of what is due. Returns the leases that were found to be lost, and
    /// whether that was all.
    fn due(&mut self, now: Instant, due: &mut Vec<Renewing>) -> (Vec<Arc<Term>>, bool) {
        let mut lost = Vec::new();
        #[cfg(test)]
        {
            self.visits.1 += 1;
        }
        for _ in 0..BATCH {
            let Some((place, term)) = self.leases.next_due(now) else {
                return (lost, true);
            };
            #[cfg(test)]
            {
                self.visits.0 += 1;
            }
            let term = term.clone();
            self.shortest = self.shortest.min(term.length());
            match term.due(now) {
                Due::Never => {}
                Due::Lost => lost.push(term),
                Due::Later { at } => self.leases.plan(place, at, slack(&term)),
                Due::Renew { deadline } => {
                    self.leases.plan(place, deadline, Duration::ZERO);
                    due.push(Renewing {
                        place,
                        term,
                        deadline,
                    });
                }
            }
        }
        (lost, false)
    }

    /// Whether there is time for a pause although more is due. All pauses together last at most as
    /// long as the shortest lease may be renewed late.
    fn may_pause(&mut self, now: Instant) -> bool {
        // A lease longer than `LATELY` may not have been looked at lately.
        let shortest = self.shortest.min(LATELY * 2);
        now < clock::after(*self.pausing_since.get_or_insert(now), shortest / 12)
    }

    /// When to look again.
    fn plan(&mut self, now: Instant, idle_since: &mut Option<Instant>) -> Option<Instant> {
        let look_every = (self.shortest / 12).clamp(LOOK.0, LOOK.1);
        if now >= clock::after(self.shortest_since, LATELY) {
            (self.shortest, self.shortest_since) = (Duration::MAX, now);
        }
        let idle = if self.leases.is_empty() {
            *idle_since.get_or_insert(now)
        } else {
            *idle_since.insert(now)
        };
        let look = (now < clock::after(idle, LINGER)).then(|| clock::after(now, look_every));
        self.pausing_since = None;
        self.planned = [self.leases.next_at(), look].into_iter().flatten().min();
        self.planned
    }
}

/// Shows that the keeper's task runs. Dropping it marks the task as ended.
struct Running(Arc<LeaseKeeper>);

impl Drop for Running {
    fn drop(&mut self) {
        let _state = self.0.state();
        self.0.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;

/// A keeper without a tokio runtime, for the explorer of schedules.
#[cfg(all(test, shuttle))]
pub(crate) mod explored {
    use super::*;
    use crate::MemoryStore;
    use crate::store::Store as _;

    pub(crate) struct Kept(Arc<LeaseKeeper>);

    impl Clone for Kept {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    pub(crate) fn start() -> Kept {
        let round_trips = Arc::new(RoundTrips::new(Observer::default()));
        Kept(Arc::new(LeaseKeeper::new(
            MemoryStore::new().into_handle().0,
            round_trips,
        )))
    }

    pub(crate) fn run(keeper: &Kept) -> impl Future<Output = ()> + use<> {
        keep(Running(keeper.0.clone()))
    }

    pub(crate) fn enrol(keeper: &Kept, term: Term) -> Enrolled {
        let term = Arc::new(term);
        let Some((place, earlier)) = keeper.0.take(&term) else {
            panic!("it has ended")
        };
        if earlier {
            keeper.0.wake.notify_one();
        }
        Enrolled {
            entry: Some(KeeperEntry {
                keeper: keeper.0.clone(),
                place,
            }),
            term,
        }
    }

    pub(crate) fn close(keeper: &Kept) {
        keeper.0.close();
    }

    pub(crate) fn has_ended(keeper: &Kept) -> bool {
        keeper.0.has_ended()
    }
}
