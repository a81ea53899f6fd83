//! Transactions that begin themselves: what runs again, what is committed, and what is lost.

mod bodies;
mod conflicts;
