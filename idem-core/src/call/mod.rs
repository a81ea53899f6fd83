//! One guarded call: describe, start, run, finish.
//!
//! `prepared` describes it, `start` claims its key, `run` runs its body, under a lease or without a
//! record (`holder`), and `judge` decides what the body's end means.

pub(crate) mod bodies;
pub(crate) mod body;
mod by_hand;
pub(crate) mod holder;
pub(crate) mod judge;
pub(crate) mod keeping;
pub(crate) mod lookup;
pub(crate) mod owned;
pub(crate) mod part;
pub(crate) mod prepared;
pub(crate) mod reconcile;
pub(crate) mod recorded;
pub(crate) mod report;
mod resend;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod witness;
