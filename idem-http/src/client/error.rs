//! The error of a request that may have been carried out.

use std::error::Error;
use std::fmt;

use http::StatusCode;
use reqwest::Request;

use crate::key::IdempotencyKey;

/// The client gave up on a request that may have been carried out: its outcome is unknown.
///
/// Report neither success nor failure. Look the request up by its [`key`](Self::key), or send it
/// again with the same key. [`find`](Self::find) takes this error out of a
/// [`reqwest_middleware::Error::Middleware`].
///
/// Its text names method, host and path, but neither the key nor the query.
pub struct UnknownOutcome {
    pub(super) key: IdempotencyKey,
    pub(super) target: String,
    pub(super) tries: u32,
    pub(super) status: Option<StatusCode>,
    pub(super) lookup_status: Option<StatusCode>,
    pub(super) source: Option<reqwest_middleware::Error>,
}

impl UnknownOutcome {
    /// Finds this error in the error of a request; `None` if no try is known that may have been
    /// carried out.
    pub fn find(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }

    /// Returns the key that all tries carried.
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Returns how often the request was sent.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns the status of the last try; `None` if it got no response.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Returns the status of the lookup; `None` if there was no lookup, or no answer to it.
    ///
    /// 404 says that nothing was recorded yet, 202 that the request is in flight, 410 that it was
    /// carried out, and 409 that it was interrupted.
    pub fn lookup_status(&self) -> Option<StatusCode> {
        self.lookup_status
    }
}

/// A request, as errors and events name it.
pub(super) fn target(request: &Request) -> String {
    let url = request.url();
    format!(
        "{} {}{}",
        request.method(),
        url.host_str().unwrap_or_default(),
        url.path()
    )
}

impl fmt::Display for UnknownOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, tries, .. } = self;
        write!(
            f,
            "{target}: the outcome is unknown: the request may have been carried out (tries: \
             {tries}, last result: "
        )?;
        match (self.status, &self.source) {
            (Some(status), _) => write!(f, "{status}")?,
            (None, Some(error)) => write!(f, "{error}")?,
            (None, None) => f.write_str("no response before the deadline")?,
        }
        if let Some(status) = self.lookup_status {
            write!(f, ", lookup: {status}")?;
        }
        f.write_str("); look it up by its key, or send it again with the same key")
    }
}

impl fmt::Debug for UnknownOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnknownOutcome")
            .field("target", &self.target)
            .field("tries", &self.tries)
            .field("status", &self.status)
            .field("lookup_status", &self.lookup_status)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Error for UnknownOutcome {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
