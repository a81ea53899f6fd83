//! Calls without the attribute.

pub(crate) mod lease;
pub(crate) mod operation;
pub(crate) mod step;

// Last: rustdoc shows methods in the order of the modules, and few calls issue tokens.
pub(crate) mod issue;
