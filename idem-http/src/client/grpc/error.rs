//! The error of a call that may have been carried out.

use std::error::Error;
use std::fmt;
use std::io;

use super::BoxError;
use crate::key::IdempotencyKey;

/// The client gave up on a call that may have been carried out: its outcome is unknown.
///
/// Report neither success nor failure. Call again with the same [`key`](Self::key), by a
/// [`RequestKey`](crate::RequestKey). [`find`](Self::find) takes this error out of a `tonic::Status`.
///
/// Its text names the method, but not the key. Its [`source`](Error::source) is `None`: tonic would
/// take the status of a source, such as `CANCELLED`, for that of the call.
pub struct UnknownOutcome {
    pub(super) key: IdempotencyKey,
    pub(super) method: String,
    pub(super) tries: u32,
    pub(super) status: Option<u16>,
    pub(super) last_error: Option<BoxError>,
}

impl UnknownOutcome {
    /// Finds this error in an error, or in its sources; `None` if no try is known that may have been
    /// carried out.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(unknown) = error.downcast_ref() {
                return Some(unknown);
            }
            next = cause(error);
        }
        None
    }

    /// Returns the key that all tries carried.
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Returns how often the call was sent.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns the status of gRPC of the last try, such as 14 for `UNAVAILABLE`; `None` if it had
    /// none.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Returns the error of the last try; `None` if it got a response, or was ended by the deadline.
    pub fn last_error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.last_error.as_deref()
    }
}

/// Returns the error that caused this one.
pub(super) fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    // An `io::Error` around another error names the source of that one as its own.
    match error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

impl fmt::Display for UnknownOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the outcome is unknown: the call may have been carried out (tries: {}, last result: ",
            self.method, self.tries
        )?;
        match (self.status, &self.last_error) {
            (Some(status), _) => write!(f, "status {status}")?,
            (None, Some(error)) => write!(f, "{error}")?,
            (None, None) => f.write_str("no response before the deadline")?,
        }
        f.write_str("); call again with the same key")
    }
}

impl fmt::Debug for UnknownOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnknownOutcome")
            .field("method", &self.method)
            .field("tries", &self.tries)
            .field("status", &self.status)
            .field("last_error", &self.last_error)
            .finish_non_exhaustive()
    }
}

impl Error for UnknownOutcome {}
