//! Starts everything, kills a consumer midway, and counts.

use std::error::Error;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::{Duration, Instant};

use idem_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::broker::{Client, Kind, Server};
use crate::consumer::{CONCURRENCY, OrderPlaced};
use crate::summary::Summary;

const PRODUCERS: u32 = 3;
const CONSUMERS: usize = 3;
/// Every tenth order is published twice, under one id.
const DUPLICATED: u32 = 10;
/// Every fiftieth address is invalid, and every seventy-fifth makes the mail server fail.
const INVALID: u32 = 50;
const FAILING: u32 = 75;
/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address of an order.
fn email(number: u32) -> String {
    match number {
        number if number.is_multiple_of(INVALID) => "invalid".to_owned(),
        number if number.is_multiple_of(FAILING) => "failing".to_owned(),
        number => format!("customer-{number}@example.com"),
    }
}

fn is_poison(number: u32) -> bool {
    number.is_multiple_of(INVALID) || number.is_multiple_of(FAILING)
}

/// Publishes a producer's share of the orders, some of them twice.
async fn produce(client: Client, producer: u32, orders: u32) -> Result<(), String> {
    for number in (1..=orders).filter(|number| number % PRODUCERS == producer) {
        let order = OrderPlaced {
            number,
            email: email(number),
        };
        let payload = serde_json::to_vec(&order).map_err(|error| error.to_string())?;
        let id = format!("order-{number}");
        client.publish(&id, payload.clone()).await?;
        if number.is_multiple_of(DUPLICATED) {
            // Longer than JetStream remembers ids here, so that the consumers get the duplicate.
            tokio::time::sleep(Duration::from_millis(150)).await;
            client.publish(&id, payload).await?;
        }
    }
    Ok(())
}

/// Runs all of it; says whether each customer has a mail, and nothing is lost.
pub(crate) async fn conduct(wanted: Option<Kind>, orders: u32) -> Result<bool, Box<dyn Error>> {
    let server = Server::start(wanted).await?;
    let redis = RedisServer::start()
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => "`redis-server` is not installed, and the records are in one: \
                                `apt-get install redis-server`, `brew install redis`"
                .into(),
            _ => Box::<dyn Error>::from(error),
        })?;
    let client = server.prepare().await?;
    println!(
        "{}, and Redis on port {}: started for this run.",
        server.describe(),
        redis.port()
    );
    let poison = (1..=orders).filter(|number| is_poison(*number)).count();
    let duplicates = (1..=orders)
        .filter(|number| number.is_multiple_of(DUPLICATED))
        .count();
    println!(
        "{PRODUCERS} producers publish {orders} orders, {duplicates} of them twice; {poison} are \
         poison: no redelivery helps them. {CONSUMERS} consumers handle {CONCURRENCY} each at \
         once.\n"
    );

    let begun = Instant::now();
    let say = move |text: &str| println!("  {:5.1} s  {text}", begun.elapsed().as_secs_f64());
    let (lines, mut heard) = unbounded_channel();
    let mut consumers = Vec::new();
    for _ in 0..CONSUMERS {
        consumers.push(start(&server.url(), &redis.url(), &lines)?);
    }
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| tokio::spawn(produce(client.clone(), producer, orders)))
        .collect();

    let mut summary = Summary::new(orders, duplicates);
    let good = orders as usize - poison;
    while summary.customers() < good {
        next(&mut heard, &mut summary).await?;
        if summary.customers() >= good / 3 && consumers.len() == CONSUMERS {
            // Without a farewell: what it handled is in flight, and what it had ahead is
            // unacknowledged.
            consumers.remove(0).kill().await?;
            say(&format!(
                "{} mails are sent; one consumer is killed",
                summary.customers()
            ));
        }
    }
    for producer in producers {
        producer.await??;
    }
    say(&format!(
        "{} customers have their mail",
        summary.customers()
    ));

    // Poison takes its attempts.
    let waiting = Instant::now();
    while summary.aside.len() < poison && waiting.elapsed() < PATIENCE {
        for (payload, reason) in client.put_aside().await? {
            let order: OrderPlaced = serde_json::from_slice(&payload)?;
            summary.aside.entry(order.number).or_insert(reason);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    say(&format!("{} orders are dead letters", summary.aside.len()));
    for mut consumer in consumers {
        drop(consumer.stdin.take());
        consumer.wait().await?;
    }
    say("the consumers have ended");
    drop(lines);
    while let Some(line) = heard.recv().await {
        summary.hear(&line);
    }
    Ok(summary.show(server.graveyard(), |number| {
        if is_poison(number) {
            None
        } else {
            Some(email(number))
        }
    }))
}

async fn next(
    heard: &mut UnboundedReceiver<String>,
    summary: &mut Summary,
) -> Result<(), Box<dyn Error>> {
    let line = tokio::time::timeout(PATIENCE, heard.recv()).await;
    let line = line.map_err(|_| format!("no consumer has said anything for {PATIENCE:?}"))?;
    summary.hear(&line.ok_or("the consumers have ended")?);
    Ok(())
}

fn start(
    broker: &str,
    redis: &str,
    lines: &UnboundedSender<String>,
) -> Result<Child, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--consumer", broker, redis])
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
