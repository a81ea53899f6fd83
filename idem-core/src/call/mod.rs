//! One guarded call: describe, start, run, finish.
//!
//! `prepared` and `request` describe it, `start` claims its key, `execution` runs its body under a
//! lease or without a record (`run`), and `judge` decides what the body's end means. `transaction`
//! is the entry of calls in a transaction.

pub(crate) mod audit;
pub(crate) mod body;
mod by_hand;
pub(crate) mod execution;
pub(crate) mod in_transaction;
pub(crate) mod judge;
pub(crate) mod keeping;
pub(crate) mod lookup;
pub(crate) mod open_transaction;
pub(crate) mod owned;
pub(crate) mod part;
pub(crate) mod pending_claim;
pub(crate) mod prepared;
pub(crate) mod reconcile;
pub(crate) mod recorded;
pub(crate) mod report;
mod resend;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod transaction;
pub(crate) mod transaction_body;
pub(crate) mod witness;
