//! The conformance suite over `MemoryStore`, with a clock that the trials move.

use idem_core::MemoryStore;
use idem_testkit::{Clones, ManualClock, suite};

fn subject() -> Clones<MemoryStore> {
    let clock = ManualClock::new();
    Clones::of(MemoryStore::with_clock(clock.clone())).with_time(clock)
}

fn main() {
    let mut trials = suite::tests("", subject);
    trials.extend(suite::admin_tests("", subject));
    suite::run_tests(trials)
}
