//! The description of a call.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Operation;
use crate::base::printable::shown_name;
use crate::call::prepared::Prepared;
use crate::encoding::fingerprint::Fingerprint;
use crate::error::Error;
use crate::outcome::versions::Versions;
use crate::policy::settings::{MissingKey, Settings, StoreFailure};
use crate::record::{By, RecordId, is_valid_operation, reserved};
use crate::runtime::Runtime;
use crate::runtime::admission::Admission;
use crate::runtime::trace::CallMetadata;
use crate::task::request::Request;

/// The message for a step of a call that has no run.
const NO_RUN: &str = "the call has no record, or its outcome is recorded, so it has no steps now; \
    settle, release or forget the call itself";

/// A call as far as it is described.
pub(crate) struct Draft<'a> {
    pub(crate) runtime: Option<Arc<Runtime>>,
    pub(crate) name: Cow<'a, str>,
    pub(crate) settings: Settings,
    pub(crate) id: Option<RecordId>,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// The call states that it has no fingerprint.
    pub(crate) has_no_fingerprint: bool,
    /// Like [`Request::admission`].
    pub(crate) admission: Option<Arc<dyn Admission>>,
    pub(super) versions: Option<Box<Versions>>,
    /// The operator who changes the record by hand, and the reason.
    pub(crate) audit: Option<Box<By>>,
    /// The step of the call that is meant, and the steps around it before that. In their ids, the
    /// place of each run holds nobody's: the records of the call and of the steps around tell it.
    pub(crate) steps: Vec<RecordId>,
    /// Like [`Request::again`].
    pub(crate) again: Option<Box<Error>>,
    /// The first mistake in the description. The call fails with it.
    pub(crate) problem: Option<Error>,
}

impl<'a> Draft<'a> {
    /// Whether to compute a key. A disabled runtime asks no store, so it needs none.
    #[inline]
    pub(crate) fn wants_key(&mut self, has_the_other: bool) -> bool {
        if self.runtime.is_none() || self.problem.is_some() {
            return false;
        }
        self.check_name();
        if has_the_other {
            self.misconfigured("it is given both a `key` and a `token`; a call has one of them");
        }
        self.problem.is_none()
    }

    pub(crate) fn check_name(&mut self) {
        if !is_valid_operation(&self.name) {
            self.misconfigured(
                "its name is not valid: a name is 1 to 128 letters, digits and `_ - \
                . / # @ +`, in segments that may be joined by `::`",
            );
        } else if let Some(reserved) = reserved(&self.name) {
            self.misconfigured(reserved.refusal);
        }
    }

    /// Sets a time, or notes what is wrong with its text. A disabled runtime needs none.
    pub(crate) fn set(
        &mut self,
        name: &str,
        length: Result<Duration, String>,
        set: fn(&mut Settings, Duration),
    ) {
        match length {
            Ok(length) => set(&mut self.settings, length),
            Err(reason) if self.runtime.is_some() => {
                self.misconfigured(format!("`{name}`: {reason}"));
            }
            Err(_) => {}
        }
    }

    /// Has the body run without a record after this error, if that is what the call wants.
    pub(crate) fn goes_on_without(&mut self, error: &Error) -> bool {
        let is_wanted = self.settings.store_failure == StoreFailure::Run;
        if let (Error::Store { operation, .. }, true) = (error, is_wanted) {
            self.name = Cow::Owned(operation.as_ref().to_owned());
            self.settings.missing_key = MissingKey::Run;
            return true;
        }
        false
    }

    /// Sets the record of the call.
    pub(crate) fn identify(&mut self, id: RecordId) {
        self.name = Cow::Owned(id.name().to_owned());
        self.id = Some(id);
    }

    /// Makes the call fail with an error.
    pub(crate) fn refuse(&mut self, error: Error) {
        self.name = Cow::Owned(error.operation().to_owned());
        self.problem.get_or_insert(error);
    }

    pub(crate) fn misconfigured(&mut self, reason: impl Into<Arc<str>>) {
        if self.problem.is_none() {
            let operation = if is_valid_operation(&self.name) {
                (*self.name).into()
            } else {
                shown_name(&self.name).into()
            };
            self.problem = Some(Error::Config {
                operation,
                reason: reason.into(),
            });
        }
    }

