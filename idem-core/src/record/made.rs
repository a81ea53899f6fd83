//! Constructors and setters for code outside this crate: what a store is asked, and the records
//! that it stores.
//!
//! The structs are `#[non_exhaustive]`. A field that is added later has a default in the
//! constructor and a setter here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    AsClaimed, Claim, Commit, Encoded, InFlight, Issue, Metadata, Origin, Owner, Record, RecordId,
    Release, ReleaseTo, Renewal,
};
use crate::encoding::fingerprint::Fingerprint;
use crate::record::CodecId;

/// A setter for each field. It takes the value, sets one field, and returns the value.
macro_rules! setters {
    ($of:ident { $($(#[$doc:meta])+ $set:ident: $field:ident, $value:ty;)+ }) => {
        impl $of {
            $(
                $(#[$doc])+
                #[must_use = "gives the changed value back"]
                pub fn $set(mut self, $field: $value) -> Self {
                    self.$field = $field;
                    self
                }
            )+
        }
    };
}

impl Claim {
    /// Makes the claim of a call with the built-in options.
    ///
    /// It has no fingerprint, takes an abandoned record over at any attempt, and needs no issued
    /// token. `hold` should be at least twice the `lease`: a record that expires before its lease
    /// frees the key while its owner runs. Stores may count in whole milliseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use std::time::Duration;
    ///
    /// use idem::Key;
    /// use idem::store::record::{Claim, Owner, RecordId};
    ///
    /// let key = Key::encode("o-1").expect("not empty");
    /// let id = RecordId::new("orders.create", &key).expect("a valid name");
    /// let claim = Claim::new(
    ///     id,
    ///     Owner::generate(),
    ///     Duration::from_secs(30),
    ///     Duration::from_secs(60),
    /// );
    /// let cautious = claim.clone().with_take_over(false).with_max_attempts(Some(3));
    /// assert_eq!((claim.take_over, cautious.take_over), (true, false));
    /// ```
    pub fn new(id: RecordId, owner: Owner, lease: Duration, hold: Duration) -> Self {
        Self {
            id,
            owner,
            lease,
            hold,
            fingerprint: None,
            take_over: true,
            take_over_after: None,
            max_attempts: None,
            must_be_issued: false,
            metadata: None,
        }
    }
}

setters! { Claim {
    /// Sets [`id`](Self::id).
    with_id: id, RecordId;
    /// Sets [`owner`](Self::owner).
    with_owner: owner, Owner;
    /// Sets [`lease`](Self::lease).
    with_lease: lease, Duration;
    /// Sets [`hold`](Self::hold).
    with_hold: hold, Duration;
    /// Sets [`fingerprint`](Self::fingerprint). Default: `None`.
    with_fingerprint: fingerprint, Option<Fingerprint>;
    /// Sets [`take_over`](Self::take_over). Default: `true`.
    with_take_over: take_over, bool;
    /// Sets [`take_over_after`](Self::take_over_after). Default: `None`.
    with_take_over_after: take_over_after, Option<Duration>;
    /// Sets [`max_attempts`](Self::max_attempts). Default: `None`, for any number.
    with_max_attempts: max_attempts, Option<u64>;
    /// Sets [`must_be_issued`](Self::must_be_issued). Default: `false`.
    with_must_be_issued: must_be_issued, bool;
    /// Sets [`metadata`](Self::metadata). Default: `None`.
    with_metadata: metadata, Option<Arc<Metadata>>;
} }

impl Commit {
    /// Makes a commit of an outcome (`None` records that there was one), which is kept and
    /// remembered for `ttl` from now.
    ///
    /// It has no fingerprint and does not say what was [claimed](Self::as_claimed).
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use std::time::Duration;
    ///
    /// use idem::store::CodecId;
    /// use idem::store::record::{Claim, Commit, Encoded};
    ///
    /// fn commit_of(claim: &Claim, attempt: u64) -> Commit {
    ///     let outcome = Encoded::new(CodecId::JSON, "42".into());
    ///     Commit::new(
    ///         claim.id.clone(),
    ///         claim.owner,
    ///         attempt,
    ///         Some(outcome),
    ///         Duration::from_secs(86_400),
    ///     )
    ///         .with_fingerprint(claim.fingerprint)
    /// }
    /// ```
    pub fn new(
        id: RecordId,
        owner: Owner,
        attempt: u64,
        outcome: Option<Encoded>,
        ttl: Duration,
    ) -> Self {
        Self {
            id,
            owner,
            attempt,
            fingerprint: None,
            outcome,
            ttl,
            remember: ttl,
            as_claimed: None,
            claim_metadata: None,
        }
    }

    /// Returns the record that this commit replaces, if it is unchanged since the claim. `None` if
    /// the owner does not know all of it, as after a take-over.
    pub fn in_flight(&self) -> Option<InFlight> {
        let AsClaimed {
            origin,
            lease,
            hold,
        } = self.as_claimed?;
        (origin != Origin::Abandoned).then(|| InFlight {
            fingerprint: self.fingerprint,
            metadata: self.claim_metadata.clone(),
            ..InFlight::new(self.owner, self.attempt, origin, lease, hold)
        })
    }

    /// The record that this commit writes.
    pub fn record(&self) -> Record {
        let attempt = self.attempt;
        let fingerprint = self.fingerprint;
        match self.outcome.clone() {
            Some(outcome) => Record::Committed {
                attempt,
                fingerprint,
                outcome,
            },
            None => Record::Done {
                attempt,
                fingerprint,
            },
        }
    }
}

setters! { Commit {
    /// Sets [`id`](Self::id).
    with_id: id, RecordId;
    /// Sets [`owner`](Self::owner).
    with_owner: owner, Owner;
    /// Sets [`attempt`](Self::attempt).
    with_attempt: attempt, u64;
    /// Sets [`fingerprint`](Self::fingerprint), which should be that of the claim. Default: `None`.
    with_fingerprint: fingerprint, Option<Fingerprint>;
    /// Sets [`outcome`](Self::outcome).
    with_outcome: outcome, Option<Encoded>;
    /// Sets [`ttl`](Self::ttl) alone. What is remembered stays as it is.
    with_ttl: ttl, Duration;
    /// Sets [`remember`](Self::remember). Default: as `ttl`. Less than `ttl` counts as `ttl`.
    with_remember: remember, Duration;
    /// Sets [`as_claimed`](Self::as_claimed). Default: `None`.
    with_as_claimed: as_claimed, Option<AsClaimed>;
    /// Sets [`claim_metadata`](Self::claim_metadata), which should be that of the claim. Default: `None`.
    with_claim_metadata: claim_metadata, Option<Arc<Metadata>>;
} }

impl AsClaimed {
    /// Says what a claim has written: what it found, its lease and its hold. See
    /// [`Claim::as_claimed`].
    pub fn new(origin: Origin, lease: Duration, hold: Duration) -> Self {
        Self {
            origin,
            lease,
            hold,
        }
    }
}

impl Release {
    /// Makes a release by an owner. See [`Store::release`](crate::store::Store::release) for what
    /// it leaves.
    pub fn new(id: RecordId, owner: Owner, to: ReleaseTo) -> Self {
        Self {
            id,
            owner,
            to,
            names_run: false,
        }
    }
}

setters! { Release {
    /// Sets [`id`](Self::id).
    with_id: id, RecordId;
    /// Sets [`owner`](Self::owner).
    with_owner: owner, Owner;
    /// Sets [`to`](Self::to).
    with_to: to, ReleaseTo;
    /// Sets [`names_run`](Self::names_run). Default: `false`.
    with_run: names_run, bool;
} }

impl Renewal {
    /// Makes a renewal by an owner. `hold` is the record's expiry, from now: that of the claim.
    pub fn new(id: RecordId, owner: Owner, hold: Duration) -> Self {
        Self { id, owner, hold }
    }
}

setters! { Renewal {
    /// Sets [`id`](Self::id).
    with_id: id, RecordId;
    /// Sets [`owner`](Self::owner).
    with_owner: owner, Owner;
    /// Sets [`hold`](Self::hold).
    with_hold: hold, Duration;
} }

impl Issue {
    /// Makes the issue of a key that can be claimed for `ttl` from now, and is unknown after that.
    pub fn new(id: RecordId, ttl: Duration) -> Self {
        Self {
            id,
            ttl,
            grace: Duration::ZERO,
        }
    }

    /// The record that this writes, where there is none.
    pub fn record(&self) -> Record {
        Record::Issued { grace: self.grace }
    }

    /// Its expiry, from now.
    pub fn expires_in(&self) -> Duration {
        self.ttl.saturating_add(self.grace)
    }
}

setters! { Issue {
    /// Sets [`id`](Self::id).
    with_id: id, RecordId;
    /// Sets [`ttl`](Self::ttl).
    with_ttl: ttl, Duration;
    /// Sets [`grace`](Self::grace). Default: zero.
    with_grace: grace, Duration;
} }

impl Encoded {
    /// Makes an outcome that is a value, out of what a codec wrote. For an error that is kept, see
    /// [`with_is_error`](Self::with_is_error).
    pub fn new(codec: CodecId, payload: Bytes) -> Self {
        Self {
            is_error: false,
            codec,
            payload,
            metadata: None,
        }
    }
}

setters! { Encoded {
    /// Sets [`is_error`](Self::is_error). Default: `false`.
    with_is_error: is_error, bool;
    /// Sets [`codec`](Self::codec).
    with_codec: codec, CodecId;
    /// Sets [`payload`](Self::payload).
    with_payload: payload, Bytes;
    /// Sets [`metadata`](Self::metadata). Default: `None`.
    with_metadata: metadata, Option<Arc<Metadata>>;
} }

impl InFlight {
    /// Makes a record in flight, for a store that reads one from its own form. A store that carries
    /// out a claim writes what [`Record::on_claim`] says.
    ///
    /// It has no fingerprint, no metadata and no run but its own, counts no questions, and took over no
    /// record.
    pub fn new(
        owner: Owner,
        attempt: u64,
        origin: Origin,
        lease: Duration,
        hold: Duration,
    ) -> Self {
        Self {
            owner,
            attempt,
            origin,
            lease,
            hold,
            fingerprint: None,
            questions: 0,
            took_over: None,
            metadata: None,
            run: None,
        }
    }
}

setters! { InFlight {
    /// Sets [`owner`](Self::owner).
    with_owner: owner, Owner;
    /// Sets [`attempt`](Self::attempt).
    with_attempt: attempt, u64;
    /// Sets [`origin`](Self::origin).
    with_origin: origin, Origin;
    /// Sets [`lease`](Self::lease).
    with_lease: lease, Duration;
    /// Sets [`hold`](Self::hold).
    with_hold: hold, Duration;
    /// Sets [`fingerprint`](Self::fingerprint). Default: `None`.
    with_fingerprint: fingerprint, Option<Fingerprint>;
    /// Sets [`questions`](Self::questions). Default: 0.
    with_questions: questions, u64;
    /// Sets [`took_over`](Self::took_over). Default: `None`.
    with_took_over: took_over, Option<Box<InFlight>>;
    /// Sets [`metadata`](Self::metadata). Default: `None`.
    with_metadata: metadata, Option<Arc<Metadata>>;
    /// Sets [`run`](Self::run). Default: `None`.
    with_run: run, Option<Owner>;
} }
