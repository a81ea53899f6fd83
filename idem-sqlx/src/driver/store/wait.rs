//! Waits for a record to change: by messages if the database sends them, otherwise by polling.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::adapter::Backoff;
use idem_core::store::record::{Record, RecordId};
use tokio::time::timeout;

use super::super::dialect::Dialect;
use super::super::executor::{Executor, Resend};

/// Even if the database sends messages, a waiter reads the record again after this time, because a
/// message can get lost with its connection.
const POLL_WITH_MESSAGES: Duration = Duration::from_secs(1);
/// The pauses without messages.
const POLL: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
/// How long the first waiter of a process waits for the connection that receives messages.
const CONNECT: Duration = Duration::from_millis(250);

/// Waits while the record is in flight under this attempt, and its lease is alive. The caller
/// limits the wait.
pub(crate) async fn wait<D: Dialect>(
    executor: &Arc<Executor<D>>,
    id: &RecordId,
    attempt: u64,
    mut pauses: Backoff,
) -> Result<(), StoreError> {
    let waiter = executor.waiters.join(id);
    let mut connected = executor.messages().cloned();
    if let Some(connected) = &mut connected {
        let _ = timeout(CONNECT, connected.wait_for(|connected| *connected)).await;
    }
    loop {
        let Some(woken) = waiter.woken() else {
            return Ok(());
        };
        let mut woken = pin!(woken);
        // From here on no wake-up is lost.
        woken.as_mut().enable();
        let has_messages = connected
            .as_ref()
            .is_some_and(|connected| *connected.borrow());
        let Some(alive) = lease_left(executor, id, attempt, has_messages).await? else {
            return Ok(());
        };
        // Until the end of the millisecond in which the lease expires.
        let alive = alive + Duration::from_millis(1);
        let poll = if has_messages {
            POLL_WITH_MESSAGES
        } else {
            pauses.next_pause()
        };
        if timeout(alive.min(poll), woken).await.is_ok() {
            return Ok(());
        }
    }
}

/// Returns how long the lease is alive, or `None` if there is nothing to wait for.
async fn lease_left<D: Dialect>(
    executor: &Arc<Executor<D>>,
    id: &RecordId,
    attempt: u64,
    mark: bool,
) -> Result<Option<Duration>, StoreError> {
    let id = id.clone();
    executor
        .step(Resend::Harmless, move |dialect, on| {
            let id = id.clone();
            Box::pin(async move {
                if mark {
                    dialect
                        .mark(on, &id, i64::try_from(attempt).unwrap_or(i64::MAX))
                        .await?;
                }
                let Some(row) = dialect.read(on, &id).await? else {
                    return Ok(None);
                };
                let found = row.read()?;
                Ok(match found.record {
                    Some(Record::InFlight(held)) if held.attempt == attempt => {
                        held.lease_left(found.left)
                    }
                    _ => None,
                })
            })
        })
        .await
}

/// The same for at most `limit`.
pub(crate) async fn wait_at_most<D: Dialect>(
    executor: &Arc<Executor<D>>,
    id: &RecordId,
    attempt: u64,
    limit: Duration,
) -> Result<(), StoreError> {
    timeout(limit, wait(executor, id, attempt, POLL))
        .await
        .unwrap_or(Ok(()))
}
