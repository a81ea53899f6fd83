//! Changing the record of a key by hand, without a body.

use std::fmt::Display;

use super::noting::{Noting, by};
use crate::adapter::engine::{
    Event, GiveUp, Keepable, OutcomeWriter, Owned, Request, Runtime, STEPS_LEFT, StepLeft,
    TypeLabel, current,
};
use crate::api::operation::Operation;
use crate::record::{Audit, By, Encoded, RecordId, RecordInfo, RecordState, Removed, is_step};
use crate::store::{CodecContext, CodecFailure};
use crate::{Error, Storable, StoreError};

/// # The record: who changes it
impl<Q, P> Operation<'_, Q, P> {
    /// States who changes the record with this call, and why: for [`settle`](Self::settle),
    /// [`forget`](Self::forget) and [`release`](Self::release).
    ///
    /// Their events have it as `detail`, and a settled record keeps it as long as its outcome. The
    /// [trail](crate::store::trail) in the store keeps the decision for 90 days, also when the
    /// record is gone. If its entry cannot be written, the record is not changed.
    ///
    /// `who` has 1 to 128 bytes, `why` up to 512; the call is
    /// [`Error::Config`](crate::Error::Config) otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let charge = || idempotency.operation("payments.charge").key("p-1");
    /// charge().audit("jane", "ticket 7: the bank has booked it").settle(&42_u32).await?;
    ///
    /// let record = charge().inspect().await?.expect("it was settled");
    /// let metadata = record
    ///     .outcome
    ///     .and_then(|outcome| outcome.metadata)
    ///     .expect("it has an audit");
    /// assert_eq!(&*metadata.audit.as_ref().expect("as above").who, "jane");
    /// assert!(record.audit_age.is_some(), "how long ago, by the store's clock");
    /// # Ok(())
    /// # }
    /// ```
    pub fn audit(mut self, who: &str, why: &str) -> Self {
        match by(who, why) {
            Ok(by) => self.draft.audit = Some(Box::new(by)),
            Err(error) => self.draft.misconfigured(error.0),
        }
        self
    }
}

