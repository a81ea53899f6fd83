//! One connection for each store, on which the database tells of changed rows.

use std::sync::Arc;
use std::time::Duration;

use idem_core::__private::outward;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use super::super::super::sqlx;
use super::super::opening::OPENING;
use crate::waiters::LocalWaiters;

/// The pause before another try to connect doubles from the first to the second, each spread by
/// half.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Starts the task that takes messages in; it says whether it is connected.
pub(super) fn start(
    options: PgConnectOptions,
    channel: String,
    waiters: Arc<LocalWaiters>,
) -> (JoinHandle<()>, watch::Receiver<bool>) {
    let (says, connected) = watch::channel(false);
    (tokio::spawn(listen(options, channel, waiters, says)), connected)
}

async fn listen(options: PgConnectOptions, channel: String, waiters: Arc<LocalWaiters>, says: watch::Sender<bool>) {
    // Not a connection of the application's pool: with none left there, no waiter would be woken.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(OPENING)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options);
    let mut pause = AGAIN.0;
    loop {
        match PgListener::connect_with(&pool).await {
            Ok(mut listener) => {
                listener.eager_reconnect(false);
                if listener.listen(&channel).await.is_ok() {
                    pause = AGAIN.0;
                    says.send_replace(true);
                    while let Ok(Some(message)) = listener.try_recv().await {
                        waiters.wake(message.payload());
                    }
                }
            }
            Err(error) => {
                outward(
                    || tracing::debug!(target: "idem", %error, "no connection for messages; waiters look again and again meanwhile"),
                );
            }
        }
        says.send_replace(false);
        // Messages in between are lost, so all waiters look.
        waiters.wake_all();
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        pause = (pause * 2).min(AGAIN.1);
    }
}
