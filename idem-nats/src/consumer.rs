//! A durable pull consumer and a handler.

use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::client::FlushErrorKind;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, Config, PullConsumer, pull};
use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::Stream;
use futures_util::FutureExt as _;
use idem_core::Dispose;
use idem_queue::{Broker, Deliveries, Delivery, Error, Fault, Room, Settings};

use crate::dead_letter::DeadLetters;
use crate::pull::deliveries;
use crate::subject::check_filter;
use crate::ticket::{ConsumerTerms, Ticket};

/// Shorter ones end before an in-progress acknowledgement arrives; longer ones are none for the
/// server, which counts nanoseconds.
const ACK_WAITS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(365 * 24 * 3600);

/// Consumes messages of a JetStream stream by a durable pull consumer, and runs an idempotent
/// handler for each.
///
/// - A message is acknowledged after its outcome is recorded. A duplicate is acknowledged without
///   running the body.
/// - If its key is in flight elsewhere, a message returns with a delay (`Nak`).
/// - A poison message is published to the dead-letter subject, with the reason in the header
///   [`REASON`](crate::REASON). It is terminated (`Term`) when the stream has confirmed that.
/// - While a handler runs, the consumer sends in-progress acknowledgements, three in each
///   `ack_wait`.
///
/// The handlers run in the task that awaits [`run`](Self::run). Several consumers of one durable
/// name share its messages.
///
/// # Examples
///
/// ```no_run
/// use idem_nats::{Consumer, Delivery, async_nats};
/// # #[derive(serde::Deserialize)] struct OrderPlaced { number: u64 }
/// # async fn on_order(_: OrderPlaced) -> Result<(), idem_core::Error> { Ok(()) }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let context =
///     async_nats::jetstream::new(async_nats::connect("nats://127.0.0.1:4222").await?);
/// Consumer::new(&context, "ORDERS", "workers")
///     .concurrency(32)
///     .dead_letter("dead.orders")
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
    context: Context,
    stream: String,
    durable: String,
    dead_letter: Option<String>,
    ack_wait: Option<Duration>,
    settings: Settings,
    /// Whether the durable consumer was created here. Known after the first start.
    created: OnceLock<bool>,
}

impl Consumer {
    /// Creates a consumer of a stream, by its durable name.
    ///
    /// If the durable consumer does not exist, it is created, with all messages of the stream,
    /// explicit acknowledgements, an [`ack_wait`](Self::ack_wait) of 30 s, and no `max_deliver`. If
    /// it existed at the start and is deleted later, it is not created here: it may have had a
    /// filter.
    pub fn new(context: &Context, stream: impl Into<String>, durable: impl Into<String>) -> Self {
        Self {
            context: context.clone(),
            stream: stream.into(),
            durable: durable.into(),
            dead_letter: None,
            ack_wait: None,
            settings: Settings::default(),
            created: OnceLock::new(),
        }
    }

    /// Sets how many messages are handled, and pulled, at the same time. Default: 16. At least 1:
    /// with 0, `run` returns [`Error::Config`].
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// Sets the subject for dead letters. It must belong to a stream, preferably a separate one.
    /// Required.
    pub fn dead_letter(mut self, subject: impl Into<String>) -> Self {
        self.dead_letter = Some(subject.into());
        self
    }

