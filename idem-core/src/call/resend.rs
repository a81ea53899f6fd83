//! Commits and releases that are sent again in the background.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use crate::base::backoff::Backoff;
use crate::base::clock;
use crate::call::judge::StepLeft;
use crate::call::owned::{Owned, Tried};
use crate::error::StoreError;
use crate::record::Ownership;
use crate::runtime::background::Counted;

/// The pauses before a commit or release is sent again.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// How often a step moves to another tokio runtime.
const MOVES: u8 = 8;

/// A step that is sent again in the background until the store carries it out or its time is up. If
/// its tokio runtime ends, the step moves to another one.
struct Resending {
    owned: Owned,
    /// `None` once the step has moved.
    counted: Option<Counted>,
    /// Its tokio runtime.
    on: Option<Id>,
    moves: u8,
    /// When its time is up, on whatever runtime it is then.
    until: Instant,
}

impl Owned {
    /// Renews the lease out of turn, so that the store knows how long the record must stay.
    pub(super) async fn renew(&self) -> Vec<Result<Ownership, StoreError>> {
        let renewal = [self.term().renewal()];
        self.runtime().store.renew(&renewal).await
    }

    /// Continues the step in the background.
    pub(super) fn resend(mut self) {
        let (bytes, commits) = match &self.pending {
            StepLeft::Commit { outcome, .. } => {
                let bytes = outcome.as_ref().map(|outcome| outcome.payload.len());
                (bytes.unwrap_or_default(), true)
            }
            _ => (0, false),
        };
        let Some(counted) = self.runtime().background.step(bytes) else {
            return self
                .give_up(&"too many others are being tried again (10,000, or 64 MiB of outcomes)");
        };
        // The store accepts a commit from the last owner even after its lease expired, so a commit
        // is worth trying for longer than a lease. A release only shortens the lease, so after a
        // lease it is worth nothing.
        let length = self.term().length();
        let patience = if commits {
            length.saturating_mul(10)
        } else {
            length
        };
        let until = clock::after(clock::now(), patience);
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.runtime().keepers.known().another(None));
        Resending {
            owned: self,
            counted: Some(counted),
            on: None,
            moves: 0,
            until,
        }
        .start(handle);
    }

    /// Looks whether the store has the outcome, although none of its answers has come.
    pub(super) async fn is_recorded(&mut self) -> bool {
        let StepLeft::Commit { outcome, .. } = &mut self.pending else {
            return false;
        };
        let term = &self.enrolled.term;
        let Ok(found) = self.call.guarded().runtime.store.inspect(&term.id).await else {
            return false;
        };
        self.unanswered.commit = false;
        let Some(found) = found else {
            return false;
        };
        let left_out = self.left_out.as_ref().map(|left_out| &left_out.outcome);
        let sent = outcome.as_ref().or(left_out);
        let is_recorded = term.has_recorded(&found, sent.map(|outcome| &outcome.payload));
        if is_recorded && found.outcome.is_some() {
            let left_out = self.left_out.take().map(|left_out| left_out.outcome);
            *outcome = outcome.take().or(left_out);
        }
        is_recorded
    }

    /// Gives up a step that the store would refuse each time. A commit of which an earlier try was
    /// carried out is finished instead. Returns whether that is so.
    pub(super) async fn give_up_unless_recorded(&mut self, error: &StoreError) -> bool {
        let looking = AssertUnwindSafe(self.is_recorded()).catch_unwind();
        let is_recorded = looking.await.unwrap_or(false);
        if is_recorded {
            self.finish(Ownership::Held);
        } else {
            self.give_up(error);
        }
        is_recorded
    }
}

impl Resending {
    fn start(mut self, handle: Option<Handle>) {
        match handle {
            Some(handle) => {
                self.on = Some(handle.id());
                handle.spawn(self.run());
            }
            None => self.give_up(),
        }
    }

    async fn run(mut self) {
        let owned = &mut self.owned;
        if !matches!(owned.pending, StepLeft::Commit { .. }) {
            owned.enrolled.stop();
        }
        let mut pauses = PAUSES;
        loop {
            // A panic of the store counts as no answer.
            let tried = AssertUnwindSafe(owned.send()).catch_unwind().await;
            let error = match tried.unwrap_or_else(|_| Tried::Failed(StoreError::panicked())) {
                Tried::Over(ownership) => return owned.finish(ownership),
                Tried::Hopeless(error) => {
                    owned.give_up_unless_recorded(&error).await;
                    return;
                }
                Tried::Failed(error) => error,
            };
            if clock::now() >= self.until {
                let looking = AssertUnwindSafe(owned.is_recorded()).catch_unwind();
                if looking.await.unwrap_or(false) {
                    return owned.finish(Ownership::Held);
                }
                // The store may be unable to take this outcome, for example because it is large. So
                // the last try is one without it.
                if owned.leaves_out_outcome(&error) {
                    continue;
                }
                return owned.give_up(&error);
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    fn give_up(&mut self) {
        self.owned
            .give_up(&"its tokio runtime was shut down first, and there is no other to try it on");
    }
}

impl Drop for Resending {
    fn drop(&mut self) {
        if self.owned.is_over() {
            return;
        }
        if self.moves >= MOVES || std::thread::panicking() {
            return self.give_up();
        }
        let known = self.owned.runtime().keepers.known();
        let Some(handle) = known.another(self.on) else {
            return self.give_up();
        };
        let mut owned = self.owned.hand_over();
        if matches!(owned.pending, StepLeft::Commit { .. }) {
            // The keeper ended with its tokio runtime, so the lease needs a new one.
            let term = owned.term().clone();
            term.not_renewed();
            owned.enrolled = owned.runtime().keepers.enrol_on(&handle, term);
        }
        Self {
            owned,
            counted: self.counted.take(),
            on: None,
            moves: self.moves + 1,
            until: self.until,
        }
        .start(Some(handle));
    }
}
