//! Values made of a fuzzer's bytes: whatever the bytes are, there is a value, and small changes of
//! them make small changes of it.

use std::time::Duration;

/// The bytes that are left.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte, 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    /// Often small, often at an edge.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            0 => u64::MAX,
            1 => u64::MAX - 1,
            2 => u64::from_be_bytes(self.array()),
            3 => u32::MAX.into(),
            small => u64::from(small - 4),
        }
    }

    /// Of whole milliseconds, as a record has them.
    pub(crate) fn length(&mut self) -> Duration {
        Duration::from_millis(self.number())
    }

    /// Up to 255 bytes, or up to the end.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(usize::from(self.byte()).min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Up to 255 bytes of text.
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// What is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
