//! Observe mode in a transaction: the body runs, and the record is claimed and committed after it.
//!
//! A claim before the body would hold the record's row while the body runs, and the transactions of
//! other calls would meet it. After the body, one savepoint holds everything of `idem`: what fails
//! is rolled back to it, and the body's rows stay as they are.

use std::sync::Arc;

use super::{Began, Body, Ends, InTransaction, Open, Ran, commit_of};
use crate::call::recorded::Recorded;
use crate::call::rejected::Rejected;
use crate::call::request::Request;
use crate::error::Error;
use crate::observe::{BodyWatch, Decision, outward};
use crate::outcome::Outcome;
use crate::policy::errors::ErrorAction;
use crate::record::{Commit, Owner};
use crate::runtime::Runtime;
use crate::store::{Store, Transaction};
use crate::task::current::{AskMode, Call};
use crate::task::watch::{self, Seen};

impl<R, T, E, P, S> InTransaction<'_, R, T, E, P, S>
where
    S: Store,
    P: Fn(&E) -> ErrorAction,
{
    /// Runs the body whatever the record says, and then says what a guarded call would have done.
    pub(super) async fn observe<X, B>(
        &self,
        tx: &mut X,
        body: &mut B,
        ends: Ends,
        (runtime, request, store): (&Arc<Runtime>, &Request, &S),
    ) -> Ran<'_, T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        watch::saw(Seen::Executed);
        let mut open = Open::new(tx, runtime, request);
        // Where the library ends the transaction, nothing of a failed body is committed with its
        // error. Where the caller does, that is up to the caller, as without `idem`.
        if !ends.is_caller()
            && self.policy.keeper.is_some()
            && let Err(error) = open.savepoint().await
        {
            return Ran::Refused(open.failed(error).await);
        }
        let call = Call::new(request.id.clone(), 0, false, AskMode::Nothing, runtime.identity());
        open.attempt = Some(0);
        let watch = BodyWatch::start();
        let returned = call.around(body.run(&mut *open.tx)).await;
        watch.stop(&request.id);
        match (self.witness.split)(returned) {
            Ok(value) => {
                open.attempt = None;
                if let Err(error) = open.release_all().await {
                    return Ran::Refused(error);
                }
                let recorded = match self.claim(&mut open, store).await {
                    Ok(Some((attempt, owner))) => {
                        let outcome = self.encoded(runtime, request, &call, attempt, &value);
                        let commit = commit_of(request, owner, attempt, outcome, None);
                        open.record(store, &commit, Decision::Executed).await
                    }
                    claimed => claimed.map(drop),
                };
                open.fate(recorded).map_or_else(|| Ran::Done(Outcome::executed(value)), Ran::Refused)
            }
            Err(error) => {
                call.passes_on_trouble();
                let kept = self.kept(runtime, request, &call, &error);
                open.attempt = None;
                let Some((encoded, own)) = kept else {
                    let looked = self.look(&mut open, store).await;
                    return open.fate(looked).map_or_else(|| Ran::Failed(error), Ran::Refused);
                };
                if open.depth > 0
                    && let Err(error) = open.roll_back_body().await
                {
                    return Ran::Refused(error);
                }
                let recorded = match self.claim(&mut open, store).await {
                    Ok(Some((attempt, owner))) => {
                        let commit = commit_of(request, owner, attempt, Some(encoded), own);
                        open.record(store, &commit, Decision::ErrorKept).await
                    }
                    claimed => claimed.map(drop),
                };
                open.fate(recorded).map_or_else(|| Ran::Kept(error), Ran::Refused)
            }
        }
    }

    /// Says what a guarded call would have done whose body is released, and leaves no trace.
    async fn look<X: Transaction<S>>(&self, open: &mut Open<'_, X, S>, store: &S) -> Result<(), Error> {
        let (runtime, request) = (open.runtime, open.request);
        // The body's rows are what its caller makes of them.
        open.release_all().await?;
        if let Some((attempt, _)) = self.claim(open, store).await? {
            open.roll_back().await;
            runtime.observer.decided(Decision::Released, &request.id, attempt);
        }
        Ok(())
    }

    /// Claims without a wait. `None`: the record is another call's, as is said.
    async fn claim<X: Transaction<S>>(
        &self,
        open: &mut Open<'_, X, S>,
        store: &S,
    ) -> Result<Option<(u64, Owner)>, Error> {
        let (runtime, request) = (open.runtime, open.request);
        match open.claim(store, Ends::Caller, None).await {
            Ok(Began::Owner { attempt, owner, .. }) => Ok(Some((attempt, owner))),
            Ok(Began::Met { left, .. }) => Err(runtime.reject(request, &Rejected::InFlight(left))),
            Ok(Began::Replay(recorded)) => {
                // Says so of an outcome that could not have been replayed.
                outward(|| self.look_at(&recorded));
                Ok(None)
            }
            Err(error) => {
                let would = match error {
                    Error::Store { .. } => Some(Decision::StoreFailed),
                    Error::Codec { .. } => Some(Decision::Unreadable),
                    // Said already.
                    _ => None,
                };
                if let Some(would) = would {
                    runtime.reporter(request).decided(would, &request.id, 0);
                }
                Err(error)
            }
        }
    }

    fn look_at(&self, recorded: &Recorded) {
        match &self.policy.keeper {
            Some(keeper) if recorded.is_error() => drop((keeper.decode)(recorded)),
            _ => drop((self.witness.decode)(recorded)),
        }
    }
}

impl<X: Transaction<S>, S: Store> Open<'_, X, S> {
    /// Records what came of the body.
    async fn record(&mut self, store: &S, commit: &Commit, decision: Decision) -> Result<(), Error> {
        let (runtime, request) = (self.runtime, self.request);
        self.commit(store, commit).await.inspect_err(|_| {
            runtime.observer.decided(Decision::NotRecorded, &request.id, commit.attempt);
        })?;
        runtime.observer.decided(decision, &request.id, commit.attempt);
        Ok(())
    }

    /// The error of a call whose transaction is lost: its caller must not take it for committed.
    /// Any other failure of `idem` changes nothing for an observing call.
    fn fate(&self, came: Result<(), Error>) -> Option<Error> {
        if !self.is_doomed {
            return None;
        }
        Some(match came {
            Err(error @ Error::Store { .. }) => error,
            _ => self.lost(),
        })
    }
}
