//! The author's policy for each error that a body returns.

use std::time::Duration;

use crate::error::disposition::{Disposition, Inside, comes_again};
use crate::policy::settings::MAX_LENGTH;

/// The action on an error that a body returned. From a policy: see
/// [`Operation::errors`](crate::Operation::errors) and [`ErrorPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorAction {
    /// Records the error as the outcome, like a value. Duplicates get an equal error, and the body
    /// does not run again.
    ///
    /// If the error fails to encode, the key is released, and the event `error_not_kept` is logged.
    /// The same happens if another guarded call inside the body failed with an
    /// [`Error`](crate::Error), because the body's error may contain it.
    Keep,
    /// Keeps the error for this long, instead of `ttl` and `remember`. After that the next call
    /// runs the body. A time below 1 ms counts as 1 ms, one above 100 years as 100 years.
    KeepFor(Duration),
    /// Releases the key. The next call runs the body.
    Release,
    /// Runs the body again, in this call.
    Retry(Retry),
    /// Abandons the record immediately, because the outcome of the body's work is unknown, as after
    /// a timeout of a request that was sent. The next call runs the body, is rejected or
    /// reconciles, as [`abandoned`](crate::Operation::abandoned) and
    /// [`reconcile`](crate::Operation::reconcile) say.
    Abandon,
    /// Does what [`Builder::default_error`](crate::Builder::default_error) says, because no policy
    /// names this error. This is the action on every error of a call without a policy, and on each
    /// variant without an action under `#[derive(ErrorPolicy)]`.
    Unlisted,
}

impl ErrorAction {
    /// Whether the error is kept, at once or after its retries.
    fn keeps(self) -> bool {
        match self {
            Self::Keep | Self::KeepFor(_) => true,
            Self::Retry(retry) => matches!(retry.then, Then::Keep(_)),
            Self::Release | Self::Abandon | Self::Unlisted => false,
        }
    }
}

/// The action on an error that a body returned, for policies that keep no errors, so that any error
/// type works. For [`Operation::errors`](crate::Operation::errors), in place of [`ErrorAction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnkeptAction {
    /// Like [`ErrorAction::Release`].
    Release,
    /// Like [`ErrorAction::Retry`]. A retry that ends in [`then_keep`](Retry::then_keep) releases
    /// the key instead, and logs the event `error_not_kept`.
    Retry(Retry),
    /// Like [`ErrorAction::Abandon`].
    Abandon,
    /// Like [`ErrorAction::Unlisted`].
    Unlisted,
}

/// The result of a policy: [`ErrorAction`], which can keep errors, or [`UnkeptAction`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "a policy gives an action for each error, not `{Self}`",
    label = "neither `ErrorAction` nor `UnkeptAction`",
    note = "write for example `|error: &OrderError| ErrorAction::Keep`; for errors that are not \
        `Serialize`, `UnkeptAction::Release`"
)]
pub trait Action: sealed::Action {
    /// Whether errors can be kept.
    type Keeps: Frequency;
}

impl Action for ErrorAction {
    type Keeps = Sometimes;
}

impl Action for UnkeptAction {
    type Keeps = Never;
}

mod sealed {
    use super::{ErrorAction, UnkeptAction};

    pub trait Action {
        fn into_action(self) -> ErrorAction;
    }

    impl Action for ErrorAction {
        fn into_action(self) -> ErrorAction {
            self
        }
    }

    impl Action for UnkeptAction {
        fn into_action(self) -> ErrorAction {
            match self {
                Self::Release => ErrorAction::Release,
                Self::Retry(retry) => ErrorAction::Retry(retry),
                Self::Abandon => ErrorAction::Abandon,
                Self::Unlisted => ErrorAction::Unlisted,
            }
        }
    }
}

