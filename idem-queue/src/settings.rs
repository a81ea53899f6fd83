//! The settings of the consumers of all brokers.

use std::time::Duration;

/// The settings of a consumer.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many messages are handled at the same time, and how many the broker delivers ahead. At
    /// least 1. Default: 16.
    pub concurrency: usize,
    /// How long a handler waits at most for another call with its key. Default: 1 s.
    pub wait: Duration,
    /// How long running handlers may take after the shutdown has begun. Default: 25 s.
    pub shutdown_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            concurrency: 16,
            wait: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(25),
        }
    }
}
