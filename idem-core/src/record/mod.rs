//! The record: every state, the callers' requests, and what each request does in each state.
//!
//! [`Record`] has the states, and its methods `on_..` say what a request does in each of them. They
//! are pure: the store reads the record and its clock, and writes what they say
//! ([how](crate::store#writing-a-store)).

mod codec_id;
mod ids;
mod info;
pub(crate) mod intervention;
mod made;
mod metadata;
mod reserved;
mod state;
mod steps;
mod transitions;

pub use self::codec_id::CodecId;
pub(crate) use self::ids::write_run_after;
pub use self::ids::{Owner, RecordId, is_valid_operation};
pub use self::info::{RecordInfo, RecordState};
pub use self::metadata::{Audit, Metadata};
pub(crate) use self::metadata::{By, MAX_WHO, MAX_WHY, is_trace, short_type_name};
pub(crate) use self::reserved::{LOCK_PREFIX, STEP_PREFIX, TRAIL, reserved};
pub use self::reserved::{is_lock, is_step};
pub use self::state::{Encoded, InFlight, MOST_TAKEN_OVER, Origin, Record};
pub use self::steps::{
    AsClaimed, Claim, Claimed, Commit, Issue, Issued, Ownership, Release, ReleaseTo, Removed,
    Renewal,
};
pub use self::transitions::{
    OnClaim, OnStep, RanOut, STEPS_KEPT, owner_stops_after, renewal_due_after,
};
