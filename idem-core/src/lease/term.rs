//! The owner's side of a lease: how long the body may go on, and how it learns that it must stop.
//!
//! An owner counts its lease by its own monotonic clock, from before it sent the claim or the last
//! confirmed renewal. It gives the lease up after nine tenths of its length. The store counts from
//! the execution of the step, which is later. So, if the two clocks run at the same rate within 10
//! %, the body is stopped before the store lets another caller claim.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::base::clock;
use crate::base::sync::{Mutex, MutexGuard, Notify};
use crate::error::Error;
use crate::record::{
    Owner, RecordId, RecordInfo, RecordState, Renewal, owner_stops_after, renewal_due_after,
};

/// The term of one lease that is held in this process.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) id: RecordId,
    pub(crate) owner: Owner,
    pub(crate) attempt: u64,
    length: Duration,
    times: Mutex<Times>,
    /// Signals a loss, an end, and that a transaction may decide.
    changed: Notify,
}

#[derive(Debug)]
struct Times {
    /// The expiry that the store gives the record at the next renewal.
    hold: Duration,
    /// The body is not polled after this instant, unless a renewal is confirmed before.
    deadline: Instant,
    /// When the next renewal is due.
    renew_at: Instant,
    /// A renewal is under way.
    renewing: bool,
    fate: Fate,
    /// The outcome that a transaction of the owner has written. The commit of that transaction is
    /// not reported to this process.
    in_transaction: Option<Box<Option<Bytes>>>,
}

/// The state of a lease. After its end, a lease is never held again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Held,
    /// Its deadline has passed.
    RanOut,
    /// The store answered that another caller owns the record.
    Refused,
    /// The record is committed or given up: there is nothing left to lose.
    Over,
}

/// The keeper's next action for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Renew it now.
    Renew {
        /// When it is lost unless that succeeds.
        deadline: Instant,
    },
    /// Look again at that instant.
    Later {
        /// When a renewal is due, or the deadline while one is under way.
        at: Instant,
    },
    /// Wake those who wait for the loss.
    Lost,
    /// The lease is over.
    Never,
}

impl Term {
    /// Starts the term of a lease that was claimed by a message sent at `sent`, and what renews it.
    pub(crate) fn new(renewal: Renewal, attempt: u64, length: Duration, sent: Instant) -> Self {
        let Renewal { id, owner, hold } = renewal;
        let (deadline, renew_at) = Self::times(length, sent);
        let times = Mutex::new(Times {
            hold,
            deadline,
            renew_at,
            renewing: false,
            fate: Fate::Held,
            in_transaction: None,
        });
        Self {
            id,
            owner,
            attempt,
            length,
            times,
            changed: Notify::new(),
        }
    }

    fn times(length: Duration, sent: Instant) -> (Instant, Instant) {
        (
            clock::after(sent, owner_stops_after(length)),
            clock::after(sent, renewal_due_after(length)),
        )
    }

