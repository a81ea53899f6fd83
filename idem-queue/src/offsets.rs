//! Offsets of a partition, for brokers that acknowledge no single message.

use std::collections::VecDeque;

/// How many messages of a partition are kept at most, before [`Offsets::is_full`].
const MOST: usize = 1_000;

/// The messages of one partition that a consumer has received, and the offset that it may commit.
///
/// A broker such as Kafka keeps one offset for each partition and group: all messages below it are
/// done. So the commit is the offset of the first message that is not settled. Messages above it
/// are kept, also the settled ones. Offsets have gaps, where the broker has no message.
///
/// A value of this type does no I/O: what may be committed depends on these calls alone.
///
/// # Examples
///
/// ```
/// let mut offsets = idem_queue::Offsets::default();
/// offsets.assign();
/// let first = offsets.receive(7).unwrap();
/// let second = offsets.receive(9).unwrap();
/// assert!(offsets.settle(second));
/// assert_eq!(offsets.to_commit(), None); // Number 7 is not settled.
/// assert!(offsets.settle(first));
/// assert_eq!(offsets.to_commit(), Some(10));
/// offsets.committed(10);
///
/// offsets.revoke();
/// assert_eq!(offsets.receive(10), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offsets {
    is_assigned: bool,
    /// The first message that is not settled, and all that were received after it, by offset.
    kept: VecDeque<Kept>,
    /// The offset after the last message received.
    position: Option<i64>,
    /// The offset that the broker has, as far as is known.
    committed: Option<i64>,
    /// The number of messages received in all assignments.
    received: u64,
}

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    receipt: Receipt,
    is_settled: bool,
}

/// One reception of a message. It is void as soon as the partition is revoked, or the broker
/// delivers the offset again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Receipt {
    offset: i64,
    number: u64,
}

impl Receipt {
    /// Returns the offset of the message.
    pub fn offset(self) -> i64 {
        self.offset
    }
}

impl Offsets {
    /// Begins an assignment of the partition. All receipts of earlier ones are void.
    pub fn assign(&mut self) {
        self.revoke();
        self.is_assigned = true;
    }

    /// Ends the assignment. All receipts are void, and nothing may be committed.
    pub fn revoke(&mut self) {
        *self = Self {
            received: self.received,
            ..Self::default()
        };
    }

    /// Takes note of a message. Returns `None` if the partition is not assigned.
    ///
    /// If the offset is below an earlier one, the broker has gone back: the partition lost its end,
    /// or the topic was created again. Messages from this offset on are other messages then, and
    /// the receipts of the earlier ones are void.
    pub fn receive(&mut self, offset: i64) -> Option<Receipt> {
        if !self.is_assigned {
            return None;
        }
        let kept = self
            .kept
            .partition_point(|kept| kept.receipt.offset < offset);
        self.kept.truncate(kept);
        self.received += 1;
        let receipt = Receipt {
            offset,
            number: self.received,
        };
        self.kept.push_back(Kept {
            receipt,
            is_settled: false,
        });
        self.position = Some(offset.saturating_add(1));
        // The broker began to deliver at the offset that it has, or at one of no importance.
        self.committed.get_or_insert(offset);
        Some(receipt)
    }

    /// Marks a message as settled. Returns `false`, and changes nothing, if the receipt is void or
    /// the message was settled before.
    pub fn settle(&mut self, receipt: Receipt) -> bool {
        let Some(index) = self.unsettled(receipt) else {
            return false;
        };
        self.kept[index].is_settled = true;
        while self.kept.front().is_some_and(|kept| kept.is_settled) {
            self.kept.pop_front();
        }
        true
    }

    /// Returns whether the message can no longer be settled with this receipt.
    pub fn is_void(&self, receipt: Receipt) -> bool {
        self.unsettled(receipt).is_none()
    }

    fn unsettled(&self, receipt: Receipt) -> Option<usize> {
        let index = self
            .kept
            .binary_search_by_key(&receipt.offset, |kept| kept.receipt.offset)
            .ok()?;
        let kept = &self.kept[index];
        (kept.receipt == receipt && !kept.is_settled).then_some(index)
    }

    /// Returns the offset to commit: that of the first message that is not settled, or the one
    /// after the last. `None` if the broker has it already, or nothing was received.
    ///
    /// It is lower than the last commit only after the broker has gone back itself.
    pub fn to_commit(&self) -> Option<i64> {
        let first = self.kept.front().map(|kept| kept.receipt.offset);
        let first = first.or(self.position)?;
        (self.committed != Some(first)).then_some(first)
    }

    /// Takes note of an offset that the broker has confirmed.
    pub fn committed(&mut self, offset: i64) {
        if self.is_assigned {
            self.committed = Some(offset);
        }
    }

    /// Returns how many messages are kept: the first that is not settled, and all above it.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns whether no more messages may be fetched until the first is settled: 1,000 are kept.
    pub fn is_full(&self) -> bool {
        self.kept() >= MOST
    }
}
