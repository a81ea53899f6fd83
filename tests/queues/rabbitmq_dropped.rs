//! RabbitMQ: consumers and publications that are dropped somewhere.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery, Publisher};
use idem::{Idempotency, MemoryStore};
use tokio::sync::oneshot;

use crate::rabbitmq_broker::{Broker, LIMIT, until};

/// Polls a future so often, and drops it.
async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    let polling = poll_fn(|cx| {
        let Some(less) = left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        left = less;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    polling.await
}

/// Consumers of one connection are dropped at each of their polls: while they ask for the queue,
/// subscribe, handle and acknowledge. Their messages come again.
pub(crate) async fn dropped_at_each_poll(broker: &Broker) {
    const MESSAGES: u32 = 60;

    broker.queue("dropped-at").await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let idempotency = Idempotency::builder(MemoryStore::new())
        .lease(Duration::from_millis(500))
        .build();
    let bodies = Mutex::new(BTreeMap::<String, u32>::new());
    let handler = async |delivery: Delivery| {
        let body = async || {
            tokio::time::sleep(Duration::from_millis(2)).await;
            *bodies
                .lock()
                .unwrap()
                .entry(delivery.id().unwrap().to_owned())
                .or_default() += 1;
            Ok::<_, idem::Error>(())
        };
        idempotency
            .operation("t.dropped")
            .key(&delivery.key()?)
            .run(body)
            .await?;
        Ok::<_, idem::Error>(())
    };
    let consumer = || Consumer::new(&connection, "dropped-at").concurrency(2);
    for number in 0..MESSAGES {
        broker.publish("dropped-at", [number]).await;
        let running = polled(
            consumer().run(handler, std::future::pending::<()>()),
            number,
        );
        if let Ok(Some(ended)) = tokio::time::timeout(Duration::from_millis(200), running).await {
            panic!("after {number} polls: {ended:?}");
        }
    }
    assert!(
        connection.status().connected(),
        "the connection of the application was ended"
    );
    let gone = until(LIMIT, async || broker.consumers("dropped-at").await == 0).await;
    assert!(gone, "a dropped consumer still takes messages");
    let (done, ended) = oneshot::channel::<()>();
    let looking = async {
        let has_all = async || bodies.lock().unwrap().len() == MESSAGES as usize;
        assert!(
            until(LIMIT, has_all).await,
            "messages are stuck: only {} came",
            bodies.lock().unwrap().len()
        );
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer().run(handler, ended), looking);
    ran.unwrap();
}

/// Publications are dropped at each of their polls, half of them to an exchange that is missing, so
/// that the broker closes their channels.
pub(crate) async fn publications_dropped(broker: &Broker) {
    broker.queue("dropped-publications").await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let publisher = Publisher::new(&connection);
    let idempotency = Idempotency::new(MemoryStore::new());
    let publishing = async |key: u32, polls: u32| {
        let exchange = if polls != u32::MAX && key.is_multiple_of(2) {
            "missing"
        } else {
            ""
        };
        let body = async || {
            let published = polled(
                publisher.publish("child", exchange, "dropped-publications", "1"),
                polls,
            )
            .await;
            Ok::<_, idem::Error>(published.is_some_and(|published| published.is_ok()))
        };
        idempotency
            .operation("t.dropped.publish")
            .key(&key)
            .run(body)
            .await
            .unwrap()
            .into_inner()
    };
    for key in 0..60 {
        publishing(key, key % 10).await;
    }
    assert!(
        publishing(60, u32::MAX).await,
        "the publisher works no more"
    );
    assert!(
        connection.status().connected(),
        "the connection of the application was ended"
    );
}