/// # The record: changing it
impl Operation<'_> {
    /// Removes the record, so that the next call runs the body as a first attempt. Returns whether
    /// there was a record.
    ///
    /// It ends the run of the key: the next call sees no [step](crate::step) of it. The records of
    /// its steps expire by themselves.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight: nothing is removed under a running body.
    /// [`Error::Codec`] if the record is unreadable: it is not removed. [`Error::Store`] and
    /// [`Error::MissingKey`].
    ///
    /// # Cancellation safety
    ///
    /// Dropped, the record may have been removed or not.
    pub async fn forget(self) -> Result<bool, Error> {
        self.try_forget().await.inspect_err(|_| current::taint())
    }

    async fn try_forget(mut self) -> Result<bool, Error> {
        let by = self.draft.audit.take();
        let Some((runtime, request)) = self.draft.prepare_by_hand().await? else {
            return Ok(false);
        };
        let found = match by {
            Some(_) => runtime.inspect(&request.id).await?,
            None => None,
        };
        if by.is_some() && found.is_none() && runtime.run_of(&request.id).await?.is_none() {
            return Ok(false);
        }
        let id = &request.id;
        let noting =
            Noting::begin(&runtime, id, "forgotten", found.as_ref(), by.as_deref()).await?;
        let removed = remove(&runtime, &request).await;
        if let Ok(true) = removed {
            let why = by.as_deref().map(|by| by as &dyn Display);
            let observer = runtime.observer;
            observer.report(Event::info("forgotten"), &request.id, 0, why);
        }
        noting.end(removed.as_ref().copied()).await;
        removed
    }

    /// Releases an abandoned record, so that the next call runs the body: for work that was
    /// certainly not done. Returns whether there was an abandoned record: `false` for a released
    /// one, an unused token, or none. The release itself takes an attempt: after attempt 1, the
    /// next call is attempt 3.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight, [`Error::Duplicate`] if there is an outcome,
    /// [`Error::AlreadyDone`] if there was one. [`Error::Store`] and [`Error::MissingKey`].
    ///
    /// # Cancellation safety
    ///
    /// Like [`settle`](Self::settle).
    pub async fn release(self) -> Result<bool, Error> {
        self.try_release().await.inspect_err(|_| current::taint())
    }

    async fn try_release(mut self) -> Result<bool, Error> {
        let by = self.draft.audit.take();
        let Some((runtime, mut request)) = self.draft.prepare_by_hand().await? else {
            return Ok(false);
        };
        let info = runtime.inspect(&request.id).await?;
        match info.as_ref().map(|info| (info.state, info.fingerprint)) {
            None
            | Some((RecordState::Released | RecordState::Issued | RecordState::Expired, _)) => {
                return Ok(false);
            }
            // An operator need not set the fingerprint.
            Some((_, fingerprint)) => request.fingerprint = fingerprint,
        }
        let id = &request.id;
        let noting = Noting::begin(&runtime, id, "released", info.as_ref(), by.as_deref()).await?;
        request.by_hand();
        runtime.store.forget_known(&request.id);
        let released = match Owned::claim(&runtime, &request).await {
            Ok(mut owned) => {
                owned.pend_by_hand(StepLeft::GiveUp(GiveUp::Release), by);
                owned.settle_by_hand().await.map(|()| true)
            }
            Err(error) => Err(error),
        };
        noting.end(released.as_ref().copied()).await;
        released
    }

    /// Commits an outcome by hand, for an abandoned record whose outcome has been found out. It
    /// also works for a key without a record, a released record, or an unused token, if the call
    /// was carried out elsewhere.
    ///
    /// It does not know the options of an attribute. So set the operation's own [`ttl`](Self::ttl)
    /// and [`remember`](Self::remember), and give a value of the function's outcome type; otherwise
    /// duplicates fail to decode it. An abandoned record has its fingerprint already. If there is
    /// no record, set the [`fingerprint`](Self::fingerprint) too.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight, [`Error::Duplicate`] if there is an outcome,
    /// [`Error::AlreadyDone`] if there was one. [`Error::Config`] if the value fails to encode.
    /// [`Error::MissingKey`]. [`Error::Store`]: the outcome may be recorded all the same, because
    /// `idem` tries again in the background.
    ///
    /// # Cancellation safety
    ///
    /// Dropped between its two steps, it leaves the record abandoned, one attempt later, after a
    /// lease.
    pub async fn settle<T: Storable<Via>, Via>(self, value: &T) -> Result<(), Error> {
        let settled = self.settle_with(value, false).await;
        settled.inspect_err(|_| current::taint())
    }

    /// Commits an error by hand, like [`settle`](Self::settle), for work that has certainly failed.
    /// Duplicates get it as a kept error.
    ///
    /// # Errors
    ///
    /// Like [`settle`](Self::settle).
    ///
    /// # Cancellation safety
    ///
    /// Like [`settle`](Self::settle).
    pub async fn settle_error<E: Keepable>(self, error: &E) -> Result<(), Error> {
        let settled = self.settle_with(error, true).await;
        settled.inspect_err(|_| current::taint())
    }

    async fn settle_with<T: Storable<Via>, Via>(
        mut self,
        value: &T,
        is_error: bool,
    ) -> Result<(), Error> {
        let by = self.draft.audit.take();
        let Some((runtime, mut request)) = self.draft.prepare_by_hand().await? else {
            return Ok(());
        };
        let label = TypeLabel {
            records_type_name: true,
            ..request.type_label()
        };
        // A value that fails to encode is refused before anything is changed. Its attempt is known
        // only after the claim.
        let context = CodecContext::new(is_error, &request.id, 1, label);
        let encoded = runtime.config.codec.encode(context, &value.to_stored());
        encoded.map_err(|why| unwritable(&request.id, &why))?;
        request.by_hand();
        let mut found = None;
        if request.fingerprint.is_none() || request.metadata.is_some() || by.is_some() {
            found = inspect_to_settle(&runtime, &mut request).await?;
        }
        let id = &request.id;
        let noting = Noting::begin(&runtime, id, "settled", found.as_ref(), by.as_deref()).await?;
        runtime.store.forget_known(&request.id);
        let settled = match Owned::claim(&runtime, &request).await {
            Ok(owned) => {
                let writer = OutcomeWriter {
                    runtime: &runtime,
                    request: &request,
                    attempt: owned.term().attempt,
                    label,
                };
                let outcome = writer
                    .encode(value, is_error)
                    .map_err(|why| unwritable(&request.id, &why));
                record(owned, outcome, by).await
            }
            Err(error) => Err(error),
        };
        noting.end(settled.as_ref().map(|()| true)).await;
        settled?;
        if let Err(error) = end_run_beside(&runtime, &request.id).await {
            let why = "steps beside a transaction, if there are any, stay, and a call with this key \
                would go on with them once this outcome has ended: forget the key then";
            runtime.observer.report(
                STEPS_LEFT,
                &request.id,
                0,
                Some(&format_args!("{why} ({error})")),
            );
        }
        Ok(())
    }
}

