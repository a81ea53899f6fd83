//! RabbitMQ: publications that the broker does not confirm, or returns.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::amqp::lapin::options::QueueDeleteOptions;
use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery, PublishError, Publisher};
use idem::{Idempotency, MemoryStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::rabbitmq::declare;
use crate::rabbitmq_broker::{Broker, LIMIT, until};

/// Starts a proxy that keeps the confirmations of one channel from the client, forever: of the
/// first channel that gets any. Returns its port.
async fn muffled(upstream: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_muffled = Arc::new(AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_server, mut to_server) = TcpStream::connect(("127.0.0.1", upstream))
                .await
                .unwrap()
                .into_split();
            let (mut from_client, mut to_client) = client.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let is_muffled = is_muffled.clone();
            tokio::spawn(async move {
                let mut silent = None;
                // A frame: its type, its channel, its length, as many bytes, and one at the end.
                let mut head = [0; 7];
                while from_server.read_exact(&mut head).await.is_ok() {
                    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
                    let mut rest = vec![0; length + 1];
                    if from_server.read_exact(&mut rest).await.is_err() {
                        return;
                    }
                    let channel = [head[1], head[2]];
                    // `basic.ack`
                    if head[0] == 1 && rest.starts_with(&[0, 60, 0, 80]) {
                        if !is_muffled.swap(true, Ordering::Relaxed) {
                            silent = Some(channel);
                        }
                        if silent == Some(channel) {
                            continue;
                        }
                    }
                    if to_client
                        .write_all(&[&head, &rest[..]].concat())
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// A channel that stays open, and on which the broker confirms nothing any more.
pub(crate) async fn never_confirmed(broker: &Broker) {
    declare(&broker.direct, "silent.dead", &[("x-queue-type", "quorum")]).await;
    let arguments = [
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", "silent.dead"),
    ];
    declare(&broker.direct, "silent", &arguments).await;
    let url = broker
        .server
        .url_through(muffled(broker.server.port()).await);
    let connection = Connection::connect(&url, ConnectionProperties::default())
        .await
        .unwrap();
    let poisoned = AtomicU32::new(0);
    let (done, ended) = oneshot::channel::<()>();
    let handler = async |delivery: Delivery| {
        if delivery.id() == Some("m-0") {
            poisoned.fetch_add(1, Ordering::Relaxed);
            return Err(idem::Error::missing_key("t.silent"));
        }
        Ok(())
    };
    // One place, so nothing else can arrive while the dead letter is not confirmed.
    let running = Consumer::new(&connection, "silent")
        .concurrency(1)
        .run(handler, ended);
    let looking = async {
        broker.publish("silent", 0..=3).await;
        let drained = until(LIMIT, async || {
            broker.messages("silent").await == 0 && broker.messages("silent.dead").await > 0
        });
        assert!(
            drained.await,
            "the consumer went on with a channel that confirms nothing"
        );
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(running, looking);
    ran.unwrap();
    assert_eq!(
        broker.messages("silent").await,
        0,
        "it was put aside, and came again"
    );
    assert_eq!(
        poisoned.into_inner(),
        1,
        "the message was taken from its handler"
    );
}

/// A retry queue that is deleted while its consumer runs.
pub(crate) async fn retry_queue_deleted(broker: &Broker) {
    broker.queue("pruned").await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let (begun, beginning) = oneshot::channel();
    let (done, ended) = oneshot::channel();
    let begun = Mutex::new(Some(begun));
    let done = Mutex::new(Some(done));
    let deliveries = Mutex::new(Vec::new());
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let handler = async |delivery: Delivery| {
        deliveries.lock().unwrap().push(delivery.is_redelivered());
        let begun = begun.lock().unwrap().take();
        if let Some(begun) = begun {
            begun.send(()).unwrap();
            gate.clone().wait_for(|open| *open).await.unwrap();
            return Err(idem::Error::in_flight(
                "t.pruned",
                "m-0",
                Duration::from_millis(100),
            ));
        }
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok(())
    };
    let running = Consumer::new(&connection, "pruned").run(handler, ended);
    let pruning = async {
        broker.publish("pruned", [0]).await;
        beginning.await.unwrap();
        broker
            .direct
            .queue_delete("pruned.retry.1s".into(), QueueDeleteOptions::default())
            .await
            .unwrap();
        go_on.send(true).unwrap();
    };
    let (ran, ()) = tokio::join!(tokio::time::timeout(LIMIT, running), pruning);
    ran.expect("the message never came again").unwrap();
    // A message that is handed back counts against the delivery limit.
    assert_eq!(
        *deliveries.lock().unwrap(),
        [false, false],
        "it came by a retry queue, and not by a return"
    );
}

/// Publications of several threads at once, half of which no queue gets.
pub(crate) async fn returned_among_others(broker: &Broker) {
    declare(&broker.direct, "mixed", &[]).await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let publisher = Publisher::new(Box::leak(Box::new(connection)));
    let publisher = Arc::new(publisher);
    let idempotency = Idempotency::new(MemoryStore::new());
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let publisher = publisher.clone();
        let idempotency = idempotency.clone();
        tasks.spawn(async move {
            let mut wrong = BTreeSet::new();
            for number in 0..50 {
                let is_lost = number % 2 == 0;
                let queue = if is_lost { "no such queue" } else { "mixed" };
                let publishing = idempotency
                    .operation("t.mixed")
                    .key(&format!("{task}-{number}"))
                    .run(async || {
                        let published = publisher.publish("child", "", queue, "1").await;
                        Ok::<_, idem::Error>(matches!(published, Err(PublishError::Unconfirmed(_))))
                    });
                if publishing.await.unwrap().into_inner() != is_lost {
                    wrong.insert(number);
                }
            }
            wrong
        });
    }
    let wrong: usize = tasks.join_all().await.iter().map(BTreeSet::len).sum();
    assert_eq!(
        wrong, 0,
        "so many publications got the answer to another one"
    );
}

/// A publisher whose connection has ended.
pub(crate) async fn publisher_reconnects(broker: &Broker) {
    broker.queue("again").await;
    let (proxy, connection) = broker.proxied(0).await;
    proxy.cut();
    assert!(
        until(LIMIT, async || !connection.status().connected()).await,
        "nothing was lost"
    );
    let connect = || async {
        Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
    };
    let idempotency = Idempotency::new(MemoryStore::new());
    for (publisher, works) in [
        (Publisher::new(&connection), false),
        (Publisher::new(&connection).reconnect(connect), true),
    ] {
        let publishing = idempotency
            .operation("t.again")
            .key(&works.to_string())
            .run(async || {
                let published = publisher.publish("child", "", "again", "1").await;
                assert_eq!(published.is_ok(), works, "{published:?}");
                Ok::<_, idem::Error>(())
            });
        publishing.await.unwrap();
    }
    let arrived = until(LIMIT, async || broker.messages("again").await == 1);
    assert!(arrived.await, "one publication of two, once");
}
