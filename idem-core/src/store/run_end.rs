//! The end of a run of steps beside a transaction.

use std::time::Duration;

use super::{Store, Transaction};
use crate::error::{StoreError, StoreErrorKind};
use crate::record::{Claim, Claimed, Commit, Owner, Ownership, RecordId};

/// How long the end of a run waits for a lock. Nobody else writes it, but ranges may be locked.
const WAIT: Duration = Duration::from_secs(1);

/// The record that says that a run of [steps](crate::step) beside a transaction has ended. The
/// transaction that records the outcome writes it.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) id: RecordId,
    /// How long it stays.
    pub(crate) kept: Duration,
}

impl RunEnd {
    /// Writes it. Returns whether the transaction may be committed.
    pub(crate) async fn write_in<X, S>(
        &self,
        tx: &mut X,
        store: &S,
        owner: Owner,
    ) -> Result<Ownership, StoreError>
    where
        X: Transaction<S>,
        S: Store,
    {
        let claim = Claim::new(self.id.clone(), owner, Duration::ZERO, self.kept);
        match tx.claim(store, &claim, WAIT).await? {
            Claimed::Owned { attempt, .. } => {
                let commit = Commit::new(self.id.clone(), owner, attempt, None, self.kept);
                tx.commit(store, &commit).await
            }
            // The run was that of a record that this outcome ends, or it is sent again.
            Claimed::Done { .. } => Ok(Ownership::Held),
            Claimed::InFlight { .. } => Err(StoreError::new(
                StoreErrorKind::Conflict,
                "another transaction holds a lock where the end of the steps is to be written: \
                 begin it again",
            )),
            _ => Ok(Ownership::Lost),
        }
    }
}
