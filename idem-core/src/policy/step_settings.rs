//! The settings of a step, derived from those of its call.

use std::time::Duration;

use crate::policy::settings::{Abandoned, Duplicate, InFlight, MAX_LENGTH, Settings, StoreFailure};
use crate::record::STEPS_KEPT;

/// How much longer than a lease a step waits, for one whose owner was cut off: its renewal may be
/// as old as that.
const PAST_THE_LEASE: Duration = Duration::from_secs(5);

/// The settings of a call that its steps have as well. Short, since they are in the future of every
/// call; the rest is known from its lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepSettings {
    hold_millis: u64,
    /// An abandoned call is not simply run again, and neither is a step of it.
    protects: bool,
    runs_without_store: bool,
    observes: bool,
}

impl StepSettings {
    pub(crate) fn of(settings: &Settings) -> Self {
        let mut hold = settings.hold();
        if settings.reconciles {
            // The call asks at any age. Its steps do not, and would run again blindly.
            hold = hold.max(STEPS_KEPT);
        }
        Self {
            hold_millis: u64::try_from(hold.as_millis()).unwrap_or(u64::MAX),
            protects: settings.abandoned == Abandoned::Reject || settings.reconciles,
            runs_without_store: settings.store_failure == StoreFailure::Run,
            observes: settings.observes,
        }
    }

    /// Those of steps beside a transaction, which needs the store in any case.
    pub(crate) fn in_transaction(self) -> Self {
        Self {
            runs_without_store: false,
            ..self
        }
    }

    /// How long the steps of a call are kept, and the record of its run: a shorter `hold` or `ttl`
    /// does not shorten it, because a body may run, and be tried again, for longer than that.
    pub(crate) fn kept(self) -> Duration {
        let hold = Duration::from_millis(self.hold_millis);
        STEPS_KEPT.max(hold).min(MAX_LENGTH)
    }

    /// The settings of a step with this lease, from the defaults of its runtime.
    ///
    /// It waits for the lease of an attempt that was cut off in it: two bodies of one step never run
    /// at once.
    pub(crate) fn of_step(self, defaults: &Settings, lease: Duration) -> Settings {
        let hold = Duration::from_millis(self.hold_millis);
        let kept = self.kept();
        let mut settings = defaults.clone();
        settings.set_ttl(kept);
        settings.set_remember(kept);
        settings.set_hold(hold);
        settings.set_lease(lease);
        settings.set_max_attempts(None);
        let wait = settings
            .wait()
            .max(lease.saturating_mul(2).saturating_add(PAST_THE_LEASE));
        settings.set_wait(wait.min(MAX_LENGTH));
        settings.in_flight = InFlight::Wait;
        settings.duplicate = Duplicate::Replay;
        settings.abandoned = if self.protects {
            Abandoned::Reject
        } else {
            Abandoned::Rerun
        };
        settings.store_failure = if self.runs_without_store {
            StoreFailure::Run
        } else {
            StoreFailure::Reject
        };
        settings.reconciles = false;
        settings.observes = self.observes;
        settings.times.least_secs = 0;
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_of(settings: &Settings) -> Settings {
        StepSettings::of(settings).of_step(&Settings::DEFAULT, settings.lease)
    }

    #[test]
    fn a_step_is_kept_for_thirty_days_or_its_hold_whatever_the_ttl_is() {
        let day = Duration::from_secs(86_400);
        let mut settings = Settings::DEFAULT;
        for (ttl, hold, kept) in [
            (day, day * 30, day * 30),
            (day / 1440 * 5, day / 1440 * 5, day * 30),
            (day * 90, day * 60, day * 60),
        ] {
            settings.set_ttl(ttl);
            settings.set_hold(hold);
            let step = step_of(&settings);
            assert_eq!([step.ttl(), step.remember()], [kept; 2]);
        }
        settings.set_hold(Duration::from_secs(100 * 365 * 86_400));
        assert_eq!(step_of(&settings).check(), Ok(()));
    }

    #[test]
    fn a_step_waits_for_longer_than_its_lease_and_is_never_run_again_blindly_below_a_call_that_is_not()
     {
        let mut settings = Settings::DEFAULT;
        settings.set_lease(Duration::from_secs(90));
        assert!(step_of(&settings).wait() > Duration::from_secs(180));
        assert_eq!(step_of(&settings).lease, Duration::from_secs(90));
        assert_eq!(step_of(&settings).abandoned, Abandoned::Rerun);
        settings.reconciles = true;
        settings.set_hold(Duration::from_secs(300));
        let step = step_of(&settings);
        assert_eq!(
            (step.abandoned, step.take_over_after()),
            (Abandoned::Reject, Some(STEPS_KEPT))
        );
        settings.reconciles = false;
        settings.abandoned = Abandoned::Reject;
        settings.set_max_attempts(Some(3));
        let step = step_of(&settings);
        assert_eq!(
            (step.abandoned, step.max_attempts()),
            (Abandoned::Reject, None)
        );
    }
}
