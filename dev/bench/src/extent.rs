//! How much is measured.

use std::time::Duration;

/// How much each part does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    /// After one to warm up.
    pub(crate) rounds: usize,
    /// Sequential calls a round, of each subject and kind, over Redis.
    pub(crate) calls: u64,
    /// The same over databases, whose calls take longer.
    pub(crate) sql_calls: u64,
    /// How long many tasks call before it is another's turn, and how many turns a round has.
    pub(crate) slice: Duration,
    pub(crate) turns: u32,
    /// Calls of each task in process.
    pub(crate) in_process: u32,
    /// Messages of one measurement of consumers.
    pub(crate) messages: u32,
    /// Records in memory.
    pub(crate) records: u32,
    pub(crate) is_quick: bool,
}

impl Extent {
    pub(crate) fn usual(rounds: usize) -> Self {
        Self {
            rounds,
            calls: 1000,
            sql_calls: 200,
            slice: Duration::from_millis(150),
            turns: 2,
            in_process: 20_000,
            messages: 4000,
            records: 1_000_000,
            is_quick: false,
        }
    }

    /// To see that it works.
    pub(crate) fn quick() -> Self {
        Self {
            rounds: 2,
            calls: 200,
            sql_calls: 40,
            slice: Duration::from_millis(40),
            turns: 1,
            in_process: 2000,
            messages: 500,
            records: 100_000,
            is_quick: true,
        }
    }

    /// A round's name, where the first one warms up.
    pub(crate) fn round(&self, round: usize) -> String {
        if round == 0 {
            "to warm up".to_owned()
        } else {
            format!("{round} of {}", self.rounds)
        }
    }
}
