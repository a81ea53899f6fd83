//! One connection for each store, on which the database tells of changed rows.

use std::sync::Arc;
use std::time::Duration;

use idem_core::__private::outward;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::sqlx::Executor as _;
use self::sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use super::super::super::{sql, sqlx};
use super::super::opening::OPENING;
use crate::waiters::LocalWaiters;

/// The pause before another try to connect doubles from the first to the second, each spread by
/// half.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Starts the task that takes messages in; it says whether they come.
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
        .max_connections(2)
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
                    let greeting = tokio::spawn(greet(pool.clone(), channel.clone()));
                    while let Ok(Some(message)) = listener.try_recv().await {
                        says.send_replace(true);
                        waiters.wake(message.payload());
                    }
                    greeting.abort();
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

/// Sends a message from another connection. Only if it comes, others do: a proxy may take `LISTEN`,
/// and carry no message.
async fn greet(pool: PgPool, channel: String) {
    if let Ok(mut connection) = pool.acquire().await {
        // The channel's name has nothing in it that ends a text.
        let text = format!("SELECT pg_notify('{channel}', '')");
        let _ = connection.execute(sqlx::raw_sql(sql(&Arc::from(text)))).await;
        drop(connection.detach());
    }
}
