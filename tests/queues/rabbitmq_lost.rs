//! RabbitMQ: consumers whose connection is lost.
//!
//! lapin restores a lost connection with all its consumers, also with those that the application
//! has dropped meanwhile. Messages that reach such a consumer are stuck until the connection ends.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use crate::rabbitmq::dead_letters;
use crate::rabbitmq_broker::{Broker, LIMIT, until};
use crate::rabbitmq_dropped::{dropped_at_each_poll, publications_dropped};
use crate::rabbitmq_headers::{long_routing_key, moved_back};
use crate::rabbitmq_published::{
    never_confirmed, publisher_reconnects, retry_queue_deleted, returned_among_others,
};
use crate::rabbitmq_refused::invalid_settings;
use crate::rabbitmq_runtime::{
    ANSWER, consumer_ended, ended_with_reconnect, ended_without_reconnect, left_while_reconnecting,
    parked, publisher_ended, slow,
};
use crate::rabbitmq_warnings::short_consumer_timeout;

const PREFETCH: usize = 4;

/// Runs a consumer until its handler has had all these messages.
async fn consumed(consumer: Consumer<'_>, ids: impl IntoIterator<Item = u32>) {
    let missing = Mutex::new(ids.into_iter().map(|id| format!("m-{id}")).collect());
    consumed_from(consumer, &missing).await;
}

/// The same, with the messages that are still missing.
async fn consumed_from(consumer: Consumer<'_>, missing: &Mutex<BTreeSet<String>>) {
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        let mut missing = missing.lock().unwrap();
        missing.remove(delivery.id().unwrap());
        if missing.is_empty()
            && let Some(done) = done.lock().unwrap().take()
        {
            done.send(()).unwrap();
        }
        Ok::<_, idem::Error>(())
    };
    let running = tokio::time::timeout(LIMIT, consumer.run(handler, ended)).await;
    assert!(
        running.is_ok(),
        "these messages never arrived: {:?}",
        missing.lock().unwrap()
    );
    running.unwrap().unwrap();
}

