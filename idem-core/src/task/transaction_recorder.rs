//! An outcome that a transaction of the body records.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;

use crate::encoding::fingerprint::Fingerprint;
use crate::error::Error;
use crate::lease::term::Term;
use crate::observe::Decision;
use crate::outcome::Storable;
use crate::outcome::codec::TypeLabel;
use crate::record::{Commit, Encoded, Ownership};
use crate::runtime::Runtime;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::runtime::trace::CallMetadata;
use crate::store::{Store, Transaction};

/// The means of a transaction to record the outcome of an owner.
pub(crate) struct TransactionRecorder {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) term: Arc<Term>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) ttl: Duration,
    pub(crate) remember: Duration,
    /// The type of the outcome, as the record has it.
    pub(crate) label: TypeLabel,
    pub(crate) metadata: Option<Arc<CallMetadata>>,
    /// The call is in observe mode: no failure of `idem` may fail its transaction.
    pub(crate) observes: bool,
}

impl TransactionRecorder {
    /// Writes the outcome in a transaction, if the owner still owns the record. A value of `None`
    /// records that there was an outcome. If the record has another owner, the transaction can only
    /// be rolled back. Returns `false` if nothing was written for a call in observe mode, whose
    /// transaction is then as it was.
    pub(crate) async fn commit_in<X, S, T, Via>(
        &self,
        tx: &mut X,
        value: Option<&T>,
    ) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let Self { runtime, term, .. } = self;
        let writer = OutcomeWriter {
            runtime,
            id: &term.id,
            attempt: term.attempt,
            label: self.label,
            metadata: self.metadata.as_ref(),
        };
        let encoded = value.and_then(|value| writer.value(value));
        self.try_commit_in(tx, encoded).await
    }

    async fn try_commit_in<X, S>(&self, tx: &mut X, outcome: Option<Encoded>) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
    {
        let Self {
            runtime,
            term,
            fingerprint,
            ttl,
            remember,
            ..
        } = self;
        let Some(store) = runtime.store.of::<S>() else {
            if self.observes {
                return Ok(false);
            }
            return Err(Error::other_store::<S>(term.id.name()));
        };
        let commit = Commit {
            id: term.id.clone(),
            owner: term.owner,
            attempt: term.attempt,
            fingerprint: *fingerprint,
            outcome,
            ttl: *ttl,
            remember: *remember,
            as_claimed: None,
            claim_metadata: None,
        };
        if self.observes {
            return self.observe(tx, store, &commit).await;
        }
        match tx.commit(store, &commit).boxed().await {
            Ok(Ownership::Held) => {
                self.is_written(&commit);
                Ok(true)
            }
            Ok(Ownership::Lost) => {
                // If this fails too, the connection is lost, and the transaction with it.
                let _ = tx.force_rollback().await;
                let why = "the transaction that was to record it is rolled back";
                runtime.observer.decided_because(
                    Decision::CommitRefused,
                    &term.id,
                    term.attempt,
                    &why,
                );
                Err(term.lost_error())
            }
            Err(error) => {
                let _ = tx.force_rollback().await;
                Err(runtime.failed(&term.id, error))
            }
        }
    }

    fn is_written(&self, commit: &Commit) {
        self.term.note_recorded_in_transaction(
            commit
                .outcome
                .as_ref()
                .map(|outcome| outcome.payload.clone()),
        );
    }

    /// Writes the outcome behind a savepoint, and rolls back to the savepoint on failure.
    async fn observe<X, S>(&self, tx: &mut X, store: &S, commit: &Commit) -> Result<bool, Error>
    where
        X: Transaction<S>,
        S: Store,
    {
        // If the transaction is lost, its caller must not believe that it was committed.
        let lost = |error| self.runtime.failed(&self.term.id, error);
        tx.savepoint().boxed().await.map_err(lost)?;
        if let Ok(Ownership::Held) = tx.commit(store, commit).boxed().await {
            tx.release().await.map_err(lost)?;
            self.is_written(commit);
            return Ok(true);
        }
        tx.roll_back().boxed().await.map_err(lost)?;
        Ok(false)
    }
}
