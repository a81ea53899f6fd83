//! The questions to a store, and its answers.

use std::sync::Arc;
use std::time::Duration;

use crate::encoding::fingerprint::Fingerprint;
use crate::record::ids::{Owner, RecordId};
use crate::record::metadata::Metadata;
use crate::record::state::{Encoded, InFlight, Origin};

/// A request to become the owner of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// The identity of this claim. A resend carries the same, and is recognised.
    pub owner: Owner,
    /// The time until the lease expires, unless it is renewed.
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
    /// The call's own data in its record in flight: its trace, and the type of its outcome. It
    /// decides nothing.
    pub metadata: Option<Arc<Metadata>>,
}

impl Claim {
    /// The record that this claim writes as a given attempt, over what it found. (Over an abandoned
    /// record, see [`taking_over`](Self::taking_over).)
    pub fn in_flight(&self, attempt: u64, origin: Origin) -> InFlight {
        InFlight {
            fingerprint: self.fingerprint,
            metadata: self.metadata.clone(),
            ..InFlight::new(self.owner, attempt, origin, self.lease, self.hold)
        }
    }

    /// The record that this claim writes over an abandoned one. It stays at least as long.
    pub fn taking_over(&self, found: &InFlight) -> InFlight {
        InFlight {
            hold: self.hold.max(found.hold),
            questions: found.questions,
            took_over: Some(Box::new(found.as_taken_over())),
            ..self.in_flight(found.attempt.saturating_add(1), Origin::Abandoned)
        }
    }

    /// Returns the description of the record that this claim wrote, for a commit by its owner.
    pub fn as_claimed(&self, origin: Origin) -> AsClaimed {
        AsClaimed::new(origin, self.lease, self.hold)
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
        /// The owner's attempt.
        attempt: u64,
        /// How long until the lease runs out, unless it is renewed.
        lease_left: Duration,
    },
    /// Another owner's lease has expired, and the claim does not take over.
    Abandoned {
        /// The attempt that was cut off.
        attempt: u64,
    },
    /// The key could be claimed, but `max_attempts` have been.
    Exhausted {
        /// How many attempts there were, without those that only [asked](InFlight::questions).
        attempts: u64,
    },
    /// The key has no record, and the claim requires an issued key.
    NotIssued,
    /// The key was issued, and its time is over. Only for claims of a key that must have been
    /// issued.
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

/// A wish to give a key out, for one use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issue {
    /// The record.
    pub id: RecordId,
    /// How long it can be claimed.
    pub ttl: Duration,
    /// How long after that it is known that its time is over.
    pub grace: Duration,
}

/// The result of an issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// The key can be claimed. Also the answer to the same issue, sent again after its reply was
    /// lost.
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
    /// The record.
    pub id: RecordId,
    /// The owner.
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
    /// The [metadata](Claim::metadata) that the claim has written, a part of what `as_claimed`
    /// describes.
    pub claim_metadata: Option<Arc<Metadata>>,
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
    /// The record.
    pub id: RecordId,
    /// The owner. The attempt is not compared: an owner whose claim's reply was lost does not know it.
    pub owner: Owner,
    /// The state that the release leaves.
    pub to: ReleaseTo,
    /// Whether a released record names its [run](InFlight::run), because the run has
    /// [steps](crate::step). Where this attempt was not the first of its run, it does so anyway.
    pub names_run: bool,
}

/// The state that a release leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseTo {
    /// A key that may be claimed; its attempt count is kept for this long, and with a run at least
    /// as long as the record in flight would have stayed.
    Released {
        /// `max(ttl, 10 × lease)`; for a token, at least its own `ttl`.
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
        /// `max(ttl, remember, 10 × lease)`; for a token, at least its own `ttl`.
        keep: Duration,
    },
}

/// An owner's wish to keep its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewal {
    /// The record.
    pub id: RecordId,
    /// The owner.
    pub owner: Owner,
    /// The record's expiry, from now: as in the claim. Less than the record has counts as that.
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
