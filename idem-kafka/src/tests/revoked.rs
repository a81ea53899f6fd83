//! What happens within the client's callback when partitions are revoked. The cluster in memory
//! takes no commits during a rebalance, so these tests have no client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use idem_queue::After;

use crate::record::{Original, Record};
use crate::shared::Shared;

fn shared(offsets: std::ops::Range<i64>) -> (Arc<Shared>, Vec<Arc<Record>>) {
    let shared = Arc::new(Shared::new("orders".into()));
    shared.assign(&[0]);
    for offset in offsets {
        shared.receive(Original {
            partition: 0,
            offset,
            key: None,
            value: None,
            headers: Vec::new(),
        });
    }
    let records = std::iter::from_fn(|| shared.begin()).collect();
    (shared, records)
}

fn end(shared: &Shared, record: Arc<Record>) {
    shared.settle(&record).unwrap();
    shared.take_back(record, After::Settled, Duration::ZERO);
}

/// Revokes the partition, and returns what was committed meanwhile.
fn revoke(shared: &Shared, is_lost: bool) -> Option<Vec<(i32, i64)>> {
    let mut committed = None;
    shared.revoke(&[0], is_lost, |offsets: &[(i32, i64)]| {
        committed = Some(offsets.to_vec());
        Ok(())
    });
    committed
}

#[test]
fn what_is_settled_is_committed_and_a_body_that_ends_in_time_is_settled() {
    let (shared, mut records) = shared(7..10);
    end(&shared, records.remove(0));
    // Still running when the revocation begins.
    let ending = {
        let (shared, record) = (shared.clone(), records.remove(0));
        thread::spawn(move || {
            while !shared.is_void(&record) {
                thread::yield_now();
            }
            end(&shared, record);
        })
    };
    // Never ends.
    let slow = records.remove(0);
    assert_eq!(revoke(&shared, false), Some(vec![(0, 9)]));
    ending.join().unwrap();
    assert!(shared.settle(&slow).is_err(), "its ticket is void");
    shared.assign(&[0]);
    assert!(
        shared.settle(&slow).is_err(),
        "also when the partition is back"
    );
}

#[test]
fn of_a_lost_partition_nothing_is_committed() {
    let (shared, mut records) = shared(7..9);
    end(&shared, records.remove(0));
    assert_eq!(revoke(&shared, true), None);
    assert!(shared.settle(&records[0]).is_err());
}

#[test]
fn a_revocation_waits_for_the_commit_that_is_under_way_and_then_no_other_begins() {
    let (shared, records) = shared(7..9);
    let mut records = records.into_iter();
    end(&shared, records.next().unwrap());
    let (begun, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let committing = {
        let (shared, begun, answered) = (shared.clone(), begun.clone(), answered.clone());
        thread::spawn(move || {
            shared.commit(|offsets: &[(i32, i64)]| {
                assert_eq!(offsets, [(0, 8)]);
                begun.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(300));
                answered.store(true, Ordering::SeqCst);
                Ok(())
            });
        })
    };
    super::until(|| begun.load(Ordering::SeqCst));
    end(&shared, records.next().unwrap());
    let again = shared.clone();
    shared.revoke(&[0], false, |offsets: &[(i32, i64)]| {
        assert!(answered.load(Ordering::SeqCst), "two commits are under way");
        assert_eq!(offsets, [(0, 9)]);
        assert!(again.commit(|_: &[(i32, i64)]| panic!("two commits are under way")));
        Ok(())
    });
    committing.join().unwrap();
}

#[test]
fn a_commit_that_fails_is_sent_again_with_what_is_settled_by_then() {
    let (shared, records) = shared(0..2);
    for (record, expected) in records.into_iter().zip([1, 2]) {
        end(&shared, record);
        assert!(!shared.commit(|offsets: &[(i32, i64)]| {
            assert_eq!(offsets, [(0, expected)]);
            Err("the coordinator is away".into())
        }));
    }
    assert!(shared.commit(|offsets: &[(i32, i64)]| {
        assert_eq!(offsets, [(0, 2)]);
        Ok(())
    }));
    assert!(shared.commit(|_: &[(i32, i64)]| panic!("there is nothing to commit")));
}
