//! A consumer process: the handler, and the loop around it.

use std::error::Error;
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::nats::async_nats;
use idem::nats::{Delivery, MessageKey};
use idem::{ErrorPolicy, Idempotency, RedisStore, idempotent};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// How many messages each consumer handles at once.
pub(crate) const CONCURRENCY: usize = 8;

#[derive(Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub(crate) number: u32,
    pub(crate) email: String,
}

#[derive(Debug, thiserror::Error, ErrorPolicy)]
enum HandleError {
    #[error("invalid address")]
    #[idem(dead_letter)] // no redelivery helps
    InvalidAddress,
    #[error("the mail server failed")]
    ServerFailed, // comes again, twice at most: `max_attempts`
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// The lines that matter. Without the attribute, each duplicate sends another mail: try it.
#[idempotent(
    name = "mails.on_order",
    key = key,
    ttl = "10m",
    remember = "14d",
    lease = "2s",
    max_attempts = 2,
)]
async fn on_order(key: MessageKey, order: OrderPlaced) -> Result<(), HandleError> {
    println!("begun {}", order.number);
    match order.email.as_str() {
        "invalid" => return Err(HandleError::InvalidAddress),
        "failing" => return Err(HandleError::ServerFailed),
        _ => tokio::time::sleep(Duration::from_millis(20)).await,
    }
    println!("sent {}", order.number);
    Ok(())
}

/// Consumes until standard input ends.
pub(crate) async fn consume(broker: &str, redis: &str) -> Result<(), Box<dyn Error>> {
    let idempotency = Idempotency::new(RedisStore::connect(redis).await?);
    idem::install(idempotency.clone())?;
    let shutdown = async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin())
            .read_line(&mut line)
            .await;
    };
    let handler = async |delivery: Delivery| {
        println!("delivered");
        on_order(delivery.key()?, delivery.json()?).await
    };
    #[cfg(feature = "mails-kafka")]
    if broker.starts_with("kafka") {
        crate::kafka::consumer(broker)
            .concurrency(CONCURRENCY)
            .run(handler, shutdown)
            .await?;
        idempotency.shutdown(Duration::from_secs(10)).await?;
        return Ok(());
    }
    if broker.starts_with("nats") {
        let context = async_nats::jetstream::new(async_nats::connect(broker).await?);
        let consumer =
            idem::nats::Consumer::new(&context, "ORDERS", "mails").dead_letter("dead.mails");
        consumer
            .concurrency(CONCURRENCY)
            .run(handler, shutdown)
            .await?;
    } else {
        let connect = || Connection::connect(broker, ConnectionProperties::default());
        let connection = connect().await?;
        let consumer = idem::amqp::Consumer::new(&connection, "mails").reconnect(connect);
        consumer
            .concurrency(CONCURRENCY)
            .run(handler, shutdown)
            .await?;
    }
    // Outcomes that the store did not accept at once are recorded before the process ends.
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
