//! The record: every state, and the callers' requests. Its transitions are in
//! `record/transitions.rs`.

mod ids;
mod made;
mod metadata;
mod transitions;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::codec::CodecId;
use crate::fingerprint::Fingerprint;

pub use self::ids::{Owner, RecordId, is_valid_operation};
pub use self::metadata::{Audit, Metadata};
pub(crate) use self::metadata::{MAX_WHO, MAX_WHY, is_trace};
pub use self::transitions::{OnClaim, OnStep, RanOut, owner_stops_after, renewal_due_after};

/// The value that a store holds for one (operation, key).
///
/// *Abandoned* is not a variant: it is an [`InFlight`] record whose lease has run out by the
/// store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A one-time token was given out, and not used yet.
    Issued {
        /// For the last `grace` of its life the record no longer counts as issued; it only
        /// distinguishes expired from unknown.
        grace: Duration,
    },
    /// Claimed and not committed.
    InFlight(InFlight),
    /// Given up by its owner; the attempt count stays for a while.
    Released {
        /// The last attempt.
        attempt: u64,
        /// How many of the attempts only [asked](InFlight::questions).
        questions: u64,
    },
    /// The outcome is recorded and still kept.
    Committed {
        /// The attempt that succeeded.
        attempt: u64,
        /// The digest of the arguments that must be equal when the key comes again.
        fingerprint: Option<Fingerprint>,
        /// The outcome.
        outcome: Encoded,
    },
    /// It is known that there was an outcome.
    Done {
        /// The attempt that succeeded.
        attempt: u64,
        /// The digest of the arguments that must be equal when the key comes again.
        fingerprint: Option<Fingerprint>,
    },
}

/// A record that is in flight, or abandoned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// The owner that claimed it.
    pub owner: Owner,
    /// Which claim of this key it is.
    pub attempt: u64,
    /// The state that the claim found. Undoing the claim needs it, and so does an owner whose
    /// claim's reply was lost.
    pub origin: Origin,
    /// How long the lease is. Zero: given up, abandoned at once.
    pub lease: Duration,
    /// The expiry with which the record is written, and again at each renewal: the age of the lease
    /// is `hold` less what is left.
    pub hold: Duration,
    /// The digest of the arguments that must be equal when the key comes again.
    pub fingerprint: Option<Fingerprint>,
    /// How many of the attempts so far began no body: each only asked what became of an earlier
    /// one, and got no answer ([`ReleaseTo::Unanswered`]). They do not count towards
    /// `max_attempts`.
    pub questions: u64,
    /// The abandoned record that the claim took over, with a lease of zero: undoing the claim
    /// restores it. The record that it took over in turn is inside, up to [`MOST_TAKEN_OVER`] in
    /// all. `None` for any other origin, and where an earlier version wrote the record.
    pub took_over: Option<Box<Self>>,
    /// The W3C trace context (`traceparent`) of the call that claimed it, where the runtime
    /// [keeps traces](crate::Builder::trace_context).
    pub trace: Option<Arc<str>>,
}

/// The number of successive take-overs that a record in flight remembers. Beyond that, undoing the
/// claims one after the other leaves an abandoned record without an [owner](Owner::NOBODY).
pub const MOST_TAKEN_OVER: usize = 3;

/// An outcome as the codec wrote it. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// Whether this is an error that is kept, and not a value.
    pub is_error: bool,
    /// The codec that can read it.
    pub codec: CodecId,
    /// The bytes that it wrote.
    pub payload: Bytes,
    /// More data about it. A store keeps it with the outcome and returns it; `None` takes no room.
    pub metadata: Option<Arc<Metadata>>,
}

impl Encoded {
    /// Returns the version of the outcome's type, 1 where none is stated.
    pub fn version(&self) -> u32 {
        self.metadata.as_ref().and_then(|metadata| metadata.version).unwrap_or(1)
    }

    /// Notes the version of the value's type, unless that is the first. Errors have none.
    pub(crate) fn of_version(mut self, version: u32) -> Self {
        if version > 1 && !self.is_error {
            self.describe(|metadata| metadata.version = Some(version));
        }
        self
    }

    /// Changes what else is known of it.
    pub(crate) fn describe(&mut self, change: impl FnOnce(&mut Metadata)) {
        let mut metadata = self.metadata.as_deref().cloned().unwrap_or_default();
        change(&mut metadata);
        self.metadata = Some(metadata).filter(|metadata| !metadata.is_empty()).map(Arc::new);
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_error { "error, " } else { "" };
        write!(f, "Encoded({kind}{}, {} bytes)", self.codec, self.payload.len())
    }
}

