//! A queue and a handler.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use idem_core::Dispose;
use idem_queue::{Broker, Decision, Deliveries, Delivery, Error, Fault, Room, Settings};
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ExchangeKind};
use tokio::sync::OnceCell;

use crate::connection::TrackedConnection;
use crate::connector::Connector;
use crate::consumer_channels::{CheckedQueue, ConsumerChannels};
use crate::publish_channels::{SHORTEST, short};
use crate::queue_arguments::{self, Arguments, millis, text};
use crate::request::run_to_end;
use crate::subscribe::deliveries;
use crate::ticket::Ticket;

/// After how long RabbitMQ takes an unacknowledged message back, unless it is configured otherwise.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// AMQP's own heartbeat takes two minutes, and belongs to a client that works.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Consumes messages of a RabbitMQ queue, and runs an idempotent handler for each.
///
/// - A message is acknowledged after its outcome is recorded. A duplicate is acknowledged without
///   running the body.
/// - If its key is in flight elsewhere, or its handler failed temporarily, a message waits in a
///   retry queue and returns to the end of the queue. That does not count against a quorum queue's
///   delivery limit.
/// - A poison message is published to the dead-letter exchange, with the reason in the header
///   [`REASON`](crate::REASON). It is acknowledged when the broker has confirmed that.
///
/// The retry queues are `<queue>.retry.1s`, `.10s`, `.60s` and `.600s`, the first declared at the
/// start, the others when they are needed: durable quorum queues that dead-letter back in the mode
/// `at-least-once`, and refuse messages when they are full. In these queues a pause is at most ten
/// minutes. A queue that was just declared gets its first message after three seconds: before, a
/// RabbitMQ that is killed can forget it.
///
/// The handlers run in the task that awaits [`run`](Self::run).
///
/// # Examples
///
/// ```no_run
/// use idem_amqp::{Consumer, Delivery, lapin};
/// # #[derive(serde::Deserialize)] struct OrderPlaced { number: u64 }
/// # async fn on_order(_: OrderPlaced) -> Result<(), idem_core::Error> { Ok(()) }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let connect = || {
///     lapin::Connection::connect(
///         "amqp://127.0.0.1:5672/%2f",
///         lapin::ConnectionProperties::default(),
///     )
/// };
/// let connection = connect().await?;
/// Consumer::new(&connection, "orders")
///     .reconnect(connect)
///     .concurrency(32)
///     .dead_letter_exchange("orders.dead")
///     // `on_order` is a function with `#[idempotent(..)]`.
///     .run(
///         async |delivery: Delivery| on_order(delivery.json()?).await,
///         std::future::pending::<()>(),
///     )
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer<'c> {
    connector: Connector<'c>,
    queue: String,
    dead_letter_exchange: Option<String>,
    retry_queue: Option<String>,
    timeout: Option<Duration>,
    answer_timeout: Duration,
    settings: Settings,
    /// Set by the first start.
    checked: OnceCell<CheckedQueue>,
}

impl<'c> Consumer<'c> {
    /// Creates a consumer of a queue, which must exist.
    ///
    /// To survive a restart of the broker, the consumer needs [`reconnect`](Self::reconnect), or
    /// the connection needs `ConnectionProperties::enable_auto_recover`.
    pub fn new(connection: &'c Connection, queue: impl Into<String>) -> Self {
        Self {
            connector: Connector::new(TrackedConnection::of_application(connection)),
            queue: queue.into(),
            dead_letter_exchange: None,
            retry_queue: None,
            timeout: None,
            answer_timeout: ANSWER_TIMEOUT,
            settings: Settings::default(),
            checked: OnceCell::new(),
        }
    }

    /// Sets how many messages are handled at the same time; it is also the prefetch. Default: 16. 1
    /// to 65,535: with another number, `run` returns [`Error::Config`].
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// Sets the exchange for dead letters. They keep their routing key. Default: the queue's own
    /// `x-dead-letter-exchange`, and its `x-dead-letter-routing-key` if it has one. An exchange
    /// that a policy sets must be named here. The default exchange is refused without a routing key
    /// of another queue: dead letters would return to this one.
    pub fn dead_letter_exchange(mut self, exchange: impl Into<String>) -> Self {
        self.dead_letter_exchange = Some(exchange.into());
        self
    }

    /// Sets a retry queue of the application's own. It must exist, and dead-letter back to the
    /// consumed queue. Each message has its pause as `expiration`. RabbitMQ expires only the
    /// message at the head of a queue, so a long pause delays the messages behind it. Default: the
    /// consumer declares one queue for each length of pause.
    pub fn retry_queue(mut self, queue: impl Into<String>) -> Self {
        self.retry_queue = Some(queue.into());
        self
    }