    /// Sets after how long the server delivers a message again whose consumer was killed: the
    /// `ack_wait` of the durable consumer. A handler may run longer, because the server hears of it
    /// three times in this time. Default: 30 s, or what the durable consumer has. 100 ms to a year:
    /// with another time, `run` returns [`Error::Config`].
    ///
    /// It serves to create the durable consumer. If that exists with another `ack_wait`, `run`
    /// returns [`Error::Config`], because its other consumers rely on it. Change it at the server
    /// then, such as with `nats consumer edit`.
    pub fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.ack_wait = Some(ack_wait);
        self
    }

    /// Sets how long a handler waits at most for another call with its key. After that the message
    /// returns with a delay. Default: 1 s, or the operation's `in_flight = wait(..)` if that is
    /// shorter.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets how long running handlers may take after the shutdown has begun. Default: 25 s.
    /// Handlers that still run then are stopped, and their messages return to the stream. The end
    /// may take some 15 s more, while messages are handed back.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.settings.shutdown_timeout = limit;
        self
    }

    /// Consumes until `shutdown` ends. A lost connection is restored by the client; then messages
    /// arrive again.
    ///
    /// # Errors
    ///
    /// At the start: the stream is missing, the server does not answer, or a setting could lose
    /// messages: no dead-letter subject, one that no stream has or that this consumer would
    /// receive, a `max_deliver`, acknowledgements that are not explicit, a filter subject that the
    /// stream does not have, another `ack_wait` than the durable consumer's. Later:
    /// [`Error::Disconnected`] if the client has ended, because it was drained, has used up its
    /// `max_reconnects`, or lost its tokio runtime.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, running handlers are stopped, as in a crash. Their messages are
    /// delivered again after `ack_wait`.
    pub async fn run<H, E>(self, handler: H, shutdown: impl Future) -> Result<(), Error>
    where
        H: AsyncFn(Delivery) -> Result<(), E>,
        E: Dispose,
    {
        idem_queue::run(&self, &self.settings, handler, shutdown).await
    }

    /// Returns the durable consumer, after checking that no message can be lost.
    async fn checked(&self) -> Result<(PullConsumer, DeadLetters), Fault> {
        let Self {
            context,
            stream: name,
            durable,
            ..
        } = self;
        let Some(subject) = &self.dead_letter else {
            return Err(Fault::config(format!(
                "the consumer `{durable}` of the stream `{name}` has no place for messages that no \
                 redelivery helps: name a subject, `.dead_letter(\"dead.{durable}\")`, and make a stream for it"
            )));
        };
        if let Some(ack_wait) = self.ack_wait
            && !ACK_WAITS.contains(&ack_wait)
        {
            return Err(Fault::config(format!(
                "the `ack_wait` of the consumer `{durable}` of the stream `{name}` is {ack_wait:?}, \
                 and may be {:?} to {:?}",
                ACK_WAITS.start(),
                ACK_WAITS.end()
            )));
        }
        let stream = context
            .get_stream(name)
            .await
            .map_err(|error| match error.kind() {
                GetStreamErrorKind::JetStream(error) if error.code() == 404 => Fault::config(
                    format!("there is no stream `{name}`: create it before its consumers start"),
                ),
                _ => Fault::passing(error),
            })?;
        let consumer = self.found_or_created(&stream).await?;
        let config = &consumer.cached_info().config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(Fault::config(format!(
                "the consumer `{durable}` of the stream `{name}` has the ack policy {:?}, which \
                 acknowledges messages that were not handled: create it with `explicit`",
                config.ack_policy
            )));
        }
        if config.max_deliver > 0 {
            return Err(Fault::config(format!(
                "the consumer `{durable}` of the stream `{name}` has max_deliver = {}: JetStream \
                 would drop a message after so many deliveries, and one that is in flight \
                 elsewhere uses them up. Set it to -1, and `max_attempts` on the operation",
                config.max_deliver
            )));
        }
        if let Some(ack_wait) = self.ack_wait
            && config.ack_wait != ack_wait
        {
            return Err(Fault::config(format!(
                "the consumer `{durable}` of the stream `{name}` exists with ack_wait = {:?}, not \
                 {ack_wait:?}: change it at the server (`nats consumer edit`), or leave \
                 `.ack_wait(..)` out",
                config.ack_wait
            )));
        }
        check_filter(context, &stream, &consumer).await?;
        let dead_letters = DeadLetters::checked(context, name, config, subject).await?;
        Ok((consumer, dead_letters))
    }

    /// Returns the durable consumer, and creates it at the first start if it does not exist.
    ///
    /// If the application has created it and it was deleted later, it is not created here. It may
    /// have had a filter, and without the filter the handler would get messages of other consumers.
    async fn found_or_created(&self, stream: &Stream) -> Result<PullConsumer, Fault> {
        let Self {
            stream: name,
            durable,
            ..
        } = self;
        match stream.consumer_info(durable).await {
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {
                if !self.created.get_or_init(|| true) {
                    return Err(Fault::passing(format!(
                        "the consumer `{durable}` of the stream `{name}` was deleted: create it \
                         again, with the settings that it had"
                    )));
                }
            }
            Err(error) => return Err(Fault::passing(error)),
            Ok(_) => {
                self.created.get_or_init(|| false);
            }
        }
        let config = pull::Config {
            durable_name: Some(durable.clone()),
            ack_policy: AckPolicy::Explicit,
            max_deliver: -1,
            // Zero is the server's default.
            ack_wait: self.ack_wait.unwrap_or_default(),
            ..pull::Config::default()
        };
        stream
            .get_or_create_consumer(durable, config)
            .await
            .map_err(Fault::passing)
    }

    /// Whether the client has ended and accepts no more requests.
    fn is_closed(&self) -> bool {
        let flushed = self.context.client().flush().now_or_never();
        matches!(flushed, Some(Err(error)) if error.kind() == FlushErrorKind::SendError)
    }
}

impl Broker for Consumer {
    type Ticket = Ticket;

    // Otherwise the server would deliver a pulled message again only after `ack_wait`.
    const HANDS_BACK: bool = true;

    fn source(&self) -> &str {
        &self.stream
    }

    async fn open(&self, room: Arc<Room>) -> Result<Deliveries<'_, Ticket>, Fault> {
        let checked = self.checked().await;
        if checked.is_err() && self.is_closed() {
            return Err(Fault::Final(Error::disconnected(
                "the NATS client has ended: it was drained, it has used up its `max_reconnects`, \
                 or the tokio runtime on which it was connected has ended. Connect again, and \
                 start another consumer",
            )));
        }
        let (consumer, dead_letters) = checked?;
        let terms = Arc::new(ConsumerTerms {
            stream: self.stream.as_str().into(),
            dead_letters,
            keep_alive: keep_alive_interval(&consumer.cached_info().config),
        });
        Ok(deliveries(
            self.context.client(),
            consumer,
            room,
            move |message| Ticket::new(message, &terms),
        ))
    }

    async fn flush(&self) {
        // If an acknowledgement is lost, its message comes again as a duplicate.
        let _ = self.context.client().flush().await;
    }
}

/// Returns how often the server is told that a handler runs: three times in the shortest time after
/// which it would deliver the message again.
fn keep_alive_interval(config: &Config) -> Duration {
    let waits = config
        .backoff
        .iter()
        .copied()
        .chain([config.ack_wait])
        .filter(|wait| !wait.is_zero());
    waits.min().unwrap_or(Duration::from_secs(30)) / 3
}
