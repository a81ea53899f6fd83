//! The base of everything: time, pauses, locks, and text that is safe to print.

pub(crate) mod clock;
pub(crate) mod jitter;
pub(crate) mod printable;
pub(crate) mod sync;
