//! Steps that are tried again in the background.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::state::{OwnedState, Stage, Tried};
use crate::base::clock;
use crate::base::jitter::jittered;
use crate::error::StoreError;
use crate::record::Ownership;
use crate::runtime::background;

/// The first pause before a commit or release is tried again; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How often a step moves to another tokio runtime.
const MOVES: u8 = 8;

/// A step that is tried again in the background until the store carries it out or its time is up.
/// If its tokio runtime ends, the step moves to another one.
struct Retrying {
    state: Option<OwnedState>,
    counted: Option<background::CountedStep>,
    /// Its tokio runtime.
    on: Option<Id>,
    moves: u8,
    /// When its time is up, on whatever runtime it is then.
    until: Instant,
    /// Why the outcome was left out, if it was.
    left_out: Option<StoreError>,
}

impl OwnedState {
    /// Continues the step in the background.
    pub(super) fn carry_on(mut self) {
        let bytes = match &self.step {
            Stage::Committing {
                outcome: Some(outcome),
                ..
            } => outcome.payload.len(),
            _ => 0,
        };
        let Some(counted) = self.runtime.background.step(bytes) else {
            return self
                .give_up(&"too many others are being tried again (10,000, or 64 MiB of outcomes)");
        };
        // The store accepts a commit from the last owner even after its lease expired, so a commit
        // is worth trying for longer than a lease. A release only shortens the lease, so after a
        // lease it is worth nothing.
        let length = self.enrolled.term.length();
        let patience = match self.step {
            Stage::Committing { .. } => length.saturating_mul(10),
            _ => length,
        };
        let until = clock::after(clock::now(), patience);
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.runtime.keepers.known().another(None));
        Retrying {
            state: Some(self),
            counted: Some(counted),
            on: None,
            moves: 0,
            until,
            left_out: None,
        }
        .start(handle);
    }

    /// Looks whether the store has the outcome, although none of its answers has come.
    async fn is_recorded(&self) -> bool {
        let Stage::Committing { outcome, .. } = &self.step else {
            return false;
        };
        let term = &self.enrolled.term;
        let Ok(Some(found)) = self.runtime.store.inspect(&term.id).await else {
            return false;
        };
        term.has_recorded(&found, outcome.as_ref().map(|outcome| &outcome.payload))
    }
}

impl Retrying {
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
        let Some(state) = &mut self.state else { return };
        if !matches!(state.step, Stage::Committing { .. }) {
            state.enrolled.stop();
        }
        let mut pause = FIRST_PAUSE;
        loop {
            // A panic of the store counts as no answer.
            let tried = AssertUnwindSafe(state.try_step()).catch_unwind().await;
            let error = match tried.unwrap_or_else(|_| Tried::Failed(StoreError::panicked())) {
                Tried::Over(ownership) => {
                    if let (Ownership::Held, Some(why)) = (ownership, &self.left_out) {
                        state.not_encoded(why);
                    }
                    state.finish(ownership);
                    break;
                }
                Tried::Hopeless(error) => {
                    state.give_up(&error);
                    break;
                }
                Tried::Failed(error) => error,
            };
            if clock::now() >= self.until {
                let looking = AssertUnwindSafe(state.is_recorded()).catch_unwind();
                if looking.await.unwrap_or(false) {
                    state.finish(Ownership::Held);
                    break;
                }
                // The store may be unable to take this outcome, for example because it is large. So
                // the last try is one without it.
                if state.leaves_out_outcome() {
                    self.left_out = Some(error);
                    continue;
                }
                state.give_up(&error);
                break;
            }
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        self.state = None;
    }

    fn give_up(&mut self) {
        if let Some(mut state) = self.state.take() {
            state.give_up(
                &"its tokio runtime was shut down first, and there is no other to try it on",
            );
        }
    }
}

impl Drop for Retrying {
    fn drop(&mut self) {
        let Some(mut state) = self
            .state
            .take_if(|_| self.moves < MOVES && !std::thread::panicking())
        else {
            return self.give_up();
        };
        let Some(handle) = state.runtime.keepers.known().another(self.on) else {
            self.state = Some(state);
            return self.give_up();
        };
        if matches!(state.step, Stage::Committing { .. }) {
            // The keeper ended with its tokio runtime, so the lease needs a new one.
            let term = state.enrolled.term.clone();
            term.not_renewed();
            state.enrolled = state.runtime.keepers.enrol_on(&handle, term);
        }
        let counted = self.counted.take();
        let moves = self.moves + 1;
        Self {
            state: Some(state),
            counted,
            on: None,
            moves,
            until: self.until,
            left_out: self.left_out.take(),
        }
        .start(Some(handle));
    }
}
