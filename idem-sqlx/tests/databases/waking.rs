//! Waiters: how soon they learn of a commit in another process.

use std::time::{Duration, Instant};

use idem_core::Idempotency;
use idem_testkit::PostgresServer;

use crate::own::Database;
use crate::{LONG, Server as _, over_both_servers, runtime, until};

/// A waiter that gets no message reads at the beginning and after one second, and then not before
/// two: so its answer would come 850 ms after the end of the body.
pub(crate) const HELD: Duration = Duration::from_millis(1150);

/// The connections on which the stores of a database receive messages.
pub(crate) const LISTENERS: &str =
    "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";

/// Has a function of the tests take the place of PostgreSQL's own.
const OWN_NOTIFY_FIRST: &str = "search_path = public, pg_catalog";

/// One process holds a key for a while, and another one waits for it; how long the answer took from
/// the end of the body on.
pub(crate) async fn answered_after(
    owner: &Idempotency,
    waiter: &Idempotency,
    key: &str,
    held: Duration,
) -> Duration {
    answered_after_wait(owner, waiter, key, held, std::future::ready(())).await
}

/// The while begins when `waits` has ended.
async fn answered_after_wait(
    owner: &Idempotency,
    waiter: &Idempotency,
    key: &str,
    held: Duration,
    waits: impl Future<Output = ()>,
) -> Duration {
    let (begun, begins) = tokio::sync::oneshot::channel();
    let owner = owner.operation("orders").key(key).run(async move || {
        let _ = begun.send(());
        waits.await;
        tokio::time::sleep(held).await;
        Ok::<_, idem_core::Error>(1)
    });
    let waiting = async {
        begins.await.unwrap();
        let answer = waiter
            .operation("orders")
            .key(key)
            .wait(LONG)
            .run(async || Ok::<_, idem_core::Error>(2))
            .await;
        assert_eq!(answer.unwrap().into_inner(), 1);
        Instant::now()
    };
    let owner = async {
        assert_eq!(owner.await.unwrap().into_inner(), 1);
        Instant::now()
    };
    let (committed, answered) = tokio::join!(owner, waiting);
    answered.saturating_duration_since(committed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_for_messages_is_replaced() {
    let server = PostgresServer::empty().await;
    let owner = runtime(server.store().await);
    let waiter = runtime(server.store().await);
    answered_after(&owner, &waiter, "first", HELD).await;
    server
        .execute(&format!("SELECT pg_terminate_backend(pid) {LISTENERS}"))
        .await;
    answered_after(&owner, &waiter, "second", HELD).await;
    // One connection again, for the one store that has waited.
    until("one listens again", async || one_listens(&server).await).await;
}

async fn one_listens(server: &Database<PostgresServer>) -> bool {
    use idem_sqlx::sqlx::{self, Connection as _};

    let mut on = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    let count = sqlx::AssertSqlSafe(format!("SELECT count(*) {LISTENERS}"));
    sqlx::query_scalar::<_, i64>(count)
        .fetch_one(&mut on)
        .await
        .unwrap()
        == 1
}

/// A queue of gigabytes is not filled here: `pg_notify` fails as it does then, and so does the
/// statement that calls it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_full_queue_of_notify_loses_no_outcome() {
    let server = PostgresServer::empty().await;
    server.store().await;
    let full = "CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = \
         '54000'; END $$";
    server.execute(full).await;
    server.set(OWN_NOTIFY_FIRST).await;
    let owner = runtime(server.store().await);
    let waiter = runtime(server.store().await);
    for key in ["one", "two"] {
        // The waiter's answer is the first call's.
        answered_after(&owner, &waiter, key, HELD).await;
    }
    let store = server.store().await;
    for key in ["one", "two"] {
        let found = idem_core::Store::inspect(&store, &crate::id(key))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.state, idem_core::RecordState::Committed);
    }
}

mod quiet {
    use super::*;

    over_both_servers! {
        async fn a_waiter_in_another_process_learns_of_a_commit_within_the_bound<S: Server>() {
            let server = S::empty().await;
            let owner = runtime(server.own_store().await);
            let waiter = runtime(server.own_store().await);
            for key in ["one", "two", "three"] {
                let took = answered_after(&owner, &waiter, key, HELD).await;
                // The bound is 250 ms; the rest is the machine's.
                assert!(took < Duration::from_millis(800), "{key}: {took:?}");
            }
        }
    }

    /// PostgreSQL says that it sent the message, and the waiter's connection stays as it was.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiter_whose_message_is_lost_reads_the_record_again() {
        let server = PostgresServer::empty().await;
        server.set(OWN_NOTIFY_FIRST).await;
        let owner = runtime(server.own_store().await);
        let waiter = runtime(server.own_store().await);
        answered_after(&owner, &waiter, "listens", HELD).await;
        assert!(one_listens(&server).await);
        let sends_nothing = "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS \
                             ''";
        server.execute(sends_nothing).await;
        // Its connections find the new function; those of the waiter know the old one.
        let silent = runtime(server.own_store().await);
        let waits = until("the waiter has looked", async || {
            let waiting = "SELECT count(*) FROM idem_records WHERE waited AND state = 'in_flight'";
            server.number(waiting).await == 1
        });
        let took = Box::pin(answered_after_wait(&silent, &waiter, "silent", HELD, waits)).await;
        // Far from the end of the lease. That no message came is shown by the time that it took.
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(
            took > Duration::from_millis(250),
            "a message came: {took:?}"
        );
    }
}
