//! A call that is ready to be carried out.

use std::borrow::Cow;
use std::sync::Arc;

use crate::call::request::Request;
use crate::error::Error;
use crate::observe::{Decision, Observer};
use crate::runtime::Runtime;
use crate::task::watch::{self, Seen};

/// A call that is ready to be carried out, or cannot be.
pub(crate) enum Prepared<'a> {
    Refused(Error),
    /// The operation's name is for the events. Without a runtime the call is disabled; with a
    /// runtime its key is missing.
    Unguarded(Cow<'a, str>, Option<Arc<Runtime>>),
    /// The body runs without a record, although a guarded call would fail with this.
    Observed(Cow<'a, str>, Error),
    Guarded(Arc<Runtime>, Request),
}

impl Prepared<'_> {
    /// Reports a call without a record; a watch is told of any other.
    pub(crate) fn announce(&self) {
        let (decision, operation) = match self {
            Self::Refused(error @ Error::Config { .. }) => {
                (Decision::Misconfigured, error.operation())
            }
            Self::Refused(error @ (Error::MissingKey { .. } | Error::MissingSubject { .. })) => {
                (Decision::RejectedMissingKey, error.operation())
            }
            Self::Unguarded(operation, Some(_)) => {
                watch::note(Seen::Executed);
                (Decision::RanUnguarded, &**operation)
            }
            Self::Observed(operation, error) => {
                watch::note(Seen::Executed);
                let would = match error {
                    Error::MissingKey { .. } | Error::MissingSubject { .. } => {
                        Decision::RejectedMissingKey
                    }
                    Error::NotInstalled { .. } => Decision::NotInstalled,
                    _ => Decision::Misconfigured,
                };
                return Observer::observed_without_key(would, operation);
            }
            Self::Guarded(_, request) => return watch::note_record(&request.id),
            // Without a policy to ask, that was reported when the call was made.
            Self::Refused(_) | Self::Unguarded(_, None) => return,
        };
        Observer::decided_without_key(decision, operation);
    }
}
