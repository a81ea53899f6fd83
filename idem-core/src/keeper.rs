//! One keeper renews all leases that were claimed on one tokio runtime, in batches.
//!
//! A lease is renewed when a third of it has passed, so a body that is shorter costs nothing but a place in a list. The keeper wakes at
//! most twelve times per length of the shortest lease, and takes all that is due then in one batch. It keeps watch over the deadlines
//! while renewals are under way: a store that does not answer cannot hold it up. Nor can it, ended or held up, hold up a body's end:
//! bodies have timers of their own.
//!
//! A keeper ends with its tokio runtime, as do the bodies there. So each tokio runtime has its own; most processes have one.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use slab::Slab;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::clock;
use crate::error::StoreError;
use crate::lease::{Due, Term};
use crate::observe::{Decision, Observer};
use crate::record::{Ownership, Renewal};
use crate::store::AnyStore;
use crate::sync::{Mutex, MutexGuard, Notify, RwLock};

/// How often a keeper looks although nothing is due: a twelfth of the shortest lease it has seen, within these.
const LOOK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// How long a keeper goes on looking when there are no leases.
const LINGER: Duration = Duration::from_secs(60);

/// The keepers of a runtime.
pub(crate) struct Keepers {
    store: AnyStore,
    observer: Observer,
    /// One for each tokio runtime on which a lease was claimed.
    by_runtime: RwLock<Vec<(tokio::runtime::Id, Arc<Keeper>)>>,
}

/// Renews the leases that are enrolled with it.
struct Keeper {
    store: AnyStore,
    observer: Observer,
    state: Mutex<State>,
    /// Something is due earlier than planned, or the runtime is gone.
    wake: Notify,
}

struct State {
    leases: Slab<Arc<Term>>,
    /// The shortest lease that was ever enrolled.
    shortest: Duration,
    /// When the keeper looks next; `None`: not before somebody wakes it.
    planned: Option<Instant>,
    /// Whether the runtime is gone.
    closed: bool,
    /// Whether the keeper's task is gone, with its tokio runtime.
    ended: bool,
}

/// A lease's place with its keeper; given up when dropped.
pub(crate) struct Enrolled {
    /// `None` where there is no tokio runtime: nobody renews the lease.
    keeper: Option<Arc<Keeper>>,
    place: Option<usize>,
    pub(crate) term: Arc<Term>,
}

impl Keepers {
    pub(crate) fn new(store: AnyStore, observer: Observer) -> Self {
        Self { store, observer, by_runtime: RwLock::default() }
    }

    /// Takes a lease into care.
    pub(crate) fn enrol(&self, term: Term) -> Enrolled {
        let term = Arc::new(term);
        let Ok(handle) = tokio::runtime::Handle::try_current() else {
            return Enrolled { keeper: None, place: None, term };
        };
        let keeper = self.keeper_of(&handle);
        let (place, earlier) = keeper.take(term.clone());
        if earlier {
            // Rare: the keeper looks often enough by itself, once it knows how long leases are.
            let keeper = keeper.clone();
            elsewhere(&handle, move || keeper.wake.notify_one());
        }
        Enrolled { keeper: Some(keeper), place: Some(place), term }
    }

    fn keeper_of(&self, handle: &Handle) -> Arc<Keeper> {
        let id = handle.id();
        let known = |keepers: &[(tokio::runtime::Id, Arc<Keeper>)]| {
            keepers.iter().find(|(of, _)| *of == id).map(|(_, keeper)| keeper.clone())
        };
        if let Some(keeper) = known(&self.by_runtime.read().unwrap_or_else(PoisonError::into_inner)) {
            return keeper;
        }
        let keeper = {
            let mut keepers = self.by_runtime.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(keeper) = known(&keepers) {
                return keeper;
            }
            keepers.retain(|(_, keeper)| !keeper.lock().ended);
            let keeper = Arc::new(Keeper::new(self.store.clone(), self.observer));
            keepers.push((id, keeper.clone()));
            keeper
        };
        let (running, on) = (Running(keeper.clone()), handle.clone());
        elsewhere(handle, move || drop(on.spawn(keep(running))));
        keeper
    }
}

