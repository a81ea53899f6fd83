//! The conformance suite over `MemoryStore`, with a clock that the trials move.

use idem_core::MemoryStore;
use idem_testkit::{Clones, ManualClock, suite};

fn main() {
    suite::run(|| {
        let clock = ManualClock::new();
        Clones::of(MemoryStore::with_clock(clock.clone())).with_time(clock)
    });
}
