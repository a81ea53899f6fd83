//! The data that a layer keeps beside the record of a call, for as long as its body runs.

use std::any::Any;
use std::sync::Arc;

use crate::record::{Owner, RecordId};
use crate::runtime::Runtime;

/// Records that live and end with that of a call, in the [run](crate::record::InFlight::run) of its
/// key.
pub(crate) trait Companion: Any + Send + Sync {
    /// The body runs from its beginning.
    fn begin_try(&self);

    /// Returns the run that has such records, as far as this attempt knows.
    fn run(&self) -> Option<Owner>;

    /// Whether the record of the call stays as long as they do, as far as the store knows. Until a
    /// renewal has told it, an abandoned record stays as long as the claim said.
    fn stays(&self) -> bool;

    /// The outcome of the call is recorded, so they are of no use any more.
    fn recorded(&self, runtime: &Arc<Runtime>, call: &RecordId, attempt: u64);
}
