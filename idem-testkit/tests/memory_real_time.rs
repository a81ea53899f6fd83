//! The conformance suite over `MemoryStore`, in real time.

use idem_core::MemoryStore;
use idem_testkit::{Clones, suite};

fn main() {
    suite::run(|| Clones::of(MemoryStore::new()));
}
