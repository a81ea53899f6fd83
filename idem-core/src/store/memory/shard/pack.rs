//! A pack of records: one run of bytes.

use bytes::Bytes;
use slab::Slab;

use super::{Place, narrow};
use crate::store::memory::slot::Slot;

/// Records that were written together.
pub(super) struct Pack {
    pub(super) bytes: Bytes,
    /// How many records it has.
    pub(super) records: usize,
    /// How many of its bytes the last sweep found needed.
    pub(super) used: usize,
}

/// A pack that is being written.
pub(super) struct Packing {
    key: usize,
    bytes: Vec<u8>,
    pub(super) records: usize,
}

impl Packing {
    pub(super) fn new(packs: &Slab<Pack>, room: usize) -> Self {
        Self {
            key: packs.vacant_key(),
            bytes: Vec::with_capacity(room),
            records: 0,
        }
    }

    /// Adds a record, and says where it will be.
    pub(super) fn add(&mut self, id: &[u8], slot: &Slot) -> Place {
        let place = Place {
            pack: narrow(self.key),
            at: narrow(self.bytes.len()),
        };
        slot.write(id, &mut self.bytes);
        self.records += 1;
        place
    }

    pub(super) fn end(mut self, packs: &mut Slab<Pack>) {
        self.bytes.shrink_to_fit();
        let used = self.bytes.len();
        // Not `Bytes::from`, which allocates when the first outcome is replayed.
        let bytes = Bytes::from_owner(self.bytes);
        packs.insert(Pack {
            bytes,
            records: self.records,
            used,
        });
    }
}
