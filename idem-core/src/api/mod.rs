//! Calls without the attribute.

pub(crate) mod issue;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod operation;
