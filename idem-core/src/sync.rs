//! The locks and counters of what several threads share: the standard library's, or those of the explorer of schedules
//! (`explored.rs`), which says at each of them which thread goes on.

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};

#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};
