//! An outcome that a transaction of the body records.

use std::sync::Arc;

use futures_util::future::FutureExt as _;

use crate::error::Error;
use crate::lease::term::Term;
use crate::observe::Event;
use crate::outcome::Storable;
use crate::record::{Commit, Encoded, Ownership};
use crate::store::{Store, Transaction};
use crate::task::current::Guarded;

pub(crate) const COMMIT_REFUSED: Event = Event::warn("commit_refused");

impl Guarded {
    /// Writes the outcome in a transaction, if the owner still owns the record. A value of `None`
    /// records that there was an outcome. If the record has another owner, the transaction can only
    /// be rolled back. Returns `false` if nothing was written for a call in observe mode, whose
    /// transaction is then as it was.
    pub(crate) async fn commit_in<X, S, T, Via>(
        &self,
        term: &Arc<Term>,
        tx: &mut X,
        value: Option<&T>,
    ) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let encoded = value.and_then(|value| self.writer().value(value));
        self.try_commit_in(term, tx, encoded).await
    }

    async fn try_commit_in<X, S>(
        &self,
        term: &Arc<Term>,
        tx: &mut X,
        outcome: Option<Encoded>,
    ) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
    {
        let runtime = &self.runtime;
        let Some(store) = runtime.store.of::<S>() else {
            if self.observes() {
                return Ok(false);
            }
            return Err(Error::other_store::<S>(term.id.name()));
        };
        let commit = self.request.commit(term.owner, term.attempt, outcome, None);
        if self.observes() {
            return self.observe(term, tx, store, &commit).await;
        }
        match tx.commit(store, &commit).boxed().await {
            Ok(Ownership::Held) => {
                note_written(term, &commit);
                Ok(true)
            }
            Ok(Ownership::Lost) => {
                // If this fails too, the connection is lost, and the transaction with it.
                let _ = tx.force_rollback().await;
                let why = "the transaction that was to record it is rolled back";
                runtime
                    .observer
                    .report(COMMIT_REFUSED, &term.id, term.attempt, Some(&why));
                Err(term.lost_error())
            }
            Err(error) => {
                let _ = tx.force_rollback().await;
                Err(runtime.failed(&term.id, error))
            }
        }
    }

    /// Writes the outcome behind a savepoint, and rolls back to the savepoint on failure.
    async fn observe<X, S>(
        &self,
        term: &Term,
        tx: &mut X,
        store: &S,
        commit: &Commit,
    ) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
    {
        // If the transaction is lost, its caller must not believe that it was committed.
        let lost = |error| self.runtime.failed(&term.id, error);
        tx.savepoint().boxed().await.map_err(lost)?;
        if let Ok(Ownership::Held) = tx.commit(store, commit).boxed().await {
            tx.release().await.map_err(lost)?;
            note_written(term, commit);
            return Ok(true);
        }
        tx.roll_back().boxed().await.map_err(lost)?;
        Ok(false)
    }
}

fn note_written(term: &Term, commit: &Commit) {
    let outcome = commit.outcome.as_ref();
    term.note_recorded_in_transaction(outcome.map(|outcome| outcome.payload.clone()));
}
