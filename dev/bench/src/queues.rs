//! How many messages a second a consumer handles, beside a bare one of the same client.

mod amqp;
mod kafka;
mod nats;

use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use idem::{Idempotency, RedisStore};
use idem_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::sync::Notify;

use crate::extent::Extent;
use crate::report::{Figure, Goal, Group, Report, Unit, tables};

/// How many messages are handled at once.
const CONCURRENCY: usize = PREFETCH as usize;
/// The same, as RabbitMQ has it.
const PREFETCH: u16 = 64;
/// How long a record is kept, in seconds.
const TTL: u64 = 600;
/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The least share of the rate of a guard by hand.
const SHARE: f64 = 0.95;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many messages a measurement has
    #[arg(long, default_value_t = 20_000)]
    messages: u32,
    /// How many rounds, after one to warm up
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Over this broker
    #[arg(long, value_enum)]
    broker: Broker,
    /// What handles the messages
    #[arg(long, value_enum)]
    subject: Subject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Broker {
    Rabbitmq,
    Nats,
    Kafka,
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
            Self::SetNx => "SET NX by hand",
            Self::SetNxDone => "SET NX, then SET, by hand",
            Self::Guarded => "the adapter, a guarded handler",
        }
    }
}

/// The state that all handlers share.
pub(crate) struct Shared {
    pub(crate) round: usize,
    pub(crate) messages: u32,
    redis: MultiplexedConnection,
    idempotency: Idempotency,
    handled: AtomicU32,
    /// When the first message was handled, and the last.
    first: OnceLock<Instant>,
    last: OnceLock<Instant>,
    all: Notify,
}

impl Shared {
    /// One message is done with.
    pub(crate) fn count(&self) {
        let before = self.handled.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            let _ = self.first.set(Instant::now());
        }
        if before + 1 == self.messages {
            let _ = self.last.set(Instant::now());
            self.all.notify_one();
        }
    }

    /// The time between the first message and the last.
    fn handling(&self) -> Result<Duration> {
        let (first, last) = (self.first.get(), self.last.get());
        let (first, last) = first.zip(last).context("not all were handled")?;
        Ok(last.duration_since(*first))
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
    /// Whether a consumer joins a group, and waits for that. Then its time is that from the first
    /// message to the last.
    const IS_JOINED: bool = false;

    async fn fill(&self, messages: u32) -> Result<()>;
    /// Handles all messages.
    async fn consume(&self, subject: Subject, shared: &Shared) -> Result<()>;
}

/// One subject alone.
pub(crate) fn run(args: &Args) -> Result<()> {
    let extent = Extent {
        messages: args.messages,
        ..Extent::usual(args.rounds)
    };
    let subjects = [args.subject];
    let measuring = async {
        match args.broker {
            Broker::Rabbitmq => rates(&amqp::RabbitMq::start().await?, &subjects, &extent).await,
            Broker::Nats => rates(&nats::Nats::start().await?, &subjects, &extent).await,
            Broker::Kafka => rates(&kafka::Kafka::start().await?, &subjects, &extent).await,
        }
    };
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let all = tokio.block_on(measuring)?;
    let rates = of(&all, args.subject).to_vec();
    let figures = vec![Figure::new(args.subject.name(), Unit::PerSecond, rates)];
    let title = format!("{:?}, messages a second", args.broker);
    print!("{}", tables(&[Group { title, figures }]));
    Ok(())
}

/// All subjects over each broker.
pub(crate) async fn measure(extent: &Extent, report: &mut Report) -> Result<()> {
    let broker = amqp::RabbitMq::start().await;
    if let Some(broker) = report.started("RabbitMQ", broker) {
        report.server(amqp::RabbitMq::version());
        let all = Box::pin(rates(&broker, &Subject::ALL, extent)).await?;
        report.groups.push(group("RabbitMQ, quorum queue", &all));
    }
    let broker = nats::Nats::start().await;
    if let Some(broker) = report.started("NATS", broker) {
        report.server(broker.version());
        let all = Box::pin(rates(&broker, &Subject::ALL, extent)).await?;
        report
            .groups
            .push(group("NATS JetStream, file storage", &all));
    }
    let broker = kafka::Kafka::start().await;
    if let Some(broker) = report.started("Messages over Kafka", broker) {
        report.server(broker.version());
        let all = Box::pin(rates(&broker, &Subject::ALL, extent)).await?;
        report
            .groups
            .push(group("Kafka's protocol, by tansu in its memory", &all));
    }
    Ok(())
}

/// The messages a second of each round, by subject.
type Rates = [Vec<f64>; Subject::ALL.len()];

fn of(rates: &Rates, subject: Subject) -> &[f64] {
    &rates[subject as usize]
}

async fn rates<B: Filled>(broker: &B, subjects: &[Subject], extent: &Extent) -> Result<Rates> {
    let redis = RedisServer::start().await?;
    let connection = redis::Client::open(redis.url())?
        .get_multiplexed_async_connection()
        .await?;
    let idempotency = Idempotency::new(RedisStore::connect(&redis.url()).await?);
    let mut rates = Rates::default();
    let mut order = subjects.to_vec();
    for round in 0..=extent.rounds {
        eprintln!("messages, round {}", extent.round(round));
        for &subject in &order {
            broker.fill(extent.messages).await?;
            let shared = Shared {
                round,
                messages: extent.messages,
                redis: connection.clone(),
                idempotency: idempotency.clone(),
                handled: AtomicU32::new(0),
                first: OnceLock::new(),
                last: OnceLock::new(),
                all: Notify::new(),
            };
            let begun = Instant::now();
            within(broker.consume(subject, &shared))
                .await
                .with_context(|| format!("{subject:?}"))?;
            let mut took = begun.elapsed();
            if B::IS_JOINED {
                took = shared.handling()?;
            }
            // The first round warms up.
            if round > 0 {
                let rate = f64::from(extent.messages) / took.as_secs_f64();
                rates[subject as usize].push(rate);
            }
        }
        order.reverse();
    }
    Ok(rates)
}

fn group(broker: &str, rates: &Rates) -> Group {
    let mut figures = Vec::new();
    for subject in Subject::ALL {
        let values = of(rates, subject).to_vec();
        figures.push(Figure::new(subject.name(), Unit::PerSecond, values));
    }
    for (own, other, goal) in [
        (Subject::Adapter, Subject::Bare, None),
        (Subject::Guarded, Subject::SetNx, None),
        (
            Subject::Guarded,
            Subject::SetNxDone,
            Some(Goal::AtLeast(SHARE)),
        ),
    ] {
        let name = other.name();
        let what = format!("{}, share of the rate of {name}", own.name());
        let other = (name, of(rates, other));
        let figure = Figure::ratio(what, Unit::PerSecond, of(rates, own), other);
        figures.push(figure.with(goal));
    }
    Group {
        title: format!("Messages a second: {broker}"),
        figures,
    }
}

async fn within<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LIMIT, future)
        .await
        .context("it takes too long")?
}
