//! The trail of what operators decided: it outlives the records that they removed.
//!
//! A decision is two ordinary records of the operation [`OPERATION`]. The first says what is about
//! to be done, by whom and why, and is written before the step. The second says how the step ended,
//! and is written after it. So no record is changed by a decision without its entry, and an entry
//! never claims what did not happen: if the process dies between the two, its
//! [result](Entry::result) is `None`.
//!
//! A third record counts the decisions about each record, so that they are found without a listing.
//!
//! # Examples
//!
//! ```
//! # use idem_core as idem;
//! use idem::store::admin::{Intervened, Intervention};
//! use idem::store::record::RecordId;
//! use idem::store::trail::{Ended, Trail};
//! use idem::{Idempotency, Key, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let idempotency = Idempotency::new(store.clone());
//! idempotency
//!     .operation("orders.create")
//!     .key("o-1")
//!     .run(async || Ok::<_, idem::Error>(7))
//!     .await?;
//!
//! let id = RecordId::new("orders.create", &Key::encode("o-1").unwrap()).unwrap();
//! let trail = Trail::new(&store);
//! let forget = Intervention::forget(id.clone()).by("jane", "ticket 7: a test order");
//! assert_eq!(trail.intervene(&forget).await?, Intervened::Done { attempt: 1 });
//!
//! let entries = trail.of(&id, 10).await?;
//! assert_eq!((&*entries[0].decision.name, &*entries[0].who), ("forgotten", "jane"));
//! assert_eq!(entries[0].result, Some(Ended::Done { records: 1 }));
//! # Ok(())
//! # }
//! ```

mod decision;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use self::decision::{Decision, Ended};
use super::admin::{AdminStore, Intervened, Intervention, Wish};
use crate::adapter::catch_user_panic;
use crate::record::{
    Audit, Claim, Claimed, CodecId, Commit, Encoded, Metadata, Owner, Ownership, RecordId, Release,
    ReleaseTo, TRAIL,
};
use crate::store::Store;
use crate::{KeyDigest, StoreError, StoreErrorKind};

/// The operation of the trail. It is reserved: no call and no operator changes its records.
pub const OPERATION: &str = TRAIL;
/// An entry has this in place of an operation if records of every operation were removed.
pub const EVERY_OPERATION: &str = "*";
/// How long an entry is kept, unless [`keep_for`](Trail::keep_for) says otherwise: 90 days.
pub const KEPT: Duration = Duration::from_secs(90 * 86_400);
/// The longest that an entry is kept: 400 days. The numbers of the entries of a record are
/// remembered for as long.
pub const LONGEST: Duration = Duration::from_secs(400 * 86_400);

/// The lease of a process that writes an entry, or takes a number.
const LEASE: Duration = Duration::from_secs(5);
/// How long an entry stays that was claimed and not written.
const HOLD: Duration = Duration::from_secs(60);
/// How often a number is tried for.
const ROUNDS: usize = 64;
/// The last part of the key of a result.
const END: &str = "end";

/// An entry of the trail.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The decision.
    pub decision: Decision,
    /// The operator.
    pub who: Arc<str>,
    /// Why.
    pub why: Arc<str>,
    /// How long ago, by the store's clock.
    pub age: Duration,
    /// How it ended. `None`: nobody has noted it, because it is still under way, or because the
    /// process or the store failed first. The record itself shows what became of it.
    pub result: Option<Ended>,
}

/// A decision that has its entry, and has not ended.
#[derive(Debug)]
#[must_use = "`Trail::end` notes how it ended"]
pub struct Noted {
    subject: Subject,
    number: u64,
}

/// The subject of decisions: one record, or an operation. Known by a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Subject(KeyDigest);

impl Subject {
    /// No record has an empty key, so this is the digest of no record.
    fn operation(name: &str) -> Self {
        Self(KeyDigest::hash(&[name, ":"].concat()))
    }

    /// The record that counts its entries.
    fn counter(self) -> RecordId {
        record(&self.0.to_string())
    }

    fn entry(self, number: u64) -> RecordId {
        record(&format!("{}:{number}", self.0))
    }

    fn result(self, number: u64) -> RecordId {
        record(&format!("{}:{number}:{END}", self.0))
    }
}

fn record(key: &str) -> RecordId {
    RecordId::of_encoded(OPERATION, key)
}

/// The trail in a store.
#[derive(Debug)]
pub struct Trail<'a, S> {
    store: &'a S,
    keep_for: Duration,
}

impl<S> Clone for Trail<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Trail<'_, S> {}

impl<'a, S: Store> Trail<'a, S> {
    /// Makes the trail in a store. Entries are kept for [90 days](KEPT).
    pub fn new(store: &'a S) -> Self {
        Self {
            store,
            keep_for: KEPT,
        }
    }

