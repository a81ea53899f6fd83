//! The messages of partitions that were fetched and are not settled: which may begin, and which
//! offsets may be committed. No I/O, and no time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;

use crate::offsets::{Offsets, Receipt};

/// How many bytes of messages a partition may keep in memory before it is paused.
const MOST_BYTES: usize = 16 << 20;

/// A message that was fetched from a partition.
#[derive(Debug)]
pub struct Fetched<M> {
    /// The number of the partition.
    pub partition: i32,
    /// The offset of the message in the partition.
    pub offset: i64,
    /// The record key: messages with the same one begin one after the other.
    pub key: Option<Bytes>,
    /// How many bytes of memory the message takes.
    pub size: usize,
    /// The message itself.
    pub message: M,
}

/// A message in memory, until it is settled.
#[derive(Debug)]
pub struct Record<M> {
    partition: i32,
    key: Option<Bytes>,
    receipt: Receipt,
    message: M,
    is_again: AtomicBool,
    _memory: Memory,
}

/// Identifies one reception of a message: its partition and its receipt.
pub type Place = (i32, Receipt);

impl<M> Record<M> {
    /// Returns the message.
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Returns which reception of the message this is.
    pub fn place(&self) -> Place {
        (self.partition, self.receipt)
    }

    /// Returns whether a handler has had the message before.
    pub fn is_again(&self) -> bool {
        self.is_again.load(Ordering::Relaxed)
    }

    fn lane(&self) -> Option<(i32, Bytes)> {
        Some((self.partition, self.key.clone()?))
    }
}

/// The memory that a record takes, as long as it exists.
#[derive(Debug)]
struct Memory {
    size: usize,
    all: Arc<AtomicUsize>,
}

impl Memory {
    fn new(size: usize, all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(size, Ordering::Relaxed);
        let all = all.clone();
        Self { size, all }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.size, Ordering::Relaxed);
    }
}

/// What becomes of a message that a handler no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It is settled.
    Settled,
    /// It comes again, after a pause.
    Again,
    /// The handler was dropped: it comes again immediately.
    Dropped,
}

/// The partitions that a consumer has, and their messages in memory, for brokers that keep one
/// offset for each partition.
///
/// Messages with the same record key in a partition begin one after the other: the next when the
/// one before is settled. Others, and those without a key, do not wait for each other.
///
/// Messages that come again, or have waited for their record key, take turns with those that have
/// just been fetched. So a backlog does not keep the former waiting, nor do many that fail keep the
/// latter waiting.
#[derive(Debug)]
pub struct Inbox<M> {
    partitions: BTreeMap<i32, Partition>,
    /// Messages that may begin, and have not waited here.
    fetched: VecDeque<Arc<Record<M>>>,
    /// Messages that may begin after a pause, or after another one of their record key.
    waited: VecDeque<Arc<Record<M>>>,
    is_turn_of_waited: bool,
    /// Messages that come again, until their pause ends.
    pausing: HashMap<Place, Arc<Record<M>>>,
    /// The record keys of which a message is ready, running or pausing.
    lanes: HashMap<(i32, Bytes), Lane<M>>,
}

#[derive(Debug, Default)]
struct Partition {
    offsets: Offsets,
    bytes: Arc<AtomicUsize>,
    /// How many handlers have one of its messages, also of earlier assignments.
    running: usize,
    /// Whether it is being revoked: nothing of it begins.
    is_ending: bool,
    is_paused: bool,
}

/// The messages of one record key. One of them is on its way.
#[derive(Debug)]
struct Lane<M> {
    /// Whether a handler has that one.
    is_running: bool,
    behind: VecDeque<Arc<Record<M>>>,
}

/// The partitions to pause and to resume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flow {
    /// Nothing more may be fetched of these.
    pub pause: Vec<i32>,
    /// These may be fetched again.
    pub resume: Vec<i32>,
}

impl Partition {
    fn is_full(&self) -> bool {
        self.offsets.is_full() || self.bytes.load(Ordering::Relaxed) >= MOST_BYTES
    }

