//! Decides whether a step that failed is sent again.

use std::time::Duration;

use idem_core::StoreError;

use super::super::dialect::ErrorClass;
use super::errors;

/// How often a step is sent again after a conflict with another transaction.
const CONFLICTS: u32 = 20;

/// Whether work may be sent again if its result is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resend {
    /// It only reads: a lost answer leaves nothing unknown.
    Reads,
    /// A second time changes nothing.
    Harmless,
    Never,
}

/// Counts how often one step was sent again.
pub(super) struct Retries {
    conflicts: u32,
    losses: u32,
    most_losses: u32,
    was_stale: bool,
    /// Whether an answer was lost, so that the step may have been carried out.
    is_unknown: bool,
}

/// Whether a step is sent again.
pub(super) enum Retry {
    After(Duration),
    OnAnotherConnection,
    /// Not on one that is idle now.
    OnNewConnection,
    Never,
}

impl Retries {
    /// After a restart of the server, each idle connection of the pool is lost.
    pub(super) fn new(connections: u32) -> Self {
        Self {
            conflicts: 0,
            losses: 0,
            most_losses: connections.saturating_add(1),
            was_stale: false,
            is_unknown: false,
        }
    }

    /// Returns the error of the step, whose last attempt failed with this one.
    pub(super) fn settle(&self, last: StoreError) -> StoreError {
        if self.is_unknown {
            errors::after_loss(last)
        } else {
            last
        }
    }

    pub(super) fn decide(&mut self, error: ErrorClass, resend: Resend) -> Retry {
        self.is_unknown |= error == ErrorClass::Lost && resend != Resend::Reads;
        match error {
            ErrorClass::Conflict if self.conflicts < CONFLICTS => {
                self.conflicts += 1;
                let longest = 1000 * u64::from(self.conflicts);
                Retry::After(Duration::from_micros(fastrand::u64(..longest)))
            }
            ErrorClass::Stale(..) if !self.was_stale => {
                self.was_stale = true;
                Retry::OnNewConnection
            }
            ErrorClass::Lost if resend == Resend::Never => Retry::Never,
            ErrorClass::Lost | ErrorClass::Ended(_) if self.losses < self.most_losses => {
                self.losses += 1;
                Retry::OnAnotherConnection
            }
            _ => Retry::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use idem_core::StoreErrorKind::{
        self, Full, Refused, Timeout, TooLarge, Unavailable, Unreadable,
    };

    use super::*;

    #[test]
    fn a_lost_answer_makes_the_end_unknown_unless_the_step_reads_or_the_error_is_about_the_row() {
        use ErrorClass::{Conflict, Ended, Lost};
        let (stale, all) = (
            ErrorClass::Stale(Unavailable, ""),
            [Timeout, Refused, Full, TooLarge, Unreadable],
        );
        let unknown: &[StoreErrorKind] = &[Timeout, Refused, Full];
        for (met, resend, unknown) in [
            (&[Lost][..], Resend::Harmless, unknown),
            (&[Lost], Resend::Reads, &[]),
            (
                &[Lost, Conflict, Ended(""), stale],
                Resend::Harmless,
                unknown,
            ),
            (&[Conflict, stale, Lost], Resend::Harmless, unknown),
            (&[Conflict, Ended(""), stale], Resend::Harmless, &[]),
        ] {
            let mut retries = Retries::new(10);
            for &error in met {
                assert!(!matches!(retries.decide(error, resend), Retry::Never));
            }
            for kind in all {
                let error = retries.settle(StoreError::new(kind, "").unsent());
                assert_eq!(
                    error.is_unknown(),
                    unknown.contains(&kind),
                    "{met:?}, {kind:?}"
                );
                let as_it_was = if error.is_unknown() {
                    Unavailable
                } else {
                    kind
                };
                assert_eq!(error.kind(), as_it_was);
            }
        }
    }
}
