//! Guarded calls in a transaction: the record is written with the rows of the application.
//!
//! `driver` has what a database's driver implements. `api` begins a call, `call` carries it out in
//! one transaction after the other, `open` claims and commits its row, and `ending` decides what
//! becomes of the row. `commit_in` records the outcome of a call with a lease.
//! `kept_error` saves the records of kept errors from a roll-back.

pub(crate) mod api;
pub(crate) mod bodies;
pub(crate) mod call;
mod commit_in;
pub(crate) mod driver;
mod ending;
pub(crate) mod kept_error;
pub(crate) mod open;
mod run_end;