/// The settings of retries in one call. They run under the same lease, which is renewed meanwhile,
/// and as the same attempt.
///
/// The pause before the first retry is the backoff. Each further pause is twice as long, up to
/// `max_backoff`. A random part of up to a half is added to each pause. So calls that failed
/// together do not retry together, and no retry comes before its backoff, which may be a time that
/// the error named.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::{ErrorAction, Retry};
/// use std::time::Duration;
///
/// let action = ErrorAction::Retry(
///     Retry::new(3)
///         .backoff(Duration::from_millis(100))
///         .then_keep(),
/// );
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a retry does nothing until it is returned as `ErrorAction::Retry`"]
pub struct Retry {
    max: u32,
    backoff: Duration,
    /// `None`: [`LONGEST_PAUSE`], or the backoff if that is longer.
    max_backoff: Option<Duration>,
    then: Then,
}

const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The fate of an error that is not retried, or not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Release,
    Keep(Option<Duration>),
    Abandon,
}

impl Retry {
    /// Allows up to `max` more tries of one call, counted over all its errors. The backoff is 100
    /// ms and doubles up to 10 s (or the backoff, if that is longer). After the last try the key is
    /// released.
    pub const fn new(max: u32) -> Self {
        Self {
            max,
            backoff: Duration::from_millis(100),
            max_backoff: None,
            then: Then::Release,
        }
    }

    /// Sets the pause before the first retry. Default: 100 ms.
    pub const fn backoff(mut self, backoff: Duration) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the longest pause, without the random part; it limits the backoff too. Default: 10 s,
    /// or the backoff if that is longer.
    pub const fn max_backoff(mut self, max_backoff: Duration) -> Self {
        self.max_backoff = Some(max_backoff);
        self
    }

    /// Keeps the error of the last try, as [`ErrorAction::Keep`] does.
    pub const fn then_keep(mut self) -> Self {
        self.then = Then::Keep(None);
        self
    }

    /// Keeps the error of the last try, as [`ErrorAction::KeepFor`] does.
    pub const fn then_keep_for(mut self, ttl: Duration) -> Self {
        self.then = Then::Keep(Some(ttl));
        self
    }

    /// Abandons the record after the last try, as [`ErrorAction::Abandon`] does.
    pub const fn then_abandon(mut self) -> Self {
        self.then = Then::Abandon;
        self
    }
}

/// The retries of one call.
#[derive(Debug)]
pub(crate) struct Tries {
    /// The action on an unlisted error.
    unlisted: Then,
    made: u32,
    /// One of the tries ended in an error of unknown outcome.
    unknown: bool,
}

/// The step after an action, given the number of tries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There are `most` tries, including the first.
    Retry {
        pause: Duration,
        then: Then,
        most: u32,
    },
    Then(Then),
}

impl Tries {
    pub(crate) fn new(unlisted: Then) -> Self {
        Self {
            unlisted,
            made: 0,
            unknown: false,
        }
    }

    pub(crate) fn next(&mut self, action: ErrorAction) -> Next {
        match action {
            ErrorAction::Keep => Next::Then(Then::Keep(None)),
            ErrorAction::KeepFor(ttl) => Next::Then(Then::Keep(Some(ttl))),
            ErrorAction::Release => Next::Then(Then::Release),
            ErrorAction::Abandon => Next::Then(Then::Abandon),
            ErrorAction::Unlisted => Next::Then(self.unlisted),
            ErrorAction::Retry(retry) if self.made < retry.max => {
                let doubled = 2_u32.checked_pow(self.made).unwrap_or(u32::MAX);
                self.made += 1;
                self.unknown |= retry.then == Then::Abandon;
                let longest = retry
                    .max_backoff
                    .unwrap_or_else(|| LONGEST_PAUSE.max(retry.backoff));
                let pause = retry
                    .backoff
                    .saturating_mul(doubled)
                    .min(longest)
                    .min(MAX_LENGTH);
                let jitter = pause.mul_f64(fastrand::f64() / 2.0);
                Next::Retry {
                    pause: pause + jitter,
                    then: retry.then,
                    most: retry.max.saturating_add(1),
                }
            }
            ErrorAction::Retry(retry) => Next::Then(retry.then),
        }
    }

