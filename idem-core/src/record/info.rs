//! The description of a record, for people.

use std::sync::Arc;
use std::time::Duration;

use crate::encoding::fingerprint::Fingerprint;
use crate::record::ids::Owner;
use crate::record::state::{Encoded, Record};

/// The state of a record, by the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordState {
    /// A one-time token was given out, and not used yet.
    Issued,
    /// A one-time token was given out and not used, and its time is over.
    Expired,
    /// Claimed, not committed, lease alive.
    InFlight,
    /// Given up by its owner.
    Released,
    /// Claimed, not committed, lease run out.
    Abandoned,
    /// The outcome is recorded and still kept.
    Committed,
    /// It is known that there was an outcome.
    Done,
}

impl RecordState {
    /// Returns its stable name, such as `in_flight`: for programs, and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Expired => "expired",
            Self::InFlight => "in_flight",
            Self::Released => "released",
            Self::Abandoned => "abandoned",
            Self::Committed => "committed",
            Self::Done => "done",
        }
    }

    /// Reads a [name](Self::as_str); `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        use RecordState::{Abandoned, Committed, Done, Expired, InFlight, Issued, Released};
        [
            Issued, Expired, InFlight, Released, Abandoned, Committed, Done,
        ]
        .into_iter()
        .find(|state| state.as_str() == name)
    }
}

/// A view of a record, for people and for programs that settle what was abandoned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordInfo {
    /// Its state.
    pub state: RecordState,
    /// The last attempt, 0 if there was none.
    pub attempt: u64,
    /// The digest of the arguments that must be equal when the key comes again.
    pub fingerprint: Option<Fingerprint>,
    /// Committed: whether the outcome is an error that is kept.
    pub is_error: bool,
    /// Committed: the outcome.
    pub outcome: Option<Encoded>,
    /// Committed by hand, with an audit: how long ago that was, by the store's clock. The outcome's
    /// [`metadata`](Encoded::metadata) has the operator and the reason.
    pub audit_age: Option<Duration>,
    /// In flight and abandoned: the time since the claim or the last renewal.
    pub lease_age: Option<Duration>,
    /// In flight: the time until the lease runs out, unless it is renewed.
    pub lease_left: Option<Duration>,
    /// The time until the record changes by itself: a committed one to done (to none if `remember`
    /// is not longer than `ttl`), an issued one to expired, any other to none.
    pub expires_in: Duration,
    /// In flight, abandoned and committed: the W3C trace context (`traceparent`) of the call that
    /// ran, where the runtime [keeps traces](crate::Builder::trace_context).
    pub trace: Option<Arc<str>>,
    /// Committed: the Rust type of the outcome or of the error that is kept, without its modules,
    /// such as `Option<Receipt>`; at most 48 bytes. In flight and abandoned: that of the value
    /// that the call will return. Operations whose records may wait for a person record it: with
    /// `abandoned = reject` or `reconcile`, or with `max_attempts`.
    pub outcome_type: Option<Arc<str>>,
    /// In flight and abandoned: the [run](crate::store::record::InFlight::run) that it belongs to,
    /// and released: the run that goes on with the next claim, if it has [steps](crate::step).
    pub run: Option<Owner>,
}

impl RecordInfo {
    /// Describes a record that expires in `left` by the store's clock.
    pub fn new(record: &Record, left: Duration) -> Self {
        let mut info = Self {
            state: RecordState::Done,
            attempt: record.attempt(),
            fingerprint: record.fingerprint(),
            is_error: false,
            outcome: None,
            audit_age: None,
            lease_age: None,
            lease_left: None,
            expires_in: left,
            trace: None,
            outcome_type: None,
            run: None,
        };
        let mut metadata = None;
        info.state = match record {
            Record::Issued { grace } if left > *grace => {
                info.expires_in = left.saturating_sub(*grace);
                RecordState::Issued
            }
            Record::Issued { .. } => RecordState::Expired,
            Record::InFlight(held) => {
                metadata = held.metadata.as_deref();
                info.run = Some(held.run());
                info.lease_age = Some(held.lease_age(left));
                info.lease_left = held.lease_left(left);
                match info.lease_left {
                    Some(_) => RecordState::InFlight,
                    None => RecordState::Abandoned,
                }
            }
            Record::Released { run, .. } => {
                info.run = *run;
                RecordState::Released
            }
            Record::Committed { outcome, .. } => {
                metadata = outcome.metadata.as_deref();
                info.is_error = outcome.is_error;
                info.outcome = Some(outcome.clone());
                RecordState::Committed
            }
            Record::Done { .. } => RecordState::Done,
        };
        if let Some(metadata) = metadata {
            let audit = metadata.audit.as_ref();
            info.audit_age = audit.map(|audit| audit.kept_for.saturating_sub(left));
            info.trace.clone_from(&metadata.trace);
            info.outcome_type.clone_from(&metadata.type_name);
        }
        info
    }
}
