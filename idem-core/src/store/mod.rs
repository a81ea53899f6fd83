//! The interface for authors of stores and codecs. Applications do not need it.
//!
//! [`Store`] is the one seam: what a store must do, each step atomic, each with a stated meaning
//! for every state of the record. [`record`] has the record, the steps, and the decisions that each
//! store takes alike; [`wire`] is the record as one text. [`AdminStore`] is for stores whose
//! records an operator can list. [`clock`] is for stores whose server may have its clock set.
//! `idem-testkit` tests a store against both contracts. [`Transaction`] is what a driver implements
//! for a record that is part of the caller's own transaction.
//!
//! The structs of [`record`] are made with `new` and changed with `with_..`, so that they can get
//! more fields. The enums are exhaustive: a store acts on each case.
//!
//! # Writing a store
//!
//! For each id, a store keeps three values: the [`Record`](record::Record), when it expires, and
//! how long it is done after that (zero, except after some commits). They change together, in one
//! atomic step: read all three, ask the method below, write what it says.
//!
//! | step | asks | and where there is no record |
//! | --- | --- | --- |
//! | `claim` | [`Record::on_claim`](record::Record::on_claim); writes the record with its own `hold` as expiry | [`Claim::on_nothing`](record::Claim::on_nothing) |
//! | `issue` | [`Record::on_issue`](record::Record::on_issue); writes nothing | writes [`Issue::record`](record::Issue::record), which expires in [`Issue::expires_in`](record::Issue::expires_in) |
//! | `commit`, `release`, `renew` | [`on_commit`](record::Record::on_commit), [`on_release`](record::Record::on_release), [`on_renew`](record::Record::on_renew) | `Lost` |
//! | `wait` | [`Record::attempt`](record::Record::attempt) and [`lease_left`](record::Record::lease_left) | returns |
//! | `inspect` | [`RecordInfo::new`](record::RecordInfo::new) | `None` |
//! | `remove` | [`Record::on_remove`](record::Record::on_remove) | `Nothing` |
//! | `intervene` | [`Record::on_intervention`](record::Record::on_intervention) | `Nothing` |
//!
//! Some of these methods take `left`: the time until the expiry, by the store's clock. When no time
//! is left, [`Record::expired`](record::Record::expired) is what stands in the record's place while
//! it is done, and nothing does after that. The store may free the space of an expired record at
//! any time; a later step must not see it either way.
//!
//! A store that can only compare and replace reads first, asks, and writes on the condition that
//! nothing has changed since; otherwise it begins again.
//!
//! `idem-testkit/tests/outside_store/` is a whole store, in the files of a directory, which uses
//! nothing but this module.
//!
//! # Examples
//!
//! A store that refuses to forget:
//!
//! ```
//! # use idem_core as idem;
//! use std::time::Duration;
//!
//! use idem::store::record::{
//!     Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release,
//!     Removed, Renewal,
//! };
//! use idem::store::Store;
//! use idem::{MemoryStore, StoreError, StoreErrorKind};
//!
//! struct Append(MemoryStore);
//!
//! impl Store for Append {
//!     async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
//!         self.0.claim(claim).await
//!     }
//!     async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
//!         self.0.issue(issues).await
//!     }
//!     async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
//!         self.0.commit(commit).await
//!     }
//!     async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
//!         self.0.release(release).await
//!     }
//!     async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
//!         self.0.renew(renewals).await
//!     }
//!     async fn wait(
//!         &self,
//!         id: &RecordId,
//!         attempt: u64,
//!         limit: Duration,
//!     ) -> Result<(), StoreError> {
//!         self.0.wait(id, attempt, limit).await
//!     }
//!     async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
//!         self.0.inspect(id).await
//!     }
//!     async fn remove(&self, _: &RecordId) -> Result<Removed, StoreError> {
//!         Err(StoreError::new(StoreErrorKind::Refused, "this store forgets nothing"))
//!     }
//! }
//! ```

pub mod clock;
mod dynamic;

use std::future::Future;
use std::time::Duration;

use crate::error::StoreError;
use crate::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};

pub use self::dynamic::StoreHandle;
pub(crate) use self::dynamic::{AnyStore, DynStore, FirstSent, StepAnswer};
pub use crate::base::clock::Clock;
pub use crate::of_layers::{
    AdminStore, Began, CommittedRow, KeptRecord, Opened, OwnRow, RowOwner, Transaction,
    TransactionAddress, Transactions, Wish, Written, admin, collect_kept_errors, trail, wire,
};
pub use crate::outcome::codec::{Codec, CodecContext, CodecFailure};
#[doc(inline)]
pub use crate::record;
pub use crate::record::CodecId;