    /// Not as soon as it is no longer full: a pause drops what the client has fetched ahead.
    fn has_room(&self) -> bool {
        let (kept, bytes) = (self.offsets.kept(), self.bytes.load(Ordering::Relaxed));
        kept < 500 && bytes < MOST_BYTES / 2
    }

    fn is_open(&self, receipt: Receipt) -> bool {
        !self.is_ending && !self.offsets.is_void(receipt)
    }
}

impl<M> Default for Inbox<M> {
    fn default() -> Self {
        Self {
            partitions: BTreeMap::new(),
            fetched: VecDeque::new(),
            waited: VecDeque::new(),
            is_turn_of_waited: false,
            pausing: HashMap::new(),
            lanes: HashMap::new(),
        }
    }
}

impl<M> Inbox<M> {
    /// Begins assignments of partitions.
    pub fn assign(&mut self, partitions: &[i32]) {
        for partition in partitions {
            self.end(&[*partition]);
            let partition = self.partitions.entry(*partition).or_default();
            partition.offsets.assign();
            partition.is_ending = false;
            partition.is_paused = false;
        }
    }

    /// Begins the end of an assignment: what waits is dropped, and what runs may still be settled.
    pub fn end(&mut self, partitions: &[i32]) {
        let stays = |partition| !partitions.contains(&partition);
        self.fetched.retain(|record| stays(record.partition));
        self.waited.retain(|record| stays(record.partition));
        self.pausing.retain(|(partition, _), _| stays(*partition));
        // A body that goes on keeps its lane, also if the partition comes back meanwhile.
        self.lanes.retain(|(partition, _), lane| {
            stays(*partition) || {
                lane.behind.clear();
                lane.is_running
            }
        });
        for partition in partitions {
            if let Some(partition) = self.partitions.get_mut(partition) {
                partition.is_ending = true;
            }
        }
    }

    /// Ends assignments: nothing of them can be settled any more.
    pub fn revoke(&mut self, partitions: &[i32]) {
        self.end(partitions);
        for partition in partitions {
            if let Some(partition) = self.partitions.get_mut(partition) {
                partition.offsets.revoke();
            }
        }
    }

    /// Returns whether handlers have messages of these partitions.
    pub fn is_running(&self, partitions: &[i32]) -> bool {
        let mut partitions = partitions.iter().filter_map(|p| self.partitions.get(p));
        partitions.any(|partition| partition.running > 0)
    }

    /// Takes a message that was fetched. One of a partition that is not assigned is dropped.
    pub fn receive(&mut self, fetched: Fetched<M>) {
        let partition = self.partitions.get_mut(&fetched.partition);
        let Some(partition) = partition.filter(|partition| !partition.is_ending) else {
            return;
        };
        let Some(receipt) = partition.offsets.receive(fetched.offset) else {
            return;
        };
        let record = Arc::new(Record {
            partition: fetched.partition,
            key: fetched.key,
            receipt,
            message: fetched.message,
            is_again: AtomicBool::new(false),
            _memory: Memory::new(fetched.size, &partition.bytes),
        });
        match record.lane().map(|lane| self.lanes.entry(lane)) {
            Some(Entry::Occupied(mut lane)) => return lane.get_mut().behind.push_back(record),
            Some(Entry::Vacant(lane)) => {
                lane.insert(Lane {
                    is_running: false,
                    behind: VecDeque::new(),
                });
            }
            None => {}
        }
        self.fetched.push_back(record);
    }

