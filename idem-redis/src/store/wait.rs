//! Waiting for a record to change: by being told where that is possible, else by looking ever more
//! seldom.

use std::time::Duration;

use idem_core::StoreError;
use tokio::time::{sleep, timeout};

use crate::client::lane::Lane;
use crate::client::own::Own;
use crate::client::server::Server;
use crate::client::wake::Seat;
use crate::store::script::{WATCH, watched};

/// A waiter looks again after this time even without a message, because a failover can lose
/// messages.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Without wake-ups, the time between two looks doubles from the first to the second.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Waits while the record is in flight under this attempt and alive. The caller sets a limit around
/// it.
pub(crate) async fn wait(server: &Server, wake: Option<&Own>, key: &str, attempt: u64) -> Result<(), StoreError> {
    let attempt = attempt.to_string();
    let attempt = attempt.as_str();
    // The subscription and the first look are one step, with one limit.
    let (mut seat, mut left) = server
        .step(key, |mut lane| async move {
            let seat = seat(server, &lane, wake, key).await;
            let left = look(&mut lane, key, attempt, seat.is_some()).await?;
            Ok((seat, left))
        })
        .await?;
    let mut pause = POLL.0;
    while let Some(alive) = left {
        // To the end of the millisecond in which the lease runs out.
        let alive = alive + Duration::from_millis(1);
        if let Some(seat) = &mut seat {
            if timeout(alive.min(LOOK_AGAIN), seat.woken()).await.is_ok() {
                return Ok(());
            }
        } else {
            sleep(alive.min(pause)).await;
            pause = (pause * 2).min(POLL.1);
        }
        let marks = seat.is_some();
        left = server.step(key, |mut lane| async move { look(&mut lane, key, attempt, marks).await }).await?;
    }
    Ok(())
}

/// Returns a seat whose subscription the server has confirmed; `None` if wake-ups are not
/// available.
async fn seat(server: &Server, lane: &Lane, wake: Option<&Own>, channel: &str) -> Option<Seat> {
    if let Some(session) = lane.session() {
        // If the subscription is slow, there is still time to look.
        return timeout(server.limit / 2, confirmed(session.hub.sit(channel)?)).await.ok().flatten();
    }
    // A separate connection for wake-ups. If it is slow or down, there is still time to look.
    let wake = wake?;
    let slot = wake.slot(channel);
    let seat = async { confirmed(wake.session(slot).await.ok()?.1.hub.sit(channel)?).await };
    timeout(server.limit / 2, seat).await.unwrap_or_else(|_| {
        wake.doubt();
        let _ = wake.failure(slot);
        None
    })
}

async fn confirmed(mut seat: Seat) -> Option<Seat> {
    seat.subscribed().await.then_some(seat)
}

/// How long the lease is alive, `None` if there is nothing to wait for.
async fn look(lane: &mut Lane, key: &str, attempt: &str, mark: bool) -> Result<Option<Duration>, StoreError> {
    let mark: &[u8] = if mark { b"1" } else { b"" };
    let answer = lane.script(&WATCH, &[key], &[attempt.as_bytes(), mark]).await?;
    watched(lane.server(), answer)
}