    /// Sets how long an entry is kept: 1 ms to [400 days](LONGEST). Anything else is taken for the
    /// nearest of the two.
    #[must_use]
    pub fn keep_for(mut self, length: Duration) -> Self {
        self.keep_for = length.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// Writes the entry of a decision, before it is carried out. For decisions that
    /// [`intervene`](Self::intervene) does not know; [`end`](Self::end) then notes the result.
    ///
    /// `who` has 1 to 128 bytes, `why` up to 512.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) for other lengths, and for a decision about the trail
    /// itself; else as every step. After an error, carry the decision out only if it may go without
    /// an entry.
    ///
    /// # Cancellation safety
    ///
    /// A dropped future may leave an entry without a result, or none.
    pub async fn note(
        &self,
        decision: &Decision,
        who: &str,
        why: &str,
    ) -> Result<Noted, StoreError> {
        if *decision.operation == *OPERATION {
            return Err(reserved());
        }
        let Some(audit) = Audit::new(who, why, self.keep_for) else {
            return Err(refused(
                "a decision says who decides, in 1 to 128 bytes, and why, in up to 512",
            ));
        };
        let subject = decision.subject();
        let metadata = Metadata {
            audit: Some(audit),
            ..Metadata::default()
        };
        let entry = outcome(&decision.to_json()).with_metadata(Some(Arc::new(metadata)));
        for _ in 0..ROUNDS {
            let number = self.number(subject).await?;
            if self.write(subject.entry(number), entry.clone()).await? {
                return Ok(Noted { subject, number });
            }
            // The counter was lost, and the entries were not. So this number is taken.
        }
        Err(contended())
    }

    /// Notes how a decision ended.
    ///
    /// # Errors
    ///
    /// Those of every step. The decision then has no result in the trail.
    pub async fn end(&self, noted: Noted, ended: &Ended) -> Result<(), StoreError> {
        let Noted { subject, number } = noted;
        self.write(subject.result(number), outcome(&ended.to_json()))
            .await
            .map(drop)
    }

    /// Like [`end`](Self::end), for a decision that was carried out or refused already. A failure
    /// is only logged, because it does not change the decision.
    pub(crate) async fn end_logged(&self, noted: Noted, ended: &Ended) {
        if let Err(error) = self.end(noted, ended).await {
            catch_user_panic(|| {
                tracing::warn!(target: "idem", %error, "the result of a decision is missing in the trail");
            });
        }
    }

    /// Returns the latest decisions about a record, the latest first; at most `limit`.
    ///
    /// The record itself may be gone. Decisions about many records of its operation are not among
    /// them: see [`of_operation`](Self::of_operation).
    ///
    /// # Errors
    ///
    /// Those of every step.
    pub async fn of(&self, id: &RecordId, limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.of_digest(id.digest(), limit).await
    }

    /// The same, of the record with a digest that logs show.
    ///
    /// # Errors
    ///
    /// Those of every step.
    pub async fn of_digest(
        &self,
        digest: KeyDigest,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.latest(Subject(digest), limit).await
    }

    /// Returns the latest decisions about many records of an operation, the latest first; at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// Those of every step.
    pub async fn of_operation(
        &self,
        operation: &str,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.latest(Subject::operation(operation), limit).await
    }

    /// Returns the entry of a listed record; `None` if the record is not an entry (but a result,
    /// for example), or is gone. A [listing](AdminStore::list) of [`OPERATION`] lists all records
    /// of the trail.
    ///
    /// # Errors
    ///
    /// Those of every step.
    pub async fn entry(&self, id: &RecordId) -> Result<Option<Entry>, StoreError> {
        let mut parts = id.key().split(':');
        let digest = parts.next().and_then(KeyDigest::parse);
        let number = parts.next().and_then(|number| number.parse().ok());
        match (id.operation(), digest, number, parts.next()) {
            (OPERATION, Some(digest), Some(number), None) => {
                self.read(Subject(digest), number).await
            }
            _ => Ok(None),
        }
    }

    async fn latest(&self, subject: Subject, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let counter = self.store.inspect(&subject.counter()).await?;
        let last = counter.map_or(0, |info| info.attempt);
        let mut entries = Vec::new();
        // Few numbers have no entry: those whose process died, and the oldest, which have expired.
        for number in (1..=last).rev().take(limit) {
            entries.extend(self.read(subject, number).await?);
        }
        Ok(entries)
    }

    async fn read(&self, subject: Subject, number: u64) -> Result<Option<Entry>, StoreError> {
        let (id, result) = (subject.entry(number), subject.result(number));
        let Some(info) = self.store.inspect(&id).await? else {
            return Ok(None);
        };
        // It was claimed and not written, so nothing was decided.
        let Some(outcome) = &info.outcome else {
            return Ok(None);
        };
        let audit = outcome
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.audit.clone());
        let decision = json_of(outcome).and_then(|value| Decision::from_json(&value));
        let (Some(audit), Some(decision), Some(age)) = (audit, decision, info.audit_age) else {
            return Err(unreadable(&id));
        };
        let result = match self
            .store
            .inspect(&result)
            .await?
            .and_then(|info| info.outcome)
        {
            Some(outcome) => {
                let ended = json_of(&outcome).and_then(|value| Ended::from_json(&value));
                Some(ended.ok_or_else(|| unreadable(&result))?)
            }
            None => None,
        };
        Ok(Some(Entry {
            decision,
            who: audit.who,
            why: audit.why,
            age,
            result,
        }))
    }