/// A caller's wish to become the owner of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// Of what.
    pub id: RecordId,
    /// Who. The same claim sent again carries the same owner, and is recognised.
    pub owner: Owner,
    /// For how long without a renewal.
    pub lease: Duration,
    /// How long the record stays if nothing more is heard of the owner:
    /// `max(ttl, remember, 2 × lease)`, and twice the operation's `hold` where an abandoned record
    /// is rejected or asked about.
    pub hold: Duration,
    /// Must be equal to the record's, if both have one.
    pub fingerprint: Option<Fingerprint>,
    /// Whether an abandoned record may be claimed.
    pub take_over: bool,
    /// Without `take_over`: an abandoned record may still be claimed once its owner has been silent
    /// for this long, counted from its claim or last renewal. `None`: never.
    pub take_over_after: Option<Duration>,
    /// The highest attempt that may be begun.
    pub max_attempts: Option<u64>,
    /// Whether the key counts only if it was [issued](Issue): without a record, none is written.
    pub must_be_issued: bool,
    /// The W3C trace context (`traceparent`, version 00) of the caller. The record in flight keeps
    /// it; it decides nothing.
    pub trace: Option<Arc<str>>,
}

impl Claim {
    /// The record that this claim writes as a given attempt, over what it found. (Over an abandoned
    /// record, see [`taking_over`](Self::taking_over).)
    pub fn in_flight(&self, attempt: u64, origin: Origin) -> InFlight {
        let Self { owner, lease, hold, fingerprint, .. } = *self;
        let trace = self.trace.clone();
        InFlight { owner, attempt, origin, lease, hold, fingerprint, questions: 0, took_over: None, trace }
    }

    /// The record that this claim writes over an abandoned one.
    pub fn taking_over(&self, found: &InFlight) -> InFlight {
        InFlight {
            questions: found.questions,
            took_over: Some(Box::new(found.as_taken_over())),
            ..self.in_flight(found.attempt.saturating_add(1), Origin::Abandoned)
        }
    }

    /// Returns the description of the record that this claim wrote, for a commit by its owner.
    pub fn as_claimed(&self, origin: Origin) -> AsClaimed {
        let Self { lease, hold, .. } = *self;
        AsClaimed { origin, lease, hold }
    }
}

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The caller is the owner now.
    Owned {
        /// 1 for the first claim of a key, +1 for each later one.
        attempt: u64,
        /// The state before the claim.
        from: Origin,
    },
    /// Somebody else is, and the lease is alive.
    InFlight {
        /// Whose turn it is.
        attempt: u64,
        /// How long until the lease runs out, unless it is renewed.
        lease_left: Duration,
    },
    /// Another owner's lease has expired, and the claim does not take over.
    Abandoned {
        /// Whose turn it was.
        attempt: u64,
    },
    /// The key could be claimed, but `max_attempts` have been.
    Exhausted {
        /// How many attempts there were, without those that only [asked](InFlight::questions).
        attempts: u64,
    },
    /// The key has no record, and the claim requires an issued key.
    NotIssued,
    /// The key was issued, and its time is over: as far as a claim of a key that must have been
    /// issued goes.
    IssueExpired,
    /// The key came before with another fingerprint. Found before any conflict.
    Mismatch,
    /// There is an outcome.
    Committed {
        /// The attempt that succeeded.
        attempt: u64,
        /// The outcome.
        outcome: Encoded,
    },
    /// There was an outcome.
    Done {
        /// The attempt that succeeded.
        attempt: u64,
    },
}

/// The state that a successful claim found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// No record.
    Nothing,
    /// A token that was given out.
    Issued,
    /// A key that an earlier owner gave up.
    Released,
    /// A record whose owner's lease ran out.
    Abandoned,
}

/// A wish to give a key out, for one use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issue {
    /// Of what.
    pub id: RecordId,
    /// How long it can be claimed.
    pub ttl: Duration,
    /// How long after that it is known that its time is over.
    pub grace: Duration,
}

/// The result of an issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// The key can be claimed (or could, and this is the answer of before, where its reply was
    /// lost).
    Issued,
    /// There is another record; it was left as it is.
    Taken,
}

/// Whether the caller of a commit, renewal or release was the current owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// It was, and the step was carried out (or had been, where its reply was lost).
    Held,
    /// It was not; nothing was changed.
    Lost,
}

