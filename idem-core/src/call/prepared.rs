//! A call that is ready to be carried out.

use std::borrow::Cow;
use std::sync::Arc;

use tracing::Span;

use crate::error::Error;
use crate::observe::{Event, Observer};
use crate::runtime::Runtime;
use crate::runtime::rejected::STORE_FAILED;
use crate::task::request::Request;
use crate::task::watch::{self, Seen};

pub(crate) const MISCONFIGURED: Event = Event::warn("misconfigured");
pub(crate) const NOT_INSTALLED: Event = Event::warn("not_installed");
pub(crate) const RAN_UNGUARDED: Event = Event::warn("ran_unguarded");
pub(crate) const REJECTED_MISSING_KEY: Event = Event::info("rejected_missing_key");

/// A call that is ready to be carried out, or is refused.
pub(crate) enum Prepared<'a> {
    Refused(Error),
    /// The body runs without a record. The name is for the events. Without a runtime the call is
    /// disabled; with one, its key is missing.
    Unguarded(Cow<'a, str>, Option<Arc<Runtime>>),
    /// Observe mode: the body runs without a record. A guarded call would fail with this error.
    Observed(Cow<'a, str>, Error),
    Guarded(Arc<Runtime>, Request),
}

impl Prepared<'_> {
    /// The runtime that waits for the call's body when it shuts down.
    pub(crate) fn runtime(&self) -> Option<&Arc<Runtime>> {
        match self {
            Self::Unguarded(_, runtime) => runtime.as_ref(),
            Self::Guarded(runtime, _) => Some(runtime),
            Self::Refused(_) | Self::Observed(..) => None,
        }
    }

    /// Returns the span of the call, and whether it is traced. Without a key there is none.
    pub(crate) fn span(&self) -> (Span, bool) {
        match self {
            Self::Guarded(runtime, request) => runtime.observer.span(&request.id),
            _ => (Span::none(), false),
        }
    }

    /// Reports a call without a record. For any other call, tells the watch which record it uses.
    pub(crate) fn announce(&self) {
        let (event, operation) = match self {
            Self::Refused(error @ Error::Config { .. }) => (MISCONFIGURED, error.operation()),
            Self::Refused(error @ (Error::MissingKey { .. } | Error::MissingSubject { .. })) => {
                (REJECTED_MISSING_KEY, error.operation())
            }
            Self::Unguarded(operation, Some(_)) => {
                watch::note(Seen::Executed);
                (RAN_UNGUARDED, &**operation)
            }
            Self::Observed(operation, error) => {
                watch::note(Seen::Executed);
                let would = match error {
                    Error::MissingKey { .. } | Error::MissingSubject { .. } => REJECTED_MISSING_KEY,
                    Error::NotInstalled { .. } => NOT_INSTALLED,
                    Error::Store { .. } => STORE_FAILED,
                    _ => MISCONFIGURED,
                };
                return Observer::observed_without_key(would, operation);
            }
            Self::Guarded(_, request) => return watch::note_record(&request.id),
            // The event was reported when the call was made, because there is no policy to ask.
            Self::Refused(_) | Self::Unguarded(_, None) => return,
        };
        Observer::decided_without_key(event, operation);
    }
}
