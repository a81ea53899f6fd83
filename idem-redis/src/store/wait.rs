//! Waiting for a record to change: woken by a message where that is possible, else by polling.

use std::time::Duration;

use idem_core::StoreError;
use idem_core::adapter::Backoff;
use tokio::time::{sleep, timeout};

use crate::connection::managed::ManagedConnection;
use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::connection::subscriptions::Subscription;
use crate::store::script::{WATCH, watched};

/// A waiter looks again after this time even without a message, because a failover can lose
/// messages.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The pauses between two looks without wake-ups.
const POLL: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));

/// Waits while the record is in flight under this attempt and its lease is alive. The caller sets a
/// limit around it.
pub(crate) async fn wait(
    runner: &StepRunner,
    wake: Option<&ManagedConnection>,
    key: &str,
    attempt: u64,
) -> Result<(), StoreError> {
    let attempt = attempt.to_string();
    let attempt = attempt.as_str();
    // The subscription and the first look are one step, with one limit.
    let (mut subscription, mut lease_left) = runner
        .step(key, |mut connection| async move {
            let subscription = subscribe(runner, &connection, wake, key).await;
            let lease_left = look(&mut connection, key, attempt, subscription.is_some()).await?;
            Ok((subscription, lease_left))
        })
        .await?;
    let mut poll = POLL;
    while let Some(left) = lease_left {
        // The server rounds down, and the lease lives to the end of that millisecond.
        let left = left + Duration::from_millis(1);
        if let Some(subscription) = &mut subscription {
            let woken = timeout(left.min(LOOK_AGAIN), subscription.woken());
            if woken.await.is_ok() {
                return Ok(());
            }
        } else {
            sleep(left.min(poll.next_pause())).await;
        }
        let leaves_mark = subscription.is_some();
        lease_left = runner
            .step(key, |mut connection| async move {
                look(&mut connection, key, attempt, leaves_mark).await
            })
            .await?;
    }
    Ok(())
}

/// Returns a subscription that the server has confirmed; `None` if wake-ups are not available.
async fn subscribe(
    runner: &StepRunner,
    connection: &StepConnection,
    wake: Option<&ManagedConnection>,
    channel: &str,
) -> Option<Subscription> {
    // If the subscription is slow or refused, there is still time to look.
    let limit = runner.limit / 2;
    if let Some(session) = connection.session() {
        let subscription = session.subscriptions.subscribe(channel)?;
        return timeout(limit, confirmed(subscription)).await.ok().flatten();
    }
    let wake = wake?;
    let slot = wake.slot(channel);
    let subscribing = async {
        let (_, session) = wake.session(slot).await.ok()?;
        confirmed(session.subscriptions.subscribe(channel)?).await
    };
    timeout(limit, subscribing).await.unwrap_or_else(|_| {
        wake.schedule_refresh();
        wake.probe(slot);
        None
    })
}

async fn confirmed(mut subscription: Subscription) -> Option<Subscription> {
    subscription.confirmed().await.then_some(subscription)
}

/// Returns how long the lease is alive, `None` if there is nothing to wait for. With a mark, the
/// owner's commit announces itself.
async fn look(
    connection: &mut StepConnection,
    key: &str,
    attempt: &str,
    leaves_mark: bool,
) -> Result<Option<Duration>, StoreError> {
    let mark: &[u8] = if leaves_mark { b"1" } else { b"" };
    let answer = connection
        .script(&WATCH, &[key], &[attempt.as_bytes(), mark])
        .await?;
    watched(connection.server(), answer)
}
