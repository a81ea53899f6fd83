//! One guarded call: describe, start, run, finish.
//!
//! `prepared` and `request` describe it, `start` claims its key, `run` runs its body, and `finish`
//! decides what the body's end means. `ownership` has the kinds of calls: with a lease, in a
//! transaction, without a record. `execution` and `transaction` are the entries.

pub(crate) mod audit;
pub(crate) mod body;
pub(crate) mod execution;
pub(crate) mod finish;
pub(crate) mod keeping;
pub(crate) mod lookup;
pub(crate) mod open_transaction;
pub(crate) mod owned_record;
pub(crate) mod ownership;
pub(crate) mod part;
pub(crate) mod pending_claim;
pub(crate) mod plan;
pub(crate) mod prepared;
pub(crate) mod reconcile;
pub(crate) mod recorded;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod transaction;
pub(crate) mod transaction_body;
pub(crate) mod witness;
