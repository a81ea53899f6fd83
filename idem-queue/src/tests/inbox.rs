//! Which messages of partitions may begin, and what is committed of them.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;

use crate::{After, Fetched, Flow, Inbox, Record};

type Text = &'static str;

fn assigned(partitions: &[i32]) -> Inbox<Text> {
    let mut inbox = Inbox::default();
    inbox.assign(partitions);
    inbox
}

fn fetched<M>(partition: i32, offset: i64, key: &'static str, message: M) -> Fetched<M> {
    Fetched {
        partition,
        offset,
        key: (!key.is_empty()).then(|| Bytes::from_static(key.as_bytes())),
        size: 10,
        message,
    }
}

/// Begins all messages that may begin.
fn begun<M: Copy>(inbox: &mut Inbox<M>) -> (Vec<M>, Vec<Arc<Record<M>>>) {
    let records: Vec<_> = std::iter::from_fn(|| inbox.begin()).collect();
    (
        records.iter().map(|record| *record.message()).collect(),
        records,
    )
}

#[test]
fn messages_of_one_record_key_begin_one_after_the_other_and_others_at_once() {
    let mut inbox = assigned(&[0, 1]);
    for (partition, offset, key, message) in [
        (0, 0, "a", "a1"),
        (0, 1, "a", "a2"),
        (0, 2, "b", "b1"),
        (0, 3, "", "none1"),
        (0, 4, "", "none2"),
        (1, 0, "a", "other partition"),
    ] {
        inbox.receive(fetched(partition, offset, key, message));
    }
    let (messages, mut records) = begun(&mut inbox);
    assert_eq!(messages, ["a1", "b1", "none1", "none2", "other partition"]);

    // Again: the key waits, and no other.
    let first = records.remove(0);
    assert!(!first.is_again());
    assert!(inbox.take_back(first.clone(), After::Again));
    inbox.receive(fetched(0, 5, "b", "b2"));
    assert!(inbox.begin().is_none());
    inbox.wake(&first.place());
    let (messages, _) = begun(&mut inbox);
    assert_eq!(messages, ["a1"]);
    assert!(first.is_again());

    assert!(inbox.settle(&first));
    assert!(inbox.begin().is_none(), "its handler has not ended");
    assert!(!inbox.take_back(first, After::Settled));
    assert_eq!(begun(&mut inbox).0, ["a2"]);
    assert_eq!(inbox.to_commit(), [(0, 1)]);
    inbox.committed(&[(0, 1)]);
    assert_eq!(inbox.to_commit(), []);
}

#[test]
fn a_message_whose_handler_was_dropped_begins_again_before_the_others_of_its_key() {
    let mut inbox = assigned(&[0]);
    inbox.receive(fetched(0, 0, "a", "a1"));
    inbox.receive(fetched(0, 1, "a", "a2"));
    let record = inbox.begin().unwrap();
    assert!(!inbox.take_back(record, After::Dropped));
    assert_eq!(begun(&mut inbox).0, ["a1"]);
}

#[test]
fn a_message_that_comes_again_and_one_whose_turn_has_come_do_not_wait_for_a_backlog() {
    let mut inbox = assigned(&[0]);
    for (offset, key, message) in [(0, "", "fails"), (1, "a", "a1"), (2, "a", "a2")] {
        inbox.receive(fetched(0, offset, key, message));
    }
    for offset in 3..9 {
        inbox.receive(fetched(0, offset, "", "backlog"));
    }
    let fails = inbox.begin().unwrap();
    let a1 = inbox.begin().unwrap();
    assert!(inbox.take_back(fails.clone(), After::Again));
    assert!(inbox.settle(&a1));
    inbox.take_back(a1, After::Settled);
    inbox.wake(&fails.place());
    let (messages, _) = begun(&mut inbox);
    assert_eq!(messages[..4], ["a2", "backlog", "fails", "backlog"]);
}

