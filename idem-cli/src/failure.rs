//! Why a command failed, and its exit code.

use std::fmt;
use std::io;

use idem_core::store::trail;
use idem_core::{StoreError, StoreErrorKind};

/// The exit codes, as the guide has them.
pub(crate) const DONE: u8 = 0;
/// `doctor` found something.
pub(crate) const FOUND: u8 = 1;
pub(crate) const WRONG_ARGUMENTS: u8 = 2;
pub(crate) const NO_SUCH_RECORD: u8 = 3;
pub(crate) const REFUSED: u8 = 4;
pub(crate) const UNAVAILABLE: u8 = 5;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are invalid.
    Arguments(String),
    /// The record does not exist.
    NoRecord(String),
    /// The record is alive, or not abandoned, or the operator did not confirm.
    Refused(String),
    /// The store does not answer, or refuses.
    Store(StoreError),
    /// As `Store`, without an error of the store.
    Unavailable(String),
    /// The answer cannot be written.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Arguments(_) => WRONG_ARGUMENTS,
            Self::NoRecord(_) => NO_SUCH_RECORD,
            Self::Refused(_) => REFUSED,
            // The reader has ended, as `head` does.
            Self::Output(_) if self.is_closed_pipe() => DONE,
            Self::Store(_) | Self::Unavailable(_) | Self::Output(_) => UNAVAILABLE,
        }
    }

    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(text)
            | Self::NoRecord(text)
            | Self::Refused(text)
            | Self::Unavailable(text) => f.write_str(text),
            // The record is of a later version, damaged, or of another program.
            Self::Store(error) if error.kind() == StoreErrorKind::Unreadable => write!(
                f,
                "{error}; idem changes and removes nothing that it cannot read: if no later \
                 version wrote this, remove it with the store's own client"
            ),
            Self::Store(error) => write!(f, "{error}"),
            Self::Output(error) => write!(f, "the output cannot be written: {error}"),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// The failure of a change whose entry in the trail cannot be written.
pub(crate) fn without_entry(error: StoreError) -> Failure {
    match error.kind() {
        StoreErrorKind::Full => Failure::Unavailable(format!(
            "{error}; nothing was changed, because a change needs room for its entry in the audit \
             trail (`{}`). With `--no-audit` it leaves none, and only the log says who and why",
            trail::OPERATION
        )),
        _ => error.into(),
    }
}
