//! A body in a transaction, and what is done to its record when it has ended. The database's locks
//! replace the lease. So the body is not stopped, is not retried in the same transaction, and
//! cannot be abandoned.

use std::pin::pin;

use crate::adapter::catch_user_panic;
use crate::adapter::engine::{
    BodyExit, BodyWatch, ERROR_KEPT, EXECUTED, Event, NOT_RECORDED, RELEASED, STORE_FAILED,
    StepLeft, UNREADABLE, body,
};
use crate::layers::transactions::bodies::Body;
use crate::layers::transactions::driver::Transaction;
use crate::layers::transactions::open::{ClaimedRow, OpenTransaction};
use crate::record::Owner;
use crate::{Call, Error, Recorded, Store};

/// Returns the run of what this attempt has recorded beside its transaction.
fn run_of(call: &Call) -> Option<Owner> {
    call.guarded().companion.get()?.run()
}

impl<X: Transaction<S>, S: Store> OpenTransaction<'_, X, S> {
    /// Runs the body in the transaction. If the future is dropped, the event reports a call that was
    /// dropped in its body.
    pub(super) async fn run_body<R, B: Body<X, R>>(
        &mut self,
        call: &Call,
        body: &mut B,
    ) -> BodyExit<R> {
        self.attempt = Some(call.attempt());
        let watch = BodyWatch::start();
        let exit = {
            let mut running = pin!(Some(body.run(&mut *self.tx)));
            call.around(body::run(None, running.as_mut())).await
        };
        watch.stop(&self.request.id);
        self.attempt = None;
        exit
    }

    /// Does what is left to do to the record. Returns whether the body's error is recorded.
    pub(super) async fn carry_out(
        &mut self,
        store: &S,
        call: &Call,
        owner: Owner,
        pending: Option<StepLeft>,
    ) -> Result<bool, Error> {
        let attempt = call.attempt();
        match pending {
            Some(StepLeft::Commit { outcome, kept_for }) => {
                let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
                if is_error {
                    self.roll_back_body().await?;
                }
                let commit = self.request.commit(owner, attempt, outcome, kept_for);
                let begun = run_of(call);
                self.commit(store, &commit, begun).await?;
                if is_error {
                    self.note_kept_error(commit, begun);
                }
                self.report(event_on(is_error), attempt, None);
                Ok(is_error)
            }
            Some(StepLeft::GiveUp(_)) => {
                self.roll_back().await;
                self.report(RELEASED, attempt, None);
                Ok(false)
            }
            Some(StepLeft::Running | StepLeft::Over) | None => Ok(false),
        }
    }

    /// Claims the key after the body, without a wait (observe mode). Whoever ends the transaction
    /// decides about the body's rows, except that those of a kept error are rolled back. `None`:
    /// another call owns the record, which was reported.
    pub(super) async fn claim_after_body(
        &mut self,
        store: &S,
        keeps_error: bool,
        decode: impl Fn(&Recorded),
    ) -> Result<Option<ClaimedRow>, Error> {
        if keeps_error && self.depth > 0 {
            self.roll_back_body().await?;
        } else {
            self.release_all().await?;
        }
        let error = match self.claim(store).await {
            Ok(claimed) => return Ok(Some(claimed)),
            Err(Ok(recorded)) => {
                catch_user_panic(|| decode(&recorded));
                return Ok(None);
            }
            Err(Err(error)) => error,
        };
        let would = match error {
            Error::Store { .. } => Some(STORE_FAILED),
            Error::Codec { .. } => Some(UNREADABLE),
            // It was reported already.
            _ => None,
        };
        if let Some(would) = would {
            let reporter = self.runtime.reporter(self.request);
            reporter.decided(would, &self.request.id, 0);
        }
        Err(error)
    }

    /// Does to a record that was claimed after the body what a guarded call would have done.
    pub(super) async fn carry_out_observed(
        &mut self,
        store: &S,
        claimed: Result<Option<ClaimedRow>, Error>,
        pending: Option<StepLeft>,
    ) -> Result<(), Error> {
        let result = match (claimed, pending) {
            (Ok(Some(ClaimedRow { owner, row })), Some(StepLeft::Commit { outcome, kept_for })) => {
                let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
                let commit = self.request.commit(owner, row.attempt, outcome, kept_for);
                let committed = self.commit(store, &commit, None).await;
                let event = match &committed {
                    Ok(()) => event_on(is_error),
                    Err(_) => NOT_RECORDED,
                };
                self.report(event, row.attempt, None);
                committed
            }
            (Ok(Some(claimed)), _) => {
                self.roll_back().await;
                self.report(RELEASED, claimed.row.attempt, None);
                Ok(())
            }
            (Ok(None), _) => Ok(()),
            (Err(error), _) => Err(error),
        };
        // If the transaction is lost, its caller must not believe that it was committed. Any other
        // failure of `idem` changes nothing in observe mode.
        if !self.is_rollback_forced {
            return Ok(());
        }
        match result {
            Err(error @ Error::Store { .. }) => Err(error),
            _ => Err(self.lost()),
        }
    }
}

fn event_on(is_error: bool) -> Event {
    if is_error { ERROR_KEPT } else { EXECUTED }
}
