//! The owner's side of leases: when a body must stop, and renewal.

pub(crate) mod keeper;
pub(crate) mod schedule;
pub(crate) mod term;
