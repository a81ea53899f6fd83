//! The times of a call: a text, or a `Duration`.

use std::time::Duration;

use super::Operation;
use crate::base::duration::IntoDuration;
use crate::policy::settings::Settings;

impl<'a, Q, P> Operation<'a, Q, P> {
    /// Sets a time, or notes what is wrong with its text.
    #[inline]
    pub(super) fn set(
        mut self,
        name: &str,
        length: impl IntoDuration,
        set: fn(&mut Settings, Duration),
    ) -> Self {
        match length.into_duration() {
            Ok(length) => set(&mut self.draft.settings, length),
            Err(reason) => self.draft.bad_duration(name, &reason),
        }
        self
    }

    /// The times of an annotated function: each of them is a `Duration`, which the compiler checks.
    #[doc(hidden)]
    #[inline]
    pub fn times(self) -> Times<'a, Q, P> {
        Times(self)
    }
}

/// See [`Operation::times`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Times<'a, Q, P>(Operation<'a, Q, P>);

#[doc(hidden)]
impl<'a, Q, P> Times<'a, Q, P> {
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0 = self.0.ttl(ttl);
        self
    }

    #[inline]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.0 = self.0.remember(remember);
        self
    }

    #[inline]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.0 = self.0.hold(hold);
        self
    }

    #[inline]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0 = self.0.lease(lease);
        self
    }

    #[inline]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0 = self.0.wait(wait);
        self
    }

    #[inline]
    pub fn into_operation(self) -> Operation<'a, Q, P> {
        self.0
    }
}
