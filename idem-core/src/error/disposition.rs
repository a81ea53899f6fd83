//! The consumer's action on a message whose handler failed.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The action of a queue consumer on a message.
///
/// No variant will be added, so you may match it without a wildcard.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use std::time::Duration;
/// use idem::{Disposition, Error};
///
/// match Disposition::of(&Error::in_flight("mails.send", "m-1", Duration::from_secs(30))) {
///     Disposition::Ack => println!("acknowledge it"),
///     Disposition::Retry { after } => println!("give it back, to come again in {after:?}"),
///     Disposition::DeadLetter { reason } => println!("put it aside: {reason}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledges the message.
    Ack,
    /// Has the message delivered again.
    Retry {
        /// The pause before it, at least.
        after: Duration,
    },
    /// Dead-letters the message, because another delivery would fail in the same way.
    DeadLetter {
        /// The reason in a few words, without contents of the message.
        reason: Cow<'static, str>,
    },
}

/// The pause before a message comes again if its handler failed for a reason that may pass soon.
const SOON: Duration = Duration::from_secs(1);
/// A shorter pause would be a busy loop.
const SHORTEST: Duration = Duration::from_millis(100);
/// The pause if the service itself needs a repair. No message is at fault, so none is
/// dead-lettered.
const UNTIL_REPAIRED: Duration = Duration::from_secs(30);

impl Disposition {
    /// Returns the disposition of a message whose handler failed with this error.
    ///
    /// | error | disposition |
    /// | --- | --- |
    /// | `InFlight` | `Retry`, when the owner's lease ends: by then the owner has finished, the message may run, or it is `InFlight` once more |
    /// | `Store`, `LeaseLost` | `Retry`, after a second |
    /// | `Throttled` | `Retry`, after the error's `retry_after` |
    /// | `NotInstalled`, `Config` | `Retry`, after 30 s: the mistake is in the service, not in the message |
    /// | `AlreadyDone`, `Duplicate` | `Ack` |
    /// | `AttemptsExhausted`, `MissingKey`, `FingerprintMismatch`, `Abandoned`, `Codec`, `MissingSubject`, `UnknownToken`, `Reentrant` | `DeadLetter`, with the error's code as its reason |
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InFlight {
                lease_left: after, ..
            }
            | Error::Throttled {
                retry_after: after, ..
            } => Self::Retry {
                after: SHORTEST.max(*after),
            },
            other => match other.kind() {
                ErrorKind::AlreadyDone | ErrorKind::Duplicate => Self::Ack,
                ErrorKind::Store | ErrorKind::LeaseLost => Self::Retry { after: SOON },
                ErrorKind::NotInstalled | ErrorKind::Config => Self::Retry {
                    after: UNTIL_REPAIRED,
                },
                kind => Self::dead_letter(kind.code()),
            },
        }
    }

    /// Returns a [`DeadLetter`](Self::DeadLetter) for this reason.
    pub fn dead_letter(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::DeadLetter {
            reason: reason.into(),
        }
    }
}

/// Decides the fate of a message whose handler failed with this error: for the error type of a
/// handler.
///
/// `#[derive(ErrorPolicy)]` implements it where `#[idem(dead_letter)]` or `#[idem(redeliver =
/// "1m")]` marks a variant, or where `#[idem(dispose)]` or `#[idem(dead_letter)]` is above the
/// type.
///
/// # Examples
///
/// By hand:
///
/// ```
/// # use idem_core as idem;
/// use std::time::Duration;
/// use idem::{Dispose, Disposition};
///
/// enum HandleError {
///     Unreadable,
///     MailServerBusy,
///     Idempotency(idem::Error),
/// }
///
/// impl Dispose for HandleError {
///     fn disposition(&self) -> Disposition {
///         match self {
///             Self::Unreadable => Disposition::dead_letter("unreadable"),
///             Self::MailServerBusy => Disposition::Retry { after: Duration::from_secs(10) },
///             Self::Idempotency(error) => error.disposition(),
///         }
///     }
/// }
///
/// assert_eq!(HandleError::Unreadable.disposition(), Disposition::dead_letter("unreadable"));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what becomes of a message whose handler fails with it",
    label = "has no disposition",
    note = "derive `idem::ErrorPolicy` and mark with `#[idem(dead_letter)]` the variants that no \
        redelivery helps (none: `#[idem(dispose)]` above the type)",
    note = "or implement `idem::Dispose`; `Disposition::of` serves the `idem::Error` inside of it"
)]
pub trait Dispose {
    /// Returns the action of the consumer on the message.
    fn disposition(&self) -> Disposition;
}