    /// Takes a number that no other decision about the subject has: the attempt of a claim.
    async fn number(&self, subject: Subject) -> Result<u64, StoreError> {
        let counter = subject.counter();
        let owner = Owner::generate();
        let claim = Claim::new(counter.clone(), owner, LEASE, LONGEST);
        for _ in 0..ROUNDS {
            match self.store.claim(&claim).await? {
                Claimed::Owned { attempt, .. } => {
                    let release =
                        Release::new(counter, owner, ReleaseTo::Released { keep: LONGEST });
                    // If this fails, the lease expires. The number stays taken.
                    self.store.release(&release).await?;
                    return Ok(attempt);
                }
                // Another operator takes a number.
                Claimed::InFlight {
                    attempt,
                    lease_left,
                } => self.store.wait(&counter, attempt, lease_left).await?,
                _ => return Err(unreadable(&counter)),
            }
        }
        Err(contended())
    }

    /// Writes a record once. Returns `false` if there is one already.
    async fn write(&self, id: RecordId, outcome: Encoded) -> Result<bool, StoreError> {
        let owner = Owner::generate();
        let claim = Claim::new(id.clone(), owner, LEASE, HOLD);
        let Claimed::Owned { attempt, from } = self.store.claim(&claim).await? else {
            return Ok(false);
        };
        let commit = Commit::new(id, owner, attempt, Some(outcome), self.keep_for)
            .with_as_claimed(Some(claim.as_claimed(from)));
        match self.store.commit(&commit).await? {
            Ownership::Held => Ok(true),
            Ownership::Lost => Err(contended()),
        }
    }
}

impl<S: AdminStore> Trail<'_, S> {
    /// Carries out what an operator has decided about one record, as [`AdminStore::intervene`]
    /// does, with an entry before the step and its result after it.
    ///
    /// The intervention says [who and why](Intervention::by). A key without a record gets no entry.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) without a valid `by`, and for records of the trail
    /// itself. Otherwise as every step: if the entry cannot be written, nothing is changed. If the
    /// step fails so that its result is unknown, the entry has none.
    ///
    /// # Cancellation safety
    ///
    /// Like [`AdminStore::intervene`]. The entry of a dropped call may have no result.
    pub async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        let id = &intervention.id;
        if id.operation() == OPERATION {
            return Err(reserved());
        }
        let name = match intervention.wish {
            Wish::Settle { .. } => "settled",
            Wish::Replace { .. } => "replaced",
            Wish::Release => "released",
            Wish::Forget => "forgotten",
        };
        let Some(found) = self.store.inspect(id).await? else {
            return Ok(Intervened::Nothing);
        };
        let (who, why) = intervention
            .by
            .as_ref()
            .map_or(("", ""), |(who, why)| (&**who, &**why));
        let decision = Decision::about(id, name, Some(&found)).force(intervention.force);
        let noted = self.note(&decision, who, why).await?;
        let answer = self.store.intervene(intervention).await;
        match &answer {
            Ok(answer) => self.end_logged(noted, &(*answer).into()).await,
            Err(error) if !error.is_unknown() => {
                self.end_logged(noted, &Ended::refused(error)).await;
            }
            Err(_) => {}
        }
        answer
    }
}

fn outcome(value: &Value) -> Encoded {
    Encoded::new(CodecId::JSON, value.to_string().into())
}

fn json_of(outcome: &Encoded) -> Option<Value> {
    serde_json::from_slice(&outcome.payload).ok()
}

fn refused(message: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message)
}

fn reserved() -> StoreError {
    refused(
        "the records of `idem.audit` are the trail of operators' decisions, which nobody changes \
         by hand; each expires by itself",
    )
}

fn contended() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "too many decisions about this record are written into the trail at once; nothing was \
         changed, so try again",
    )
    .unsent()
}

fn unreadable(id: &RecordId) -> StoreError {
    let message = format!(
        "the record {} of `{OPERATION}` is no part of a trail of this version",
        id.digest()
    );
    StoreError::new(StoreErrorKind::Unreadable, message)
}
