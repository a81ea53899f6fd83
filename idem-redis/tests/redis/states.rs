//! Servers that are up, and for some reason cannot do what they are asked.

use std::time::Duration;

use idem_core::record::{Claimed, Ownership};
use idem_core::{Store as _, StoreErrorKind};
use idem_testkit::Proxy;

use crate::faults::{BACK_WITHIN, until_usable, usable_within};
use crate::patience::connection;
use crate::server::Server;
use crate::still::{HANGS, until, within};
use crate::{
    SECOND, claim, commit, give_up, id, outcome, patient, release, renewal, server_and_store,
};

#[tokio::test]
async fn a_server_that_asks_for_a_password_and_then_takes_it_works_again() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&["CONFIG", "SET", "requirepass", "hunter2"])
        .await;
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let mut admin = connection(url).await;
    let () = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .query_async(&mut admin)
        .await
        .unwrap();
    // It may be a password that is being changed, so the same call may succeed later; and nothing
    // was sent.
    let refused = async || {
        store.claim(&claim("1")).await.is_err_and(|error| {
            assert!(error.is_retryable(), "{error}");
            error.to_string().contains("password") && !error.is_unknown()
        })
    };
    until("the refusal", || async { refused().await }).await;
    assert!(within(Duration::ZERO, refused()).await, "said at once");
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("")
        .query_async(&mut admin)
        .await
        .unwrap();
    until("an end of the refusal", || async { !refused().await }).await;
    until_usable(&store).await;
}

