//! One guarded call: claim, run, retry, record.

pub(crate) mod audit;
pub(crate) mod body;
pub(crate) mod claiming;
pub(crate) mod execution;
pub(crate) mod held;
pub(crate) mod keeping;
pub(crate) mod lookup;
pub(crate) mod orphan;
pub(crate) mod part;
pub(crate) mod prepared;
pub(crate) mod reconcile;
pub(crate) mod recorded;
pub(crate) mod rejected;
pub(crate) mod request;
pub(crate) mod retention;
pub(crate) mod transaction;
pub(crate) mod witness;
