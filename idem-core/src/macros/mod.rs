//! The functions that generated code calls.

pub(crate) mod lent;
pub(crate) mod private;
pub(crate) mod site;
