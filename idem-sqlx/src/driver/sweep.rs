//! Deleting what has expired, without a caller.

use std::sync::{Arc, Weak};
use std::time::Duration;

use idem_core::StoreError;
use tokio::time::sleep;

/// How many rows go at a time: short transactions, so that no call waits for one.
const BATCH: i64 = 500;
/// The pause between two batches while there is more.
const BETWEEN: Duration = Duration::from_millis(20);
/// Between two sweeps, spread by half of it in either direction.
const EVERY: Duration = Duration::from_secs(10);

/// A table from which expired rows are deleted.
pub(crate) trait Swept: Send + Sync + 'static {
    /// Deletes up to `limit` expired rows, and says how many.
    fn sweep_batch(self: &Arc<Self>, limit: i64) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Sweeps until the store is gone. Each process does; they pass over each other's rows.
pub(crate) async fn keep_swept<S: Swept>(store: Weak<S>) {
    loop {
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = sweep(&store).await {
            tracing::debug!(target: "idem", %error, "expired records could not be deleted; it is tried again");
        }
    }
}

/// Deletes all that has expired, in batches, and says how many rows that were.
pub(crate) async fn sweep<S: Swept>(store: &Arc<S>) -> Result<u64, StoreError> {
    let mut all = 0;
    loop {
        let swept = store.sweep_batch(BATCH).await?;
        all += swept;
        if swept < BATCH.unsigned_abs() {
            return Ok(all);
        }
        sleep(BETWEEN).await;
    }
}