    /// Whether the body must stop. Read before each poll of the body: a process that was stopped
    /// for longer than its lease finds the deadline passed, whatever the keeper has seen.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost_at(clock::now())
    }

    /// Returns [`is_lost`](Self::is_lost) for a caller that has read the time.
    pub(crate) fn is_lost_at(&self, now: Instant) -> bool {
        let mut times = self.lock();
        match times.fate {
            Fate::Over => false,
            Fate::RanOut | Fate::Refused => true,
            Fate::Held if now < times.deadline => false,
            Fate::Held => {
                times.fate = Fate::RanOut;
                drop(times);
                self.changed.notify_waiters();
                true
            }
        }
    }

    /// Whether the lease is neither lost nor over.
    pub(crate) fn is_held(&self) -> bool {
        !self.is_lost() && self.deadline().is_some()
    }

    /// Resolves when the lease is lost, and never if it ends otherwise. Cancel safe.
    ///
    /// It has a timer of its own, because a blocked thread may delay the keeper, or the keeper may
    /// have ended with its tokio runtime.
    pub(crate) async fn lost(&self) {
        self.until(Self::is_lost).await;
    }

    /// Resolves when the owner can no longer tell what becomes of the record: the lease is lost, or
    /// a transaction decides. Cancel safe.
    pub(crate) async fn until_unconfirmed(&self) {
        self.until(|term| term.is_lost() || term.may_be_recorded())
            .await;
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        loop {
            // Subscribes before it looks, so that a loss right after the look still wakes it.
            let notified = self.changed.notified();
            if is_so(self) {
                return;
            }
            let Some(deadline) = self.deadline() else {
                return std::future::pending().await;
            };
            let _ = tokio::time::timeout_at(deadline, notified).await;
        }
    }

    /// Ends the lease, because the record is committed or given up.
    pub(crate) fn end(&self) {
        self.lock().fate = Fate::Over;
        self.changed.notify_waiters();
    }

    /// Notes that a transaction of the owner holds this outcome. The commit of that transaction
    /// ends the lease without a message to this process.
    pub(crate) fn note_recorded_in_transaction(&self, outcome: Option<Bytes>) {
        self.lock().in_transaction = Some(Box::new(outcome));
        self.changed.notify_waiters();
    }

    /// Whether a lease that the store refuses to renew may have ended with a commit, instead of
    /// being lost.
    pub(crate) fn may_be_recorded(&self) -> bool {
        self.lock().in_transaction.is_some()
    }

    /// Whether `found` is the record that the owner's transaction wrote.
    pub(crate) fn recorded(&self, found: &RecordInfo) -> bool {
        let times = self.lock();
        let outcome = times.in_transaction.as_deref();
        outcome.is_some_and(|outcome| self.has_recorded(found, outcome.as_ref()))
    }

    /// Whether `found` is the record of this attempt, with this outcome.
    pub(crate) fn has_recorded(&self, found: &RecordInfo, outcome: Option<&Bytes>) -> bool {
        let is_over = matches!(found.state, RecordState::Committed | RecordState::Done);
        let is_same = match (&found.outcome, outcome) {
            (Some(found), Some(outcome)) => found.payload == *outcome,
            // The outcome has expired since, or failed to encode.
            (found, _) => found.is_none(),
        };
        is_over && is_same && found.attempt == self.attempt
    }

    /// When the lease is lost unless it is renewed. `None` if it is over.
    fn deadline(&self) -> Option<Instant> {
        let times = self.lock();
        (times.fate != Fate::Over).then_some(times.deadline)
    }

    /// Returns the time left by the owner's clock, for a caller that does not wait.
    pub(crate) fn left(&self) -> Duration {
        self.lock().deadline.saturating_duration_since(clock::now())
    }

    /// When the next renewal is due.
    pub(crate) fn renewal_due(&self) -> Instant {
        self.lock().renew_at
    }

    /// How long the lease is between two renewals.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// The expiry that the store gives the record at the claim and at each renewal.
    pub(crate) fn hold(&self) -> Duration {
        self.lock().hold
    }

    /// Has the renewals from now on give the record at least this expiry.
    pub(crate) fn raise_hold(&self, hold: Duration) {
        let mut times = self.lock();
        times.hold = times.hold.max(hold);
    }

    /// The owner's error when the lease is lost.
    pub(crate) fn lost_error(&self) -> Error {
        Error::LeaseLost {
            operation: self.id.name().into(),
            key: self.id.digest(),
            attempt: self.attempt,
        }
    }

    /// The reason for the loss, for the logs.
    pub(crate) fn why_lost(&self) -> &'static str {
        if self.lock().fate == Fate::Refused {
            "the store says that it is not the owner: another caller is, or the store has \
             forgotten the record (restarted without its data, evicted, failed over)"
        } else {
            "no renewal was confirmed within nine tenths of the lease: the store did not answer \
             (renewal_failed), or the process stood still"
        }
    }

    pub(crate) fn renewal(&self) -> Renewal {
        Renewal::new(self.id.clone(), self.owner, self.hold())
    }

    /// Returns what is due at `now`. If the deadline has passed, marks the lease as lost; the
    /// caller then [wakes](Self::wake_waiters) those who wait.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut times = self.lock();
        if times.fate != Fate::Held {
            Due::Never
        } else if now >= times.deadline {
            times.fate = Fate::RanOut;
            Due::Lost
        } else if times.renewing {
            Due::Later { at: times.deadline }
        } else if now >= times.renew_at {
            times.renewing = true;
            Due::Renew {
                deadline: times.deadline,
            }
        } else {
            Due::Later { at: times.renew_at }
        }
    }

    /// Returns when the keeper has to look at this lease. `None` if it is over.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        let times = self.lock();
        (times.fate == Fate::Held).then_some(if times.renewing {
            times.deadline
        } else {
            times.renew_at
        })
    }

    /// Wakes those who wait for the loss.
    pub(crate) fn wake_waiters(&self) {
        self.changed.notify_waiters();
    }

    /// Confirms the renewal that was sent at `sent`. If the deadline has passed, it comes too late,
    /// even if nothing has noticed yet: the key may have had another owner meanwhile. (A late
    /// message of this owner could have claimed the key back since.)
    pub(crate) fn renewed(&self, sent: Instant) {
        let (deadline, renew_at) = Self::times(self.length, sent);
        let mut times = self.lock();
        if clock::now() >= times.deadline {
            // The next check or the body's timer sees the deadline.
            return;
        }
        (times.deadline, times.renew_at, times.renewing) = (deadline, renew_at, false);
    }

    /// Notes that a renewal failed. It is tried again soon, until the deadline.
    pub(crate) fn not_renewed(&self) {
        let again = clock::after(clock::now(), self.length / 20);
        let mut times = self.lock();
        (times.renew_at, times.renewing) = (again, false);
    }

    /// Notes that the store has another owner for the record.
    pub(crate) fn mark_lost(&self) {
        let mut times = self.lock();
        if times.fate == Fate::Held {
            times.fate = Fate::Refused;
        }
        drop(times);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::key::Key;

    impl Term {
        /// The first term of this record, from now on.
        pub(crate) fn first(id: RecordId, length: Duration) -> Self {
            let renewal = Renewal::new(id, Owner::generate(), length);
            Self::new(renewal, 1, length, clock::now())
        }
    }

    fn term(length: Duration) -> Term {
        let id = RecordId::new("orders", &Key::encode("1").unwrap()).unwrap();
        Term::first(id, length)
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_whose_reply_comes_after_the_deadline_brings_no_lease_back() {
        let length = Duration::from_secs(10);
        let term = term(length);
        tokio::time::advance(Duration::from_secs(4)).await;
        let sent = clock::now();
        assert_eq!(
            term.due(sent),
            Due::Renew {
                deadline: clock::after(sent, Duration::from_secs(5))
            }
        );
        // The process stood still, so nothing has looked at the term meanwhile.
        tokio::time::advance(Duration::from_secs(5)).await;
        term.renewed(sent);
        assert!(term.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_lost_at_its_deadline_not_before_and_no_keeper_is_needed_to_tell() {
        let began = clock::now();
        let lease = term(Duration::from_secs(10));
        assert_eq!(lease.left(), Duration::from_secs(9));
        tokio::time::advance(Duration::from_millis(8_999)).await;
        assert!(!lease.is_lost());
        tokio::time::timeout(Duration::from_secs(5), lease.lost())
            .await
            .unwrap();
        // Timers may be a millisecond late.
        assert!(clock::now().saturating_duration_since(began) <= Duration::from_millis(9_001));
        let exact = term(Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(exact.is_lost() && exact.left() == Duration::ZERO);
        assert!(
            exact.why_lost().contains("no renewal was confirmed"),
            "{}",
            exact.why_lost()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_hears_at_once_that_the_store_has_given_the_lease_to_another() {
        let began = clock::now();
        let lease = term(Duration::from_secs(10));
        let ((), ()) = tokio::join!(lease.lost(), async { lease.mark_lost() });
        assert_eq!(clock::now(), began);
        assert!(
            lease.why_lost().contains("another caller is"),
            "{}",
            lease.why_lost()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_is_refused_after_the_commit_loses_nothing() {
        let lease = term(Duration::from_secs(10));
        lease.end();
        lease.mark_lost();
        assert!(!lease.is_lost());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!lease.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_failed_is_due_again_after_a_twentieth_of_the_lease() {
        let lease = term(Duration::from_secs(20));
        let deadline = clock::after(clock::now(), Duration::from_secs(18));
        assert!(matches!(lease.due(clock::now()), Due::Later { at } if at == lease.renewal_due()));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(lease.due(clock::now()), Due::Renew { deadline });
        // One at a time.
        assert_eq!(
            (lease.due(clock::now()), lease.look_at()),
            (Due::Later { at: deadline }, Some(deadline))
        );
        lease.not_renewed();
        let again = clock::after(clock::now(), Duration::from_secs(1));
        assert_eq!(
            (lease.due(clock::now()), lease.look_at()),
            (Due::Later { at: again }, Some(again))
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lease.due(clock::now()), Due::Renew { deadline });
        lease.renewed(clock::now());
        assert_eq!(lease.left(), Duration::from_secs(18));
        lease.end();
        assert_eq!(
            (lease.due(clock::now()), lease.look_at()),
            (Due::Never, None)
        );
    }
}
