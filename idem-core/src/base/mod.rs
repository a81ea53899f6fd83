//! The base of everything: time, locks, and text that is safe to print.

pub(crate) mod clock;
pub(crate) mod printable;
pub(crate) mod sync;
