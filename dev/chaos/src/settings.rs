//! The settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use crate::broker;
use crate::check::Rules;
use crate::plan::{self, Fault, Kind};
use crate::topology::Topology;

/// What is to be done.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) topology: Topology,
    /// The broker, if the calls come from messages.
    pub(crate) broker: Option<broker::Kind>,
    pub(crate) kinds: Vec<Kind>,
    /// How many processes there are at once.
    pub(crate) processes: usize,
    pub(crate) length: Duration,
    pub(crate) lease: Duration,
    pub(crate) seed: u64,
    /// How many replicas acknowledge each claim and commit.
    pub(crate) replicas: u32,
    pub(crate) mutant: Option<String>,
    /// The folder of the history.
    pub(crate) folder: PathBuf,
    /// When the run began, by the clock that all share.
    pub(crate) epoch: u64,
}

impl Settings {
    /// The faults of the run.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        plan::faults(
            self.seed,
            self.length,
            &self.kinds,
            self.lease,
            self.topology.fails_over(),
        )
    }

    /// The rules for its history.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            lease: self.lease,
            fails_over: self.topology.fails_over(),
            forgets: self.topology.forgets(),
        }
    }
}
