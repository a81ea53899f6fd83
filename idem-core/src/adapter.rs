//! The parts that adapters need: consumers of a message broker, HTTP layers, and integrations of
//! web frameworks. Applications do not need it.
//!
//! `idem-queue`, `idem-http` and `idem-actix` use nothing of this crate but its public API and this
//! module.
//!
//! | an adapter that | uses |
//! | --- | --- |
//! | calls a subscriber, a recorder or another closure of the application | [`catch_user_panic`] |
//! | limits how long its caller waits for a call in flight | [`waiting_at_most`] |
//! | serves requests whose client may disconnect | [`run_boxed`], [`finish_in_background`] |
//! | runs a part of the body in a task of its own | [`BodyPart`] |
//! | refuses a request before it is a call | [`report_without_call`] |
//! | answers an error as problem+json (RFC 9457) | [`problem_json`] and the functions around it |
//! | consumes messages | [`count_message_decision`], [`add_lost_consumers`], [`describe_json_error`] |
//! | tries again what may fail again | [`Backoff`] |
//! | reads JSON that others wrote | [`without_byte_order_mark`] |
//! | has a type for keys that are never empty | [`NeverMissing`] |

pub(crate) mod engine;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use crate::api::operation::Operation;
pub use crate::base::backoff::Backoff;
#[doc(hidden)]
pub use crate::base::rounds::{Round, Rounds, run_rounds};
use crate::call::bodies::Once;
use crate::call::judge::Handling;
pub use crate::call::part::BodyPart;
use crate::call::prepared::{MISCONFIGURED, REJECTED_MISSING_KEY};
use crate::call::witness::outcome_of;
pub use crate::encoding::key::NeverMissing;
use crate::error::Error;
pub use crate::error::problem::{
    CHALLENGE, PROBLEM_JSON, problem_json, problem_pause, problem_title, problem_type,
    whole_seconds,
};
use crate::observe::{Event, Observer};
pub use crate::observe::{add_lost_consumers, catch_user_panic, count_message_decision};
pub use crate::outcome::codec::{describe_json_error, without_byte_order_mark};
use crate::outcome::{Outcome, Storable};
use crate::policy::errors::ErrorAction;
pub use crate::task::carried::{FinishInBackground, finish_in_background};
pub use crate::task::waiting::waiting_at_most;

/// Carries out a call with a body that is in a box, for adapters whose futures are in boxes anyway.
///
/// `errors` says what is done with each error of the body. Errors of the call itself are turned
/// into `E`.
///
/// # Errors
///
/// The error of the body, or the call's own, turned into `E`.
///
/// The future is in two boxes, for the body and for the rest. One box for both would be larger than
/// the blocks that glibc's allocator caches for a thread (1,032 bytes).
pub fn run_boxed<T, E, Via, P, Body>(
    operation: Operation<'static>,
    errors: P,
    body: Pin<Box<Body>>,
) -> impl Future<Output = Result<T, E>> + Send
where
    T: Storable<Via> + Send,
    E: From<Error> + Send,
    P: Fn(&E) -> ErrorAction + Send + Sync,
    Body: Future<Output = Result<T, E>> + Send,
{
    let witness = outcome_of::<Result<T, E>, Via>();
    let policy = witness.errors(errors);
    let prepared = operation.draft.prepare();
    let handling = Handling { witness, policy };
    let bodies = Once(Some(|| body));
    let answer = |outcome: Result<Outcome<T>, E>| outcome.map(Outcome::into_inner);
    async move { Box::pin(handling.run(&prepared, bodies, answer, &mut PhantomData::<Body>)).await }
}

/// Reports a request of an operation that did not become a call, as an event and in the metrics.
///
/// `code` is the code of the response: `missing_key`, `config`, or what makes the request invalid.
/// Without a code, the request has no key, needs none, and passed unguarded.
pub fn report_without_call(operation: &str, code: Option<&'static str>) {
    let (event, detail) = match code {
        None => (Event::debug("passed_without_key"), None),
        Some("missing_key") => (REJECTED_MISSING_KEY, None),
        Some("config") => (MISCONFIGURED, None),
        Some(_) => (Event::info("rejected_invalid"), code),
    };
    Observer::default().report_without_key(event, operation, detail);
}