#[test]
fn messages_that_fail_again_and_again_do_not_keep_others_waiting() {
    let mut inbox = assigned(&[0]);
    for offset in 0..20 {
        inbox.receive(fetched(0, offset, "", "fails"));
    }
    let (_, failing) = begun(&mut inbox);
    let fail = |inbox: &mut Inbox<Text>, record: Arc<Record<Text>>| {
        inbox.take_back(record.clone(), After::Again);
        inbox.wake(&record.place());
    };
    for record in failing {
        fail(&mut inbox, record);
    }
    for offset in 20..30 {
        inbox.receive(fetched(0, offset, "", "works"));
    }
    let mut worked = 0;
    for _ in 0..20 {
        let record = inbox.begin().unwrap();
        if *record.message() == "works" {
            worked += 1;
        } else {
            fail(&mut inbox, record);
        }
    }
    assert_eq!(worked, 10);
}

#[test]
fn nothing_of_a_partition_begins_that_is_being_revoked_and_what_runs_may_still_be_settled() {
    let mut inbox = assigned(&[0, 1]);
    for (partition, offset, key, message) in [
        (0, 0, "a", "running"),
        (0, 1, "", "pausing"),
        (0, 2, "", "also running"),
        (0, 3, "a", "behind"),
        (1, 0, "a", "stays"),
    ] {
        inbox.receive(fetched(partition, offset, key, message));
    }
    let running = inbox.begin().unwrap();
    let pausing = inbox.begin().unwrap();
    let late = inbox.begin().unwrap();
    inbox.take_back(pausing.clone(), After::Again);
    inbox.receive(fetched(0, 4, "", "ready"));

    inbox.end(&[0]);
    assert!(inbox.is_running(&[0]) && inbox.is_void(&running));
    inbox.wake(&pausing.place());
    inbox.receive(fetched(0, 5, "", "late"));
    assert_eq!(begun(&mut inbox).0, ["stays"]);
    assert!(inbox.settle(&running));
    inbox.take_back(running, After::Settled);
    assert_eq!(inbox.to_commit(), [(0, 1)]);

    inbox.revoke(&[0]);
    assert!(!inbox.settle(&late), "a void ticket settled");
    assert_eq!(inbox.to_commit(), []);
    assert!(inbox.is_running(&[0]));
    assert!(
        !inbox.take_back(late, After::Again),
        "a void message pauses"
    );
    assert!(!inbox.is_running(&[0]));
}

#[test]
fn a_record_key_whose_body_goes_on_after_a_revocation_waits_for_it() {
    let mut inbox = assigned(&[0]);
    inbox.receive(fetched(0, 7, "a", "a1"));
    let slow = inbox.begin().unwrap();
    inbox.revoke(&[0]);
    inbox.assign(&[0]);
    inbox.receive(fetched(0, 7, "a", "a1 again"));
    inbox.receive(fetched(0, 8, "b", "b1"));
    assert_eq!(begun(&mut inbox).0, ["b1"]);
    assert!(
        !inbox.settle(&slow),
        "a ticket of an earlier assignment settled"
    );
    inbox.take_back(slow, After::Again);
    assert_eq!(begun(&mut inbox).0, ["a1 again"]);
}

#[test]
fn a_message_that_the_broker_delivers_again_begins_once() {
    let mut inbox = assigned(&[0]);
    inbox.receive(fetched(0, 3, "a", "old"));
    inbox.receive(fetched(0, 4, "a", "old too"));
    inbox.receive(fetched(0, 3, "a", "new"));
    assert_eq!(begun(&mut inbox).0, ["new"]);
}

#[test]
fn a_full_partition_is_paused_until_half_of_it_is_free() {
    let mut inbox = assigned(&[0, 1]);
    inbox.receive(fetched(0, 0, "", "first"));
    let first = inbox.begin().unwrap();
    for offset in 1..1_000 {
        inbox.receive(fetched(0, offset, "", "other"));
    }
    let (_, others) = begun(&mut inbox);
    assert!(inbox.must_pause());
    let paused = Flow {
        pause: vec![0],
        ..Flow::default()
    };
    assert_eq!(inbox.flow(false), paused);
    assert!(inbox.has_paused() && !inbox.must_pause());
    for other in others {
        inbox.settle(&other);
        inbox.take_back(other, After::Settled);
    }
    assert_eq!(
        inbox.flow(false),
        Flow::default(),
        "the first is not settled"
    );
    inbox.settle(&first);
    inbox.take_back(first, After::Settled);
    let resumed = Flow {
        resume: vec![0],
        ..Flow::default()
    };
    assert_eq!(inbox.flow(false), resumed);

    let mut large = fetched(1, 0, "", "large");
    large.size = 1 << 30;
    inbox.receive(large);
    assert_eq!(inbox.flow(false).pause, [1]);
    inbox.begin().map(|large| inbox.settle(&large));
    assert_eq!(inbox.flow(false).resume, [1]);
    assert_eq!(inbox.flow(true).pause, [0, 1], "at the shutdown");
}

