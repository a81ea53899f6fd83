//! Outcomes are read back, however this is built: without debug assertions, too.

use std::sync::atomic::{AtomicU32, Ordering};

use idem_core::{Error, Idempotency, MemoryStore};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

static READ: AtomicU32 = AtomicU32::new(0);

/// An outcome that counts how often it is read.
struct Counted;

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        READ.fetch_add(1, Ordering::SeqCst);
        <() as Deserialize>::deserialize(deserializer).map(|()| Self)
    }
}

#[tokio::test]
async fn a_program_that_has_the_kit_reads_each_outcome_back_in_every_build() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let call = idempotency.operation("kit.outcomes").key("k");
    call.run(async || Ok::<_, Error>(Counted)).await.unwrap();
    assert_eq!(READ.load(Ordering::SeqCst), 1);
}
