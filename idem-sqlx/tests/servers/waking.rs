//! Waiters: how soon they learn of a commit in another process.

use std::time::{Duration, Instant};

use idem_core::Idempotency;

use crate::{LONG, Server, over_both_servers, runtime, until};

/// A waiter that gets no message reads at the beginning and after one second, and then not before
/// two: so its answer would come 850 ms after the end of the body.
const HELD: Duration = Duration::from_millis(1150);

/// One process holds a key for a while, and another one waits for it; how long the answer took from
/// the end of the body on.
pub(crate) async fn answered_after(
    owner: &Idempotency,
    waiter: &Idempotency,
    key: &str,
    held: Duration,
) -> Duration {
    let (begun, begins) = tokio::sync::oneshot::channel();
    let owner = owner.operation("orders").key(key).run(async move || {
        let _ = begun.send(());
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

over_both_servers! {
    async fn a_waiter_in_another_process_learns_of_a_commit_within_the_bound<S: Server>() {
        let server = S::start().await;
        let owner = runtime(server.store().await);
        let waiter = runtime(server.store().await);
        for key in ["one", "two", "three"] {
            let took = answered_after(&owner, &waiter, key, HELD).await;
            // The bound is 250 ms; the rest is the machine's.
            assert!(took < Duration::from_millis(800), "{key}: {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_for_messages_is_replaced() {
    let server = idem_testkit::PostgresServer::start().await.unwrap();
    let owner = runtime(Server::store(&server).await);
    let waiter = runtime(Server::store(&server).await);
    let listeners = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    answered_after(&owner, &waiter, "first", HELD).await;
    Server::execute(
        &server,
        &format!("SELECT pg_terminate_backend(pid) {listeners}"),
    )
    .await;
    answered_after(&owner, &waiter, "second", HELD).await;
    // One connection again, for the one store that has waited.
    until("one listens again", async || one_listens(&server).await).await;
}

async fn one_listens(server: &idem_testkit::PostgresServer) -> bool {
    use idem_sqlx::sqlx::{self, Connection as _};

    let mut on = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    sqlx::query_scalar::<_, i64>(count)
        .fetch_one(&mut on)
        .await
        .unwrap()
        == 1
}

/// PostgreSQL says that it sent the message, and the waiter's connection stays as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_message_is_lost_reads_the_record_again() {
    let server = idem_testkit::PostgresServer::start().await.unwrap();
    Server::execute(
        &server,
        "ALTER DATABASE postgres SET search_path = public, pg_catalog",
    )
    .await;
    let owner = runtime(Server::store(&server).await);
    let waiter = runtime(Server::store(&server).await);
    answered_after(&owner, &waiter, "listens", HELD).await;
    assert!(one_listens(&server).await);
    let sends_nothing = "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE sql AS \
                         ''";
    Server::execute(&server, sends_nothing).await;
    // Its connections find the new function; those of the waiter know the old one.
    let silent = runtime(Server::store(&server).await);
    let took = answered_after(&silent, &waiter, "silent", HELD).await;
    // Far from the end of the lease. That no message came is shown by the time that it took.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        took > Duration::from_millis(250),
        "a message came: {took:?}"
    );
}

/// A queue of gigabytes is not filled here: `pg_notify` fails as it does then, and so does the
/// statement that calls it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_full_queue_of_notify_loses_no_outcome() {
    let server = idem_testkit::PostgresServer::start().await.unwrap();
    Server::store(&server).await;
    let full = [
        "CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = \
         '54000'; END $$",
        "ALTER DATABASE postgres SET search_path = public, pg_catalog",
    ];
    for statement in full {
        Server::execute(&server, statement).await;
    }
    let owner = runtime(Server::store(&server).await);
    let waiter = runtime(Server::store(&server).await);
    for key in ["one", "two"] {
        // The waiter's answer is the first call's.
        answered_after(&owner, &waiter, key, HELD).await;
    }
    let store = Server::store(&server).await;
    for key in ["one", "two"] {
        let found = idem_core::Store::inspect(&store, &crate::id(key))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.state, idem_core::RecordState::Committed);
    }
}
