//! The facts that the macro learns from the return type of a guarded function.

use std::marker::PhantomData;

use crate::call::keeping::{KeepsErrors, Policy};
use crate::call::recorded::Recorded;
use crate::error::Error;
use crate::outcome::Storable;
use crate::policy::errors::{ErrorAction, ErrorPolicy, HasErrorPolicy, RunsOnce};
use crate::record::Encoded;
use crate::task::outcome_writer::OutcomeWriter;

/// The return type of a guarded function: a `Result`.
#[diagnostic::on_unimplemented(
    message = "an idempotent function must return `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "the call can fail in ways of its own (`idem::Error`), which the function's error type \
        takes up by `From<idem::Error>`"
)]
pub trait Returned {
    /// The outcome.
    type Ok;
    /// The error.
    type Err;

    /// As a `Result`.
    ///
    /// # Errors
    ///
    /// The error that was returned.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
    /// Makes the type from a `Result`.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Returned for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// The operations on values of the return type `R` of a guarded call, which is a `Result<T, E>`.
/// They are gathered at the type, so that an unmet bound is one error, with its caret there.
pub struct Witness<R, T, E> {
    pub(crate) split: fn(R) -> Result<T, E>,
    pub(crate) join: fn(Result<T, E>) -> R,
    pub(crate) encode: fn(&OutcomeWriter<'_>, &T) -> Option<Encoded>,
    pub(crate) decode: fn(&Recorded) -> Result<T, Error>,
    pub(crate) fail: fn(Error) -> E,
}

/// Makes a [`Witness`].
pub fn outcome_of<R, Via>() -> Witness<R, R::Ok, R::Err>
where
    R: Returned,
    R::Ok: Storable<Via>,
    R::Err: FromIdempotency,
{
    Witness {
        split: R::into_result,
        join: R::from_result,
        encode: |writer, value| writer.value(value),
        decode: Recorded::decode_outcome,
        fail: R::Err::from,
    }
}

/// An error type into which the errors of a guarded call can be converted.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold the errors of `idem`",
    label = "is not `From<idem::Error>`",
    note = "with thiserror, add a variant: `#[error(transparent)] Idempotency(#[from] \
        idem::Error)`",
    note = "or implement `From<idem::Error>` by hand"
)]
pub trait FromIdempotency: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromIdempotency for E {}

impl<R, T, E> Witness<R, T, E> {
    /// The handling that the `errors(..)` of a function says.
    pub fn errors<P: Fn(&E) -> ErrorAction>(&self, action: P) -> Policy<P, E> {
        Policy::new(action)
    }

    /// The handling that their type says, where `errors(policy)` allows retries.
    pub fn errors_by_policy(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>>,
    {
        Policy {
            action: E::action,
            error_codec: E::Keeps::error_codec(),
        }
    }

    /// The handling that their type says, where the body runs once.
    pub fn errors_by_policy_without_retries(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>, Retries: RunsOnce>,
    {
        self.errors_by_policy()
    }
}

/// A type parameter of a guarded function, and its error type.
#[derive(Debug)]
pub struct Parameter<E, P>(PhantomData<fn() -> (E, P)>);

impl<R, T, E> Witness<R, T, E> {
    /// Compares a type parameter with the error type.
    pub fn parameter<P>(&self) -> Parameter<E, P> {
        Parameter(PhantomData)
    }
}

#[allow(
    clippy::mismatching_type_param_order,
    clippy::unused_self,
    reason = "a method that exists if both types are one"
)]
impl<E> Parameter<E, E> {
    /// Requires a policy. This is found before the method of [`OtherParameter`] of the same name,
    /// if the parameter is the error type.
    pub fn has_policy_if_error(&self)
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>, Retries: RunsOnce>,
    {
    }
}

/// A type parameter that is not the error type.
pub trait OtherParameter {
    /// Requires nothing.
    fn has_policy_if_error(&self) {}
}

impl<E, P> OtherParameter for &Parameter<E, P> {}

impl<R, T, E: ErrorPolicy> Witness<R, T, E> {
    /// The handling that their type says, where the function says nothing.
    ///
    /// This is found before the methods of [`ConditionalPolicy`] and [`NoPolicy`] of the same name,
    /// if the type has a policy.
    pub fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>, Retries: RunsOnce>,
    {
        self.errors_by_policy_without_retries()
    }
}

/// The errors of a type whose policy has a condition that is not met, such as a policy of the error
/// inside. This is an error at the type.
pub trait ConditionalPolicy<E> {
    /// Method lookup finds this before [`NoPolicy`]'s method of the same name, which takes a
    /// reference to a reference.
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>, Retries: RunsOnce>;
}

impl<R, T, E: HasErrorPolicy> ConditionalPolicy<E> for Witness<R, T, E> {
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>, Retries: RunsOnce>,
    {
        self.errors_by_policy_without_retries()
    }
}

/// The handling of the errors of a type that says nothing, where the function says nothing
/// either.
pub trait NoPolicy<E> {
    /// Treats each error as [`Builder::default_error`](crate::Builder::default_error) says.
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>;
}

impl<R, T, E> NoPolicy<E> for &Witness<R, T, E> {
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E> {
        Policy::unlisted()
    }
}