/// A type that derives [`Dispose`], under conditions that are not stated here.
pub trait HasDisposition {}

impl<E: HasDisposition + ?Sized> HasDisposition for Box<E> {}

/// An error inside of another, which is asked if it is [`Dispose`]. See [`NoDisposition`].
#[derive(Debug)]
pub struct Inside<'a, E: ?Sized>(pub &'a E);

impl<E: Dispose + ?Sized> Inside<'_, E> {
    /// Found before the methods of [`ConditionalDisposition`] and [`NoDisposition`].
    pub fn disposition(&self) -> Disposition {
        self.0.disposition()
    }

    /// Like [`disposition`](Self::disposition), for an error inside whose policy is asked. Found
    /// before the methods of [`ConditionalDisposition`] and `DispositionByPolicy`.
    pub fn disposition_by_policy(&self, _: &'static str) -> Disposition {
        self.0.disposition()
    }
}

/// An error inside whose [`Dispose`] has a condition that is not met. This is an error at its type.
pub trait ConditionalDisposition {
    /// The type of the error inside.
    type Error: ?Sized;

    /// Method lookup finds this before [`NoDisposition`]'s method, which takes a reference to a
    /// reference.
    fn disposition(&self) -> Disposition
    where
        Self::Error: Dispose;

    /// Method lookup finds this before `DispositionByPolicy`'s method, which takes a reference to
    /// a reference.
    fn disposition_by_policy(&self, reason: &'static str) -> Disposition
    where
        Self::Error: Dispose;
}

impl<E: HasDisposition + ?Sized> ConditionalDisposition for Inside<'_, E> {
    type Error = E;

    fn disposition(&self) -> Disposition
    where
        E: Dispose,
    {
        self.0.disposition()
    }

    fn disposition_by_policy(&self, _: &'static str) -> Disposition
    where
        E: Dispose,
    {
        self.0.disposition()
    }
}

/// Any other error inside: the message comes again.
pub trait NoDisposition {
    /// See [`comes_again`].
    fn disposition(&self) -> Disposition {
        comes_again()
    }
}

impl<E: ?Sized> NoDisposition for &Inside<'_, E> {}

/// The disposition of a message whose handler failed with an unmarked error.
pub fn comes_again() -> Disposition {
    Disposition::Retry { after: SOON }
}

impl Dispose for Error {
    fn disposition(&self) -> Disposition {
        Disposition::of(self)
    }
}

impl<E: Dispose + ?Sized> Dispose for Box<E> {
    fn disposition(&self) -> Disposition {
        (**self).disposition()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{StoreError, StoreErrorKind};

    #[test]
    fn what_may_succeed_comes_again_and_what_is_done_is_acknowledged_and_the_rest_is_put_aside() {
        let operation = "mails.send";
        let key = "m-1";
        let retried = |error: Error| match Disposition::of(&error) {
            Disposition::Retry { after } => after,
            other => panic!("{error:?}: {other:?}"),
        };
        assert_eq!(
            retried(Error::in_flight(operation, key, Duration::from_secs(9))),
            Duration::from_secs(9)
        );
        assert_eq!(
            retried(Error::in_flight(operation, key, Duration::ZERO)),
            SHORTEST
        );
        for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Refused] {
            assert_eq!(
                retried(Error::store(operation, key, StoreError::new(kind, "no"))),
                SOON
            );
        }
        retried(Error::lease_lost(operation, key, 1));
        retried(Error::not_installed(operation));
        for done in [
            Error::already_done(operation, key),
            Error::duplicate(operation, key),
        ] {
            assert_eq!(Disposition::of(&done), Disposition::Ack);
        }
        for poison in [
            Error::attempts_exhausted(operation, key, 5),
            Error::missing_key(operation),
            Error::fingerprint_mismatch(operation, key),
            Error::abandoned(operation, key, 1),
            Error::codec(operation, key, "no JSON"),
        ] {
            assert_eq!(
                Disposition::of(&poison),
                Disposition::dead_letter(poison.code())
            );
        }
    }
}
