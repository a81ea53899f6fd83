//! Deleting what has expired, without a caller.

use std::sync::Weak;
use std::time::Duration;

use idem_core::StoreError;
use std::sync::Arc;
use tokio::time::sleep;

use super::core::Core;
use super::dialect::Dialect;

/// How many rows go at a time: short transactions, so that no call waits for one.
const BATCH: i64 = 500;
/// The pause between two batches while there is more.
const BETWEEN: Duration = Duration::from_millis(20);
/// Between two sweeps, spread by half of it in either direction.
const EVERY: Duration = Duration::from_secs(10);

/// Sweeps until the store is gone. Each process does; they pass over each other's rows.
pub(crate) async fn keep_swept<D: Dialect>(core: Weak<Core<D>>) {
    loop {
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
        let Some(core) = core.upgrade() else { return };
        if let Err(error) = sweep(&core).await {
            tracing::debug!(target: "idem", %error, "expired records could not be deleted; it is tried again");
        }
    }
}

/// Deletes all that has expired, in batches, and says how many rows that were.
pub(crate) async fn sweep<D: Dialect>(core: &Arc<Core<D>>) -> Result<u64, StoreError> {
    let mut all = 0;
    loop {
        let swept =
            core.queued(true, true, |dialect, on| Box::pin(async move { Ok(dialect.sweep(on, BATCH).await?) })).await?;
        all += swept;
        if swept < BATCH.unsigned_abs() {
            return Ok(all);
        }
        sleep(BETWEEN).await;
    }
}
