//! The conditions for using, asking and leaving a connection.

use std::sync::LazyLock;

use idem_testkit::RedisServer;
use redis::Script;
use tokio::task::JoinHandle;

use super::*;
use crate::connection::sentinel::Statement;

async fn server_and_link() -> (RedisServer, Link) {
    static RIGHTS: LazyLock<Script> = LazyLock::new(|| Script::new("return {}"));
    let server = RedisServer::start().await.unwrap();
    let handshake = Handshake {
        scripts: &[],
        rights: &RIGHTS,
        sample: "sample".into(),
    };
    let terms = LinkOptions {
        connect_limit: Duration::from_secs(30),
        handshake,
        runtime: ConnectionRuntime::current(),
    };
    let link = Link::connect(Target::parse(&server.url()).unwrap(), terms)
        .await
        .unwrap();
    (server, link)
}

/// Which connection is in use.
fn in_use(link: &Link) -> *const () {
    Arc::as_ptr(&link.ready().unwrap().subscriptions).cast()
}

#[tokio::test]
async fn a_new_connection_is_used_unless_it_is_lost_already() {
    let (_server, link) = server_and_link().await;
    let first = in_use(&link);
    let lost = link.0.open().await.unwrap();
    link.0.lost(&lost.subscriptions, Duration::ZERO);
    assert!(!link.0.publish(lost));
    assert_eq!(in_use(&link), first);
    assert!(link.0.publish(link.0.open().await.unwrap()));
    assert_ne!(in_use(&link), first);
}

#[tokio::test]
async fn a_new_connection_to_a_former_master_is_not_used() {
    let (_server, link) = server_and_link().await;
    let former = ("10.0.0.1".to_owned(), 1);
    let master = ("10.0.0.2".to_owned(), 2);
    let Peer::Server(client) = &link.0.peer else {
        unreachable!()
    };
    // The failover is announced while the connection is made.
    let open_at = |address| Arc::clone(&link.0).open_at(client.clone(), Some(address));
    let to_former = open_at(former).await.unwrap();
    let to_master = open_at(master.clone()).await.unwrap();
    link.0.handle_statement(Statement::Switched(master));
    let before = in_use(&link);
    assert!(!link.0.publish(to_former));
    assert_eq!(in_use(&link), before);
    assert!(link.0.publish(to_master));
    assert_ne!(in_use(&link), before);
}

#[tokio::test]
async fn a_connection_is_asked_once_at_a_time_and_again_if_nobody_waits_for_the_answer() {
    let (_server, link) = server_and_link().await;
    // No time passes beside the given age.
    tokio::time::pause();
    let asks_beside = async |task: &JoinHandle<()>, age: Duration| {
        let before = task.abort_handle();
        *link.0.probe.lock().unwrap() = Some(Probe {
            task: before.clone(),
            since: clock::now() - age,
        });
        link.probe();
        link.0.probe.lock().unwrap().as_ref().unwrap().task.id() != before.id()
    };
    let pending = tokio::spawn(std::future::pending());
    assert!(
        !asks_beside(&pending, Duration::ZERO).await,
        "the answer is awaited"
    );
    assert!(
        !asks_beside(&pending, SILENCE * 5 / 4).await,
        "the answer may be a little late"
    );
    // A task that has not ended by then is in a runtime that stands still.
    assert!(
        asks_beside(&pending, SILENCE * 2).await,
        "nobody waits for the answer"
    );
    pending.abort();
    while !pending.is_finished() {
        tokio::task::yield_now().await;
    }
    assert!(
        asks_beside(&pending, Duration::ZERO).await,
        "the last question is answered"
    );
}

#[tokio::test]
async fn the_servers_time_is_known_to_the_fraction_of_a_second() {
    let (_server, link) = server_and_link().await;
    let session = link.ready().unwrap();
    let time = async || {
        let (seconds, micros) = redis::cmd("TIME")
            .query_async(&mut session.connection.clone())
            .await
            .unwrap();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    // A fraction that makes a difference.
    while !(300..700).contains(&time().await.subsec_millis()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = time().await;
    link.look_at_clock(&session).await.unwrap();
    let known = link.clock().renewed_by(Duration::ZERO).unwrap();
    let after = time().await;
    assert!(
        before <= known && known < after + Duration::from_secs(1),
        "{before:?} {known:?} {after:?}"
    );
}
