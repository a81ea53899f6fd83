//! The times of a call: a text, or a `Duration`.

use std::time::Duration;

use super::{Operation, Times};
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
        self.draft.set(name, length.into_duration(), set);
        self
    }

    /// The times of an annotated function: each of them is a `Duration`, which the compiler checks.
    #[doc(hidden)]
    #[inline]
    pub fn times(self) -> Times<'a, Q, P> {
        Times(self)
    }
}