    /// Sets the broker's `consumer_timeout`, after which it takes an unacknowledged message back.
    /// Default: 30 minutes, or the queue's own `x-consumer-timeout`, which the consumer finds. It
    /// only serves warnings: at the start if it is shorter than a lease plus `wait`, and for each
    /// handler that has run for half of it.
    pub fn consumer_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long a handler waits at most for another call with its key. After that the message
    /// goes to the retry queue. Default: 1 s, or the operation's `in_flight = wait(..)` if that is
    /// shorter.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets how long running handlers may take after the shutdown has begun. Default: 25 s.
    /// Handlers that still run then are stopped, and their messages return to the queue. The end
    /// may take some 15 s more, while messages are handed back.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.settings.shutdown_timeout = limit;
        self
    }

    /// Sets how long the connection may take to answer. Default: 20 s; at least 100 ms.
    ///
    /// If no message arrives for half of this time, the consumer asks the broker for something
    /// small. If the answer does not come in time, the connection is given up: with
    /// [`reconnect`](Self::reconnect) another one is made, otherwise [`run`](Self::run) ends. lapin
    /// does not notice that its tokio runtime has ended, or that nothing drives it. While the
    /// broker blocks the connection, because its memory or its disk is full, the consumer waits.
    pub fn answer_timeout(mut self, limit: Duration) -> Self {
        self.answer_timeout = limit.max(SHORTEST);
        self
    }

    /// Sets how to connect again after the connection has ended, does not answer, or has not
    /// recovered by itself for 5 s. Recommended: lapin's own recovery pauses for up to a minute
    /// between its tries, gives up after 16 of them (11 minutes by default), and can fail behind a
    /// proxy. The connections that this makes need no `enable_auto_recover`. They work on the tokio
    /// runtime on which the consumer runs, unless the closure connects on another one.
    ///
    /// The closure is called for each connection, which may take 30 s. If it makes its URL, it
    /// returns an `async` block.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(connection: &idem_amqp::lapin::Connection) {
    /// use idem_amqp::{Consumer, lapin};
    ///
    /// let consumer = Consumer::new(connection, "orders").reconnect(|| async {
    ///     let url = std::env::var("AMQP_URL")
    ///         .unwrap_or_else(|_| "amqp://127.0.0.1:5672/%2f".to_owned());
    ///     lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await
    /// });
    /// # }
    /// ```
    pub fn reconnect<F>(mut self, connect: impl Fn() -> F + Send + Sync + 'c) -> Self
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'c,
    {
        self.connector.set_reconnect(connect);
        self
    }

    /// Consumes until `shutdown` ends. When a lost connection is restored, unacknowledged messages
    /// arrive again. Those that were handled do not run again.
    ///
    /// # Errors
    ///
    /// At the start: the queue, the dead-letter exchange or a retry queue is missing or cannot be
    /// declared, dead letters would return to the queue, or the broker does not answer within 30 s.
    /// Later: [`Error::Disconnected`] if there is no [`reconnect`](Self::reconnect), and the
    /// connection is gone, has not recovered by itself for 15 minutes, or does not answer: then
    /// after one and a half [`answer_timeout`](Self::answer_timeout), 30 s by default. Running
    /// handlers may finish first, within [`shutdown_timeout`](Self::shutdown_timeout).
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
        idem_queue::run(&self, &self.settings, handler, shutdown).await
    }

    /// Checks the queue, the first time, and begins to consume.
    pub(crate) async fn subscribe(&self) -> Result<Deliveries<'_, Ticket<'c>>, Fault> {
        let concurrency = self.settings.concurrency;
        let prefetch = u16::try_from(concurrency).map_err(|_| {
            Fault::config(format!(
                "`concurrency` is {concurrency}, and RabbitMQ's prefetch is at \
                most 65,535: make it smaller, and run several consumers"
            ))
        })?;
        let queue = self.checked.get_or_try_init(async || {
            let queue = self.check_queue().await?;
            warn_of_timeout(&queue, self.settings.wait);
            Ok(queue)
        });
        let queue = queue.await?.clone();
        let opened = self.connector.open().await?;
        let channels = ConsumerChannels::new(opened, &queue, self.connector.has_reconnect());
        let channels = Arc::new(channels);
        deliveries(channels, queue, prefetch).await
    }

    /// Checks that no message can be lost, and finds out where dead letters go.
    async fn check_queue(&self) -> Result<CheckedQueue, Fault> {
        let queue = &self.queue;
        self.exists(queue).await?;
        let arguments = queue_arguments::ask(&self.connector, queue).await?;
        let dead_letters = self.dead_letters(arguments.as_ref())?;
        match &dead_letters.routing_key {
            // The default exchange takes a routing key for the name of a queue.
            Some(target) if dead_letters.exchange.is_empty() => self.exists(target).await?,
            _ => self.exchange_exists(&dead_letters.exchange).await?,
        }
        if let Some(retry_queue) = &self.retry_queue {
            self.exists(retry_queue).await?;
        }
        let own = arguments
            .as_ref()
            .and_then(|arguments| millis(arguments, "x-consumer-timeout"));
        let timeout = self
            .timeout
            .or(own.map(Duration::from_millis))
            .unwrap_or(CONSUMER_TIMEOUT);
        Ok(CheckedQueue {
            name: queue.as_str().into(),
            dead_letter_exchange: dead_letters.exchange.into(),
            dead_letter_routing_key: dead_letters.routing_key.map(Arc::from),
            retry_queue: self.retry_queue.as_deref().map(Arc::from),
            consumer_timeout: timeout,
            answer_timeout: self.answer_timeout,
        })
    }

    /// Returns where dead letters go: as the application has set, or as the queue's arguments say.
    fn dead_letters(&self, arguments: Option<&Arguments>) -> Result<DeadLetters, Fault> {
        let queue = &self.queue;
        let of_queue = |name| arguments.and_then(|arguments| text(arguments, name));
        let own = of_queue("x-dead-letter-exchange");
        let Some(exchange) = self.dead_letter_exchange.clone().or(own) else {
            return Err(Fault::config(match arguments {
                Some(_) => format!(
                    "the queue `{queue}` has no `x-dead-letter-exchange`, so messages that no \
                     redelivery helps would be lost: declare it with one, or name it: \
                     `.dead_letter_exchange(\"{queue}.dead\")` (one that a policy sets must be named too)"
                ),
                None => format!(
                    "RabbitMQ did not tell the arguments of the queue `{queue}`: name its \
                     dead-letter exchange, `.dead_letter_exchange(\"{queue}.dead\")`"
                ),
            }));
        };
        let routing_key = match &self.dead_letter_exchange {
            None => of_queue("x-dead-letter-routing-key"),
            Some(_) => None,
        };
        let names_another_queue = routing_key.as_ref().is_some_and(|target| target != queue);
        if exchange.is_empty() && !names_another_queue {
            return Err(Fault::config(format!(
                "dead letters of the queue `{queue}` would return to it, or be lost: they go to \
                 the default exchange, whose routing keys are names of queues. Give the queue the \
                 name of another one as `x-dead-letter-routing-key`, or name an exchange: \
                 `.dead_letter_exchange(\"{queue}.dead\")`"
            )));
        }
        Ok(DeadLetters {
            exchange,
            routing_key,
        })
    }

    async fn exchange_exists(&self, exchange: &str) -> Result<(), Fault> {
        let queue = &self.queue;
        let options = ExchangeDeclareOptions {
            passive: true,
            ..ExchangeDeclareOptions::default()
        };
        let channel = self.connector.channel().await?;
        let name = short(exchange).map_err(Fault::config)?;
        let asked = run_to_end(async move {
            channel
                .exchange_declare(name, ExchangeKind::Direct, options, FieldTable::default())
                .await
        });
        asked.await.map_err(|error| {
            refused(error, || {
                format!(
                    "there is no exchange `{exchange}`, where messages of the \
                queue `{queue}` are put aside: declare it, and bind a queue to it"
                )
            })
        })
    }

    async fn exists(&self, queue: &str) -> Result<(), Fault> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let name = short(queue).map_err(Fault::config)?;
        let channel = self.connector.channel().await?;
        let asked = run_to_end(async move {
            channel
                .queue_declare(name, options, FieldTable::default())
                .await
        });
        asked.await.map_err(|error| {
            refused(error, || {
                format!("there is no queue `{queue}`: declare it before its consumers start")
            })
        })?;
        Ok(())
    }
}

