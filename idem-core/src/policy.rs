//! What is decided per operation: times, and what a call does when it is not the first.

use std::time::Duration;

use crate::error::ConfigError;

/// What a call does when another one with its key is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum InFlight {
    /// Waits for it to end, for at most the `wait` time, and then takes its outcome, or its turn. The default.
    #[default]
    Wait,
    /// Gets [`Error::InFlight`](crate::Error::InFlight) at once.
    Reject,
}

/// What a call gets when one with its key was carried out before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Duplicate {
    /// The outcome of that call. The default.
    #[default]
    Replay,
    /// [`Error::Duplicate`](crate::Error::Duplicate).
    Reject,
}

/// What a call does when an earlier owner was cut off and nobody knows what became of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Abandoned {
    /// Runs the body again, as the next attempt. The default. To ask first what became of it, see
    /// [`Operation::reconcile`](crate::Operation::reconcile).
    #[default]
    Rerun,
    /// Gets [`Error::Abandoned`](crate::Error::Abandoned), until somebody settles or forgets the key.
    Reject,
}

/// What a call does when the store cannot answer its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum StoreFailure {
    /// Gets [`Error::Store`](crate::Error::Store); the body does not run. The default.
    #[default]
    Reject,
    /// Runs the body unguarded: available before correct.
    Run,
}

/// What a call without a key does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// Gets [`Error::MissingKey`](crate::Error::MissingKey); the body does not run. The default.
    #[default]
    Reject,
    /// Runs the body unguarded.
    Run,
}

/// All that can be set, for a runtime and, over it, for an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) remember: Option<Duration>,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) in_flight: InFlight,
    pub(crate) duplicate: Duplicate,
    pub(crate) abandoned: Abandoned,
    pub(crate) store_failure: StoreFailure,
    pub(crate) missing_key: MissingKey,
    pub(crate) max_attempts: Option<u64>,
    /// The body asks first what became of an abandoned attempt.
    pub(crate) reconciles: bool,
    /// No record ends before this many seconds: the time for which the token of the call was issued. As short as can be, since it is in the
    /// future of every call.
    pub(crate) least_secs: u32,
}

/// The tenth by which an owner stops early must be more than timers and scheduling take.
const MIN_LEASE: Duration = Duration::from_millis(100);
/// Longer than this is taken for a mistake in the unit.
pub(crate) const MAX_LENGTH: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Settings {
    pub(crate) const DEFAULT: Self = Self {
        ttl: Duration::from_secs(24 * 60 * 60),
        remember: None,
        lease: Duration::from_secs(30),
        wait: Duration::from_secs(5),
        in_flight: InFlight::Wait,
        duplicate: Duplicate::Replay,
        abandoned: Abandoned::Rerun,
        store_failure: StoreFailure::Reject,
        missing_key: MissingKey::Reject,
        max_attempts: None,
        reconciles: false,
        least_secs: 0,
    };

    /// Refuses what cannot be, saying what to write.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |reason: String| Err(ConfigError::new(reason));
        let lengths = [("ttl", self.ttl), ("remember", self.remember()), ("lease", self.lease), ("wait", self.wait)];
        if let Some((name, length)) = lengths.into_iter().find(|(_, length)| *length > MAX_LENGTH) {
            return refuse(format!(
                "`{name}` is {length:?}, more than the 100 years that it may be; is the unit right?"
            ));
        }
        if self.ttl.is_zero() {
            return refuse("`ttl` is zero, so that no outcome would be kept; set at least 1 ms".into());
        }
        if self.lease < MIN_LEASE {
            return refuse(format!(
                "`lease` is {:?}; it must be at least {MIN_LEASE:?}, and should be several times the store's round trip",
                self.lease
            ));
        }
        if let Some(remember) = self.remember.filter(|remember| *remember < self.ttl) {
            return refuse(format!(
                "`remember` is {remember:?}, shorter than `ttl`, which is {:?} (24 h unless it is set); make it longer, or set a shorter `ttl`",
                self.ttl
            ));
        }
        if self.max_attempts == Some(0) {
            return refuse("`max_attempts` is zero, so that no body would ever run; set at least 1".into());
        }
        Ok(())
    }

    /// How long it is known that there was an outcome: never shorter than the outcome itself.
    pub(crate) fn remember(&self) -> Duration {
        self.remember.unwrap_or(self.ttl).max(self.ttl).max(seconds(self.least_secs))
    }

    /// How long a record in flight stays if nothing more is heard of its owner.
    pub(crate) fn hold(&self) -> Duration {
        self.remember().max(self.lease.saturating_mul(2))
    }

    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = whole_millis(ttl);
        // A longer `ttl` on an operation is no mistake because the runtime's `remember` is shorter.
        self.remember = self.remember.map(|remember| remember.max(self.ttl));
    }

    pub(crate) fn set_remember(&mut self, remember: Duration) {
        self.remember = Some(whole_millis(remember));
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = whole_millis(lease);
    }
}

/// How long the attempt count of a released key stays.
pub(crate) fn keep_released(ttl: Duration, lease: Duration, least_secs: u32) -> Duration {
    ttl.max(lease.saturating_mul(10)).max(seconds(least_secs))
}

/// As a length of time.
pub(crate) fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

/// Stores count in milliseconds; nothing is kept for less than was asked.
pub(crate) fn whole_millis(length: Duration) -> Duration {
    let rounded = length.as_nanos().div_ceil(1_000_000);
    u64::try_from(rounded).map_or(Duration::MAX, Duration::from_millis)
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
        assert!(with(|s| s.max_attempts = Some(0)).is_err());
        assert!(with(|s| s.wait = Duration::ZERO).is_ok());
    }

    #[test]
    fn lengths_are_rounded_up_to_what_stores_can_count() {
        assert_eq!(whole_millis(Duration::from_nanos(1)), Duration::from_millis(1));
        assert_eq!(whole_millis(Duration::from_millis(7)), Duration::from_millis(7));
    }

    #[test]
    fn a_record_in_flight_outlives_its_retention_and_its_lease() {
        let mut settings = Settings::DEFAULT;
        settings.set_ttl(Duration::from_secs(1));
        assert_eq!(settings.hold(), Duration::from_secs(60));
        assert_eq!(keep_released(settings.ttl, settings.lease, 0), Duration::from_secs(300));
        settings.set_remember(Duration::from_secs(90));
        assert_eq!(settings.hold(), Duration::from_secs(90));
        settings.least_secs = 900;
        assert_eq!([settings.remember(), settings.hold()], [Duration::from_secs(900); 2]);
        assert_eq!(keep_released(settings.ttl, settings.lease, 900), Duration::from_secs(900));
    }
}
