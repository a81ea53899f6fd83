//! The conformance suite over `MemoryStore`: with a clock that the trials move, and in real time.

use idem_core::MemoryStore;
use idem_testkit::{Clones, ManualClock, suite};

fn with_a_clock() -> Clones<MemoryStore> {
    let clock = ManualClock::new();
    Clones::of(MemoryStore::with_clock(clock.clone())).with_time(clock)
}

fn main() {
    let mut trials = suite::tests("", with_a_clock);
    trials.extend(suite::admin_tests("", with_a_clock));
    trials.extend(suite::tests("real_time::", || {
        Clones::of(MemoryStore::new())
    }));
    suite::run_tests(trials)
}
