//! Deletes expired rows in the background.

use std::sync::{Arc, Weak};
use std::time::Duration;

use idem_core::StoreError;
use idem_core::adapter::catch_user_panic;
use tokio::time::sleep;

/// How many rows a batch takes. Its transaction is short, so that no call waits for it.
const BATCH: i64 = 500;
/// The size of the first batch where a batch blocks all calls.
const FIRST_BATCH: i64 = 50;
const SMALLEST_BATCH: i64 = 10;
/// How long a batch may take there. In a large file, each row may be on a separate page.
///
/// The pause between two batches is as long: calls get half of the time, and a sweep keeps up with
/// the records that they write.
const LONGEST_BATCH: Duration = Duration::from_millis(5);
/// The pause between two batches elsewhere.
const PAUSE: Duration = Duration::from_millis(20);
/// The time between two sweeps, spread by half of it in either direction.
const INTERVAL: Duration = Duration::from_secs(10);

/// A table from which expired rows are deleted.
pub(crate) trait Sweep: Send + Sync + 'static {
    /// Whether a batch blocks all calls that write.
    const ONE_WRITER: bool;

    /// Deletes what has expired in up to `limit` rows that are due. Returns how many were due, and
    /// how long that took.
    fn sweep_batch(
        self: &Arc<Self>,
        limit: i64,
    ) -> impl Future<Output = Result<(u64, Duration), StoreError>> + Send;
}

/// Sweeps until the store is dropped. Each process does, and skips rows that another one deletes.
pub(crate) async fn keep_swept<S: Sweep>(store: Weak<S>) {
    loop {
        sleep(INTERVAL.mul_f64(0.5 + fastrand::f64())).await;
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = sweep(&store).await {
            catch_user_panic(|| {
                tracing::debug!(target: "idem", %error, "expired records could not be deleted; it is tried again");
            });
        }
    }
}

/// Deletes what has expired, in batches. Returns how many rows were due.
pub(crate) async fn sweep<S: Sweep>(store: &Arc<S>) -> Result<u64, StoreError> {
    let mut all = 0;
    let mut batch = if S::ONE_WRITER { FIRST_BATCH } else { BATCH };
    loop {
        let (due, took) = store.sweep_batch(batch).await?;
        all += due;
        if due < batch.unsigned_abs() {
            return Ok(all);
        }
        if S::ONE_WRITER {
            batch = next_batch(batch, took);
            sleep(LONGEST_BATCH).await;
        } else {
            sleep(PAUSE).await;
        }
    }
}

/// Returns the size of the batch after one of this size that took this long.
fn next_batch(batch: i64, took: Duration) -> i64 {
    if took > LONGEST_BATCH {
        (batch / 2).max(SMALLEST_BATCH)
    } else if took < LONGEST_BATCH / 3 {
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
        let mut batch = FIRST_BATCH;
        // A millisecond each: what a disk needs.
        for _ in 0..10 {
            batch = next_batch(
                batch,
                Duration::from_millis(1) * u32::try_from(batch).unwrap(),
            );
        }
        assert_eq!(batch, SMALLEST_BATCH);
        for _ in 0..10 {
            batch = next_batch(
                batch,
                Duration::from_micros(1) * u32::try_from(batch).unwrap(),
            );
        }
        assert_eq!(batch, BATCH);
        assert_eq!(next_batch(200, LONGEST_BATCH), 200);
    }
}
