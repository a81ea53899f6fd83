//! Deleting what has expired, without a caller.

use std::sync::{Arc, Weak};
use std::time::Duration;

use idem_core::__private::outward;
use idem_core::StoreError;
use tokio::time::sleep;

/// How many rows go at a time: short transactions, so that no call waits for one.
const BATCH: i64 = 500;
/// The same at first, where a batch keeps all calls waiting; and at least.
const FEW: i64 = 50;
const FEWEST: i64 = 10;
/// How long a batch may take there. In a large file, each of its rows may be on a page of its own.
const LONGEST: Duration = Duration::from_millis(5);
/// The pause between two batches while there is more. Where a batch keeps all calls waiting, the pause is as long as
/// a batch may take: calls get half of the time, and a sweep keeps up with the records that they write.
const BETWEEN: Duration = Duration::from_millis(20);
/// Between two sweeps, spread by half of it in either direction.
const EVERY: Duration = Duration::from_secs(10);

/// A table from which expired rows are deleted.
pub(crate) trait Swept: Send + Sync + 'static {
    /// Whether no call can write while a batch is deleted.
    const ONE_WRITER: bool;

    /// Deletes up to `limit` expired rows, and says how many, and how long that took.
    fn sweep_batch(self: &Arc<Self>, limit: i64) -> impl Future<Output = Result<(u64, Duration), StoreError>> + Send;
}

/// Sweeps until the store is gone. Each process does; they pass over each other's rows.
pub(crate) async fn keep_swept<S: Swept>(store: Weak<S>) {
    loop {
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = sweep(&store).await {
            outward(
                || tracing::debug!(target: "idem", %error, "expired records could not be deleted; it is tried again"),
            );
        }
    }
}

/// Deletes all that has expired, in batches, and says how many rows that were.
pub(crate) async fn sweep<S: Swept>(store: &Arc<S>) -> Result<u64, StoreError> {
    let mut all = 0;
    let mut batch = if S::ONE_WRITER { FEW } else { BATCH };
    loop {
        let (swept, took) = store.sweep_batch(batch).await?;
        all += swept;
        if swept < batch.unsigned_abs() {
            return Ok(all);
        }
        if S::ONE_WRITER {
            batch = after(batch, took);
            sleep(LONGEST).await;
        } else {
            sleep(BETWEEN).await;
        }
    }
}

/// The size of the batch after one of this size that took so long.
fn after(batch: i64, took: Duration) -> i64 {
    if took > LONGEST {
        (batch / 2).max(FEWEST)
    } else if took < LONGEST / 3 {
        (batch * 2).min(BATCH)
    } else {
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_takes_long_is_followed_by_a_smaller_one() {
        let mut batch = FEW;
        // A millisecond each: what a disk needs.
        for _ in 0..10 {
            batch = after(batch, Duration::from_millis(1) * u32::try_from(batch).unwrap());
        }
        assert_eq!(batch, FEWEST);
        for _ in 0..10 {
            batch = after(batch, Duration::from_micros(1) * u32::try_from(batch).unwrap());
        }
        assert_eq!(batch, BATCH);
        assert_eq!(after(200, LONGEST), 200);
    }
}
