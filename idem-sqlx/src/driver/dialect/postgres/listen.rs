//! Receives the database's messages about changed rows, on one connection for each store.

use std::sync::Arc;
use std::time::Duration;

use idem_core::adapter::{Backoff, catch_user_panic};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use self::sqlx::Executor as _;
use self::sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use super::super::super::super::{sql, sqlx};
use super::super::{CONNECT_LIMIT, MessageTask};
use crate::waiters::LocalWaiters;

/// The pauses before another attempt to connect.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Starts the task that receives messages.
pub(super) fn start(
    options: PgConnectOptions,
    channel: String,
    waiters: Arc<LocalWaiters>,
) -> MessageTask {
    let (sets_connected, is_connected) = watch::channel(false);
    let reconnect = Arc::new(Notify::new());
    let leave = reconnect.clone();
    MessageTask {
        task: tokio::spawn(listen(options, channel, waiters, sets_connected, leave)),
        is_connected,
        reconnect,
    }
}

async fn listen(
    options: PgConnectOptions,
    channel: String,
    waiters: Arc<LocalWaiters>,
    sets_connected: watch::Sender<bool>,
    leave: Arc<Notify>,
) {
    let mut pauses = PAUSES;
    loop {
        // A separate pool: if the application's pool had no connection left, no waiter would be
        // woken. It ends with the connection, which is not to be taken from it again.
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(CONNECT_LIMIT)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options.clone());
        match PgListener::connect_with(&pool).await {
            Ok(mut listener) => {
                listener.eager_reconnect(false);
                if listener.listen(&channel).await.is_ok() {
                    pauses = PAUSES;
                    let probe = tokio::spawn(send_probe(pool.clone(), channel.clone()));
                    while let Some(message) = tokio::select! {
                        received = listener.try_recv() => received.ok().flatten(),
                        () = leave.notified() => None,
                    } {
                        sets_connected.send_replace(true);
                        waiters.wake(message.payload());
                    }
                    probe.abort();
                }
            }
            Err(error) => {
                catch_user_panic(|| {
                    tracing::debug!(target: "idem", %error, "no connection for messages; \
                        waiters look again and again meanwhile");
                });
            }
        }
        sets_connected.send_replace(false);
        // Messages in between are lost, so all waiters read their records.
        waiters.wake_all();
        sleep(pauses.next_pause()).await;
    }
}

/// Sends a message from another connection. Only its arrival shows that others arrive too: a proxy
/// may accept `LISTEN` without forwarding messages.
async fn send_probe(pool: PgPool, channel: String) {
    if let Ok(mut connection) = pool.acquire().await {
        // The channel's name contains no quotation mark.
        let text = format!("SELECT pg_notify('{channel}', '')");
        let _ = connection
            .execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await;
        drop(connection.detach());
    }
}
