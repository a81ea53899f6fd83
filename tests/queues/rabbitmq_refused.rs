//! RabbitMQ: consumers that do not start.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery, Error};

use crate::rabbitmq::declare;
use crate::rabbitmq_broker::Broker;

/// By the default exchange, poison would come back at once, or go nowhere. lapin panics at names
/// that are too long.
pub(crate) async fn invalid_settings(broker: &Broker) {
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    let default = ("x-dead-letter-exchange", "");
    declare(&broker.direct, "keyless", &[default]).await;
    declare(
        &broker.direct,
        "cycle",
        &[default, ("x-dead-letter-routing-key", "cycle")],
    )
    .await;
    broker.queue("valid").await;
    let long = "q".repeat(250);
    broker.queue(&long).await;
    let consumer = |queue: &str| Consumer::new(&connection, queue);
    let mut accepted = Vec::new();
    for (what, consumer, word) in [
        (
            "more than a prefetch can be",
            consumer("valid").concurrency(70_000),
            "65,535",
        ),
        (
            "no routing key",
            consumer("keyless"),
            "x-dead-letter-routing-key",
        ),
        (
            "its own name",
            consumer("cycle"),
            "x-dead-letter-routing-key",
        ),
        (
            "an empty name",
            consumer("valid").dead_letter_exchange(""),
            "default exchange",
        ),
        (
            "no room for `.retry.1s`",
            consumer(&long).dead_letter_exchange("dead"),
            "retry_queue",
        ),
        ("a long queue", consumer(&"q".repeat(256)), "255"),
        (
            "a long exchange",
            consumer("valid").dead_letter_exchange("q".repeat(256)),
            "255",
        ),
    ] {
        let running = consumer.run(
            async |_: Delivery| Ok::<_, idem::Error>(()),
            std::future::pending::<()>(),
        );
        let running = AssertUnwindSafe(running).catch_unwind();
        match tokio::time::timeout(Duration::from_secs(20), running).await {
            Ok(Ok(Err(Error::Config { reason, .. }))) => {
                assert!(reason.contains(word), "{what}: {reason}");
            }
            Ok(Ok(ended)) => panic!("{what}: {ended:?}"),
            Ok(Err(_)) => accepted.push((what, "it panics")),
            Err(_) => accepted.push((what, "it runs")),
        }
    }
    assert!(accepted.is_empty(), "{accepted:?}");
}
