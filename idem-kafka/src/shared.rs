//! What the consumer's task and its threads share.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_queue::{After, BoxError, Decision, Flow, Inbox, Outage, Place, report};
use tokio::sync::Notify;

use crate::record::{Original, Record};

/// How long running bodies may take when their partition is revoked.
const REVOKING: Duration = Duration::from_secs(1);
/// How long a commit under way may take when a partition is revoked. Longer than a slow broker
/// needs; after it, what is settled is not committed, and comes again.
const COMMITTING: Duration = Duration::from_secs(10);
/// How long a full partition keeps the thread from polling before it is paused. A pause drops what
/// the client has fetched ahead, and handlers are often done sooner.
const FULL: Duration = Duration::from_millis(100);

/// Sends offsets by partition to the broker, and waits for its answer.
pub(crate) trait SendCommit: FnOnce(&[(i32, i64)]) -> Result<(), BoxError> {}

impl<F: FnOnce(&[(i32, i64)]) -> Result<(), BoxError>> SendCommit for F {}

/// The state of a consumer that is open.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) topic: Arc<str>,
    state: Mutex<State>,
    /// For the threads: a handler has ended, or the phase has changed.
    changed: Condvar,
    /// For the task: a message may begin, a pause begins, or the client has ended.
    pub(crate) notify: Notify,
    outage: Mutex<Option<Outage>>,
}

#[derive(Debug)]
struct State {
    inbox: Inbox<Original>,
    phase: Phase,
    /// Pauses that the task has not begun.
    pauses: Vec<(Place, Duration)>,
    commit: Commit,
    /// Why the client has ended for good.
    fatal: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    /// Nothing is fetched any more. Running bodies end.
    Draining,
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Commit {
    Idle,
    UnderWay,
    /// A rebalance commits by itself.
    Rebalancing,
}

impl Shared {
    pub(crate) fn new(topic: Arc<str>) -> Self {
        Self {
            topic,
            state: Mutex::new(State {
                inbox: Inbox::default(),
                phase: Phase::Open,
                pauses: Vec::new(),
                commit: Commit::Idle,
                fatal: None,
            }),
            changed: Condvar::new(),
            notify: Notify::new(),
            outage: Mutex::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the condition no longer holds, or this time has passed.
    fn wait_while(
        &self,
        limit: Duration,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let waited = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| condition(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Changes the state, and tells all who wait for it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.notify_all();
        self.notify.notify_one();
        changed
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.change(|state| state.phase = state.phase.max(phase));
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.state().phase == Phase::Closing
    }

    /// Waits, but no longer than until the consumer is closed.
    pub(crate) fn sleep(&self, limit: Duration) {
        drop(self.wait_while(limit, |state| state.phase < Phase::Closing));
    }

    /// Ends the consumer: the client does not recover.
    pub(crate) fn end(&self, reason: String) {
        self.change(|state| {
            state.fatal.get_or_insert(reason);
        });
    }

    pub(crate) fn fatal(&self) -> Option<String> {
        self.state().fatal.clone()
    }

    /// Begins an outage, or reports once more that it goes on.
    pub(crate) fn lose(&self, error: &BoxError) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match &*outage {
            Some(outage) => outage.continues(error),
            None => *outage = Some(Outage::begin(&self.topic, error)),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        outage.is_some()
    }

    pub(crate) fn recover(&self) {
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outage) = outage.take() {
            outage.end();
        }
    }

    pub(crate) fn receive(&self, original: Original) {
        let mut state = self.state();
        if state.phase == Phase::Open {
            state.inbox.receive(original.fetched());
            drop(state);
            self.notify.notify_one();
        }
    }

    pub(crate) fn begin(&self) -> Option<Arc<Record>> {
        self.state().inbox.begin()
    }

    pub(crate) fn take_pauses(&self) -> Vec<(Place, Duration)> {
        std::mem::take(&mut self.state().pauses)
    }

    pub(crate) fn wake(&self, place: &Place) {
        self.state().inbox.wake(place);
    }

    pub(crate) fn is_void(&self, record: &Record) -> bool {
        self.state().inbox.is_void(record)
    }

    pub(crate) fn settle(&self, record: &Record) -> Result<(), BoxError> {
        let is_settled = self.state().inbox.settle(record);
        is_settled.then_some(()).ok_or_else(|| {
            "the partition was revoked, or its broker has gone back: its next consumer gets the \
             message again"
                .into()
        })
    }

    /// Takes a message back from its handler, to come again after a pause if there is one.
    pub(crate) fn take_back(&self, record: Arc<Record>, after: After, pause: Duration) {
        let place = record.place();
        self.change(|state| {
            if state.inbox.take_back(record, after) {
                state.pauses.push((place, pause));
            }
        });
    }

    /// Returns the partitions to pause and to resume, and how long to poll. Waits a moment if one
    /// is full.
    pub(crate) fn flow(&self) -> (Flow, Duration) {
        let mut state = self.wait_while(FULL, |state| {
            state.phase == Phase::Open && state.inbox.must_pause()
        });
        let all = state.phase > Phase::Open;
        let flow = state.inbox.flow(all);
        let is_soon = !all && state.inbox.has_paused();
        (flow, Duration::from_millis(if is_soon { 10 } else { 100 }))
    }

    pub(crate) fn assign(&self, partitions: &[i32]) {
        self.change(|state| state.inbox.assign(partitions));
    }

    /// Ends the assignment of partitions, within the client's callback: nothing of them begins,
    /// running bodies get a moment, and what is settled is committed. Not if they are lost: another
    /// consumer may have them already.
    pub(crate) fn revoke(&self, partitions: &[i32], is_lost: bool, send: impl SendCommit) {
        self.change(|state| state.inbox.end(partitions));
        if !is_lost {
            drop(self.wait_while(REVOKING, |state| state.inbox.is_running(partitions)));
            let mut state = self.wait_while(COMMITTING, |state| state.commit != Commit::Idle);
            if state.commit == Commit::Idle {
                state.commit = Commit::Rebalancing;
                drop(state);
                self.commit_and_report(send);
            }
        }
        self.change(|state| {
            state.inbox.revoke(partitions);
            if state.commit == Commit::Rebalancing {
                state.commit = Commit::Idle;
            }
        });
    }

    /// Commits what is settled, unless another commit is under way.
    pub(crate) fn commit(&self, send: impl SendCommit) -> bool {
        {
            let mut state = self.state();
            if state.commit != Commit::Idle {
                return true;
            }
            state.commit = Commit::UnderWay;
        }
        let is_done = self.commit_and_report(send);
        self.change(|state| state.commit = Commit::Idle);
        is_done
    }

    fn commit_and_report(&self, send: impl SendCommit) -> bool {
        let offsets = self.state().inbox.to_commit();
        if offsets.is_empty() {
            return true;
        }
        match send(&offsets) {
            Ok(()) => {
                self.state().inbox.committed(&offsets);
                true
            }
            Err(error) => {
                let detail = format!("the offsets are not committed yet: {error}");
                report(Decision::NotSettled, &self.topic, &detail);
                false
            }
        }
    }
}
