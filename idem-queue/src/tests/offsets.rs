//! What may be committed of a partition, in random histories.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use crate::{Offsets, Receipt};

const HISTORIES: u64 = 2_000;
const STEPS: usize = 150;

/// A partition at its broker, and one consumer after the other.
struct World {
    random: Rng,
    offsets: Offsets,
    /// The messages that the partition has. The log has gaps.
    log: BTreeSet<i64>,
    /// The messages of the log that were handled.
    handled: BTreeSet<i64>,
    /// The offset that the broker has for the group.
    committed: i64,
    /// The next offset that the broker delivers, while the partition is assigned.
    position: Option<i64>,
    /// The receipts that are valid and not settled, by offset.
    open: BTreeMap<i64, Receipt>,
    void: Vec<Receipt>,
    /// A commit whose answer has not come.
    unanswered: Option<i64>,
    /// The last message that was received.
    last: i64,
    /// The highest commit since the assignment began or the broker last went back.
    highest: i64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let log = (0..60).filter(|_| random.u8(..4) > 0).collect();
        Self {
            random,
            offsets: Offsets::default(),
            log,
            handled: BTreeSet::new(),
            committed: 0,
            position: None,
            open: BTreeMap::new(),
            void: Vec::new(),
            unanswered: None,
            last: 0,
            highest: 0,
        }
    }

    fn step(&mut self) {
        match self.random.u8(..20) {
            0 => self.assign(),
            1 => self.revoke(),
            2 => self.go_back(),
            3 => self.begin_again(),
            4 | 5 => self.settle_void(),
            6..=8 => self.commit(),
            9..=13 => self.settle(),
            _ => self.receive(),
        }
        self.check();
    }

    fn assign(&mut self) {
        self.void
            .extend(std::mem::take(&mut self.open).into_values());
        self.offsets.assign();
        self.position = Some(self.committed);
        (self.last, self.highest) = (self.committed - 1, self.committed);
    }

    fn revoke(&mut self) {
        self.void
            .extend(std::mem::take(&mut self.open).into_values());
        self.offsets.revoke();
        self.position = None;
        assert_eq!(self.offsets.receive(17), None);
    }

    fn receive(&mut self) {
        let Some(offset) = self.position.and_then(|from| self.log.range(from..).next()) else {
            return;
        };
        let offset = *offset;
        if offset <= self.last {
            self.highest = 0;
        }
        self.last = offset;
        // After the broker has gone back, the later ones are other messages.
        self.void.extend(self.open.split_off(&offset).into_values());
        self.open
            .insert(offset, self.offsets.receive(offset).unwrap());
        self.position = Some(offset + 1);
    }

    /// The broker delivers once more from a lower offset, such as after an unclean election.
    fn go_back(&mut self) {
        if let Some(position) = self.position {
            self.position = Some(self.random.i64(0..=position));
        }
    }

    /// The topic is created again: other messages have the same offsets, and the group has none.
    fn begin_again(&mut self) {
        if self.position.is_some() && self.random.u8(..4) == 0 {
            self.log = (0..60).filter(|_| self.random.u8(..4) > 0).collect();
            self.log.insert(0);
            self.handled.clear();
            self.committed = 0;
            self.position = Some(0);
            self.receive();
        }
    }

    fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let index = self.random.usize(..self.open.len());
        let (offset, receipt) = self.open.iter().nth(index).map(|(o, r)| (*o, *r)).unwrap();
        assert!(!self.offsets.is_void(receipt));
        assert!(self.offsets.settle(receipt));
        assert!(self.offsets.is_void(receipt));
        assert!(!self.offsets.settle(receipt), "settled twice");
        self.open.remove(&offset);
        self.handled.insert(offset);
    }

    fn settle_void(&mut self) {
        if let Some(receipt) = self.random.choice(&self.void).copied() {
            let before = self.offsets.clone();
            assert!(self.offsets.is_void(receipt));
            assert!(!self.offsets.settle(receipt), "a void receipt settled");
            assert_eq!(self.offsets, before);
        }
    }

    /// A commit whose answer may be lost, or come later.
    fn commit(&mut self) {
        if let Some(offset) = self.unanswered.take() {
            self.offsets.committed(offset);
        }
        let Some(offset) = self.offsets.to_commit() else {
            return;
        };
        assert!(offset >= self.highest, "a commit went back");
        self.highest = offset;
        match self.random.u8(..3) {
            0 => {}
            1 => {
                self.committed = offset;
                self.offsets.committed(offset);
                assert_eq!(self.offsets.to_commit(), None);
            }
            _ => {
                self.committed = offset;
                self.unanswered = Some(offset);
            }
        }
    }

    fn check(&self) {
        let Some(offset) = self.offsets.to_commit() else {
            return;
        };
        if let Some((first, _)) = self.open.first_key_value() {
            assert_eq!(offset, *first, "not the first unsettled");
        }
        for below in self.log.range(..offset) {
            assert!(self.handled.contains(below), "{below} is lost by {offset}");
        }
    }
}

#[test]
fn no_history_commits_an_offset_above_a_message_that_is_not_settled() {
    let mut commits = 0;
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        // Undisturbed, the rest is handled, and committed.
        world.assign();
        while world
            .position
            .is_some_and(|from| world.log.range(from..).next().is_some())
        {
            world.receive();
        }
        while !world.open.is_empty() {
            world.settle();
            world.check();
        }
        assert_eq!(world.handled, world.log, "seed {seed}");
        assert_eq!(world.offsets.kept(), 0);
        commits += u32::from(world.offsets.to_commit().is_some());
    }
    assert!(
        commits > 100,
        "{commits} histories had something left to commit"
    );
}

#[test]
fn a_partition_is_full_with_a_thousand_messages_above_the_first_unsettled() {
    let mut offsets = Offsets::default();
    offsets.assign();
    let receipts: Vec<_> = (0..1_000)
        .map(|number| offsets.receive(number * 3).unwrap())
        .collect();
    assert!(offsets.is_full());
    for settled in &receipts[1..] {
        assert!(offsets.settle(*settled));
    }
    assert_eq!((offsets.kept(), offsets.is_full()), (1_000, true));
    assert_eq!(offsets.to_commit(), None);
    assert!(offsets.settle(receipts[0]));
    assert_eq!((offsets.kept(), offsets.is_full()), (0, false));
    assert_eq!(offsets.to_commit(), Some(2_998));
}

#[test]
fn a_message_below_the_offset_that_the_broker_went_back_to_is_still_waited_for() {
    let mut offsets = Offsets::default();
    offsets.assign();
    let slow = offsets.receive(10).unwrap();
    let voided = offsets.receive(50).unwrap();
    assert_eq!(offsets.to_commit(), None);
    let again = offsets.receive(40).unwrap();
    assert!(offsets.settle(again) && !offsets.settle(voided));
    assert_eq!(offsets.to_commit(), None);
    assert!(offsets.settle(slow));
    assert_eq!(offsets.to_commit(), Some(41));
}

#[test]
fn a_commit_goes_back_with_the_broker() {
    let mut offsets = Offsets::default();
    offsets.assign();
    let receipt = offsets.receive(49).unwrap();
    assert!(offsets.settle(receipt));
    offsets.committed(50);
    // The partition has lost its end, and other messages are there.
    let other = offsets.receive(40).unwrap();
    assert_eq!(offsets.to_commit(), Some(40));
    offsets.committed(40);
    assert!(offsets.settle(other));
    assert_eq!(offsets.to_commit(), Some(41));
}
