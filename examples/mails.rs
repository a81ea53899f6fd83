//! Orders become mails: producers, several consumers, duplicates, poison, and a consumer that is
//! killed midway. Each customer must get one mail.
//!
//! ```text
//! cargo run --example mails                        # over a nats-server of its own, or else over RabbitMQ
//! cargo run --example mails -- --broker rabbitmq   # over a RabbitMQ of its own
//! cargo run --example mails -- --broker kafka      # over the cluster in memory of librdkafka
//! cargo run --example mails -- --orders 5000       # more of them
//! ```
//!
//! It needs one of the packages `nats-server` and `rabbitmq-server`, and `redis-server` for the
//! records. They are started on free ports, with their files in a temporary directory, and ended
//! with the example. Kafka needs no package, but a C compiler and make. The first run is slow: the
//! example builds itself again, with their clients.

// An example reads the clock where it likes.
#![allow(clippy::disallowed_methods)]

#[cfg(feature = "mails")]
#[path = "mails/broker.rs"]
mod broker;
#[cfg(feature = "mails")]
#[path = "mails/conduct.rs"]
mod conduct;
#[cfg(feature = "mails")]
#[path = "mails/consumer.rs"]
mod consumer;
#[cfg(feature = "mails-kafka")]
#[path = "mails/kafka.rs"]
mod kafka;
#[allow(dead_code)]
#[path = "rebuild/mod.rs"]
mod rebuild;
#[cfg(feature = "mails")]
#[path = "mails/summary.rs"]
mod summary;

use std::error::Error;
use std::process::ExitCode;

const USAGE: &str = "usage: mails [--broker nats | rabbitmq | kafka] [--orders NUMBER]";

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("mails: {problem}");
            ExitCode::from(2)
        }
    }
}

#[cfg(feature = "mails")]
async fn run(words: &[&str]) -> Result<bool, Box<dyn Error>> {
    if let ["--consumer", broker, redis] = words {
        consumer::consume(broker, redis).await?;
        return Ok(true);
    }
    let mut wanted = None;
    let mut orders = 300;
    for pair in words.chunks(2) {
        match pair {
            ["--broker", "nats"] => wanted = Some(broker::Kind::Nats),
            ["--broker", "rabbitmq"] => wanted = Some(broker::Kind::RabbitMq),
            #[cfg(feature = "mails-kafka")]
            ["--broker", "kafka"] => wanted = Some(broker::Kind::Kafka),
            #[cfg(not(feature = "mails-kafka"))]
            ["--broker", "kafka"] => {
                println!("Building the example with librdkafka ..");
                return rebuild::run_with_features("mails", "mails-kafka");
            }
            ["--orders", number] => orders = number.parse().map_err(|_| USAGE)?,
            _ => return Err(USAGE.into()),
        }
    }
    conduct::conduct(wanted, orders).await
}

#[cfg(not(feature = "mails"))]
#[allow(clippy::unused_async)]
async fn run(words: &[&str]) -> Result<bool, Box<dyn Error>> {
    if words
        .first()
        .is_some_and(|word| !matches!(*word, "--broker" | "--orders"))
    {
        return Err(USAGE.into());
    }
    println!("Building the example with the clients of the brokers ..");
    let is_kafka = words.contains(&"kafka");
    rebuild::run_with_features("mails", if is_kafka { "mails-kafka" } else { "mails" })
}
