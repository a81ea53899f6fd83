//! The result of a try of reqwest that was redirected, or got no response.

use reqwest_middleware::Error;

use super::verdict::{Effect, Verdict};

impl Verdict {
    /// The verdict on a try that was redirected. A refusal by the target of the redirect does not show
    /// that the first server refused.
    pub(super) fn after_redirect(self) -> Self {
        Self {
            effect: if self.effect == Effect::None {
                Effect::Possible
            } else {
                self.effect
            },
            ..self
        }
    }

    /// Judges a try that got no response, or not all of it.
    pub(super) fn of_error(error: &Error) -> Self {
        match error {
            Error::Reqwest(error) if error.is_builder() => Self::new(false, Effect::None),
            Error::Reqwest(error) if error.is_connect() => Self::new(true, Effect::None),
            Error::Reqwest(error) if error.is_redirect() => Self::new(false, Effect::Possible),
            Error::Reqwest(_) => Self::new(true, Effect::Possible),
            // Other middleware may have sent the request.
            Error::Middleware(error) => {
                let sent = error.chain().find_map(|cause| match cause.downcast_ref()? {
                    Error::Reqwest(error) => Some(error),
                    Error::Middleware(_) => None,
                });
                let was_not_sent =
                    sent.is_some_and(|error| error.is_builder() || error.is_connect());
                Self::new(
                    false,
                    if was_not_sent {
                        Effect::None
                    } else {
                        Effect::Possible
                    },
                )
            }
        }
    }
}