/// A place for records.
///
/// Every method is one atomic step in the store: one command, script or statement. A store never
/// checks and then writes. [`Record::on_claim`](crate::record::Record::on_claim) decides the effect
/// of a claim on the existing record. The store decides by *its own* clock whether a lease has
/// expired; clocks of several hosts are never compared.
///
/// *Alive* below means: the lease has not run out by the store's clock,
/// `now - (claim or last renewal) < lease`. A lease of length zero is never alive.
///
/// Errors: every method fails with a [`StoreError`] whose kind says whether the step may have been
/// carried out ([`StoreError::is_unknown`]). A value at the key other than a readable record is
/// [`Unreadable`](crate::StoreErrorKind::Unreadable) from every method, and is left untouched.
///
/// Cancellation: a future that is dropped may or may not have carried out its step, as with a lost
/// reply. Each step may be sent again by the same owner, with the same arguments, and then changes
/// nothing more.
///
/// `idem-testkit` has a conformance suite that tests every sentence of this page against a store.
pub trait Store: Send + Sync + 'static {
    /// Makes the caller the owner of a key, or says why not.
    ///
    /// | found | effect | answer |
    /// | --- | --- | --- |
    /// | nothing | in flight, attempt 1 | `Owned`, from `Nothing` |
    /// | nothing, `must_be_issued` | none | `NotIssued` |
    /// | issued | in flight, attempt 1 | `Owned`, from `Issued` |
    /// | issued, no more than its grace left, `must_be_issued` | none | `IssueExpired` |
    /// | released, attempt *n* | in flight, attempt *n* + 1 | `Owned`, from `Released` |
    /// | in flight by this very owner | none | `Owned` with its attempt, and what it found at the first time |
    /// | in flight, abandoned, committed or done, with another fingerprint | none | `Mismatch` |
    /// | in flight, alive | none | `InFlight` with what is left of the lease |
    /// | abandoned, attempt *n*, `take_over` | in flight, attempt *n* + 1; it remembers what it took over | `Owned`, from `Abandoned` |
    /// | abandoned, not `take_over`, claimed or last renewed at least `take_over_after` ago | the same | the same |
    /// | abandoned, not `take_over`, otherwise | none | `Abandoned` |
    /// | committed | none | `Committed` with the outcome |
    /// | done | none | `Done` |
    ///
    /// If the next attempt of a record would exceed `max_attempts`, without those that only asked:
    /// no effect, `Exhausted`; for an abandoned record without `take_over`: `Abandoned`. The new
    /// record expires in `hold`. Of several claims at once, one is `Owned`.
    fn claim(&self, claim: &Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Issues keys, each for one use. Answers in the order of `issues`, one for each; a batch is
    /// not a transaction.
    ///
    /// | found | effect | answer |
    /// | --- | --- | --- |
    /// | nothing | issued; expires in `ttl` and `grace` | `Issued` |
    /// | the very record that this issue writes | none | `Issued` |
    /// | anything else | none | `Taken` |
    fn issue(
        &self,
        issues: &[Issue],
    ) -> impl Future<Output = Vec<Result<Issued, StoreError>>> + Send;

    /// Records an outcome, if the caller is the current owner, alive or not.
    ///
    /// | found | effect | answer |
    /// | --- | --- | --- |
    /// | in flight or abandoned, by this owner | committed for `ttl`, then done until `remember` has passed since now; without an outcome: done until then. Whoever waits is woken | `Held` |
    /// | the very record that this commit writes, or wrote and whose outcome has expired since | none | `Held` |
    /// | anything else, or nothing | none | `Lost` |
    ///
    /// If the outcome is larger than the store can take, the error is
    /// [`TooLarge`](crate::StoreErrorKind::TooLarge), and the owner of a lease commits without it.
    /// In the caller's transaction and by [`settle`](crate::Operation::settle), it is an error.
    fn commit(&self, commit: &Commit)
    -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Gives a key up, if the caller is the current owner, alive or not.
    ///
    /// | found | effect | answer |
    /// | --- | --- | --- |
    /// | in flight or abandoned, by this owner, to `Released` | released with its attempt, for `keep`. Whoever waits is woken | `Held` |
    /// | the same, to `Abandoned` | the lease is zero, the expiry stays. Whoever waits is woken | `Held` |
    /// | the same, to `Unanswered` | the same, and the attempt is one that only asked. Whoever waits is woken | `Held` |
    /// | the same, to `Undone` | what the claim found, with the attempt that it had: no record, issued, released for `keep`, or the abandoned record with its owner and fingerprint, which expires in its own `hold` from now. Whoever waits is woken | `Held` |
    /// | anything else, or nothing | none | `Lost` |
    ///
    /// A release that is sent again after it was carried out is `Lost`, because nothing is left to
    /// release. To `Abandoned` and `Unanswered` it is `Held` again, and the question is counted
    /// once.
    fn release(
        &self,
        release: &Release,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Renews leases: each record of the owner that is in flight or abandoned is alive again for
    /// its lease's length from now, and expires in `hold`. Answers in the order of `renewals`, one
    /// for each; a batch is not a transaction.
    ///
    /// `Lost` where anything else, or nothing, is found.
    fn renew(
        &self,
        renewals: &[Renewal],
    ) -> impl Future<Output = Vec<Result<Ownership, StoreError>>> + Send;

    /// Waits while the record is in flight under `attempt` and alive, for at most `limit`.
    ///
    /// Returns at once if it is not; else soon after a commit or release, and at the latest when
    /// `limit` has passed. It may return earlier without a reason, so the caller always claims
    /// again. It changes nothing that other callers notice.
    ///
    /// A store that cannot wake its waiters looks again after a pause. Its callers wait for that
    /// pause, so it should take milliseconds, not seconds.
    fn wait(
        &self,
        id: &RecordId,
        attempt: u64,
        limit: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Describes the record; `None` if there is none. The description of a committed record has its
    /// outcome.
    fn inspect(
        &self,
        id: &RecordId,
    ) -> impl Future<Output = Result<Option<RecordInfo>, StoreError>> + Send;

    /// Removes the record, unless it is in flight and alive. Waiters are not woken.
    fn remove(&self, id: &RecordId) -> impl Future<Output = Result<Removed, StoreError>> + Send;

    /// Puts the store behind a pointer, as a runtime holds it.
    ///
    /// The default is right for every store. A crate writes the same line,
    /// `StoreHandle::new(self)`, so that it compiles the futures of its store once: otherwise,
    /// every program with a runtime compiles them again.
    fn into_handle(self) -> StoreHandle
    where
        Self: Sized,
    {
        StoreHandle::new(self)
    }
}
