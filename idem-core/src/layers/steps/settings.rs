//! The settings of a step, derived from those of its call.

use std::time::Duration;

use crate::adapter::engine::{MAX_LENGTH, Settings};
use crate::policy::{Abandoned, Duplicate, InFlight};

/// How much longer than a lease a step waits, for one whose owner was cut off: its renewal may be
/// as old as that.
const PAST_THE_LEASE: Duration = Duration::from_secs(5);

/// The settings of a step with this lease, from the defaults of its runtime.
///
/// It waits for the lease of an attempt that was cut off in it: two bodies of one step never run
/// at once.
pub(super) fn of_step(call: &Settings, defaults: &Settings, lease: Duration) -> Settings {
    let kept = call.run_kept();
    let mut settings = defaults.clone();
    settings.set_ttl(kept);
    settings.set_remember(kept);
    // A call that asks what became of an attempt asks at any age. Its steps do not, and would
    // run again blindly.
    settings.set_hold(if call.reconciles { kept } else { call.hold() });
    settings.set_lease(lease);
    settings.set_max_attempts(None);
    let wait = settings
        .wait()
        .max(lease.saturating_mul(2).saturating_add(PAST_THE_LEASE));
    settings.set_wait(wait.min(MAX_LENGTH));
    settings.in_flight = InFlight::Wait;
    settings.duplicate = Duplicate::Replay;
    // An abandoned call is not simply run again, and neither is a step of it.
    settings.abandoned = if call.reconciles {
        Abandoned::Reject
    } else {
        call.abandoned
    };
    settings.store_failure = call.store_failure;
    settings.reconciles = false;
    settings.observes = call.observes;
    settings.times.least_secs = 0;
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::STEPS_KEPT;

    fn step_of(settings: &Settings) -> Settings {
        of_step(settings, &Settings::DEFAULT, settings.lease)
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
        assert_eq!(step_of(&settings).wait(), Duration::from_secs(185));
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