/// Where the dead letters of a queue go.
struct DeadLetters {
    exchange: String,
    /// `None`: a dead letter keeps the routing key of its message.
    routing_key: Option<String>,
}

/// Makes a fault of a failed request. A refusal by the broker stays one until somebody changes the
/// configuration; other failures may pass.
fn refused(error: lapin::Error, reason: impl FnOnce() -> String) -> Fault {
    if error.is_amqp_soft_error() {
        Fault::config(format!("{} ({error})", reason()))
    } else {
        Fault::passing(error)
    }
}

impl<'c> Broker for Consumer<'c> {
    type Ticket = Ticket<'c>;

    // Unhandled deliveries return when the channel is closed, after the last handler has ended.
    const HANDS_BACK: bool = false;

    fn source(&self) -> &str {
        &self.queue
    }

    async fn open(&self, _: Arc<Room>) -> Result<Deliveries<'_, Ticket<'c>>, Fault> {
        self.subscribe().await
    }
}

/// Warns if RabbitMQ may take a message back while its lease is alive. The operations of the
/// handler are not known here, so the lease is the default of the installed runtime.
fn warn_of_timeout(queue: &CheckedQueue, wait: Duration) {
    let lease = idem_core::installed()
        .and_then(|idempotency| idempotency.lease())
        .unwrap_or(Duration::from_secs(30));
    let CheckedQueue {
        name,
        consumer_timeout,
        ..
    } = queue;
    if *consumer_timeout < lease + wait {
        let limits =
            format_args!("consumer_timeout {consumer_timeout:?}, lease {lease:?}, wait {wait:?}");
        idem_queue::report(Decision::ConsumerTimeoutShort, name, &limits);
    }
}

impl fmt::Debug for Consumer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("queue", &self.queue)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
