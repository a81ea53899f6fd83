//! Orders become mails: producers, several consumers, duplicates, poison, and a consumer that is
//! killed midway.
//!
//! ```text
//! cargo run --example mails --features nats   # starts a nats-server and a redis-server of its own
//! ```
//!
//! Each customer gets one mail. Messages that no redelivery helps are put aside, and listed at the
//! end.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery, MessageKey, REASON, async_nats};
use idem::{ErrorPolicy, Idempotency, RedisStore, idempotent};
use idem_testkit::{NatsServer, RedisServer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const ORDERS: u32 = 300;
const PRODUCERS: u32 = 3;
/// Every tenth order is published twice, under one id.
const DUPLICATED: u32 = 10;
/// Every fiftieth address is invalid, and every seventy-fifth makes the mail server fail.
const INVALID: u32 = 50;
const FAILING: u32 = 75;

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    number: u32,
    email: String,
}

#[derive(Debug, thiserror::Error, ErrorPolicy)]
enum HandleError {
    #[error("invalid address")]
    #[idem(dead_letter)]
    InvalidAddress,
    #[error("the mail server failed")]
    ServerFailed,
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

#[idempotent(name = "mails.on_order", key = key, ttl = "10m", remember = "14d", lease = "2s", max_attempts = 2)]
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

/// One consumer process. It ends in order when its standard input does.
async fn consume(nats: &str, redis: &str) -> Result<(), Box<dyn Error>> {
    let idempotency = Idempotency::new(RedisStore::connect(redis).await?);
    idem::install(idempotency.clone())?;
    let context = async_nats::jetstream::new(async_nats::connect(nats).await?);
    let shutdown = async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin()).read_line(&mut line).await;
    };
    Consumer::new(&context, "ORDERS", "mails")
        .concurrency(8)
        .dead_letter("dead.mails")
        .run(async |delivery: Delivery| on_order(delivery.key()?, delivery.json()?).await, shutdown)
        .await?;
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// Publishes its share of the orders, some of them twice.
async fn produce(context: Context, producer: u32) -> Result<(), async_nats::Error> {
    for number in (1..=ORDERS).filter(|number| number % PRODUCERS == producer) {
        let email = match number {
            number if number % INVALID == 0 => "invalid".to_owned(),
            number if number % FAILING == 0 => "failing".to_owned(),
            number => format!("customer-{number}@example.com"),
        };
        let payload = serde_json::to_vec(&OrderPlaced { number, email })?;
        for _ in 0..if number % DUPLICATED == 0 { 2 } else { 1 } {
            let message = PublishMessage::build().payload(payload.clone().into()).message_id(format!("order-{number}"));
            context.send_publish("orders.placed", message).await?.await?;
            // Longer than the stream remembers ids, so that the consumers get the duplicate.
            if number % DUPLICATED == 0 {
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--consumer", nats, redis] => consume(nats, redis).await,
        [] => conduct().await,
        _ => Err("usage: mails".into()),
    }
}

async fn conduct() -> Result<(), Box<dyn Error>> {
    let (nats, redis) = (NatsServer::start().await?, RedisServer::start().await?);
    println!("a nats-server and a redis-server of our own, on ports {} and {}", nats.port(), redis.port());
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await?);
    for (name, subject) in [("ORDERS", "orders.>"), ("DEAD", "dead.>")] {
        let config = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            duplicate_window: Duration::from_millis(100),
            ..stream::Config::default()
        };
        context.create_stream(config).await?;
    }

    let begun = Instant::now();
    let clock = move || format!("{:5.1} s", begun.elapsed().as_secs_f64());
    let (lines, mut heard) = unbounded_channel();
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(start(&nats.url(), &redis.url(), &lines)?);
    }
    let producers: Vec<_> = (0..PRODUCERS).map(|number| tokio::spawn(produce(context.clone(), number))).collect();

    // One consumer is killed when a third of the mails are sent.
    let (mut sent, mut runs) = (BTreeMap::<u32, u32>::new(), 0);
    let poison = ORDERS / INVALID + ORDERS / FAILING - ORDERS / 150;
    while sent.len() < (ORDERS - poison) as usize {
        let line = tokio::time::timeout(Duration::from_secs(60), heard.recv()).await?.ok_or("the consumers ended")?;
        match line.split_once(' ') {
            Some(("sent", number)) => *sent.entry(number.parse()?).or_default() += 1,
            Some(("begun", _)) => runs += 1,
            _ => {}
        }
        if sent.len() == ORDERS as usize / 3 && consumers.len() == 3 {
            consumers.remove(0).kill().await?;
            println!("{}  a consumer was killed; {} mails were sent", clock(), sent.len());
        }
    }
    for producer in producers {
        producer.await?.map_err(|error| error.to_string())?;
    }
    println!("{}  {} mails were sent", clock(), sent.len());

    // Poison takes its attempts.
    let stream = context.get_stream("DEAD").await?;
    let config = pull::Config { durable_name: Some("look".into()), ..pull::Config::default() };
    let dead: PullConsumer = stream.create_consumer(config).await?;
    let mut aside = BTreeMap::new();
    let mut messages = dead.stream().messages().await?;
    while aside.len() < poison as usize {
        let message =
            tokio::time::timeout(Duration::from_secs(60), messages.next()).await?.ok_or("no dead letters")??;
        let order: OrderPlaced = serde_json::from_slice(&message.payload)?;
        let reason = message.headers.as_ref().and_then(|headers| headers.get(REASON)).ok_or("no reason")?;
        aside.insert(order.number, reason.to_string());
        message.ack().await.map_err(|error| error.to_string())?;
    }
    for mut consumer in consumers {
        drop(consumer.stdin.take());
        consumer.wait().await?;
    }

    println!("{}  the consumers have ended\n", clock());
    println!("  {ORDERS} orders, {} of them published twice; {runs} bodies ran", ORDERS / DUPLICATED);
    for (number, reason) in &aside {
        println!("  order {number:>3}  put aside in the stream DEAD: {reason}");
    }
    // A mail that was sent by the killed consumer just before it could be recorded is sent once
    // more; it is not lost.
    let twice = sent.values().filter(|times| **times > 1).count();
    let missing = (1..=ORDERS).filter(|number| !sent.contains_key(number) && !aside.contains_key(number)).count();
    if missing > 0 || twice > 8 {
        return Err(format!("✗ {missing} orders without a mail, {twice} with two").into());
    }
    println!("\n  ✓ {} customers have their mail, {} orders are put aside, and none is lost", sent.len(), aside.len());
    if twice > 0 {
        println!("    ({twice} mails were sent by the killed consumer, and again: its outcome was not recorded yet)");
    }
    Ok(())
}

fn start(nats: &str, redis: &str, lines: &UnboundedSender<String>) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--consumer", nats, redis])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut out = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
    let lines = lines.clone();
    tokio::spawn(async move {
        while let Ok(Some(line)) = out.next_line().await {
            let _ = lines.send(line);
        }
    });
    Ok(child)
}