    fn next_ready(&mut self) -> Option<Arc<Record<M>>> {
        self.is_turn_of_waited = !self.is_turn_of_waited;
        let [first, second] = if self.is_turn_of_waited {
            [&mut self.waited, &mut self.fetched]
        } else {
            [&mut self.fetched, &mut self.waited]
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    /// Returns the next message for a handler.
    pub fn begin(&mut self) -> Option<Arc<Record<M>>> {
        while let Some(record) = self.next_ready() {
            // The broker may have gone back behind it.
            if self.is_void(&record) {
                self.advance(&record);
                continue;
            }
            if let Some(partition) = self.partitions.get_mut(&record.partition) {
                partition.running += 1;
            }
            self.set_running(&record, true);
            return Some(record);
        }
        None
    }

    /// Returns whether a message can no longer be settled, or not for long: its partition was
    /// revoked, or is being revoked.
    pub fn is_void(&self, record: &Record<M>) -> bool {
        let partition = self.partitions.get(&record.partition);
        !partition.is_some_and(|partition| partition.is_open(record.receipt))
    }

    /// Settles a message. Returns `false` if its partition was revoked meanwhile.
    pub fn settle(&mut self, record: &Record<M>) -> bool {
        let partition = self.partitions.get_mut(&record.partition);
        partition.is_some_and(|partition| partition.offsets.settle(record.receipt))
    }

    /// Takes a message back from its handler. Returns whether it pauses.
    pub fn take_back(&mut self, record: Arc<Record<M>>, after: After) -> bool {
        if let Some(partition) = self.partitions.get_mut(&record.partition) {
            partition.running -= 1;
        }
        self.set_running(&record, false);
        match after {
            // A settled message is void, too.
            _ if self.is_void(&record) => self.advance(&record),
            After::Settled => self.advance(&record),
            After::Again => {
                record.is_again.store(true, Ordering::Relaxed);
                self.pausing.insert(record.place(), record);
                return true;
            }
            After::Dropped => self.waited.push_front(record),
        }
        false
    }

    /// Ends the pause of a message.
    pub fn wake(&mut self, place: &Place) {
        self.waited.extend(self.pausing.remove(place));
    }

    /// Lets the next message with this record key begin.
    fn advance(&mut self, done: &Record<M>) {
        let Some(lane) = done.lane() else {
            return;
        };
        let next = self.lanes.get_mut(&lane);
        if let Some(next) = next.and_then(|lane| lane.behind.pop_front()) {
            self.waited.push_back(next);
        } else {
            self.lanes.remove(&lane);
        }
    }

    fn set_running(&mut self, record: &Record<M>, is_running: bool) {
        let lane = record.lane().and_then(|lane| self.lanes.get_mut(&lane));
        if let Some(lane) = lane {
            lane.is_running = is_running;
        }
    }

    /// Returns the offsets that the broker does not have yet.
    pub fn to_commit(&self) -> Vec<(i32, i64)> {
        let partitions = self.partitions.iter();
        partitions
            .filter_map(|(number, partition)| Some((*number, partition.offsets.to_commit()?)))
            .collect()
    }

    /// Takes note of offsets that the broker has confirmed.
    pub fn committed(&mut self, offsets: &[(i32, i64)]) {
        for (partition, offset) in offsets {
            if let Some(partition) = self.partitions.get_mut(partition) {
                partition.offsets.committed(*offset);
            }
        }
    }

    /// Returns whether a partition is fetched although it is full.
    pub fn must_pause(&self) -> bool {
        let mut partitions = self.partitions.values();
        partitions.any(|partition| !partition.is_paused && partition.is_full())
    }

    /// Returns the partitions to pause, and those to resume, and takes it for done. `all` is for
    /// the shutdown, when no more messages are wanted.
    pub fn flow(&mut self, all: bool) -> Flow {
        let mut flow = Flow::default();
        for (number, partition) in &mut self.partitions {
            if partition.is_ending {
                continue;
            }
            if !partition.is_paused && (all || partition.is_full()) {
                partition.is_paused = true;
                flow.pause.push(*number);
            } else if partition.is_paused && !all && partition.has_room() {
                partition.is_paused = false;
                flow.resume.push(*number);
            }
        }
        flow
    }

    /// Returns whether a partition is paused.
    pub fn has_paused(&self) -> bool {
        self.partitions
            .values()
            .any(|partition| partition.is_paused)
    }
}
