//! Waiting for a record to change: by being told where that is possible, else by looking ever more
//! seldom.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::record::{Record, RecordId};
use tokio::time::timeout;

use super::core::Core;
use super::dialect::Dialect;

/// Even if the database announces changes, a waiter looks again after this time: a message can get
/// lost with its connection.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Without messages, the time between two looks doubles from the first to the second, each spread
/// by a quarter.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// How long the first waiter of a process waits for the connection that takes messages in.
const CONNECT: Duration = Duration::from_millis(250);

/// Waits while the record is in flight under this attempt and alive. The caller sets a limit around
/// it. Without messages it looks again after pauses, which double from the first to the second.
pub(crate) async fn wait<D: Dialect>(
    core: &Arc<Core<D>>,
    id: &RecordId,
    attempt: u64,
    pauses: (Duration, Duration),
) -> Result<(), StoreError> {
    let waiter = core.waiters.join(id);
    let mut connected = core.listening().cloned();
    if let Some(connected) = &mut connected {
        let _ = timeout(CONNECT, connected.wait_for(|connected| *connected)).await;
    }
    let mut pause = pauses.0;
    loop {
        let Some(woken) = waiter.woken() else { return Ok(()) };
        let mut woken = pin!(woken);
        // From here on no wake-up is lost.
        woken.as_mut().enable();
        let told = connected.as_ref().is_some_and(|connected| *connected.borrow());
        let Some(alive) = look(core, id, attempt, told).await? else { return Ok(()) };
        // To the end of the millisecond in which the lease runs out.
        let alive = alive + Duration::from_millis(1);
        let nap = if told { LOOK_AGAIN } else { pause.mul_f64(0.75 + fastrand::f64() / 2.0) };
        if timeout(alive.min(nap), woken).await.is_ok() {
            return Ok(());
        }
        pause = (pause * 2).min(pauses.1);
    }
}

/// How long the lease is alive, `None` if there is nothing to wait for.
async fn look<D: Dialect>(
    core: &Arc<Core<D>>,
    id: &RecordId,
    attempt: u64,
    mark: bool,
) -> Result<Option<Duration>, StoreError> {
    let id = id.clone();
    core.step(true, move |dialect, on| {
        let id = id.clone();
        Box::pin(async move {
            if mark {
                dialect.mark(on, &id, i64::try_from(attempt).unwrap_or(i64::MAX)).await?;
            }
            let Some(row) = dialect.read(on, &id).await? else { return Ok(None) };
            let found = row.found()?;
            Ok(match found.record {
                Some(Record::InFlight(held)) if held.attempt == attempt => held.lease_left(found.left),
                _ => None,
            })
        })
    })
    .await
}

/// Waits at most so long.
pub(crate) async fn wait_at_most<D: Dialect>(
    core: &Arc<Core<D>>,
    id: &RecordId,
    attempt: u64,
    limit: Duration,
) -> Result<(), StoreError> {
    timeout(limit, wait(core, id, attempt, POLL)).await.unwrap_or(Ok(()))
}