/// Records an outcome by hand. If it failed to encode, the record stays abandoned.
async fn record(
    mut owned: Owned,
    outcome: Result<Encoded, Error>,
    by: Option<Box<By>>,
) -> Result<(), Error> {
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            owned.pend(StepLeft::GiveUp(GiveUp::Unanswered));
            owned.settle().await;
            return Err(error);
        }
    };
    let ttl = owned.call().guarded().request.settings.ttl();
    if let Some(audit) = by.as_ref().and_then(|by| Audit::new(&by.who, &by.why, ttl)) {
        outcome.describe(|metadata| metadata.audit = Some(audit));
    }
    let step = StepLeft::Commit {
        outcome: Some(outcome),
        kept_for: None,
    };
    owned.pend_by_hand(step, by);
    owned.settle_by_hand().await
}

/// The error of a value to settle with that fails to encode.
fn unwritable(id: &RecordId, why: &CodecFailure) -> Error {
    Error::Config {
        operation: id.name().into(),
        reason: format!("the value to settle with cannot be written: {why}").into(),
    }
}

/// Removes the record of a call, and then that of its run [beside](RecordId::beside) a transaction.
/// If this ends in between, removing it again does the rest.
async fn remove(runtime: &Runtime, request: &Request) -> Result<bool, Error> {
    let failed = |error| runtime.failed(&request.id, error);
    let removed = runtime.store.remove(&request.id).await.map_err(failed)?;
    if let Removed::InFlight { lease_left } = removed {
        return Err(Error::held(&request.id, lease_left));
    }
    let beside = end_run_beside(runtime, &request.id).await.map_err(failed)?;
    Ok(removed == Removed::Removed || beside)
}

/// Ends the run of a call that is [beside](RecordId::beside) a transaction. Returns whether there
/// was one.
async fn end_run_beside(runtime: &Runtime, id: &RecordId) -> Result<bool, StoreError> {
    // Nobody has a transaction with the store in this process.
    if runtime.store.is_local() || is_step(id.operation()) {
        return Ok(false);
    }
    let removed = runtime.store.remove(&id.beside()).await?;
    Ok(removed == Removed::Removed)
}

/// Reads the record that is settled. Its fingerprint stays as it was, and the outcome's trace is
/// that of the call that was cut off.
async fn inspect_to_settle(
    runtime: &Runtime,
    request: &mut Request,
) -> Result<Option<RecordInfo>, Error> {
    let found = runtime.inspect(&request.id).await?;
    request.fingerprint = request
        .fingerprint
        .or(found.as_ref().and_then(|info| info.fingerprint));
    if let Some(metadata) = &request.metadata {
        metadata.is_that_of(found.as_ref());
    }
    Ok(found)
}
