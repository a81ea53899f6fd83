//! The allocations of `MemoryStore`: for each step, and for each record.

use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use futures_util::FutureExt as _;
use idem_core::record::{Claim, Claimed, Commit, Encoded, Owner, Ownership, RecordId};
use idem_core::{CodecId, Fingerprint, Key, MemoryStore, Store};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn claim(key: usize) -> Claim {
    let id = RecordId::new(
        "orders.create",
        &Key::encode(&format!("{key:032}")).unwrap(),
    )
    .unwrap();
    let fingerprint = Some(Fingerprint::of(&key).unwrap());
    let lease = Duration::from_secs(30);
    Claim::new(id, Owner::generate(), lease, DAY).with_fingerprint(fingerprint)
}

fn commit(claim: &Claim, payload: usize) -> Commit {
    let Claim {
        id,
        owner,
        fingerprint,
        ..
    } = claim.clone();
    // Without room to spare, as JSON is written.
    let text = Bytes::from(vec![b'x'; payload]);
    let outcome = Some(Encoded::new(CodecId::JSON, text));
    Commit::new(id, owner, 1, outcome, DAY).with_fingerprint(fingerprint)
}

fn claims(store: &MemoryStore, claim: &Claim) -> Claimed {
    store.claim(claim).now_or_never().unwrap().unwrap()
}

fn commits(store: &MemoryStore, commit: &Commit) {
    assert_eq!(
        store.commit(commit).now_or_never().unwrap().unwrap(),
        Ownership::Held
    );
}

#[test]
fn a_claim_and_a_commit_allocate_once_and_a_replay_never() {
    const RECORDS: usize = 20_000;
    let store = MemoryStore::with_capacity(RECORDS);
    let first: Vec<Claim> = (0..RECORDS).map(claim).collect();
    let claimed = measure(|| first.iter().for_each(|claim| drop(claims(&store, claim))));
    // What is over one each is growth.
    assert!(
        claimed.count_total <= (RECORDS + RECORDS / 20) as u64,
        "{claimed:?}"
    );

    let outcomes: Vec<Commit> = first.iter().map(|claim| commit(claim, 200)).collect();
    let committed = measure(|| outcomes.iter().for_each(|commit| commits(&store, commit)));
    // The count of those who share the outcome.
    assert_eq!(committed.count_total, RECORDS as u64, "{committed:?}");
    drop(outcomes);

    let again: Vec<Claim> = (0..RECORDS).map(claim).collect();
    let again: Vec<Claim> = again
        .into_iter()
        .map(|again| again.with_fingerprint(None))
        .collect();
    let replayed = measure(|| {
        for claim in &again {
            let Claimed::Committed { outcome, .. } = claims(&store, claim) else {
                panic!("nothing to replay")
            };
            assert_eq!(outcome.payload.len(), 200);
        }
    });
    assert_eq!(replayed.count_total, 0, "{replayed:?}");
}

/// The allocator's overhead for each allocation: a header, and rounding.
const ALLOCATION: i64 = 16;

fn kept(info: AllocationInfo) -> i64 {
    info.bytes_current + info.count_current * ALLOCATION
}

#[test]
fn a_record_takes_at_most_310_bytes_beside_its_id_and_its_outcome() {
    const CAPACITY: usize = 32_768;
    let text = claim(0).id.as_str().len();
    let mut worst = 0;
    for payload in [1, 200] {
        // From half full on, with the steps at which tables have just grown in between.
        for records in (CAPACITY / 2..=CAPACITY).step_by(CAPACITY / 8) {
            let mut store = None;
            let info = measure(|| {
                let new = MemoryStore::with_capacity(CAPACITY);
                for claim in (0..records).map(claim) {
                    claims(&new, &claim);
                    commits(&new, &commit(&claim, payload));
                }
                store = Some(new);
            });
            let each = kept(info) / i64::try_from(records).unwrap()
                - i64::try_from(text + payload).unwrap();
            assert!(
                each <= 310,
                "{each} bytes each for {records} with {payload} bytes of payload"
            );
            worst = worst.max(each);
        }
    }
    assert!(worst > 250, "{worst} is too good to be true");
}
