//! Calls without the attribute.

pub(crate) mod lease;
pub(crate) mod operation;
