//! The consumer, and what happens around it.

use std::error::Error;
use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::stream;
use idem::nats::{Consumer, Delivery, MessageKey, async_nats};
use idem::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{ErrorPolicy, Idempotency, SqliteStore, idempotent};
use idem_testkit::NatsServer;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

const ORDERS: i64 = 5;
/// The consumer is killed after the commit of this order.
const FATAL: i64 = 3;

#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    number: i64,
    cents: i64,
}

#[derive(Debug, thiserror::Error, ErrorPolicy)]
#[idem(dispose)] // an error of the database comes again, those of `idem` as their table says
enum InvoiceError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// Writes an invoice. The record is in the same transaction.
#[idempotent(name = "invoices.on_order", key = key, ttl = "14d", transaction = tx)]
async fn on_order(
    tx: &mut SqliteTransaction<'_>,
    key: MessageKey,
    order: &OrderPlaced,
) -> Result<(), InvoiceError> {
    let insert = sqlx::query("INSERT INTO invoices (order_number, cents) VALUES (?, ?)");
    insert
        .bind(order.number)
        .bind(order.cents)
        .execute(&mut **tx)
        .await?;
    println!("written {}", order.number);
    Ok(())
}

async fn handle(pool: &SqlitePool, delivery: &Delivery, dies: bool) -> Result<(), InvoiceError> {
    let order: OrderPlaced = delivery.json()?;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    on_order(&mut tx, delivery.key()?, &order).await?;
    tx.commit().await?; // row and record, or neither
    println!("committed {}", order.number);
    if dies && order.number == FATAL {
        // The acknowledgement never leaves this process, which is killed now.
        std::future::pending::<()>().await;
    }
    Ok(()) // now it is acknowledged
}

async fn open(file: &str) -> Result<SqlitePool, Box<dyn Error>> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true);
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(10));
    let pool = SqlitePool::connect_with(options).await?;
    let table = "CREATE TABLE IF NOT EXISTS invoices (id INTEGER PRIMARY KEY, order_number \
                 BIGINT, cents BIGINT)";
    sqlx::query(table).execute(&pool).await?;
    Ok(pool)
}

/// One consumer process. It ends in order when its standard input does.
pub(crate) async fn consume(nats: &str, file: &str, dies: bool) -> Result<(), Box<dyn Error>> {
    let pool = open(file).await?;
    let store = SqliteStore::new(pool.clone());
    store.migrate().await?;
    idem::install(Idempotency::new(store))?;
    let context = async_nats::jetstream::new(async_nats::connect(nats).await?);
    let shutdown = async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin())
            .read_line(&mut line)
            .await;
    };
    Consumer::new(&context, "ORDERS", "invoices")
        .concurrency(1)
        .dead_letter("dead.invoices")
        .run(
            async |delivery: Delivery| handle(&pool, &delivery, dies).await,
            shutdown,
        )
        .await?;
    Ok(())
}

pub(crate) async fn conduct() -> Result<bool, Box<dyn Error>> {
    let nats = NatsServer::start()
        .await
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                "`nats-server` is not installed, and the example starts its own: \
                                `apt-get install nats-server`, `brew install nats-server`"
                    .into()
            }
            _ => Box::<dyn Error>::from(error),
        })?;
    println!(
        "A nats-server on port {}; invoices and records in one file of SQLite.\n",
        nats.port()
    );
    let file = std::env::temp_dir().join(format!("idem-inbox-{}.db", std::process::id()));
    let name = file.to_str().ok_or("the temporary directory is no text")?;
    let held = run(&nats, name).await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{name}{suffix}"));
    }
    held
}

async fn run(nats: &NatsServer, file: &str) -> Result<bool, Box<dyn Error>> {
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await?);
    for (name, subject) in [("ORDERS", "orders.>"), ("DEAD", "dead.>")] {
        let config = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            ..stream::Config::default()
        };
        context.create_stream(config).await?;
    }
    // So short that the message of the killed consumer comes again soon.
    let config = pull::Config {
        durable_name: Some("invoices".into()),
        ack_wait: Duration::from_secs(2),
        ..pull::Config::default()
    };
    let mut queue: PullConsumer = context
        .get_stream("ORDERS")
        .await?
        .create_consumer(config)
        .await?;
    for number in 1..=ORDERS {
        let payload = serde_json::to_vec(&OrderPlaced {
            number,
            cents: 1_000 * number,
        })?;
        let message = PublishMessage::build()
            .payload(payload.into())
            .message_id(format!("order-{number}"));
        context
            .send_publish("orders.placed", message)
            .await?
            .await?;
    }

    for (dies, until) in [
        ("dies", format!("committed {FATAL}")),
        ("lives", format!("committed {ORDERS}")),
    ] {
        println!("a consumer:");
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--consumer", &nats.url(), file, dies])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
        let mut seen = Vec::new();
        // The message of the killed one may come after the others.
        while !(seen.contains(&until)
            && (dies == "dies" || seen.contains(&format!("committed {FATAL}"))))
        {
            let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await??;
            let line = line.ok_or("the consumer has ended")?;
            println!("  {line}");
            seen.push(line);
        }
        if dies == "dies" {
            child.kill().await?;
            println!("  killed before the acknowledgement\n");
        } else {
            drop(child.stdin.take());
            child.wait().await?;
            let again = seen.contains(&format!("written {FATAL}"));
            println!(
                "  ended; the message of order {FATAL} {}\n",
                if again {
                    "ran again"
                } else {
                    "was a duplicate, and wrote nothing"
                }
            );
        }
    }

    let pool = open(file).await?;
    let rows: Vec<(i64, i64)> =
        sqlx::query_as("SELECT order_number, cents FROM invoices ORDER BY order_number")
            .fetch_all(&pool)
            .await?;
    pool.close().await;
    for (number, cents) in &rows {
        println!(
            "  invoice of order {number}: {}.{:02}",
            cents / 100,
            cents % 100
        );
    }
    let info = queue.info().await?;
    let left = info.num_pending + info.num_ack_pending as u64;
    let is_once = rows.len() == usize::try_from(ORDERS)? && left == 0;
    println!(
        "\n  {} one invoice for each order, {left} messages left",
        if is_once { "\u{2713}" } else { "\u{2717} not" }
    );
    Ok(is_once)
}