/// Does something on a thread that is none of the tokio runtime's workers: a task that is woken by a worker is run by that same worker next,
/// which may be about to block. Where all threads for blocking work are busy, a worker does it after all.
fn elsewhere(handle: &Handle, work: impl FnOnce() + Send + 'static) {
    let work = Arc::new(std::sync::Mutex::new(Some(work)));
    let once = move || {
        // Out of the lock first, which is not held while it is done.
        let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(work) = work {
            work();
        }
    };
    drop(handle.spawn_blocking(once.clone()));
    drop(handle.spawn(async move { once() }));
}

impl Drop for Keepers {
    fn drop(&mut self) {
        for (_, keeper) in self.by_runtime.get_mut().unwrap_or_else(PoisonError::into_inner) {
            keeper.close();
        }
    }
}

impl Enrolled {
    /// Lets the lease run out.
    pub(crate) fn stop(&mut self) {
        if let (Some(keeper), Some(place)) = (&self.keeper, self.place.take()) {
            let mut state = keeper.lock();
            state.leases.try_remove(place);
            if state.closed {
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

impl Keeper {
    fn new(store: AnyStore, observer: Observer) -> Self {
        let state = State { leases: Slab::new(), shortest: Duration::MAX, planned: None, closed: false, ended: false };
        Self { store, observer, state: Mutex::new(state), wake: Notify::new() }
    }

    /// Takes a lease into care. Gives its place, and says whether the keeper must be woken, because it plans to look too late.
    fn take(&self, term: Arc<Term>) -> (usize, bool) {
        let first = term.renewal_due();
        let mut state = self.lock();
        state.shortest = state.shortest.min(term.length());
        let earlier = state.planned.is_none_or(|planned| first < planned);
        if earlier {
            state.planned = Some(first);
        }
        (state.leases.insert(term), earlier)
    }

    /// No more leases come: the keeper ends after the last.
    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is due now, and when to look again; `None` when there is nothing left to keep.
    ///
    /// While there are leases, and for a while after, the keeper looks now and then even if nothing is due, so that it seldom has to be
    /// woken.
    fn look(&self, idle_since: &mut Option<Instant>) -> Option<(Vec<Arc<Term>>, Option<Instant>)> {
        let now = clock::now();
        let mut state = self.lock();
        if state.closed && state.leases.is_empty() {
            return None;
        }
        let (mut due, mut shortest) = (Vec::new(), Duration::MAX);
        let (mut next, mut first_deadline) = (None::<Instant>, None::<Instant>);
        for (_, lease) in &state.leases {
            let (at, deadline) = match lease.due(now) {
                Due::Never => continue,
                Due::Later { at, deadline } => (at, deadline),
                Due::Renew { deadline } => {
                    due.push(lease.clone());
                    (deadline, deadline)
                }
            };
            shortest = shortest.min(lease.length());
            next = Some(next.map_or(at, |next| next.min(at)));
            first_deadline = Some(first_deadline.map_or(deadline, |first| first.min(deadline)));
        }
        // Not sooner than a twelfth of a lease, so that leases begun one after the other are renewed together; but on time for one
        // that ends.
        let spaced = next.map(|next| next.max(clock::after(now, shortest / 12)));
        let next = spaced.zip(first_deadline).map(|(spaced, deadline)| spaced.min(deadline));
        let look_every = (state.shortest / 12).clamp(LOOK.0, LOOK.1);
        let idle = if state.leases.is_empty() { *idle_since.get_or_insert(now) } else { *idle_since.insert(now) };
        let look = (now < clock::after(idle, LINGER)).then(|| clock::after(now, look_every));
        let next = [next, look].into_iter().flatten().min();
        state.planned = next;
        Some((due, next))
    }
}

/// The sign that the keeper's task is there, taken down however it ends.
struct Running(Arc<Keeper>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().ended = true;
    }
}

type Batch = BoxFuture<'static, (Instant, Vec<Arc<Term>>, Vec<Result<Ownership, StoreError>>)>;

async fn keep(running: Running) {
    let keeper = &running.0;
    let mut under_way = FuturesUnordered::<Batch>::new();
    let mut idle_since = None;
    // A panic, say of the application's subscriber to events, ends a round and not the keeper.
    loop {
        let round = AssertUnwindSafe(round(keeper, &mut under_way, &mut idle_since));
        if let Ok(false) = round.catch_unwind().await {
            return;
        }
    }
}

/// Renews what is due, and waits until there is something to do. Says whether there may be more.
async fn round(keeper: &Keeper, under_way: &mut FuturesUnordered<Batch>, idle_since: &mut Option<Instant>) -> bool {
    let Some((due, next)) = keeper.look(idle_since) else { return false };
    if !due.is_empty() {
        under_way.push(renew(keeper.store.clone(), due));
    }
    tokio::select! {
        () = keeper.wake.notified() => {}
        () = sleep_until(next) => {}
        Some((sent, leases, answers)) = under_way.next() => settle(keeper.observer, sent, &leases, answers),
    }
    true
}

fn renew(store: AnyStore, due: Vec<Arc<Term>>) -> Batch {
    Box::pin(async move {
        let renewals: Vec<Renewal> = due.iter().map(|lease| lease.renewal()).collect();
        let sent = clock::now();
        // A store that panics has not answered; the keeper goes on.
        let answers = AssertUnwindSafe(async { store.renew(&renewals).await }).catch_unwind().await.unwrap_or_default();
        (sent, due, answers)
    })
}

fn settle(observer: Observer, sent: Instant, leases: &[Arc<Term>], answers: Vec<Result<Ownership, StoreError>>) {
    let round_trip = clock::now().saturating_duration_since(sent);
    let mut answers = answers.into_iter();
    let answers: Vec<_> = leases.iter().map(|lease| (lease, answers.next())).collect();
    // All of them, before anything is reported: reporting runs code of the application.
    for (lease, answer) in &answers {
        match answer {
            Some(Ok(Ownership::Held)) => lease.renewed(sent),
            Some(Ok(Ownership::Lost)) => lease.mark_lost(),
            Some(Err(_)) | None => lease.not_renewed(),
        }
    }
    for (lease, answer) in answers {
        let failed = |why: &dyn std::fmt::Display| {
            observer.decided_because(Decision::RenewalFailed, &lease.id, lease.attempt, why);
        };
        match answer {
            Some(Ok(_)) => observer.took(&lease.id, lease.attempt, lease.length(), round_trip),
            Some(Err(error)) => failed(&error),
            None => failed(&"the store gave no answer"),
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// A keeper without a tokio runtime, for the explorer of schedules.
#[cfg(all(test, shuttle))]
pub(crate) mod explored {
    use super::*;
    use crate::store::MemoryStore;

    pub(crate) struct Kept(Arc<Keeper>);

    impl Clone for Kept {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    pub(crate) fn start() -> Kept {
        Kept(Arc::new(Keeper::new(AnyStore::new(MemoryStore::new()), Observer::default())))
    }

    pub(crate) fn run(keeper: &Kept) -> impl Future<Output = ()> + use<> {
        keep(Running(keeper.0.clone()))
    }

    pub(crate) fn enrol(keeper: &Kept, term: Term) -> Enrolled {
        let term = Arc::new(term);
        let (place, earlier) = keeper.0.take(term.clone());
        if earlier {
            keeper.0.wake.notify_one();
        }
        Enrolled { keeper: Some(keeper.0.clone()), place: Some(place), term }
    }

    pub(crate) fn close(keeper: &Kept) {
        keeper.0.close();
    }

    pub(crate) fn has_ended(keeper: &Kept) -> bool {
        keeper.0.lock().ended
    }
}
