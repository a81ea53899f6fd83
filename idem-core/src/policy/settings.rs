//! The settings of an operation: times, and what a call does when it is not the first.

use std::time::Duration;

pub(crate) use crate::base::duration::{MAX_LENGTH, keep_for, whole_millis};
use crate::error::ConfigError;
use crate::record::STEPS_KEPT;

/// The behaviour of a call while another one with its key is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum InFlight {
    /// Waits for the other call's end, for at most `wait`. Then it replays the outcome, or runs its
    /// own body if the other call released the key. The default.
    #[default]
    Wait,
    /// Gets [`Error::InFlight`](crate::Error::InFlight) immediately.
    Reject,
}

/// The result of a call if one with its key was carried out before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Duplicate {
    /// The outcome of that call. The default.
    #[default]
    Replay,
    /// [`Error::Duplicate`](crate::Error::Duplicate).
    Reject,
}

/// The behaviour of a call if an earlier owner was cut off and its outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Abandoned {
    /// Runs the body again, as the next attempt. The default. To find out first what the earlier
    /// attempt did, use [`Operation::reconcile`](crate::Operation::reconcile).
    #[default]
    Rerun,
    /// Gets [`Error::Abandoned`](crate::Error::Abandoned), until the key is settled, released or
    /// forgotten, or the operation's [`hold`](crate::Operation::hold) ends: by default 30 days
    /// after the owner's claim or last renewal. The next call then runs the body again, as the next
    /// attempt, and the event `hold_ended` reports it. After twice that time the record is gone.
    Reject,
}

/// The behaviour of a call if the store cannot answer its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Gets [`Error::Store`](crate::Error::Store); the body does not run. The default.
    #[default]
    Reject,
    /// Runs the body unguarded, for operations that prefer availability to correctness.
    Run,
}

/// The behaviour of a call without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// Gets [`Error::MissingKey`](crate::Error::MissingKey); the body does not run. The default.
    #[default]
    Reject,
    /// Runs the body unguarded.
    Run,
}

/// All settings of an operation. A runtime has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) times: Times,
    pub(crate) lease: Duration,
    pub(crate) in_flight: InFlight,
    pub(crate) duplicate: Duplicate,
    pub(crate) abandoned: Abandoned,
    pub(crate) store_failure: StoreFailure,
    pub(crate) missing_key: MissingKey,
    /// `u64::MAX` for no limit, because an `Option` is twice as large.
    pub(crate) most_attempts: u64,
    /// The body asks first what became of an abandoned attempt.
    pub(crate) reconciles: bool,
    /// The body runs whatever the record says.
    pub(crate) observes: bool,
}

/// How long a call waits, and how long its record is kept. The future of every call holds these
/// numbers, so they are milliseconds: a `Duration` is twice as large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Times {
    ttl_millis: u64,
    /// 0: as `ttl`. An operation's own value is at least one.
    remember_millis: u64,
    wait_millis: u64,
    /// How long an unsettled record is kept, if it is rejected or asked about.
    hold_millis: u64,
    /// `remember_millis` is the runtime's default: an operation with a longer `ttl` raises it.
    pub(crate) remember_is_default: bool,
    /// No record ends before this many seconds: the time for which the key of the call was
    /// issued.
    pub(crate) least_secs: u32,
}

/// An owner stops a tenth of the lease early. That tenth must be more than timers and scheduling
/// take.
const MIN_LEASE: Duration = Duration::from_millis(100);
/// Thirty days: an operator has to see the error, find out what happened, and settle it.
const DEFAULT_HOLD_MILLIS: u64 = 30 * 24 * 60 * 60 * 1_000;

impl Settings {
    pub(crate) const DEFAULT: Self = Self {
        times: Times {
            ttl_millis: 24 * 60 * 60 * 1_000,
            remember_millis: 0,
            wait_millis: 5_000,
            hold_millis: DEFAULT_HOLD_MILLIS,
            remember_is_default: false,
            least_secs: 0,
        },
        lease: Duration::from_secs(30),
        in_flight: InFlight::Wait,
        duplicate: Duplicate::Replay,
        abandoned: Abandoned::Rerun,
        store_failure: StoreFailure::Reject,
        missing_key: MissingKey::Reject,
        most_attempts: u64::MAX,
        reconciles: false,
        observes: false,
    };

