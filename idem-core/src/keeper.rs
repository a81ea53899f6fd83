//! One keeper per runtime renews all leases of the process, in batches.
//!
//! A lease is renewed when a third of it has passed, so a body that is shorter costs nothing but a place in a list. The keeper wakes at
//! most twelve times per length of the shortest lease, and takes all that is due then in one batch. It keeps watch over the deadlines
//! while renewals are under way: a store that does not answer cannot hold it up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock;
use crate::error::StoreError;
use crate::lease::{Due, Term};
use crate::observe::{Decision, Observer};
use crate::record::{Ownership, Renewal};
use crate::store::DynStore;

/// Renews leases as long as they are enrolled.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn DynStore>,
    observer: Observer,
    state: Mutex<State>,
    /// Something is due earlier than planned, or the runtime is gone.
    wake: Notify,
}

struct State {
    leases: Slab<Arc<Term>>,
    /// When the keeper looks next; `None`: not before somebody wakes it.
    planned: Option<Instant>,
    /// Whether the keeper's task is there.
    running: bool,
    /// Whether the runtime is gone.
    closed: bool,
}

/// A lease's place with the keeper; given up when dropped.
pub(crate) struct Enrolled {
    shared: Arc<Shared>,
    place: Option<usize>,
    pub(crate) term: Arc<Term>,
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn DynStore>, observer: Observer) -> Self {
        let state = State { leases: Slab::new(), planned: None, running: false, closed: false };
        Self { shared: Arc::new(Shared { store, observer, state: Mutex::new(state), wake: Notify::new() }) }
    }

    /// Takes a lease into care.
    pub(crate) fn enrol(&self, term: Term) -> Enrolled {
        let term = Arc::new(term);
        let first = clock::after(clock::now(), term.length() / 3);
        let mut state = self.shared.lock();
        let place = state.leases.insert(term.clone());
        let earlier = state.planned.is_none_or(|planned| first < planned);
        if earlier {
            state.planned = Some(first);
        }
        let runtime = if state.running { None } else { tokio::runtime::Handle::try_current().ok() };
        state.running |= runtime.is_some();
        // Not under the lock: a runtime that is shutting down drops the task at once, and the task takes the lock then.
        drop(state);
        match runtime {
            // The task ends with the tokio runtime that it was begun on; the next lease then begins another.
            Some(runtime) => drop(runtime.spawn(keep(Running(self.shared.clone())))),
            None if earlier => self.shared.wake.notify_one(),
            None => {}
        }
        Enrolled { shared: self.shared.clone(), place: Some(place), term }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

impl Enrolled {
    /// Lets the lease run out.
    pub(crate) fn stop(&mut self) {
        if let Some(place) = self.place.take() {
            self.shared.lock().leases.try_remove(place);
        }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is due now, and when to look again; `None` when there is nothing left to keep.
    fn look(&self) -> Option<(Vec<Arc<Term>>, Option<Instant>)> {
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
        state.planned = next;
        Some((due, next))
    }
}

/// The sign that the keeper's task is there, taken down however it ends.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running = false;
        state.planned = None;
        if !state.leases.is_empty() {
            tracing::warn!(target: "idem", leases = state.leases.len(), "the lease keeper ended with its tokio runtime; leases held on other runtimes are kept again when the next call begins");
        }
    }
}

type Batch = BoxFuture<'static, (Instant, Vec<Arc<Term>>, Vec<Result<Ownership, StoreError>>)>;

async fn keep(running: Running) {
    let shared = &running.0;
    let mut under_way = FuturesUnordered::<Batch>::new();
    while let Some((due, next)) = shared.look() {
        if !due.is_empty() {
            under_way.push(renew(shared.store.clone(), due));
        }
        tokio::select! {
            () = shared.wake.notified() => {}
            () = sleep_until(next) => {}
            Some((sent, leases, answers)) = under_way.next() => settle(shared.observer, sent, &leases, answers),
        }
    }
}

fn renew(store: Arc<dyn DynStore>, due: Vec<Arc<Term>>) -> Batch {
    Box::pin(async move {
        let renewals: Vec<Renewal> = due.iter().map(|lease| lease.renewal()).collect();
        let sent = clock::now();
        let answers = store.renew(&renewals).await;
        (sent, due, answers)
    })
}

fn settle(observer: Observer, sent: Instant, leases: &[Arc<Term>], answers: Vec<Result<Ownership, StoreError>>) {
    let mut answers = answers.into_iter();
    for lease in leases {
        match answers.next() {
            Some(Ok(Ownership::Held)) => lease.renewed(sent),
            Some(Ok(Ownership::Lost)) => lease.mark_lost(),
            Some(Err(error)) => {
                observer.decided_because(Decision::RenewalFailed, &lease.id, lease.attempt, &error);
                lease.not_renewed();
            }
            // A store that answers less than it was asked: as if it had not answered.
            None => lease.not_renewed(),
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
