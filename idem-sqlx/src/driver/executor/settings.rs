//! The settings of a store, before it has a pool.

use std::time::Duration;

/// How long a step may take, unless the builder sets another limit.
pub(crate) const TIME_LIMIT: Duration = Duration::from_millis(900);

/// The settings of a builder.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) table: String,
    pub(crate) limit: Duration,
    /// Whether only this store uses the pool.
    pub(crate) pool_is_own: bool,
    /// Whether the pool's connections limit how long statements wait for locks.
    pub(crate) is_limited: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            table: "idem_records".to_owned(),
            limit: TIME_LIMIT,
            pool_is_own: false,
            is_limited: false,
        }
    }
}

impl Settings {
    /// Returns the settings of a store that has a pool of its own.
    pub(crate) fn of_own_pool() -> Self {
        Self {
            pool_is_own: true,
            is_limited: true,
            ..Self::default()
        }
    }
}
