//! How many messages a second a consumer handles, beside a bare one of the same client.

mod amqp;
mod nats;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use idem::{Idempotency, RedisStore};
use idem_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::sync::Notify;

use crate::machine::Machine;
use crate::stats::median;

/// How many messages are handled at once.
const CONCURRENCY: usize = PREFETCH as usize;
/// The same, as RabbitMQ has it.
const PREFETCH: u16 = 64;
/// How long a record is kept, in seconds.
const TTL: u64 = 600;
/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many messages a measurement has
    #[arg(long, default_value_t = 20_000)]
    messages: u32,
    /// How many rounds, after one to warm up
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Over this broker alone
    #[arg(long, value_enum)]
    broker: Option<Broker>,
    /// Only this subject, for a profile of it
    #[arg(long, value_enum)]
    subject: Option<Subject>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Broker {
    Rabbitmq,
    Nats,
}

/// What handles the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// The client alone: each message is acknowledged.
    Bare,
    /// The same through the adapter, with a handler that does nothing.
    Adapter,
    /// The client, and a hand-written `SET NX` on the message's id. No lease, no outcome: a message
    /// whose handler died is lost.
    SetNx,
    /// The same with a second command that says that the handler has succeeded.
    SetNxDone,
    /// The adapter, and a guarded handler.
    Guarded,
}

impl Subject {
    const ALL: [Self; 5] = [
        Self::Bare,
        Self::Adapter,
        Self::SetNx,
        Self::SetNxDone,
        Self::Guarded,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare consumer, no guard",
            Self::Adapter => "the adapter, no guard",
            Self::SetNx => "bare consumer, `SET NX`",
            Self::SetNxDone => "bare consumer, `SET NX`, then `SET` when done",
            Self::Guarded => "the adapter, `#[idempotent]`",
        }
    }
}

/// The state that all handlers share.
pub(crate) struct Shared {
    pub(crate) round: u32,
    pub(crate) messages: u32,
    redis: MultiplexedConnection,
    idempotency: Idempotency,
    handled: AtomicU32,
    all: Notify,
}

impl Shared {
    /// One message is done with.
    pub(crate) fn count(&self) {
        if self.handled.fetch_add(1, Ordering::Relaxed) + 1 == self.messages {
            self.all.notify_one();
        }
    }

    /// Ends when all messages are.
    pub(crate) async fn all(&self) {
        self.all.notified().await;
    }

    fn key(&self, subject: Subject, id: &str) -> String {
        format!("idem-bench-queue:{}:{subject:?}:{id}", self.round)
    }

    /// The work of a bare consumer on a message before it acknowledges it.
    pub(crate) async fn by_hand(&self, subject: Subject, id: &str) -> Result<()> {
        if subject != Subject::Bare {
            let key = self.key(subject, id);
            let mut redis = self.redis.clone();
            let claimed: Option<String> = cmd("SET")
                .arg(&key)
                .arg("1")
                .arg("NX")
                .arg("EX")
                .arg(TTL)
                .query_async(&mut redis)
                .await?;
            if claimed.is_some() && subject == Subject::SetNxDone {
                let _: String = cmd("SET")
                    .arg(&key)
                    .arg("done")
                    .arg("EX")
                    .arg(TTL)
                    .query_async(&mut redis)
                    .await?;
            }
        }
        Ok(())
    }

    /// The work of a handler of the adapter.
    pub(crate) async fn handler(&self, subject: Subject, id: &str) -> Result<(), idem::Error> {
        if subject == Subject::Guarded {
            let key = (self.round, id);
            let call = self
                .idempotency
                .operation("bench.message")
                .key(&key)
                .ttl(Duration::from_secs(TTL));
            call.run(async || Ok::<(), idem::Error>(())).await?;
        }
        self.count();
        Ok(())
    }
}

/// A broker with the messages of one measurement.
pub(crate) trait Filled {
    async fn fill(&self, messages: u32) -> Result<()>;
    /// Handles all messages.
    async fn consume(&self, subject: Subject, shared: &Shared) -> Result<()>;
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure(args))
}

async fn measure(args: &Args) -> Result<()> {
    let machine = Machine::look();
    println!("{}, load {}\n", machine.processor, machine.load);
    let wanted = |broker| args.broker.is_none_or(|only| only == broker);
    if wanted(Broker::Rabbitmq) {
        let broker = amqp::RabbitMq::start().await?;
        Box::pin(table("RabbitMQ, quorum queue", &broker, args)).await?;
    }
    if wanted(Broker::Nats) {
        let broker = nats::Nats::start().await?;
        Box::pin(table("NATS JetStream, file storage", &broker, args)).await?;
    }
    Ok(())
}

async fn table(title: &str, broker: &impl Filled, args: &Args) -> Result<()> {
    let redis = RedisServer::start().await?;
    let connection = redis::Client::open(redis.url())?
        .get_multiplexed_async_connection()
        .await?;
    let idempotency = Idempotency::new(RedisStore::connect(&redis.url()).await?);
    let mut rates = vec![Vec::new(); Subject::ALL.len()];
    for round in 0..=args.rounds {
        let mut order: Vec<usize> = (0..Subject::ALL.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            if args.subject.is_some_and(|only| only != Subject::ALL[place]) {
                continue;
            }
            broker.fill(args.messages).await?;
            let shared = Shared {
                round,
                messages: args.messages,
                redis: connection.clone(),
                idempotency: idempotency.clone(),
                handled: AtomicU32::new(0),
                all: Notify::new(),
            };
            let subject = Subject::ALL[place];
            let begun = Instant::now();
            within(broker.consume(subject, &shared))
                .await
                .with_context(|| format!("{subject:?}"))?;
            // The first round warms up.
            if round > 0 {
                rates[place].push(f64::from(args.messages) / begun.elapsed().as_secs_f64());
            }
        }
    }
    println!(
        "| {title} | messages a second | range | over the bare one |\n| --- | ---: | ---: | ---: |"
    );
    let of = |subject: Subject| median(&rates[subject as usize]);
    for (place, subject) in Subject::ALL.into_iter().enumerate() {
        let all = &rates[place];
        if all.is_empty() {
            continue;
        }
        let (least, most) = all.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| {
            (least.min(*rate), most.max(*rate))
        });
        let beside = of(match subject {
            Subject::Bare | Subject::Adapter => Subject::Bare,
            _ => Subject::SetNx,
        });
        println!(
            "| {} | {:.0} | {least:.0} to {most:.0} | {:.2} |",
            subject.name(),
            median(all),
            median(all) / beside
        );
    }
    println!();
    Ok(())
}

async fn within<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, future)
        .await
        .context("it takes too long")?
}