    /// Refuses an invalid setting with an error that says what to write.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |reason: String| Err(ConfigError::new(reason));
        let lengths = [
            ("ttl", self.ttl()),
            ("remember", self.remember()),
            ("lease", self.lease),
            ("wait", self.wait()),
            ("hold", self.hold()),
        ];
        if let Some((name, length)) = lengths.into_iter().find(|(_, length)| *length > MAX_LENGTH) {
            return refuse(format!(
                "`{name}` is {length:?}, more than the 100 years that it may be; is the unit right?"
            ));
        }
        if self.ttl().is_zero() {
            return refuse(
                "`ttl` is zero, so that no outcome would be kept; set at least 1 ms".into(),
            );
        }
        if self.times.hold_millis == 0 {
            return refuse(
                "`hold` is zero, so that an abandoned record would protect nothing; set \
                at least 1 ms, or `abandoned` to `rerun`"
                    .into(),
            );
        }
        if self.lease < MIN_LEASE {
            return refuse(format!(
                "`lease` is {:?}; it must be at least {MIN_LEASE:?}, and should be several times \
                 the store's round trip",
                self.lease
            ));
        }
        if let Some(remember) = self
            .set_to_remember()
            .filter(|remember| *remember < self.ttl() && !self.times.remember_is_default)
        {
            return refuse(format!(
                "`remember` is {remember:?}, shorter than `ttl`, which is {:?} (24 h unless it is \
                 set); make it longer, or set a shorter `ttl`",
                self.ttl()
            ));
        }
        if self.most_attempts == 0 {
            return refuse(
                "`max_attempts` is zero, so that no body would ever run; set at least 1".into(),
            );
        }
        Ok(())
    }

    /// Returns how long it is remembered that there was an outcome: at least as long as the outcome
    /// is kept.
    pub(crate) fn remember(&self) -> Duration {
        let times = &self.times;
        let least = u64::from(times.least_secs) * 1000;
        Duration::from_millis(times.remember_millis.max(times.ttl_millis).max(least))
    }

    /// How long an outcome is kept.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.times.ttl_millis)
    }

    fn set_to_remember(&self) -> Option<Duration> {
        (self.times.remember_millis > 0).then(|| Duration::from_millis(self.times.remember_millis))
    }

    /// How long a run of the key is kept, and what is recorded of it besides: a shorter `hold` or
    /// `ttl` does not shorten it, because a body may run, and be tried again, for longer than that.
    pub(crate) fn run_kept(&self) -> Duration {
        STEPS_KEPT.max(self.hold()).min(MAX_LENGTH)
    }

    /// Returns how long an unsettled record is kept, if it is rejected or asked about.
    pub(crate) fn hold(&self) -> Duration {
        Duration::from_millis(self.times.hold_millis)
    }

    /// Returns when a record in flight expires if its owner does not renew it. If the record
    /// protects its key after that, it stays for twice its hold, so that the next call can report
    /// the end of the hold.
    pub(crate) fn in_flight_expiry(&self) -> Duration {
        let least = self.remember().max(self.lease.saturating_mul(2));
        if self.abandoned == Abandoned::Reject || self.reconciles {
            least.max(self.hold().saturating_mul(2))
        } else if self.hold() > STEPS_KEPT {
            // A store gives a record that goes on with a run no more than this by itself.
            least.max(self.hold())
        } else {
            least
        }
    }

    /// Whether an operator may have to settle a record, because no call continues with it.
    pub(crate) fn may_need_a_person(&self) -> bool {
        self.abandoned == Abandoned::Reject || self.reconciles || self.max_attempts().is_some()
    }

    /// Returns the age from which an abandoned record may be claimed, although it is rejected
    /// before.
    pub(crate) fn take_over_after(&self) -> Option<Duration> {
        (self.abandoned == Abandoned::Reject).then(|| self.hold())
    }

    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.times.ttl_millis = whole(ttl);
    }

    pub(crate) fn set_remember(&mut self, remember: Duration) {
        // Zero becomes 1 ms, which is refused because it is shorter than `ttl`.
        self.times.remember_millis = whole(remember).max(1);
        self.times.remember_is_default = false;
    }

    /// Returns how long a call waits for one in flight.
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_millis(self.times.wait_millis)
    }

    pub(crate) fn set_wait(&mut self, wait: Duration) {
        self.times.wait_millis = whole(wait);
    }

    /// Returns how many attempts a key may have. `None`: any number.
    pub(crate) fn max_attempts(&self) -> Option<u64> {
        Some(self.most_attempts).filter(|most| *most < u64::MAX)
    }

    pub(crate) fn set_max_attempts(&mut self, max_attempts: Option<u64>) {
        self.most_attempts = max_attempts.unwrap_or(u64::MAX);
    }

    pub(crate) fn set_hold(&mut self, hold: Duration) {
        self.times.hold_millis = whole(hold);
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = whole_millis(lease);
    }
}

