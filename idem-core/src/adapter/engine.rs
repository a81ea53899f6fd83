//! The parts that a layer uses besides the public API.
//!
//! The engine calls a layer by these hooks:
//!
//! | a layer that | has |
//! | --- | --- |
//! | decides about calls of keys that must be issued, before they claim | an [`Admission`], in the draft of the call. The claim then finds a key only if it was issued. A call has one: a layer refuses a draft that has another's |
//! | keeps records that live and end with that of a call | a [`Companion`], in the call that a body sees. A call has one: a layer refuses to do its work beside another's |
//! | answers for the store, or sees what is sent to it | a [`DynStore`] around another one, by `Builder::wrap`, which refuses a second one; not around one in this process. Its refusal is a failure of the store |
//! | keeps something for all calls of a runtime | a value of its own type, by `Builder::share` and [`Runtime::shared`] |
//! | reports something | constants of the type [`Event`] |

pub(crate) use crate::base::printable::shown_name;
pub(crate) use crate::base::{clock, sync};
pub(crate) use crate::call::body::{self, BodyExit};
pub(crate) use crate::call::judge::{Answer, Ending, GiveUp, Handling, RETRIED, StepLeft, give};
pub(crate) use crate::call::keeping::{Keepable, KeepsErrors, Policy};
pub(crate) use crate::call::owned::{
    CALLER_DROPPED, COMMIT_REFUSED, ERROR_KEPT, EXECUTED, Owned, RELEASED,
};
pub(crate) use crate::call::prepared::{MISCONFIGURED, Prepared};
pub(crate) use crate::call::reconcile::Question;
pub(crate) use crate::call::report::NOT_RECORDED;
pub(crate) use crate::encoding::key::{digest_after, escape, first_part, write_after};
pub(crate) use crate::lease::term::Term;
pub(crate) use crate::observe::{self, BodyWatch, Event, Observer};
#[cfg(feature = "encryption")]
pub(crate) use crate::outcome::codec::Loggable;
pub(crate) use crate::outcome::codec::TypeLabel;
#[cfg(feature = "axum")]
pub(crate) use crate::outcome::sealed;
pub(crate) use crate::policy::errors::Then;
pub(crate) use crate::policy::settings::{MAX_LENGTH, Settings, whole_millis};
pub(crate) use crate::record::{intervention, reserved, write_run_after};
pub(crate) use crate::runtime::Runtime;
pub(crate) use crate::runtime::admission::Admission;
pub(crate) use crate::runtime::background::STEPS_LEFT;
pub(crate) use crate::runtime::rejected::{
    Held, NOT_ISSUED, REJECTED_ABANDONED, Rejected, STORE_FAILED, UNREADABLE,
};
pub(crate) use crate::runtime::trace::CallMetadata;
pub(crate) use crate::store::{AnyStore, DynStore, FirstSent, StepAnswer};
pub(crate) use crate::task::companion::Companion;
pub(crate) use crate::task::current::{self, Around, Guarded, HeldBy};
pub(crate) use crate::task::outcome_writer::OutcomeWriter;
pub(crate) use crate::task::request::Request;
pub(crate) use crate::task::scope::is_disabled_by_default;
pub(crate) use crate::task::waiting::Pause;
pub(crate) use crate::task::{held_keys, watch};