#[tokio::test]
async fn a_full_server_begins_nothing_new_and_finishes_what_was_begun() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let store = patient(server.url()).await;
    let first = claim("1");
    let second = claim("2");
    let third = claim("3");
    let done = claim("4");
    for claim in [&first, &second, &third, &done] {
        store.claim(claim).await.unwrap();
    }
    store.commit(&commit(&done, 1, "1")).await.unwrap();
    store.release(&give_up(&third)).await.unwrap();
    let filler = "x".repeat(4_000_000);
    let () = server.send(&["SET", "filler", &filler]).await;
    let () = server.send(&["CONFIG", "SET", "maxmemory", "1mb"]).await;

    let error = store.claim(&claim("5")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(
        !error.is_unknown() && error.to_string().contains("maxmemory"),
        "{error}"
    );
    assert_eq!(server.get("idem:orders:5").await, None);
    assert_eq!(
        store.claim(&claim("3")).await.unwrap_err().kind(),
        StoreErrorKind::Full,
        "a take-over begins a body"
    );

    assert!(matches!(
        store.claim(&claim("4")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { .. }
    ));
    assert!(matches!(
        store.claim(&first).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    assert_eq!(
        *store.renew(&[renewal(&first)]).await[0].as_ref().unwrap(),
        Ownership::Held
    );
    store
        .wait(&first.id, 1, Duration::from_millis(20))
        .await
        .unwrap();
    let large = outcome("").with_payload("y".repeat(100_000).into());
    let kept = commit(&first, 1, "")
        .with_outcome(Some(large))
        .with_remember(600 * SECOND);
    assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    assert_eq!(
        store.release(&release(&second)).await.unwrap(),
        Ownership::Held
    );
    assert!(store.inspect(&id("2")).await.unwrap().is_some());
    store.remove(&id("2")).await.unwrap();
}

#[tokio::test]
async fn a_master_that_became_a_replica_is_unavailable_until_it_is_a_master_again() {
    let (server, store) = server_and_store().await;
    let master = Server::start(&[]).await;
    let () = server
        .send(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
        .await;
    let error = store.claim(&claim("1")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    let () = server.send(&["REPLICAOF", "NO", "ONE"]).await;
    usable_within(BACK_WITHIN, &server, &store).await;
}

#[tokio::test]
async fn a_fail_over_behind_one_address_is_followed() {
    let old = Server::start(&[]).await;
    let new = Server::start(&[]).await;
    let address = Proxy::start(&old.url()).await.unwrap();
    let store = patient(address.url()).await;
    address.lead_to(&new.url());
    let () = old
        .send(&["REPLICAOF", "127.0.0.1", &new.port().to_string()])
        .await;
    // Nothing ends the connection to the old master, which takes no claim.
    until("the claim is taken", || async {
        store.claim(&claim("1")).await.is_ok()
    })
    .await;
    assert!(new.get("idem:orders:1").await.is_some());
    let clients = async || {
        old.send::<String>(&["CLIENT", "LIST", "TYPE", "normal"])
            .await
            .lines()
            .count()
    };
    until("the connection to the old master is closed", || async {
        clients().await == 1
    })
    .await;
}

#[tokio::test]
async fn a_busy_server_is_unavailable() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&["CONFIG", "SET", "busy-reply-threshold", "10"])
        .await;
    let mut client = server.client().await;
    let busy = tokio::spawn(async move {
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query_async::<()>(&mut client)
            .await
    });
    let unavailable = async || {
        store
            .claim(&claim("1"))
            .await
            .is_err_and(|e| e.kind() == StoreErrorKind::Unavailable)
    };
    until("the busy answer", || async { unavailable().await }).await;
    let () = server.send(&["SCRIPT", "KILL"]).await;
    let _ = busy.await;
    until_usable(&store).await;
}

#[tokio::test]
async fn a_server_that_cannot_save_takes_nothing_and_goes_on_when_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--dir", dir.path().to_str().unwrap()]).await;
    let store = patient(server.url()).await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    // A directory stands where the file is to be.
    let file = dir.path().join("dump.rdb");
    std::fs::create_dir(&file).unwrap();
    let () = server.send(&["CONFIG", "SET", "save", "3600 1"]).await;
    let _: redis::RedisResult<redis::Value> = server.try_send(&["BGSAVE"]).await;
    let fails = async || {
        store
            .claim(&claim("2"))
            .await
            .is_err_and(|error| error.to_string().contains("MISCONF"))
    };
    until("the server's refusal", || async { fails().await }).await;
    for error in [
        store.claim(&claim("2")).await.unwrap_err(),
        store.commit(&commit(&first, 1, "1")).await.unwrap_err(),
        store.renew(&[renewal(&first)]).await.remove(0).unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    std::fs::remove_dir(&file).unwrap();
    let () = server.send(&["CONFIG", "SET", "save", ""]).await;
    until_usable(&store).await;
    assert_eq!(
        store.commit(&commit(&first, 1, "1")).await.unwrap(),
        Ownership::Held
    );
}

#[tokio::test]
async fn a_server_that_loads_its_data_is_waited_for() {
    let slow = [
        "--key-load-delay",
        "20000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    let server = Server::start(&slow).await;
    let store = patient(server.url()).await;
    let done = claim("done");
    store.claim(&done).await.unwrap();
    store.commit(&commit(&done, 1, "1")).await.unwrap();
    let filler: Vec<String> = (0..100)
        .flat_map(|n| [format!("filler{n}"), "x".repeat(2000)])
        .collect();
    let mut words = vec!["MSET"];
    words.extend(filler.iter().map(String::as_str));
    let () = server.send(&words).await;
    let () = server.send(&["SAVE"]).await;
    server.kill().unwrap();
    // It answers before it has loaded everything, and its start ends after that.
    let claiming = async {
        loop {
            match store.claim(&claim("done")).await {
                Ok(answer) => break answer,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    let claiming = tokio::time::timeout(HANGS, claiming);
    let (restarted, answer) = tokio::join!(server.restart(), claiming);
    restarted.unwrap();
    let answer = answer.expect("the store recovers");
    assert!(
        matches!(answer, Claimed::Committed { attempt: 1, .. }),
        "{answer:?}: nothing was forgotten"
    );
}

#[tokio::test]
async fn what_a_flush_forgets_is_no_longer_the_owners() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let () = server.send(&["FLUSHALL"]).await;
    assert_eq!(
        *store.renew(&[renewal(&first)]).await[0].as_ref().unwrap(),
        Ownership::Lost
    );
    let second = claim("1");
    assert!(matches!(
        store.claim(&second).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    assert_eq!(
        store.commit(&commit(&first, 1, "1")).await.unwrap(),
        Ownership::Lost
    );
    assert_eq!(
        store.release(&release(&first)).await.unwrap(),
        Ownership::Lost
    );
    assert_eq!(
        store.commit(&commit(&second, 1, "2")).await.unwrap(),
        Ownership::Held
    );
}