    /// Whether an earlier try had an unknown outcome. Then no later try can release the key.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        self.unknown
    }

    /// Returns the number of tries, including the first.
    pub(crate) fn count(&self) -> u32 {
        self.made.saturating_add(1)
    }
}

/// The policy of an error type, for every annotated function that returns it and has no
/// `errors(..)` of its own.
///
/// `#[derive(ErrorPolicy)]` writes it, from `#[idem(keep)]`, `#[idem(release)]` and
/// `#[idem(retry(max = 3, backoff = "100ms"))]` on the variants. By hand, it is given to a call as
/// `.errors_by_type::<OrderError>()`.
///
/// # Examples
///
/// A wrapper that asks the error inside of it:
///
/// ```
/// # use idem_core as idem;
/// use idem::bounds::{Frequency, HasErrorPolicy, Never};
/// use idem::{ErrorAction, ErrorPolicy};
///
/// struct Traced<E> {
///     error: E,
///     trace: String,
/// }
///
/// impl<E: ErrorPolicy> ErrorPolicy for Traced<E> {
///     type Keeps = <E::Keeps as Frequency>::Or<Never>;
///     type Retries = <E::Retries as Frequency>::Or<Never>;
///
///     fn action(&self) -> ErrorAction {
///         self.error.action()
///     }
/// }
///
/// // A function that returns `Traced<E>` of an `E` without a policy then does not compile.
/// impl<E> HasErrorPolicy for Traced<E> {}
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no error policy",
    label = "has no error policy",
    note = "derive it, `#[derive(idem::ErrorPolicy)]` with `#[idem(keep)]`, `#[idem(release)]` or \
        `#[idem(retry(..))]` on the variants",
    note = "or write the arms on the function: `errors(OrderError::Declined(_) => keep, _ => \
        release)`"
)]
pub trait ErrorPolicy {
    /// [`Sometimes`] if [`action`](Self::action) may say [`Keep`](ErrorAction::Keep), alone or
    /// after retries; else [`Never`]. What is kept must be `Serialize` and `DeserializeOwned`.
    type Keeps: Frequency;
    /// [`Sometimes`] if [`action`](Self::action) may say [`Retry`](ErrorAction::Retry), else
    /// [`Never`]. A function whose error type retries must say `errors(policy)`, and its arguments
    /// must be `Clone` or references.
    type Retries: Frequency;

    /// Returns the action for a call whose body returned this error.
    fn action(&self) -> ErrorAction;
}

/// Says that a type has an [`ErrorPolicy`], under conditions that are not stated here.
///
/// An annotated function whose error type has no policy treats errors as
/// [`Builder::default_error`](crate::Builder::default_error) says. If the policy has a condition,
/// as `E: ErrorPolicy` for the error inside, and a type does not meet it, that type has no policy
/// either. With this trait, without conditions, the function then does not compile. The derive
/// implements it.
pub trait HasErrorPolicy {}

impl<E: HasErrorPolicy + ?Sized> HasErrorPolicy for Box<E> {}

impl<E: ErrorPolicy + ?Sized> ErrorPolicy for Box<E> {
    type Keeps = <E::Keeps as Frequency>::Or<Never>;
    type Retries = <E::Retries as Frequency>::Or<Never>;

    fn action(&self) -> ErrorAction {
        (**self).action()
    }
}

/// An error inside of another that is not [`Dispose`](crate::Dispose) and has a policy.
pub trait DispositionByPolicy {
    /// Dead-letters the message for this reason if the error is kept: it would be the answer to
    /// each delivery. Otherwise the message comes again.
    fn disposition_by_policy(&self, reason: &'static str) -> Disposition;
}

impl<E: ErrorPolicy> DispositionByPolicy for &Inside<'_, E> {
    fn disposition_by_policy(&self, reason: &'static str) -> Disposition {
        if self.0.action().keeps() {
            Disposition::dead_letter(reason)
        } else {
            comes_again()
        }
    }
}

