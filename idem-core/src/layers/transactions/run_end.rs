//! The end of a run of steps beside a transaction. The transaction that records the outcome writes
//! it.

use std::time::Duration;

use crate::adapter::engine::RunEnd;
use crate::layers::transactions::driver::{Began, RowOwner, Transaction};
use crate::record::{Claim, Claimed, Commit, Owner, Ownership};
use crate::{Store, StoreError, StoreErrorKind};

/// How long the end of a run waits for a lock. Nobody else writes it, but ranges may be locked.
const WAIT: Duration = Duration::from_secs(1);

/// Writes the end of a run. Returns whether the transaction may be committed.
pub(super) async fn write_run_end<X, S>(
    end: &RunEnd,
    tx: &mut X,
    store: &S,
    owner: Owner,
) -> Result<Ownership, StoreError>
where
    X: Transaction<S>,
    S: Store,
{
    let claim = Claim::new(end.id.clone(), owner, Duration::ZERO, end.kept);
    match tx.claim(store, &claim, WAIT).await? {
        Began::Owner(row) => {
            let commit = Commit::new(end.id.clone(), owner, row.attempt, None, end.kept);
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
