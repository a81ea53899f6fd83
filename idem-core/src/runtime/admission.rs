//! The condition under which a call may ask for its key.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::record::RecordId;
use crate::runtime::rejected::Rejected;

/// Decides about the calls of a key that must be issued. `Display` says for whom it was issued.
pub(crate) trait Admission: Any + fmt::Debug + fmt::Display + Send + Sync {
    /// Refuses a call before the store is asked.
    fn admit(&self, id: &RecordId, now: Instant) -> Result<(), Rejected>;

    /// Returns the refusal of a call whose key the store has not, or not any more.
    fn not_issued(&self, id: &RecordId, is_expired: bool) -> Rejected;

    /// Returns what decides if the caller is an operator who settles the record.
    fn by_hand(&self) -> Arc<dyn Admission>;
}