/// How often an [`ErrorPolicy`] does a thing: [`Sometimes`] or [`Never`]. Derived policies
/// implement it for a type of their own.
pub trait Frequency {
    /// [`Never`] only if both are.
    type Or<Other: Frequency>: Frequency;
}

/// Perhaps not for every error, but for one of them.
#[derive(Debug, Clone, Copy)]
pub enum Sometimes {}

/// For no error at all.
#[derive(Debug, Clone, Copy)]
pub enum Never {}

impl Frequency for Sometimes {
    type Or<Other: Frequency> = Self;
}

impl Frequency for Never {
    type Or<Other: Frequency> = Other;
}

/// Implemented for the [`Frequency`] of policies that never retry, which a function without
/// `errors(policy)` needs.
#[diagnostic::on_unimplemented(
    message = "the error policy of this type retries, which this function must allow: write \
        `errors(policy)`",
    label = "some errors of this type are retried",
    note = "a retried body needs arguments that can be used again: `Clone`, or references",
    note = "or give each error an action on this function, as a body in a transaction needs: \
        `errors(OrderError::Declined(_) => keep, _ => release)`"
)]
pub trait RunsOnce {}

#[diagnostic::do_not_recommend]
impl RunsOnce for Never {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(retry: Retry) -> (Vec<Duration>, Next) {
        let mut tries = Tries::new(Then::Release);
        let mut pauses = Vec::new();
        loop {
            match tries.next(ErrorAction::Retry(retry)) {
                Next::Retry { pause, .. } => pauses.push(pause),
                end @ Next::Then(_) => return (pauses, end),
            }
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_are_lengthened_by_up_to_a_half() {
        let seconds = Duration::from_secs;
        let (pauses, end) = pauses(Retry::new(40).backoff(seconds(1)).max_backoff(seconds(5)));
        assert_eq!((pauses.len(), end), (40, Next::Then(Then::Release)));
        for (pause, whole) in pauses
            .iter()
            .zip([1, 2, 4].into_iter().chain(std::iter::repeat(5)))
        {
            assert!(
                *pause >= seconds(whole) && *pause <= seconds(whole) * 3 / 2,
                "{pause:?} of {whole} s"
            );
        }
    }

    #[test]
    fn what_follows_the_last_try_is_as_the_retry_says() {
        let (none, end) = pauses(Retry::new(0).then_keep_for(Duration::from_secs(1)));
        assert_eq!(
            (none, end),
            (vec![], Next::Then(Then::Keep(Some(Duration::from_secs(1)))))
        );
        let (long, _) = pauses(Retry::new(2).backoff(Duration::MAX));
        assert!(long.iter().all(|pause| *pause >= MAX_LENGTH), "{long:?}");
        assert_eq!(
            pauses(
                Retry::new(2)
                    .backoff(Duration::MAX)
                    .max_backoff(Duration::ZERO)
            )
            .0,
            [Duration::ZERO; 2]
        );
        assert_eq!(
            pauses(Retry::new(2).backoff(Duration::ZERO)).0,
            [Duration::ZERO; 2]
        );
    }

    #[test]
    fn retries_are_counted_over_all_errors_of_a_call() {
        let mut tries = Tries::new(Then::Release);
        assert!(matches!(
            tries.next(ErrorAction::Retry(Retry::new(1))),
            Next::Retry { .. }
        ));
        assert_eq!(
            tries.next(ErrorAction::Retry(Retry::new(1).then_keep())),
            Next::Then(Then::Keep(None))
        );
        assert!(matches!(
            tries.next(ErrorAction::Retry(Retry::new(2))),
            Next::Retry { .. }
        ));
        assert_eq!(tries.count(), 3);
    }
}
