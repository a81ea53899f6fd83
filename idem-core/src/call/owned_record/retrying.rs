//! Steps that are tried again without a caller.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Handle, Id};

use super::{OwnedRecord, OwnedState, Stage, Tried};
use crate::base::clock;
use crate::base::jitter::jittered;
use crate::call::plan::GiveUp;
use crate::error::StoreError;
use crate::record::Ownership;
use crate::runtime::background;

/// The first pause before a commit or release is tried again; it doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How often a step moves to another tokio runtime.
const MOVES: u8 = 8;

impl OwnedRecord {
    /// The holder of a lock is gone: the key is to be released, unless that was done. If the lease is
    /// lost, there is nothing to release.
    pub(crate) fn plan_release(&mut self) {
        let Some(state) = &mut self.state else { return };
        if !matches!(state.step, Stage::Running) {
            return;
        }
        if self.term.is_lost() {
            self.lost();
        } else {
            state.step = Stage::Releasing(GiveUp::Release);
        }
    }
}

/// A step that is tried again in the background until the store takes it, or it makes no sense any
/// more. When its tokio runtime ends, it moves to another one.
pub(super) struct Retrying {
    pub(super) state: Option<OwnedState>,
    pub(super) counted: Option<background::CountedStep>,
    /// The tokio runtime that it is on.
    pub(super) on: Option<Id>,
    pub(super) moves: u8,
}

impl Retrying {
    pub(super) fn start(mut self, handle: Option<Handle>) {
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
        // A commit is accepted from the last owner even after its lease ran out, so it is worth
        // more than a lease of trying. A release is worth no more than what it would shorten.
        let patience = if matches!(state.step, Stage::Committing { .. }) {
            state.enrolled.term.length().saturating_mul(10)
        } else {
            state.enrolled.stop();
            state.enrolled.term.length()
        };
        let until = clock::after(clock::now(), patience);
        let mut pause = FIRST_PAUSE;
        loop {
            // A store that panics has not answered.
            let tried = AssertUnwindSafe(state.try_step()).catch_unwind().await;
            let error = match tried.unwrap_or_else(|_| Tried::Failed(StoreError::panicked())) {
                Tried::Over(ownership) => {
                    state.finish(ownership);
                    break;
                }
                Tried::Hopeless(error) => {
                    state.give_up(&error);
                    break;
                }
                Tried::Failed(error) => error,
            };
            if clock::now() >= until {
                // The store may have been asked for what it cannot do, such as to take a large value.
                let is_done = state.leaves_out_outcome()
                    && matches!(state.try_step().await, Tried::Over(Ownership::Held));
                if is_done {
                    state.not_encoded(&error);
                    state.finish(Ownership::Held);
                } else {
                    state.give_up(&error);
                }
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
            // The keeper has ended with the tokio runtime, and its renewal with it.
            let term = state.enrolled.term.clone();
            term.not_renewed();
            state.enrolled = state.runtime.keepers.enrol_on(&handle, term);
        }
        let (counted, moves) = (self.counted.take(), self.moves + 1);
        Self {
            state: Some(state),
            counted,
            on: None,
            moves,
        }
        .start(Some(handle));
    }
}