/// In milliseconds, rounded up.
fn whole(length: Duration) -> u64 {
    u64::try_from(whole_millis(length).as_millis()).unwrap_or(u64::MAX)
}

/// Returns how long the attempt count of a released key is kept.
pub(crate) fn keep_released(ttl: Duration, lease: Duration, least_secs: u32) -> Duration {
    ttl.max(lease.saturating_mul(10)).max(seconds(least_secs))
}

/// Returns it as a length of time.
pub(crate) fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Result<(), ConfigError> {
        let mut settings = Settings::DEFAULT;
        change(&mut settings);
        settings.check()
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Settings::DEFAULT.check().is_ok());
        assert!(with(|s| s.set_ttl(Duration::ZERO)).is_err());
        assert!(with(|s| s.set_lease(Duration::ZERO)).is_err());
        assert!(with(|s| s.set_lease(Duration::MAX)).is_err());
        assert!(with(|s| s.set_remember(Duration::from_secs(1))).is_err());
        assert!(with(|s| s.set_max_attempts(Some(0))).is_err());
        assert!(with(|s| s.set_wait(Duration::ZERO)).is_ok());
        assert!(with(|s| s.set_hold(Duration::ZERO)).is_err());
        assert!(with(|s| s.set_hold(Duration::MAX)).is_err());
        assert!(with(|s| s.set_hold(Duration::from_nanos(1))).is_ok());
    }

    #[test]
    fn a_remember_shorter_than_the_ttl_is_refused_in_either_order_unless_it_is_the_default() {
        let short = Duration::from_secs(1);
        let long = Duration::from_secs(10);
        let ttl_first = with(|s| {
            s.set_ttl(long);
            s.set_remember(short);
        });
        let ttl_last = with(|s| {
            s.set_remember(short);
            s.set_ttl(long);
        });
        assert!(ttl_first.is_err());
        assert_eq!(ttl_first, ttl_last);

        let mut default = Settings::DEFAULT;
        default.set_ttl(short);
        default.set_remember(short);
        assert_eq!(default.check(), Ok(()));
        default.times.remember_is_default = true;
        default.set_ttl(long);
        assert_eq!((default.check(), default.remember()), (Ok(()), long));
        default.set_remember(short);
        assert!(default.check().is_err());
    }

    #[test]
    fn lengths_are_rounded_up_to_what_stores_can_count() {
        assert_eq!(
            whole_millis(Duration::from_nanos(1)),
            Duration::from_millis(1)
        );
        assert_eq!(
            whole_millis(Duration::from_millis(7)),
            Duration::from_millis(7)
        );
    }

    #[test]
    fn a_record_in_flight_outlives_its_retention_and_its_lease() {
        let mut settings = Settings::DEFAULT;
        settings.set_ttl(Duration::from_secs(1));
        assert_eq!(settings.in_flight_expiry(), Duration::from_secs(60));
        assert_eq!(
            keep_released(settings.ttl(), settings.lease, 0),
            Duration::from_secs(300)
        );
        settings.set_remember(Duration::from_secs(90));
        assert_eq!(settings.in_flight_expiry(), Duration::from_secs(90));
        settings.times.least_secs = 900;
        assert_eq!(
            [settings.remember(), settings.in_flight_expiry()],
            [Duration::from_secs(900); 2]
        );
        assert_eq!(
            keep_released(settings.ttl(), settings.lease, 900),
            Duration::from_secs(900)
        );
    }

    #[test]
    fn a_record_that_protects_outlives_its_hold() {
        let day = Duration::from_secs(86_400);
        let mut settings = Settings::DEFAULT;
        assert_eq!(
            (settings.in_flight_expiry(), settings.take_over_after()),
            (day, None)
        );
        settings.abandoned = Abandoned::Reject;
        assert_eq!(
            (settings.in_flight_expiry(), settings.take_over_after()),
            (day * 60, Some(day * 30))
        );
        (settings.abandoned, settings.reconciles) = (Abandoned::Rerun, true);
        settings.set_hold(day * 3);
        assert_eq!(
            (settings.in_flight_expiry(), settings.take_over_after()),
            (day * 6, None)
        );
        settings.set_ttl(day * 7);
        assert_eq!(settings.in_flight_expiry(), day * 7);
    }
}