    /// Refuses a call that runs a body without what the runtime's profile requires.
    pub(super) fn check_profile(&mut self) {
        let is_strict = self
            .runtime
            .as_ref()
            .is_some_and(|runtime| runtime.config.is_strict);
        if is_strict && self.fingerprint.is_none() && !self.has_no_fingerprint {
            self.misconfigured(
                "the runtime is `strict`, and this operation does not state its fingerprint; write \
                 `fingerprint = \"..\"` with what must be equal when the key comes again, or \
                 `fingerprint = none` (by hand: `.fingerprint(..)` or `.no_fingerprint()`)",
            );
        }
    }

    /// Describes a call that runs a body. Reports nothing yet, because a future that is never
    /// polled must do nothing.
    #[inline]
    pub(crate) fn prepare(mut self) -> Prepared<'a> {
        self.check_profile();
        if !self.settings.observes {
            return self.prepared();
        }
        let name = self.name.clone();
        match self.prepared() {
            Prepared::Refused(error) => Prepared::Observed(name, error),
            prepared => prepared,
        }
    }

    /// Whether the call only observes.
    pub(crate) fn observes(&self) -> bool {
        self.settings.observes
    }

    pub(super) fn prepared(mut self) -> Prepared<'a> {
        if !self.steps.is_empty() {
            self.misconfigured(
                "`of_step` describes the record of a step, which is inspected, settled, released or \
                 forgotten; to run a step, call `step` in the body",
            );
        }
        if self.id.is_none() && self.runtime.is_some() {
            // Encoding the key checks the name. Without a key it is checked here.
            self.check_name();
        }
        if let Some(problem) = self.problem {
            return Prepared::Refused(problem);
        }
        let Some(runtime) = self.runtime else {
            return Prepared::Unguarded(self.name, None);
        };
        // The runtime's own settings were checked when it was built.
        if self.settings != runtime.settings
            && let Err(reason) = self.settings.check()
        {
            return Prepared::Refused(Error::Config {
                operation: (*self.name).into(),
                reason: reason.0,
            });
        }
        if let Some(Err(reason)) = self.versions.as_ref().map(|versions| versions.check()) {
            return Prepared::Refused(Error::Config {
                operation: (*self.name).into(),
                reason: reason.into(),
            });
        }
        if self.admission.is_some() && !self.settings.observes {
            // Only the store can tell whether the key was issued.
            self.settings.store_failure = StoreFailure::Reject;
        }
        match (self.id, self.settings.missing_key) {
            (Some(id), _) => {
                let Self {
                    fingerprint,
                    admission,
                    settings,
                    versions,
                    again,
                    ..
                } = self;
                let metadata = CallMetadata::new(runtime.config.trace.as_ref(), &settings);
                Prepared::Guarded(
                    runtime,
                    Request {
                        id,
                        fingerprint,
                        admission,
                        settings,
                        versions,
                        metadata,
                        again,
                    },
                )
            }
            (None, MissingKey::Run) => Prepared::Unguarded(self.name, Some(runtime)),
            (None, MissingKey::Reject) => Prepared::Refused(Error::MissingKey {
                operation: (*self.name).into(),
            }),
        }
    }

    /// Describes a change by hand. A missing key is an error, and a disabled runtime has no
    /// records. A step is looked up in the run of its call.
    pub(crate) async fn prepare_by_hand(
        mut self,
    ) -> Result<Option<(Arc<Runtime>, Request)>, Error> {
        let steps = std::mem::take(&mut self.steps);
        let Some((runtime, mut request)) = self.call_by_hand()? else {
            return Ok(None);
        };
        for step in steps {
            let Some(run) = runtime.run_of(&request.id).await? else {
                let error = Error::config(step.name(), NO_RUN);
                Prepared::Refused(error.clone()).announce();
                return Err(error);
            };
            request.id = step.in_run(&request.id, run);
        }
        Ok(Some((runtime, request)))
    }

    fn call_by_hand(mut self) -> Result<Option<(Arc<Runtime>, Request)>, Error> {
        self.settings.missing_key = MissingKey::Reject;
        // A change by hand is made in observe mode too.
        self.settings.observes = false;
        let prepared = self.prepared();
        prepared.announce();
        match prepared {
            Prepared::Refused(error) => Err(error),
            Prepared::Unguarded(..) | Prepared::Observed(..) => Ok(None),
            Prepared::Guarded(runtime, request) => Ok(Some((runtime, request))),
        }
    }
}

impl<Q, P> fmt::Debug for Operation<'_, Q, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Draft {
            name,
            settings,
            id,
            fingerprint,
            problem,
            ..
        } = &self.draft;
        f.debug_struct("Operation")
            .field("name", name)
            .field("id", id)
            .field("fingerprint", fingerprint)
            .field("settings", settings)
            .field("problem", problem)
            .finish_non_exhaustive()
    }
}
