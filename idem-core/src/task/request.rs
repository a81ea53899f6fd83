//! A call's request to the store.

use std::sync::Arc;
use std::time::Duration;

use crate::encoding::fingerprint::Fingerprint;
use crate::error::Error;
use crate::outcome::codec::TypeLabel;
use crate::outcome::versions::Versions;
use crate::policy::settings::{
    Abandoned, Duplicate, InFlight, Settings, StoreFailure, keep_for, seconds,
};
use crate::record::{Claim, Commit, Encoded, Owner, RecordId};
use crate::runtime::admission::Admission;
use crate::runtime::trace::{self, CallMetadata};

/// One call: what is claimed, and how.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: RecordId,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Set if the call runs only if its key was issued.
    pub(crate) admission: Option<Arc<dyn Admission>>,
    pub(crate) settings: Settings,
    /// The versions of the outcome's type. `None`: there is only one.
    pub(crate) versions: Option<Box<Versions>>,
    /// `None`: the record in flight says nothing.
    pub(crate) metadata: Option<Arc<CallMetadata>>,
    /// The error if the transaction finds an outcome, for a step that this try of the body has
    /// begun before.
    pub(crate) again: Option<Box<Error>>,
}

impl Request {
    /// Returns the version of the outcome's type, and whether the record names it.
    pub(crate) fn type_label(&self) -> TypeLabel {
        TypeLabel {
            version: self
                .versions
                .as_ref()
                .map_or(1, |versions| versions.current),
            records_type_name: self.settings.may_need_a_person(),
        }
    }

    /// Notes the type of the value that the call returns.
    pub(crate) fn returns<T>(&self) {
        if let Some(metadata) = &self.metadata {
            metadata.returns::<T>();
        }
    }

    /// Returns the part of a claim that its answer depends on. Calls of one process that ask the
    /// same share their answers.
    pub(crate) fn question(&self) -> Claim {
        let settings = &self.settings;
        Claim {
            id: self.id.clone(),
            owner: Owner::NOBODY,
            lease: Duration::ZERO,
            hold: Duration::ZERO,
            fingerprint: self.fingerprint,
            take_over: settings.abandoned == Abandoned::Rerun,
            take_over_after: settings.take_over_after(),
            max_attempts: settings.max_attempts(),
            must_be_issued: self.admission.is_some(),
            metadata: None,
        }
    }

    /// Returns the claim that an owner sends.
    pub(crate) fn claim(&self, owner: Owner) -> Claim {
        Claim {
            owner,
            lease: self.settings.lease,
            hold: self.settings.in_flight_expiry(),
            metadata: trace::in_flight(self.metadata.as_ref()),
            ..self.question()
        }
    }

    /// Returns the commit of an outcome. `kept_for` replaces the operation's `ttl` and `remember`.
    pub(crate) fn commit(
        &self,
        owner: Owner,
        attempt: u64,
        outcome: Option<Encoded>,
        kept_for: Option<Duration>,
    ) -> Commit {
        let settings = &self.settings;
        let (ttl, remember) = match kept_for.map(keep_for) {
            None => (settings.ttl(), settings.remember()),
            // The record of an issued key lives at least as long as the issue.
            Some(own) => (own, own.max(seconds(settings.times.least_secs))),
        };
        Commit {
            fingerprint: self.fingerprint,
            remember,
            ..Commit::new(self.id.clone(), owner, attempt, outcome, ttl)
        }
    }

    /// Makes this the claim of an operator. It takes over an abandoned record and does not wait. If
    /// the operator's process dies, the record is protected as before.
    pub(crate) fn by_hand(&mut self) {
        let settings = &mut self.settings;
        settings.reconciles |= settings.abandoned == Abandoned::Reject;
        settings.abandoned = Abandoned::Rerun;
        settings.set_max_attempts(None);
        (settings.in_flight, settings.duplicate) = (InFlight::Reject, Duplicate::Reject);
        settings.store_failure = StoreFailure::Reject;
        self.admission = self.admission.as_ref().map(|admission| admission.by_hand());
    }
}