/// An owner's wish to record an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Of what.
    pub id: RecordId,
    /// Who.
    pub owner: Owner,
    /// Under which attempt.
    pub attempt: u64,
    /// The digest of the arguments that must be equal when the key comes again.
    pub fingerprint: Option<Fingerprint>,
    /// The outcome; `None` records that there was one.
    pub outcome: Option<Encoded>,
    /// How long the outcome is kept, from now.
    pub ttl: Duration,
    /// How long it is known that there was one, from now: at least `ttl`.
    pub remember: Duration,
    /// The rest of the owner's record in flight, if the owner knows it and has not changed it since
    /// the claim. With it, a store may replace exactly that record by one comparison of the whole.
    /// It decides nothing. If the record differs, or this is `None`, the store checks its owner.
    pub as_claimed: Option<AsClaimed>,
    /// The [trace](Claim::trace) that the claim has written, a part of what `as_claimed` describes.
    pub trace: Option<Arc<str>>,
}

/// The fields that a claim has written into a record in flight, besides the owner, the attempt and
/// the fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsClaimed {
    /// The state that the claim found.
    pub origin: Origin,
    /// The claim's lease.
    pub lease: Duration,
    /// The claim's hold, and that of each renewal since.
    pub hold: Duration,
}

/// An owner's wish to give the key up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// Of what.
    pub id: RecordId,
    /// Who. The attempt is not asked for: an owner whose claim's reply was lost does not know it.
    pub owner: Owner,
    /// The state that the release leaves.
    pub to: ReleaseTo,
}

/// The state that a release leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseTo {
    /// A key that may be claimed; its attempt count is kept for this long.
    Released {
        /// `max(ttl, 10 × lease)`.
        keep: Duration,
    },
    /// An abandoned record, at once, without waiting for the lease to run out.
    Abandoned,
    /// The same, and no body has begun: this attempt only asked what became of an earlier one, and
    /// got no answer. It does not count towards `max_attempts`.
    Unanswered,
    /// The state that the claim found, with its attempt, because no body has begun. That is
    /// nothing; an issued token; a released key, whose attempt count is kept for this long; or the
    /// abandoned record, whose owner may still commit.
    Undone {
        /// `max(ttl, 10 × lease)`.
        keep: Duration,
    },
}

/// An owner's wish to keep its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// Of what.
    pub id: RecordId,
    /// Who.
    pub owner: Owner,
    /// The record's expiry, from now: as in the claim.
    pub hold: Duration,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// There was a record, and there is none now.
    Removed,
    /// There was none.
    Nothing,
    /// There is one in flight; it was left as it is.
    InFlight {
        /// How long until the lease runs out, unless it is renewed.
        lease_left: Duration,
    },
}

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

/// What is known of a record, for people and for programs that settle what was abandoned.
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
    /// The time until the record changes by itself: a committed one to done, an issued one to
    /// expired, any other to none.
    pub expires_in: Duration,
    /// In flight, abandoned and committed: the W3C trace context (`traceparent`) of the call that
    /// ran, where the runtime [keeps traces](crate::Builder::trace_context).
    pub trace: Option<Arc<str>>,
}

impl RecordInfo {
    /// Describes a record that expires in `left` by the store's clock.
    pub fn new(record: &Record, left: Duration) -> Self {
        let (mut lease_age, mut lease_left, mut expires_in) = (None, None, left);
        let state = match record {
            Record::Issued { grace } if left > *grace => {
                expires_in = left.saturating_sub(*grace);
                RecordState::Issued
            }
            Record::Issued { .. } => RecordState::Expired,
            Record::InFlight(held) => {
                (lease_age, lease_left) = (Some(held.lease_age(left)), held.lease_left(left));
                if lease_left.is_some() { RecordState::InFlight } else { RecordState::Abandoned }
            }
            Record::Released { .. } => RecordState::Released,
            Record::Committed { .. } => RecordState::Committed,
            Record::Done { .. } => RecordState::Done,
        };
        let outcome = match record {
            Record::Committed { outcome, .. } => Some(outcome.clone()),
            _ => None,
        };
        let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
        let metadata = outcome.as_ref().and_then(|outcome| outcome.metadata.as_deref());
        let audit_age =
            metadata.and_then(|metadata| metadata.audit.as_ref()).map(|audit| audit.kept_for.saturating_sub(left));
        let trace = match record {
            Record::InFlight(held) => held.trace.clone(),
            _ => metadata.and_then(|metadata| metadata.trace.clone()),
        };
        let (attempt, fingerprint) = (record.attempt(), record.fingerprint());
        Self { state, attempt, fingerprint, is_error, outcome, audit_age, lease_age, lease_left, expires_in, trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p1_no_two_owners_within_a_process_are_the_same_whatever_the_application_seeds() {
        let owners = || {
            fastrand::seed(7);
            [Owner::within_process(), Owner::within_process()]
        };
        let (one, two) = (owners(), std::thread::spawn(owners).join().unwrap());
        let all = [one, two, owners()].concat();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }
}
