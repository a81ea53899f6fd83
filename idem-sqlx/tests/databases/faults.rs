//! A server that dies, stands still or takes nothing: each step is an error within two seconds, and
//! the store recovers by itself.

use std::time::{Duration, Instant};

use idem_core::{Error, Idempotency, Outcome, RecordState, StoreErrorKind};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use tokio::task::JoinSet;

use crate::{
    LONG, Server, TWO_SECONDS, answer, connected, fails_in_time, order, over_both_servers,
    recovers, refusal, runtime, until,
};

/// Makes a call again while the store does not answer it: the usual limit is short for a machine
/// that does much else.
async fn answered(call: impl AsyncFn() -> Result<Outcome<u32>, Error>) -> Outcome<u32> {
    for _ in 0..20 {
        match call().await {
            Err(Error::Store { .. }) => {}
            ended => return ended.unwrap(),
        }
    }
    call().await.unwrap()
}

over_both_servers! {
    /// All idle connections are broken then, and the first step after it must not have to be
    /// repeated by the caller.
    async fn a_restart_between_two_steps_is_not_noticed<S: Server>() {
        let server = S::start().await;
        let store = server.store().await;
        let idempotency = runtime(store.clone());
        let calls = (0..10).map(|number| {
            let idempotency = idempotency.clone();
            tokio::spawn(async move { order(&idempotency, &number.to_string(), number).await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        server.restart().await;
        assert!(order(&idempotency, "0", 9).await.unwrap().is_replayed());
        order(&idempotency, "new", 1).await.unwrap();
    }

    /// The body has succeeded, and the store does not know whether its commit was carried out.
    async fn a_commit_whose_reply_was_lost_is_settled<S: Server>() {
        let server = S::empty().await;
        server.store().await;
        let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", server.port()))
            .await
            .unwrap();
        let url = server.url_through(proxy.address().port());
        let through = runtime(connected(async || S::connect(&url).await).await);
        let direct = runtime(server.store().await);
        let first = answered(async || {
            let run = through.operation("orders").key("k").run(async || {
                proxy.swallow_replies(true);
                Ok::<_, Error>(7)
            });
            tokio::time::timeout(LONG, run).await.unwrap()
        });
        assert_eq!(first.await.into_inner(), 7);
        // Carried out, or never sent, since no connection could be had: then it is tried on in the
        // background.
        proxy.restore();
        for idempotency in [&direct, &through] {
            let again = answered(async || {
                let call = idempotency.operation("orders").key("k").wait(LONG);
                call.run(async || Ok::<_, Error>(8)).await
            })
            .await;
            assert!(again.is_replayed() && again.into_inner() == 7);
        }
    }
}

mod quiet {
    use super::*;

    over_both_servers! {
        async fn an_exhausted_pool_is_an_error_in_time<S: Server>() {
            let server = S::empty().await;
            let (store, held) = S::on_pool_of_one(&server.url()).await;
            let error = fails_in_time(&store).await;
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert!(
                error
                    .to_string()
                    .contains("all connections of the pool are in use"),
                "{error}"
            );
            drop(held);
            recovers(&store).await;
        }

        async fn a_stopped_server_is_an_error_in_time<S: Server>() {
            let server = S::start().await;
            let store = server.own_store().await;
            recovers(&store).await;
            server.pause();
            // More often than the pool has connections: none of them may be lost to the store.
            for _ in 0..3 {
                fails_in_time(&store).await;
                let many: Vec<_> = (0..8)
                    .map(|_| {
                        tokio::spawn({
                            let store = store.clone();
                            async move { fails_in_time(&store).await }
                        })
                    })
                    .collect();
                for one in many {
                    one.await.unwrap();
                }
            }
            server.resume();
            recovers(&store).await;
        }

        /// Each waits for its turn, is sent, and is sent again if its fate is unknown: two seconds
        /// are the sum. Duplicates wait for one another, too.
        async fn each_call_of_a_burst_at_a_stopped_server_fails_in_time<S: Server>() {
            let server = S::start().await;
            let idempotency = runtime(server.own_store().await);
            for burst in BURSTS {
                until("it answers", async || order(&idempotency, "warm", 1).await.is_ok()).await;
                server.pause();
                each_of_a_burst_fails_in_time(&idempotency, burst).await;
                server.resume();
            }
        }

        async fn a_killed_server_is_an_error_in_time_and_its_return_is_noticed<S: Server>() {
            let server = S::start().await;
            let store = server.own_store().await;
            let idempotency = runtime(store.clone());
            order(&idempotency, "k", 1).await.unwrap();
            server.kill();
            fails_in_time(&store).await;
            assert!(
                order(&idempotency, "other", 2).await.is_err(),
                "a body ran without its claim"
            );
            server.restart().await;
            recovers(&store).await;
            assert_eq!(order(&idempotency, "k", 3).await.unwrap().into_inner(), 1);
        }

        /// As with a slow handshake of TLS. The limit of each step ends before its own connection
        /// is open.
        async fn a_connection_that_takes_longer_to_open_than_a_step_may_serves_a_later_step<
            S: Server,
        >() {
            let server = S::empty().await;
            server.own_store().await;
            let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", server.port()))
                .await
                .unwrap();
            let url = server.url_through(proxy.address().port());
            let store = connected(async || S::connect(&url).await).await;
            proxy.delay_connections(Duration::from_millis(1300));
            let error = fails_in_time(&store).await;
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert!(
                error.to_string().contains("check that the database runs"),
                "{error}"
            );
            recovers(&store).await;
        }

        async fn a_cut_network_is_an_error_in_time<S: Server>() {
            let server = S::empty().await;
            server.own_store().await;
            let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", server.port()))
                .await
                .unwrap();
            let url = server.url_through(proxy.address().port());
            let store = connected(async || S::connect(&url).await).await;
            recovers(&store).await;
            proxy.cut();
            fails_in_time(&store).await;
            proxy.restore();
            recovers(&store).await;
            proxy.delay(Duration::from_secs(5));
            let error = fails_in_time(&store).await;
            assert!(error.is_unknown(), "{error}");
            proxy.restore();
            recovers(&store).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_call_of_a_burst_at_a_stopped_real_mysql_fails_in_time() {
        each_call_of_a_burst_at_a_stopped_server_fails_in_time::<MySqlServer>().await;
    }
}

/// Of calls: how many keys and calls there are, and the milliseconds between two calls.
pub(crate) const BURSTS: [(u64, u64, u64); 4] =
    [(105, 105, 8), (1, 20, 0), (1, 20, 60), (4, 80, 13)];

/// Each call that a database does not answer ends within two seconds, whatever it waits for.
pub(crate) async fn each_of_a_burst_fails_in_time(
    idempotency: &Idempotency,
    (keys, burst, pause): (u64, u64, u64),
) {
    let mut calls = JoinSet::new();
    for number in 0..burst {
        let idempotency = idempotency.clone();
        calls.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number * pause)).await;
            let begun = Instant::now();
            let key = format!("{burst}, {pause}, {}", number % keys);
            let failed = order(&idempotency, &key, 1).await;
            (begun.elapsed(), failed.unwrap_err().to_string())
        });
    }
    let longest = calls.join_all().await.into_iter().max().unwrap();
    assert!(longest.0 < TWO_SECONDS, "{keys} of {burst}: {longest:?}");
}

/// A PostgreSQL without its first process finishes what its others are doing. The tests that kill
/// one would then pass or fail by luck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_finishes_nothing() {
    let server = PostgresServer::start().await.unwrap();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let busy = tokio::spawn({
        let pool = pool.clone();
        async move {
            sqlx::query("SELECT count(*) FROM (SELECT generate_series(1, 2000000000)) AS n")
                .execute(&pool)
                .await
        }
    });
    until("the query runs", async || {
        let running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = \
             'SELECT count(*) FROM (SELECT generate_series(1, 2000000000)) AS n'";
        sqlx::query_scalar::<_, i64>(running)
            .fetch_one(&pool)
            .await
            .unwrap()
            == 1
    })
    .await;
    server.kill().unwrap();
    busy.await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_postgres_is_unavailable_and_takes_over_when_it_is_promoted() {
    let primary = PostgresServer::start_with(&["-c", "synchronous_standby_names=standby"])
        .await
        .unwrap();
    let replica = primary.start_standby(&[]).await.unwrap();
    until("the replica is in step", async || {
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        PostgresServer::number_at(&primary.url(), synchronous).await == 1
    })
    .await;
    let store = primary.store().await;
    order(&runtime(store), "k", 1).await.unwrap();
    let connect = async || idem_sqlx::PostgresStore::connect(replica.url()).await;
    let store = connected(connect).await;
    let idempotency = runtime(store.clone());
    for key in ["k", "new"] {
        let error = refusal(&idempotency, key, "replica").await;
        assert!(error.is_retryable(), "{error}");
    }
    primary.kill().unwrap();
    replica.promote().await.unwrap();
    recovers(&store).await;
    let again = answer(async || order(&idempotency, "k", 3).await);
    let again = again.await;
    assert!(again.is_replayed() && again.into_inner() == 1);
    let new = answer(async || order(&idempotency, "new", 4).await);
    assert_eq!(new.await.into_inner(), 4);
}

/// A trigger acts as a full disk, since only root may
/// mount one: each row that is written is an error as of such a disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_postgres_takes_no_new_key_and_loses_nothing() {
    let server = PostgresServer::empty().await;
    let idempotency = runtime(server.store().await);
    order(&idempotency, "before", 1).await.unwrap();
    server
        .execute(
            "CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = \
           '53100'; END $$",
        )
        .await;
    let meanwhile = idempotency.operation("orders").key("meanwhile").run(async || {
        // After an insert, since before one it would be called for rows that are there.
        let full =
            "CREATE TRIGGER is_full AFTER INSERT OR UPDATE ON idem_records FOR EACH ROW EXECUTE \
             FUNCTION is_full()";
        server.execute(full).await;
        Ok::<_, Error>(2)
    });
    // Its caller has the value, and the record is written when there is space again.
    assert_eq!(meanwhile.await.unwrap().into_inner(), 2);
    let idem_core::Error::Store { source, .. } = order(&idempotency, "new", 3).await.unwrap_err()
    else {
        panic!("another error")
    };
    assert!(
        source.kind() == StoreErrorKind::Full && source.to_string().contains("space"),
        "{source}"
    );
    assert!(
        order(&idempotency, "before", 4)
            .await
            .unwrap()
            .is_replayed()
    );
    server.execute("DROP TRIGGER is_full ON idem_records").await;
    order(&idempotency, "new", 5).await.unwrap();
    let direct = runtime(server.store().await);
    let again = direct
        .operation("orders")
        .key("meanwhile")
        .wait(LONG)
        .run(async || Ok::<_, Error>(6));
    let again = again.await.unwrap();
    assert!(again.is_replayed() && again.into_inner() == 2);
}

/// Leaves out an error of a busy machine.
fn only_full(error: idem_core::Error) -> Option<Error> {
    let is_full = match &error {
        idem_core::Error::Store { source, .. } => source.kind() == StoreErrorKind::Full,
        _ => false,
    };
    is_full.then_some(error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_mariadb_takes_no_new_key_and_loses_nothing() {
    // All tables in one file, which does not grow beyond this.
    let file = "--innodb-data-file-path=ibdata1:12M:autoextend:max:24M";
    let server = MariaDbServer::start_with(&["--innodb-file-per-table=0", file])
        .await
        .unwrap();
    let idempotency = runtime(server.store().await);
    order(&idempotency, "before", 1).await.unwrap();
    let mut length = 1 << 20;
    let mut full = None;
    for number in 0..2000 {
        let operation = || idempotency.operation("texts").key(&number);
        // What does not fit any more is a commit, and then a claim.
        match operation()
            .run(async || Ok::<_, Error>("x".repeat(length)))
            .await
        {
            Ok(outcome) => assert_eq!(outcome.into_inner().len(), length),
            Err(error) => full = only_full(error).or(full),
        }
        if let Err(error) = order(&idempotency, &format!("small {number}"), number).await {
            full = only_full(error).or(full);
        }
        if full.is_some() {
            break;
        }
        // The pages of a text that did not fit are free for shorter ones, until those are used up.
        if operation()
            .inspect()
            .await
            .unwrap()
            .is_none_or(|found| found.state != RecordState::Committed)
        {
            length = (length / 2).max(1 << 10);
        }
    }
    let full = full.expect("it was never full");
    let idem_core::Error::Store { source, .. } = &full else {
        panic!("{full}")
    };
    assert!(
        source.kind() == StoreErrorKind::Full && source.to_string().contains("space"),
        "{source}"
    );
    assert!(
        order(&idempotency, "before", 2)
            .await
            .unwrap()
            .is_replayed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_postgres_is_unavailable_and_says_why() {
    let server = PostgresServer::empty().await;
    let store = server.store().await;
    server.set("default_transaction_read_only = on").await;
    let connect = async || idem_sqlx::PostgresStore::connect(server.url()).await;
    let store_after = connected(connect).await;
    let error = refusal(&runtime(store_after), "k", "replica").await;
    assert!(error.is_retryable(), "{error}");
    recovers(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_mariadb_is_unavailable_and_says_why() {
    let server = MariaDbServer::start().await.unwrap();
    server.store().await;
    // Not for the user of the tests, who may do everything.
    server
        .execute(
            "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'wordpass'; GRANT SELECT, INSERT, UPDATE, \
         DELETE ON idem.* TO app@'127.0.0.1'; SET GLOBAL read_only = 1",
        )
        .await;
    let url = server.url().replace("idem:", "app:");
    let app = runtime(connected(async || idem_sqlx::MySqlStore::connect(&url).await).await);
    let error = refusal(&app, "k", "read-only").await;
    assert!(error.is_retryable(), "{error}");
    server.execute("SET GLOBAL read_only = 0").await;
    answer(async || order(&app, "k", 2).await).await;
}
