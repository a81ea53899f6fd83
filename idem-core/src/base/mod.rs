//! The base of everything: time, pauses, races, locks, and text that is safe to print.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod duration;
pub(crate) mod printable;
pub(crate) mod race;
pub(crate) mod rounds;
pub(crate) mod sync;
