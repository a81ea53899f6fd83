//! The table of events of the guide on transactions: each row, on each database, at each isolation
//! level, with other connections and other processes at the same key.

mod cut;
#[cfg(unix)]
mod file;
pub(super) mod rows;
mod workers;
