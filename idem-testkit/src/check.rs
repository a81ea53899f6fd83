//! Why a trial did not pass, and the checks that say so.

use std::fmt;
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};

/// Any error, as in [`Subject`](crate::Subject).
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a trial.
pub(crate) type Verdict = Result<(), Failure>;

/// Why a trial did not pass.
#[derive(Debug)]
pub struct Failure(Kind);

#[derive(Debug)]
enum Kind {
    /// The store did not do what its contract says.
    Broken(String),
    /// The store failed where nothing was wrong with it.
    Store(StoreError),
    /// The store to test was not available.
    Subject(BoxError),
    /// The trial itself was held up for so long that it can tell nothing.
    Delayed,
    /// The trial does not apply to this store.
    Skipped(&'static str),
}

impl Failure {
    pub(crate) fn subject(error: BoxError) -> Self {
        Self(Kind::Subject(error))
    }

    pub(crate) fn delayed() -> Self {
        Self(Kind::Delayed)
    }

    pub(crate) fn skipped(reason: &'static str) -> Self {
        Self(Kind::Skipped(reason))
    }

    /// Whether it says more about this machine than about the store: the trial was held up, or the
    /// store was, and knows it.
    pub(crate) fn is_delay(&self) -> bool {
        match &self.0 {
            Kind::Delayed => true,
            Kind::Store(error) => error.kind() == StoreErrorKind::Timeout,
            Kind::Subject(error) => error
                .downcast_ref::<StoreError>()
                .is_some_and(|error| error.kind() == StoreErrorKind::Timeout),
            _ => false,
        }
    }

    /// Whether the store refused a step for now.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(&self.0, Kind::Store(error) if error.kind() == StoreErrorKind::Unavailable)
    }

    pub(crate) fn skip_reason(&self) -> Option<&'static str> {
        match self.0 {
            Kind::Skipped(reason) => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Broken(message) => f.write_str(message),
            Kind::Store(error) => write!(f, "the store failed ({:?}): {error}", error.kind()),
            Kind::Subject(error) => write!(f, "no handle on the store: {error}"),
            Kind::Delayed => f.write_str(
                "this machine was too slow, again and again, to tell whether the store is right",
            ),
            Kind::Skipped(reason) => write!(f, "does not apply: {reason}"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Store(error) => Some(error),
            Kind::Subject(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(Kind::Store(error))
    }
}

/// The store did not do what its contract says.
pub(crate) fn broken(message: impl Into<String>) -> Failure {
    Failure(Kind::Broken(message.into()))
}

/// That what was found is what was wanted.
#[allow(clippy::needless_pass_by_value)] // Both are mostly made for the comparison.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, found: T, wanted: T) -> Verdict {
    if found == wanted {
        Ok(())
    } else {
        Err(broken(format!("{what}: wanted {wanted:?}, got {found:?}")))
    }
}

/// That a condition holds.
pub(crate) fn holds(what: &str, condition: bool) -> Verdict {
    if condition { Ok(()) } else { Err(broken(what)) }
}

/// That a length lies between two others.
pub(crate) fn between(what: &str, found: Duration, least: Duration, most: Duration) -> Verdict {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(broken(format!(
            "{what}: wanted between {least:?} and {most:?}, got {found:?}"
        )))
    }
}

/// That a value matches a pattern.
macro_rules! matches_or_broken {
    ($what:expr, $found:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match $found {
            $pattern $(if $guard)? => Ok(()),
            found => Err($crate::check::broken(format!(
                "{}: wanted {}, got {found:?}",
                $what,
                stringify!($pattern $(if $guard)?),
            ))),
        }
    };
}

pub(crate) use matches_or_broken;
