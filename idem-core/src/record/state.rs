//! The record and its states.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::encoding::fingerprint::Fingerprint;
use crate::record::codec_id::CodecId;
use crate::record::ids::Owner;
use crate::record::metadata::{Audit, Metadata};

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
        /// The [run](InFlight::run) that goes on with the next claim. `None`: the next claim begins
        /// one.
        run: Option<Owner>,
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
    /// The expiry that the claim and each renewal give the record. The age of the lease is `hold` less
    /// the time until that expiry.
    pub hold: Duration,
    /// The digest of the arguments that must be equal when the key comes again.
    pub fingerprint: Option<Fingerprint>,
    /// The number of attempts that began no body: `reconcile` asked what became of an earlier attempt,
    /// and got no answer ([`ReleaseTo::Unanswered`](crate::record::ReleaseTo::Unanswered)).
    /// They do not count towards `max_attempts`.
    pub questions: u64,
    /// The abandoned record that the claim took over, with a lease of zero: undoing the claim
    /// restores it. The record that it took over in turn is inside, up to [`MOST_TAKEN_OVER`] in
    /// all. `None` for any other origin, and where an earlier version wrote the record.
    pub took_over: Option<Box<Self>>,
    /// The claim's data about its call: the trace, where the runtime
    /// [keeps traces](crate::Builder::trace_context), and the type of the outcome, where a person
    /// may have to settle the record.
    pub metadata: Option<Arc<Metadata>>,
    /// The owner that began the run, where the remembered take-overs do not show it: after a release,
    /// and after too many take-overs. [`run`](Self::run) defines a run.
    pub run: Option<Owner>,
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
        self.metadata
            .as_ref()
            .and_then(|metadata| metadata.version)
            .unwrap_or(1)
    }

    /// Returns the operator who recorded it by hand.
    pub(crate) fn audit(&self) -> Option<&Audit> {
        self.metadata.as_ref()?.audit.as_ref()
    }

    /// Changes what else is known of it.
    pub(crate) fn describe(&mut self, change: impl FnOnce(&mut Metadata)) {
        let mut metadata = self.metadata.as_deref().cloned().unwrap_or_default();
        change(&mut metadata);
        self.metadata = Some(metadata)
            .filter(|metadata| !metadata.is_empty())
            .map(Arc::new);
    }
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_error { "error, " } else { "" };
        write!(
            f,
            "Encoded({kind}{}, {} bytes)",
            self.codec,
            self.payload.len()
        )
    }
}
