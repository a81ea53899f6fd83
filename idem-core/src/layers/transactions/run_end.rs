//! The outcome of a call in its transaction, and with it the end of the run of steps beside that.

use std::time::Duration;

use crate::layers::transactions::driver::{Began, RowOwner, Transaction};
use crate::record::{Claim, Claimed, Commit, Owner, Ownership, is_step};
use crate::{Store, StoreError, StoreErrorKind};

/// How long the end of a run waits for a lock. Nobody else writes it, but ranges may be locked.
const WAIT: Duration = Duration::from_secs(1);

/// The run of steps beside a transaction, which ends with the outcome of their call.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunBeside {
    /// The one whose steps this attempt has begun. `None`: an earlier attempt may have one, of
    /// which only the record beside the transaction tells.
    pub(super) begun: Option<Owner>,
    /// How long its end stays.
    pub(super) end_kept: Duration,
}

impl RunBeside {
    /// Writes the outcome of a row that the transaction has claimed, and the end of the run, if
    /// there is one. Returns whether the transaction may be committed.
    pub(super) async fn commit<X, S>(
        self,
        tx: &mut X,
        store: &S,
        commit: &Commit,
    ) -> Result<Ownership, StoreError>
    where
        X: Transaction<S>,
        S: Store,
    {
        // Beside these, no step is ever recorded.
        if X::ONE_WRITER || is_step(commit.id.operation()) {
            let row = RowOwner::ThisTransaction;
            return tx.commit(store, commit, row).await;
        }
        let beside = commit.id.beside();
        let written = tx.commit_and_look(store, commit, &beside).await?;
        if written.ownership == Ownership::Lost {
            return Ok(Ownership::Lost);
        }
        let run = match self.begun {
            None if written.has_beside => {
                let found = tx.inspect(store, &beside).await?;
                found.and_then(|found| found.run)
            }
            begun => begun,
        };
        match run {
            Some(run) => {
                let end = Claim::new(
                    beside.end_of(run),
                    commit.owner,
                    Duration::ZERO,
                    self.end_kept,
                );
                write_end(tx, store, end).await
            }
            None => Ok(Ownership::Held),
        }
    }
}

async fn write_end<X, S>(tx: &mut X, store: &S, end: Claim) -> Result<Ownership, StoreError>
where
    X: Transaction<S>,
    S: Store,
{
    match tx.claim(store, &end, WAIT).await? {
        Began::Owner(row) => {
            let Claim {
                id, owner, hold, ..
            } = end;
            let commit = Commit::new(id, owner, row.attempt, None, hold);
            tx.commit(store, &commit, RowOwner::Lease).await
        }
        // The run was that of a record that this outcome ends, or it is sent again.
        Began::Answered(Claimed::Done { .. }) => Ok(Ownership::Held),
        Began::LeaseHolds { .. } | Began::Answered(Claimed::InFlight { .. }) => {
            Err(StoreError::new(
                StoreErrorKind::Conflict,
                "another transaction holds a lock where the end of the steps is to be written: \
                 begin it again",
            ))
        }
        Began::Answered(_) => Ok(Ownership::Lost),
    }
}
