//! Handlers whose record is in the transaction of their rows.

use std::process::Stdio;
use std::time::Duration;

use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery, MessageKey, async_nats};
use idem::sqlx::sqlite::SqliteConnectOptions;
use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{ErrorPolicy, Idempotency, SqliteStore, idempotent};
use idem_testkit::NatsServer;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::storm::in_time;

#[derive(Debug, thiserror::Error, ErrorPolicy)]
#[idem(dispose)]
enum InvoiceError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

#[idempotent(name = "t.inbox", key = key, ttl = "10m", transaction = tx)]
async fn on_order(
    tx: &mut SqliteTransaction<'_>,
    key: MessageKey,
    number: i64,
) -> Result<(), InvoiceError> {
    println!("\nbody {number}");
    sqlx::query("INSERT INTO invoices VALUES (?)")
        .bind(number)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn open(file: &str) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    let pool = SqlitePool::connect_with(options.busy_timeout(Duration::from_secs(10)))
        .await
        .unwrap();
    // Nothing but the record keeps a row from being there twice.
    sqlx::query("CREATE TABLE IF NOT EXISTS invoices (number BIGINT)")
        .execute(&pool)
        .await
        .unwrap();
    pool
}

/// The consumer, in a process of its own. `stalls`: after which commit it goes no further.
#[tokio::test]
#[ignore = "this is the consumer process of the test below, which starts it"]
async fn consumer() {
    let variable = |name: &str| std::env::var(format!("INBOX_{name}")).unwrap();
    let stalls: i64 = variable("STALLS").parse().unwrap();
    let pool = open(&variable("FILE")).await;
    let store = SqliteStore::builder(pool.clone()).time_limit(Duration::from_secs(15));
    let store = store.build();
    store.migrate().await.unwrap();
    idem::install(Idempotency::new(store)).unwrap();
    let context = async_nats::jetstream::new(async_nats::connect(variable("NATS")).await.unwrap());
    let handler = async |delivery: Delivery| {
        let number: i64 = delivery.json()?;
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        on_order(&mut tx, delivery.key()?, number).await?;
        tx.commit().await?;
        println!("\ncommitted {number}");
        if number == stalls {
            std::future::pending::<()>().await;
        }
        Ok::<_, InvoiceError>(())
    };
    let consumer = Consumer::new(&context, "ORDERS", "workers")
        .concurrency(1)
        .dead_letter("dead.orders");
    // It ends with the test, which holds its standard input.
    let ended = async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin())
            .read_line(&mut line)
            .await;
    };
    consumer.run(handler, ended).await.unwrap();
}

/// Starts a consumer, and kills it when `enough` says so of its lines.
async fn killed_when(
    nats: &str,
    file: &str,
    stalls: i64,
    enough: impl AsyncFn(&[String]) -> bool,
) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inbox::consumer", "--ignored", "--nocapture"])
        .envs([
            ("INBOX_NATS", nats),
            ("INBOX_FILE", file),
            ("INBOX_STALLS", &stalls.to_string()),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    let reading = async {
        while !enough(&seen).await {
            if let Ok(line) =
                tokio::time::timeout(Duration::from_millis(100), lines.next_line()).await
            {
                seen.push(line.unwrap().expect("the consumer ended"));
            }
        }
    };
    in_time("the lines of a consumer", reading).await;
    child.kill().await.unwrap();
    seen
}

async fn left(context: &Context) -> u64 {
    let stream = context.get_stream("ORDERS").await.unwrap();
    let consumer: PullConsumer = stream.get_consumer("workers").await.unwrap();
    let info = consumer.cached_info();
    info.num_pending + info.num_ack_pending as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_killed_between_commit_and_acknowledgement_leaves_each_row_once() {
    let server = NatsServer::start().await.unwrap();
    let context = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    for (name, subject) in [("ORDERS", "orders.>"), ("DEAD", "dead.>")] {
        let config = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            ..stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
    }
    let config = pull::Config {
        durable_name: Some("workers".into()),
        ack_wait: Duration::from_secs(3),
        ..pull::Config::default()
    };
    context
        .get_stream("ORDERS")
        .await
        .unwrap()
        .create_consumer(config)
        .await
        .unwrap();
    for number in 1..=3 {
        let message = PublishMessage::build()
            .payload(number.to_string().into())
            .message_id(format!("m-{number}"));
        context
            .send_publish("orders.placed", message)
            .await
            .unwrap()
            .await
            .unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("inbox.db").to_str().unwrap().to_owned();
    let has = |seen: &[String], line: &str| seen.iter().any(|seen| seen == line);

    let url = server.url();
    let first = killed_when(&url, &file, 2, async |seen| has(seen, "committed 2")).await;
    assert!(has(&first, "body 2"));
    assert_eq!(
        left(&context).await,
        2,
        "the second message is not acknowledged"
    );
    let second = killed_when(&url, &file, 0, async |seen| {
        has(seen, "committed 2") && has(seen, "committed 3") && left(&context).await == 0
    });
    let second = second.await;
    assert!(!has(&second, "body 2"), "a duplicate ran: {second:?}");
    assert!(has(&second, "body 3"));
    let rows: Vec<i64> = sqlx::query_scalar("SELECT number FROM invoices ORDER BY number")
        .fetch_all(&open(&file).await)
        .await
        .unwrap();
    assert_eq!(rows, [1, 2, 3]);
}