/// All at once, since starting the server takes longest. Each is a task, so that one that fails
/// does not hide the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_a_consumer_with_a_lost_connection_or_a_silent_channel_keeps_no_message_from_the_others()
 {
    let all = async {
        let broker = Rc::new(Broker::start().await);
        macro_rules! parts {
            ($($part:ident: $otherwise:literal,)*) => {
                [$({
                    let broker = broker.clone();
                    (spawn_local(async move { $part(&broker).await }), $otherwise)
                }),*]
            };
        }
        let parts = parts! {
            dropped_at_each_poll: "a consumer that was dropped kept messages, or ended the \
                connection",
            publications_dropped: "publications that were dropped ended the connection",
            short_consumer_timeout: "nothing was said about a consumer_timeout that is too short",
            dropped_while_lost: "a consumer that ended while its connection was lost took messages",
            dead_letter_while_lost: "a consumer that could not put a message aside took messages \
                twice",
            never_restored: "a connection that lapin gave up was not replaced",
            ended_with_reconnect: "a connection whose tokio runtime ended was not replaced",
            ended_without_reconnect: "a connection whose tokio runtime ended is no error",
            consumer_ended: "a consumer whose tokio runtime ended kept messages",
            moved_back: "a message that RabbitMQ had dead-lettered before did not come out of its \
                retry queue",
            long_routing_key: "a header that is too long ended the consumer",
            invalid_settings: "a consumer started with a setting that it cannot keep, or panicked",
            publisher_ended: "a publisher went on with a connection whose tokio runtime ended",
            left_while_reconnecting: "a publication that was left alone kept the others from \
                connecting",
            parked: "a connection whose tokio runtime stands still was not replaced",
            slow: "a slow broker was given up",
            never_confirmed: "a channel that confirms nothing was not replaced",
            retry_queue_deleted: "a retry queue that was deleted was not declared again",
            returned_among_others: "a returned message counted as published",
            publisher_reconnects: "a publisher did not connect again",
        };
        let mut failed = Vec::new();
        for (part, otherwise) in parts {
            if part.await.is_err() {
                failed.push(otherwise);
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    };
    LocalSet::new().run_until(all).await;
}

/// A consumer that ends while its connection is lost.
async fn dropped_while_lost(broker: &Broker) {
    broker.queue("dropped").await;
    let (proxy, connection) = broker.proxied(800).await;
    let consumer = || Consumer::new(&connection, "dropped").concurrency(PREFETCH);
    let (end, ended) = oneshot::channel::<()>();
    let begun = Notify::new();
    let handler = async |_: Delivery| {
        begun.notify_one();
        Ok::<_, idem::Error>(())
    };
    let running = consumer().run(handler, ended);
    let cutting = async {
        // The consumer has begun when it has handled a message: the broker counts it earlier.
        broker.publish("dropped", [20]).await;
        let has_begun = tokio::time::timeout(LIMIT, begun.notified()).await;
        assert!(has_begun.is_ok(), "it never began");
        proxy.cut();
        assert!(
            until(LIMIT, async || connection.status().reconnecting()).await,
            "nothing was lost"
        );
        end.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(running, cutting);
    ran.unwrap();
    proxy.restore();
    assert!(
        until(LIMIT, async || connection.status().connected()).await,
        "nothing was restored"
    );
    // lapin may restore the consumer as well.
    until(Duration::from_secs(2), async || {
        broker.consumers("dropped").await > 0
    })
    .await;
    let publishing = async {
        until(Duration::from_secs(5), async || {
            broker.consumers("dropped").await > 1
        })
        .await;
        broker.publish("dropped", 0..20).await;
    };
    tokio::join!(publishing, consumed(consumer(), 0..20));
}

/// A consumer that has to put a message aside while its connection is lost.
async fn dead_letter_while_lost(broker: &Broker) {
    broker.queue("poison").await;
    let (proxy, connection) = broker.proxied(800).await;
    let (done, ended) = oneshot::channel::<()>();
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let failed = Notify::new();
    let handler = async |delivery: Delivery| {
        arrived.send(delivery.id().unwrap().to_owned()).unwrap();
        if delivery.id() == Some("m-0") {
            gate.clone().wait_for(|open| *open).await.unwrap();
            failed.notify_one();
            return Err(idem::Error::missing_key("t.poison"));
        }
        Ok(())
    };
    let running = Consumer::new(&connection, "poison")
        .concurrency(PREFETCH)
        .run(handler, ended);
    let harming = async {
        broker.publish("poison", [0]).await;
        arrivals.recv().await.unwrap();
        proxy.cut();
        assert!(
            until(LIMIT, async || connection.status().reconnecting()).await,
            "nothing was lost"
        );
        go_on.send(true).unwrap();
        // The poll in which the handler fails begins to put the message aside, which fails now.
        failed.notified().await;
        proxy.restore();
        assert!(
            until(LIMIT, async || connection.status().connected()).await,
            "nothing was restored"
        );
        until(Duration::from_secs(5), async || {
            broker.consumers("poison").await > 0
        })
        .await;
        broker.publish("poison", 1..=20).await;
        let mut missing: BTreeSet<String> = (1..=20).map(|id| format!("m-{id}")).collect();
        while !missing.is_empty() {
            let next = tokio::time::timeout(LIMIT, arrivals.recv()).await;
            missing.remove(
                &next
                    .unwrap_or_else(|_| panic!("these messages never arrived: {missing:?}"))
                    .unwrap(),
            );
        }
        // Twice, if the first confirmation was lost.
        let is_put_aside = async || !dead_letters(&broker.direct).await.is_empty();
        assert!(until(LIMIT, is_put_aside).await, "it was not put aside");
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(running, harming);
    ran.unwrap();
}

/// A connection that lapin gives up, without a word.
async fn never_restored(broker: &Broker) {
    broker.queue("given-up").await;
    let (proxy, connection) = broker.proxied(1).await;
    let replaced = Notify::new();
    // lapin may also end without changing the status of the connection, so that only silence tells.
    let consumer = Consumer::new(&connection, "given-up")
        .reconnect(|| async {
            replaced.notify_one();
            Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
        })
        .answer_timeout(ANSWER);
    let missing = Mutex::new((0..=5).map(|id| format!("m-{id}")).collect::<BTreeSet<_>>());
    let cutting = async {
        // The consumer has begun when it has handled a message: the broker counts it earlier.
        broker.publish("given-up", [5]).await;
        let has_begun = async || !missing.lock().unwrap().contains("m-5");
        assert!(until(LIMIT, has_begun).await, "it never began");
        proxy.cut();
        // Between the two connections, the broker has no consumer, but maybe for a moment only.
        let is_replaced = tokio::time::timeout(LIMIT, replaced.notified()).await;
        assert!(is_replaced.is_ok(), "nothing was lost");
        broker.publish("given-up", 0..5).await;
    };
    tokio::join!(consumed_from(consumer, &missing), cutting);
}