/// Settles a message, and ends its handler.
fn settle(
    inbox: &mut Inbox<(i32, usize)>,
    record: Arc<Record<(i32, usize)>>,
    settled: &mut BTreeSet<(i32, usize)>,
) {
    if inbox.settle(&record) {
        settled.insert(*record.message());
    }
    inbox.take_back(record, After::Settled);
}

#[test]
fn no_history_breaks_the_order_of_a_record_key_or_commits_what_is_not_settled() {
    const KEYS: [&str; 4] = ["", "a", "b", "c"];
    for seed in 0..500 {
        let mut random = Rng::with_seed(seed);
        let mut inbox = Inbox::default();
        inbox.assign(&[0, 1]);
        let mut log: BTreeMap<i32, Vec<&str>> = BTreeMap::new();
        let mut position = BTreeMap::from([(0, 0), (1, 0)]);
        let mut committed = BTreeMap::from([(0, 0), (1, 0)]);
        let mut settled = BTreeSet::new();
        let mut running: Vec<Arc<Record<(i32, usize)>>> = Vec::new();
        let mut pausing = Vec::new();
        for _ in 0..400 {
            let partition = random.i32(0..2);
            match random.u8(..12) {
                0..=3 => {
                    let log = log.entry(partition).or_default();
                    let offset = position[&partition];
                    if offset == log.len() {
                        log.push(random.choice(KEYS).unwrap());
                    }
                    let message = (partition, offset);
                    let number = i64::try_from(offset).unwrap();
                    inbox.receive(fetched(partition, number, log[offset], message));
                    position.insert(partition, offset + 1);
                }
                4 | 5 => {
                    if let Some(record) = inbox.begin() {
                        let (partition, offset) = *record.message();
                        let key = log[&partition][offset];
                        if !key.is_empty() {
                            for (before, other) in log[&partition].iter().enumerate().take(offset) {
                                let is_done = settled.contains(&(partition, before));
                                assert!(
                                    *other != key || is_done,
                                    "seed {seed}: {before}, {offset}"
                                );
                            }
                        }
                        running.push(record);
                    }
                }
                6..=8 if !running.is_empty() => {
                    let record = running.swap_remove(random.usize(..running.len()));
                    settle(&mut inbox, record, &mut settled);
                }
                9 if !running.is_empty() => {
                    let record = running.swap_remove(random.usize(..running.len()));
                    if inbox.take_back(record.clone(), After::Again) {
                        pausing.push(record.place());
                    }
                }
                10 => {
                    for (partition, offset) in inbox.to_commit() {
                        let offset = usize::try_from(offset).unwrap();
                        assert!(offset >= committed[&partition], "seed {seed} went back");
                        for below in 0..offset {
                            assert!(settled.contains(&(partition, below)), "seed {seed}");
                        }
                        committed.insert(partition, offset);
                        let offset = i64::try_from(offset).unwrap();
                        inbox.committed(&[(partition, offset)]);
                    }
                }
                _ if random.bool() => {
                    for place in pausing.drain(..) {
                        inbox.wake(&place);
                    }
                }
                _ if random.u8(..4) == 0 => {
                    inbox.end(&[partition]);
                    inbox.revoke(&[partition]);
                    inbox.assign(&[partition]);
                    position.insert(partition, committed[&partition]);
                }
                _ => {}
            }
        }
        // Undisturbed, everything is settled.
        loop {
            for place in pausing.drain(..) {
                inbox.wake(&place);
            }
            running.extend(std::iter::from_fn(|| inbox.begin()));
            if running.is_empty() {
                break;
            }
            for record in running.drain(..) {
                settle(&mut inbox, record, &mut settled);
            }
        }
        for (partition, position) in position {
            for offset in 0..position {
                assert!(
                    settled.contains(&(partition, offset)),
                    "seed {seed}: {offset}"
                );
            }
        }
        assert!(!inbox.is_running(&[0, 1]), "seed {seed}");
    }
}
