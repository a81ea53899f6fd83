//! A member of a group and a handler.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_core::Dispose;
use idem_queue::{Broker, Deliveries, Delivery, Error, Fault, Room, Settings};
use rdkafka::ClientConfig;

use crate::config::of_consumer;
use crate::dead_letter::DeadLetters;
use crate::feed::deliveries;
use crate::message_id::MESSAGE_ID;
use crate::session::Session;
use crate::shared::Shared;
use crate::ticket::Ticket;

/// Consumes messages of a Kafka topic as a member of a group, and runs an idempotent handler for
/// each.
///
/// - The committed offset of a partition is never above its first message that is not settled. A
///   message is settled after its outcome is recorded, or its dead letter is confirmed.
/// - Messages of one record key in a partition run one after the other. Others run at once.
/// - If its key is in flight elsewhere, a message stays in memory and is handled again after a
///   pause. Its record key waits.
/// - A poison message is published to the dead-letter topic, with the reason in the header
///   [`REASON`](crate::REASON).
/// - A thread polls the client while handlers run, so a body may take longer than
///   `max.poll.interval.ms`.
///
/// The handlers run in the task that awaits [`run`](Self::run). Several consumers of one group
/// share the partitions of the topic.
///
/// # Examples
///
/// ```no_run
/// use idem_kafka::{ClientConfig, Consumer, Delivery};
/// # #[derive(serde::Deserialize)] struct OrderPlaced { number: u64 }
/// # async fn on_order(_: OrderPlaced) -> Result<(), idem_core::Error> { Ok(()) }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = ClientConfig::new();
/// config
///     .set("bootstrap.servers", "127.0.0.1:9092")
///     .set("group.id", "workers");
/// Consumer::new(&config, "orders")
///     .concurrency(32)
///     .dead_letter("orders.dead")
///     // `on_order` is a function with `#[idempotent(..)]`.
///     .run(
///         async |delivery: Delivery| on_order(delivery.json()?).await,
///         std::future::pending::<()>(),
///     )
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer {
    config: ClientConfig,
    topic: Arc<str>,
    dead_letter: Option<String>,
    id_header: String,
    settings: Settings,
}

impl Consumer {
    /// Creates a consumer of a topic. The configuration has the servers, the `group.id`, and what
    /// the brokers ask for.
    ///
    /// Automatic commits are switched off, `isolation.level` is `read_committed`, and unless the
    /// configuration says otherwise, `auto.offset.reset` is `earliest` and
    /// `partition.assignment.strategy` is `cooperative-sticky`.
    pub fn new(config: &ClientConfig, topic: impl Into<Arc<str>>) -> Self {
        Self {
            config: config.clone(),
            topic: topic.into(),
            dead_letter: None,
            id_header: MESSAGE_ID.into(),
            settings: Settings::default(),
        }
    }

    /// Sets how many messages are handled at the same time, in all partitions. Default: 16. At
    /// least 1: with 0, `run` returns [`Error::Config`].
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// Sets the topic for dead letters. It must exist, and be another one. Required.
    pub fn dead_letter(mut self, topic: impl Into<String>) -> Self {
        self.dead_letter = Some(topic.into());
        self
    }

    /// Sets the header that has the id of a message. Default: `idem-message-id`. A message without
    /// it, or with bytes that are not text, has its partition and offset as id, such as `3-1042`.
    pub fn id_header(mut self, name: impl Into<String>) -> Self {
        self.id_header = name.into();
        self
    }

    /// Sets how long a handler waits at most for another call with its key. After that the message
    /// comes again after a pause. Default: 1 s, or the operation's `in_flight = wait(..)` if that
    /// is shorter.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets how long running handlers may take after the shutdown has begun. Default: 25 s.
    /// Handlers that still run then are stopped, and their messages come again. The end may take
    /// some 5 s more, while offsets are committed and the group is left.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.settings.shutdown_timeout = limit;
        self
    }

    /// Consumes until `shutdown` ends. Lost connections are restored by the client; meanwhile
    /// running handlers go on, and offsets are committed later.
    ///
    /// # Errors
    ///
    /// At the start: the brokers do not answer, or a setting could lose messages: no `group.id`,
    /// automatic commits, an `auto.offset.reset` that skips messages, no dead-letter topic, one
    /// that does not exist or is the topic itself. Later: [`Error::Disconnected`] if the client has
    /// ended, because another consumer has its `group.instance.id`, for example.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, running handlers are stopped, as in a crash. Their messages are
    /// delivered again.
    pub async fn run<H, E>(self, handler: H, shutdown: impl Future) -> Result<(), Error>
    where
        H: AsyncFn(Delivery) -> Result<(), E>,
        E: Dispose,
    {
        let running = Running {
            consumer: &self,
            session: Mutex::default(),
        };
        idem_queue::run(&running, &self.settings, handler, shutdown).await
    }

    /// Returns the name of the dead-letter topic, after checking what needs no broker.
    fn checked_dead_letter(&self) -> Result<&str, Fault> {
        let topic = &self.topic;
        if topic.starts_with('^') {
            return Err(Fault::config(format!(
                "`{topic}` is a pattern: name one topic, and run a consumer for each"
            )));
        }
        match self.dead_letter.as_deref() {
            None | Some("") => Err(Fault::config(format!(
                "the consumer of the topic `{topic}` has no place for messages that no redelivery \
                 helps: name a topic, `.dead_letter(\"{topic}.dead\")`, and create it"
            ))),
            Some(dead_letter) if *dead_letter == **topic => Err(Fault::config(format!(
                "the dead-letter topic `{topic}` is the one that is consumed, so the consumer \
                 would receive what it put aside: use another topic"
            ))),
            Some(dead_letter) => Ok(dead_letter),
        }
    }
}

/// A consumer that runs.
struct Running<'c> {
    consumer: &'c Consumer,
    session: Mutex<Option<Session>>,
}

impl Running<'_> {
    /// Closes the client, if it is open. Two of a process could have the same
    /// `group.instance.id`.
    async fn close(&self) {
        let session = self
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(session) = session {
            session.close().await;
        }
    }
}

impl Broker for Running<'_> {
    type Ticket = Ticket;

    // Offsets that are not committed bring messages again.
    const HANDS_BACK: bool = false;

    fn source(&self) -> &str {
        &self.consumer.topic
    }

    async fn open(&self, room: Arc<Room>) -> Result<Deliveries<'_, Ticket>, Fault> {
        let Consumer {
            config,
            topic,
            id_header,
            ..
        } = self.consumer;
        let dead_letter = self.consumer.checked_dead_letter()?.to_owned();
        let client = of_consumer(config)?;
        self.close().await;
        let dead_letters = DeadLetters::new(config, dead_letter.clone(), id_header.clone())?;
        let shared = Arc::new(Shared::new(topic.clone()));
        let session = Session::open(client, shared.clone(), dead_letter).await?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(deliveries(shared, Arc::new(dead_letters), room))
    }

    async fn flush(&self) {
        self.close().await;
    }
}
