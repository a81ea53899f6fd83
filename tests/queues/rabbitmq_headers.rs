//! RabbitMQ: headers that others have set.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::amqp::lapin::options::{
    BasicGetOptions, BasicNackOptions, BasicPublishOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use idem::amqp::lapin::types::AMQPValue;
use idem::amqp::lapin::{BasicProperties, Connection, ConnectionProperties, ExchangeKind};
use idem::amqp::{Consumer, Delivery};
use tokio::sync::oneshot;

use crate::rabbitmq::table;
use crate::rabbitmq_broker::{Broker, LIMIT, until};

async fn publish(broker: &Broker, queue: &str, properties: BasicProperties) {
    let options = BasicPublishOptions::default();
    let sent = broker.direct.basic_publish(
        "".into(),
        queue.into(),
        options,
        b"1",
        properties.with_delivery_mode(2),
    );
    sent.await.unwrap().await.unwrap();
}

/// The broker has dead-lettered a message from this queue before, and an operator has moved it back
/// with all its headers. It waits in a retry queue, and comes again.
pub(crate) async fn moved_back(broker: &Broker) {
    let mut arguments = table(&[
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", ""),
        ("x-dead-letter-routing-key", "moved.dead"),
    ]);
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(1));
    broker
        .direct
        .queue_declare("moved".into(), QueueDeclareOptions::durable(), arguments)
        .await
        .unwrap();
    broker.queue("moved.dead").await;
    broker.publish("moved", [0]).await;
    let taken = async |queue: &str| {
        let found = Mutex::new(None);
        let taking = until(LIMIT, async || {
            let message = broker
                .direct
                .basic_get(
                    queue.into(),
                    BasicGetOptions {
                        no_ack: queue != "moved",
                    },
                )
                .await
                .unwrap();
            message
                .map(|message| *found.lock().unwrap() = Some(message))
                .is_some()
        });
        assert!(taking.await, "`{queue}` has no message");
        found.into_inner().unwrap().unwrap()
    };
    for _ in 0..2 {
        let message = taken("moved").await;
        message
            .nack(BasicNackOptions {
                requeue: true,
                ..BasicNackOptions::default()
            })
            .await
            .unwrap();
    }
    let dead = taken("moved.dead").await;
    assert!(
        dead.properties
            .headers()
            .as_ref()
            .unwrap()
            .inner()
            .contains_key("x-death")
    );
    publish(broker, "moved", dead.properties.clone()).await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let times = AtomicU32::new(0);
    let handler = async |_: Delivery| {
        if times.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(idem::Error::in_flight(
                "t.moved",
                "m-0",
                Duration::from_millis(10),
            ));
        }
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok(())
    };
    let running = tokio::time::timeout(
        LIMIT,
        Consumer::new(&connection, "moved").run(handler, ended),
    );
    running
        .await
        .expect("the message never came again")
        .unwrap();
}

/// A producer has set our header of the first routing key to more than a routing key can have.
pub(crate) async fn long_routing_key(broker: &Broker) {
    let options = ExchangeDeclareOptions::default();
    broker
        .direct
        .exchange_declare(
            "long.dead".into(),
            ExchangeKind::Fanout,
            options,
            table(&[]),
        )
        .await
        .unwrap();
    for queue in ["long", "long.dead"] {
        broker.queue(queue).await;
    }
    let bound = broker.direct.queue_bind(
        "long.dead".into(),
        "long.dead".into(),
        "".into(),
        QueueBindOptions::default(),
        table(&[]),
    );
    bound.await.unwrap();
    let long = "k".repeat(300);
    let headers = table(&[("idem-routing-key", &long), ("idem-exchange", &long)]);
    publish(
        broker,
        "long",
        BasicProperties::default().with_headers(headers),
    )
    .await;
    broker.publish("long", [0]).await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let subjects = Mutex::new(Vec::new());
    let handler = async |delivery: Delivery| {
        subjects.lock().unwrap().push(delivery.subject().to_owned());
        delivery.key()?;
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(&connection, "long")
        .dead_letter_exchange("long.dead")
        .concurrency(1);
    let running = tokio::time::timeout(LIMIT, consumer.run(handler, ended));
    running
        .await
        .expect("the message after it never came")
        .unwrap();
    assert_eq!(
        *subjects.lock().unwrap(),
        ["long", "long"],
        "it has the routing key with which it came"
    );
}
