//! The holder of the record while a body runs, and the end of a body.

use std::borrow::Cow;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::base::race::first;
use crate::call::body::{self, BodyExit};
use crate::call::judge::{Answer, Ending, GiveUp, Handling, RETRIED, StepLeft};
use crate::call::owned::{LEASE_LOST, Owned};
use crate::observe::{BodyWatch, Event, Observer};
use crate::policy::errors::ErrorAction;
use crate::runtime::Runtime;
use crate::task::current::{Around, Call, HeldBy, RECORDED};
use crate::task::request::Request;
use crate::task::watch::{self, Seen};

/// The holder of the record while a body runs.
pub(crate) enum Holder<'a> {
    /// Nobody: nothing is encoded, kept or given up. Errors can be retried.
    Nobody {
        operation: Cow<'a, str>,
        /// The call that the body sees, if its key is known.
        call: Option<Call>,
    },
    Lease(Owned),
}

impl<'a> Holder<'a> {
    pub(crate) fn keyless(operation: &'a str) -> Self {
        Self::Nobody {
            operation: Cow::Borrowed(operation),
            call: None,
        }
    }

    /// For a call with a key that runs without a record.
    pub(crate) fn without_record(runtime: &Arc<Runtime>, request: &'a Request) -> Self {
        Self::Nobody {
            operation: Cow::Borrowed(request.id.name()),
            call: Some(Call::new(runtime, request, HeldBy::Nobody)),
        }
    }

    /// For a body in a task of its own.
    pub(crate) fn into_owned(self) -> Holder<'static> {
        match self {
            Self::Nobody { operation, call } => Holder::Nobody {
                operation: Cow::Owned(operation.into_owned()),
                call,
            },
            Self::Lease(owned) => Holder::Lease(owned),
        }
    }

    /// The owner, if somebody holds the record.
    pub(crate) fn owned(&self) -> Option<&Owned> {
        match self {
            Self::Nobody { .. } => None,
            Self::Lease(owned) => Some(owned),
        }
    }

    /// The call whose record is held.
    pub(crate) fn call(&self) -> Option<&Call> {
        self.owned().map(Owned::call)
    }

    /// Reports an event of the call.
    pub(crate) fn report(&self, event: Event, why: Option<&dyn Display>) {
        match self {
            Self::Lease(owned) => owned.report_of_body(event, why),
            Self::Nobody { operation, .. } if event == RETRIED => {
                Observer::decided_without_key(event, operation);
            }
            Self::Nobody { .. } => {}
        }
    }

    /// Runs the body once, and stops it if the lease is lost.
    pub(crate) async fn run_body<R, Body>(&mut self, body: Pin<&mut Option<Body>>) -> BodyExit<R>
    where
        Body: Future<Output = R>,
    {
        match self {
            Self::Nobody { call, .. } => {
                let around = call.clone().map_or_else(Around::keyless, Around::body_of);
                around.run(body::run(None, body)).await
            }
            Self::Lease(owned) => {
                let watch = BodyWatch::start();
                let call = owned.call();
                let stops_with = call.stops_with().map(|term| &**term);
                let exit = call.around(body::run(stops_with, body)).await;
                watch.stop(call.id());
                if let BodyExit::Lost(_) = exit {
                    owned.lost();
                }
                exit
            }
        }
    }

    /// Waits for the next try. No body runs between two tries, so a call that ends here gives its
    /// key up. Returns `false` if there is no next try, because the lease was lost.
    pub(crate) async fn pause(&mut self, pause: Duration, give_up: GiveUp) -> bool {
        let Self::Lease(owned) = self else {
            tokio::time::sleep(pause).await;
            return true;
        };
        owned.retries();
        owned.pend(StepLeft::GiveUp(give_up));
        let goes_on = owned.wait_for_next_try(pause).await;
        if goes_on {
            owned.pend(StepLeft::Running);
        }
        goes_on
    }

    /// Sets what is left to do to the record. If the call is dropped before
    /// [`settle`](Self::settle) has ended, that is continued in the background.
    pub(crate) fn end<R, T, E, P: Fn(&E) -> ErrorAction>(
        &mut self,
        handling: &Handling<R, T, E, P>,
        ending: Ending,
        answer: &Answer<T, E>,
    ) {
        let Self::Lease(owned) = self else { return };
        if ending == Ending::RecordedByBody {
            return owned.recorded_in_transaction();
        }
        let call = owned.call();
        let writer = call.guarded().writer();
        let report = |event, why: Option<&dyn Display>| owned.report_of_body(event, why);
        if let Some(pending) = handling.encode(call, &writer, ending, answer, &report) {
            owned.pend(pending);
        }
    }

    /// Does what is left to do to the record.
    pub(crate) async fn settle(&mut self) {
        let Self::Lease(owned) = self else { return };
        if owned.call().guarded().observes() && owned.term().is_lost() {
            owned.would_be_lost();
        }
        if !owned.settle().await {
            watch::note(Seen::Unrecorded);
        }
    }
}

impl Owned {
    /// Waits for the next try. Returns `false` if the lease was lost meanwhile.
    async fn wait_for_next_try(&self, pause: Duration) -> bool {
        let call = self.call();
        let Some(term) = call.stops_with() else {
            tokio::time::sleep(pause).await;
            return true;
        };
        // If a transaction of this try recorded the outcome, no body runs again, and the store
        // refuses the next step.
        if call.has(RECORDED) && !self.is_in_flight().await {
            return false;
        }
        first(term.lost(), tokio::time::sleep(pause)).await;
        if term.is_lost() {
            // No body runs now. The store refuses the remaining step if another caller is the
            // owner.
            self.report_of_body(LEASE_LOST, Some(&term.why_lost()));
            return false;
        }
        true
    }
}
