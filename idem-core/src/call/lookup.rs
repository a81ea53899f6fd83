//! The result of a call, read without claiming its key.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::base::clock;
use crate::call::recorded::Recorded;
use crate::error::Error;
use crate::observe::Event;
use crate::record::{RecordInfo, RecordState};
use crate::runtime::Runtime;
use crate::runtime::rejected::Rejected;
use crate::task::request::Request;

/// The result of a call with a key, from [`Operation::lookup`](crate::Operation::lookup).
///
/// No variant will be added, so you may match it without a wildcard. Variants with named fields may
/// get more fields.
#[derive(Debug, Clone)]
pub enum Lookup<T> {
    /// The call was carried out, with this value.
    Outcome(T),
    /// The call was carried out, and ended with this kept error: decode it with
    /// [`Recorded::decode_error`].
    Error(Recorded),
    /// The call is being carried out.
    #[non_exhaustive]
    InFlight {
        /// Which attempt it is.
        attempt: u64,
        /// The time until the owner's lease expires, unless it is renewed. If the owner crashed,
        /// the key is free by then.
        lease_left: Duration,
        /// `lease_left`, under its old name.
        #[doc(hidden)]
        retry_after: Duration,
    },
    /// The owner was cut off. A call with this key runs the body, or is rejected until an operator
    /// settles the record, as [`abandoned`](crate::Operation::abandoned) says.
    #[non_exhaustive]
    Abandoned {
        /// The attempt that was cut off.
        attempt: u64,
    },
    /// The call was carried out, and its outcome expired, was left out (`omit_outcome`), failed to
    /// encode, or was too large for the store.
    AlreadyDone,
    /// The call was not carried out, as far as the store knows: the key has no record, the last
    /// attempt released it, or it is an unused token. A call that is sent now runs the body, unless
    /// its token is invalid or `max_attempts` is reached.
    Unknown,
}

impl Lookup<Recorded> {
    /// Decodes the outcome.
    pub(crate) fn decode<T: DeserializeOwned>(self) -> Result<Lookup<T>, Error> {
        Ok(match self {
            Lookup::Outcome(recorded) => Lookup::Outcome(recorded.decode()?),
            Lookup::Error(recorded) => Lookup::Error(recorded),
            Lookup::InFlight {
                attempt,
                lease_left,
                retry_after,
            } => Lookup::InFlight {
                attempt,
                lease_left,
                retry_after,
            },
            Lookup::Abandoned { attempt } => Lookup::Abandoned { attempt },
            Lookup::AlreadyDone => Lookup::AlreadyDone,
            Lookup::Unknown => Lookup::Unknown,
        })
    }
}

impl Runtime {
    /// Asks the store what it has at a key. This is one step that changes nothing, so a drop or a
    /// failure leaves nothing to undo.
    pub(crate) async fn lookup(&self, request: &Request) -> Result<Lookup<Recorded>, Error> {
        if let Some(admission) = &request.admission
            && let Err(why) = admission.admit(&request.id, clock::now())
        {
            return match self.reject(request, why) {
                // The key was never issued to this caller, so it was never used.
                Error::UnknownToken { .. } => Ok(Lookup::Unknown),
                error => Err(error),
            };
        }
        let Some(info) = self.inspect(&request.id).await? else {
            if request.admission.is_some() {
                // Counts as a call does, so that lookups do not help to guess.
                let _counted = self.reject(request, Rejected::NotIssued { is_expired: false });
            }
            return Ok(self.found(request, 0, "nothing", Lookup::Unknown));
        };
        if let (Some(recorded), Some(given)) = (info.fingerprint, request.fingerprint)
            && recorded != given
        {
            return Err(self.reject(request, Rejected::Mismatch));
        }
        Ok(self.found_record(request, info))
    }

    /// Reports what was found at the key.
    fn found_record(&self, request: &Request, info: RecordInfo) -> Lookup<Recorded> {
        let RecordInfo {
            state,
            attempt,
            outcome,
            lease_left,
            ..
        } = info;
        let (what, lookup) = match (state, outcome) {
            (RecordState::InFlight, _) => {
                let lease_left = lease_left.unwrap_or_default();
                let lookup = Lookup::InFlight {
                    attempt,
                    lease_left,
                    retry_after: lease_left,
                };
                ("in flight", lookup)
            }
            (RecordState::Abandoned, _) => ("abandoned", Lookup::Abandoned { attempt }),
            (RecordState::Committed, Some(outcome)) => {
                let is_error = outcome.is_error;
                let recorded = Recorded {
                    id: request.id.clone(),
                    attempt,
                    outcome,
                    codec: self.config.codec.clone(),
                    versions: request.versions.clone(),
                    observer: self.observer,
                };
                if is_error {
                    ("error", Lookup::Error(recorded))
                } else {
                    ("outcome", Lookup::Outcome(recorded))
                }
            }
            // A store whose `inspect` leaves the outcome out fails the conformance suite. Here,
            // such a call was still carried out.
            (RecordState::Committed, None) | (RecordState::Done, _) => {
                ("done", Lookup::AlreadyDone)
            }
            (RecordState::Released, _) => ("released", Lookup::Unknown),
            (RecordState::Issued | RecordState::Expired, _) => ("issued", Lookup::Unknown),
        };
        self.found(request, attempt, what, lookup)
    }

    fn found(
        &self,
        request: &Request,
        attempt: u64,
        what: &str,
        lookup: Lookup<Recorded>,
    ) -> Lookup<Recorded> {
        self.observer
            .report(Event::debug("looked_up"), &request.id, attempt, Some(&what));
        lookup
    }
}
