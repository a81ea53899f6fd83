//! The work of operators: listing records, deciding about one, by hand or with a store at hand, and
//! the trail of their decisions.

pub mod admin;
mod by_hand;
mod memory;
mod noting;
pub mod trail;
