//! The errors of a record that this version cannot read.

use idem_core::wire::WireError;
use idem_core::{StoreError, StoreErrorKind};

/// Somebody else's data at the key, or a record that this version cannot read.
pub(crate) fn unreadable(error: WireError) -> StoreError {
    StoreError::new(StoreErrorKind::Unreadable, error.to_string()).with_source(error)
}

/// The error for a record in flight without an expiry: the age of its lease is unknown.
pub(crate) fn no_expiry() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreadable,
        "the record is in flight and has no expiry, so the age of its lease is unknown: its expiry \
         was removed; set it again with PEXPIRE; without the key, the next call would run the body \
         again",
    )
}
