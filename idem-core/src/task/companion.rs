//! What a layer keeps beside the record of a call, for as long as its body runs.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::settings::Settings;
use crate::record::RecordId;
use crate::runtime::Runtime;

/// Records that live and end with that of a call, in the [run](crate::record::InFlight::run) of its
/// key.
pub(crate) trait Companion: Any + Send + Sync {
    /// The body runs from its beginning.
    fn begin_try(&self);

    /// Whether the run may have such records, as far as this attempt knows.
    fn has_run(&self) -> bool;

    /// Whether the record of the call stays as long as they do, as far as the store knows. Until a
    /// renewal has told it, an abandoned record stays as long as the claim said.
    fn stays(&self) -> bool;

    /// The outcome of the call is recorded, so they are of no use any more.
    fn recorded(&self, runtime: &Arc<Runtime>, call: &RecordId, attempt: u64);

    /// Returns what a transaction that records the outcome writes with it.
    fn run_end(&self, call: &RecordId, settings: &Settings) -> Option<RunEnd>;
}

/// The record that says that a run beside a transaction has ended. The transaction that records the
/// outcome writes it.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) id: RecordId,
    /// How long it stays.
    pub(crate) kept: Duration,
}
