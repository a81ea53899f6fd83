//! The broker of a run whose calls come from messages.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use futures_util::StreamExt as _;
use idem_amqp::lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use idem_amqp::lapin::types::{AMQPValue, FieldTable};
use idem_amqp::lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
};
use idem_nats::REASON;
use idem_nats::async_nats;
use idem_nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem_nats::async_nats::jetstream::message::PublishMessage;
use idem_nats::async_nats::jetstream::{Context, stream};
use idem_testkit::{NatsServer, Proxy, RabbitMqServer};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// The queue, and the durable consumer.
pub(crate) const QUEUE: &str = "chaos";
/// The stream.
pub(crate) const STREAM: &str = "CHAOS";
/// The exchange and the queue, or the subject, of messages that are put aside.
pub(crate) const DEAD: &str = "dead.chaos";

/// How long a step may take before it is tried again.
const STEP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// NATS JetStream.
    Nats,
    /// RabbitMQ.
    Rabbitmq,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// A message: a call with this key, or poison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) number: u64,
    pub(crate) key: String,
    pub(crate) poison: bool,
}

#[derive(Debug)]
enum Server {
    Nats(NatsServer),
    Rabbitmq(RabbitMqServer),
}

/// A broker that was started, and the parent's own connection to it.
#[derive(Debug)]
pub(crate) struct Broker {
    server: Server,
    client: Mutex<Client>,
}

#[derive(Debug)]
enum Client {
    Nats(Context),
    Rabbitmq(Option<(Connection, Channel)>),
}

impl Broker {
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        let (server, client) = match kind {
            Kind::Nats => {
                let server = NatsServer::start().await?;
                let context = async_nats::jetstream::new(async_nats::connect(server.url()).await?);
                make_streams(&context).await?;
                (Server::Nats(server), Client::Nats(context))
            }
            Kind::Rabbitmq => {
                let server = RabbitMqServer::start().await?;
                let connected = connected(&server.url()).await?;
                make_queues(&connected.1).await?;
                (Server::Rabbitmq(server), Client::Rabbitmq(Some(connected)))
            }
        };
        Ok(Self {
            server,
            client: Mutex::new(client),
        })
    }

    fn port(&self) -> u16 {
        match &self.server {
            Server::Nats(server) => server.port(),
            Server::Rabbitmq(server) => server.port(),
        }
    }

    pub(crate) async fn proxy(&self) -> Result<Proxy> {
        Ok(Proxy::start_opaque(&format!("127.0.0.1:{}", self.port())).await?)
    }

    /// The URL through a proxy.
    pub(crate) fn url(&self, proxy: &Proxy) -> String {
        let port = proxy.address().port();
        match &self.server {
            Server::Nats(server) => server.url_through(port),
            Server::Rabbitmq(server) => server.url_through(port),
        }
    }

    /// Kills it, and starts it again after a while, with its messages.
    pub(crate) async fn kill(&self, length: Duration) -> Result<()> {
        match &self.server {
            Server::Nats(server) => {
                server.kill()?;
                sleep(length).await;
                server.restart().await?;
            }
            Server::Rabbitmq(server) => {
                server.kill()?;
                sleep(length).await;
                server.restart().await?;
            }
        }
        Ok(())
    }

    /// Publishes a message, however often that takes.
    pub(crate) async fn publish(&self, message: &Message) -> Result<()> {
        let payload = serde_json::to_vec(message)?;
        let id = format!("m-{}", message.number);
        while !matches!(
            timeout(STEP, self.published(&id, &payload)).await,
            Ok(Ok(()))
        ) {
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn published(&self, id: &str, payload: &[u8]) -> Result<()> {
        match &mut *self.client.lock().await {
            Client::Nats(context) => {
                let message = PublishMessage::build()
                    .payload(payload.to_vec().into())
                    .message_id(id);
                context.send_publish("chaos.calls", message).await?.await?;
            }
            client @ Client::Rabbitmq(_) => {
                let channel = self.channel(client).await?;
                let properties = BasicProperties::default()
                    .with_message_id(id.into())
                    .with_delivery_mode(2);
                let options = BasicPublishOptions::default();
                let sent = channel
                    .basic_publish("".into(), QUEUE.into(), options, payload, properties)
                    .await?;
                if !matches!(sent.await?, Confirmation::Ack(_)) {
                    bail!("refused");
                }
            }
        }
        Ok(())
    }

    /// The messages that were put aside by now, with their reasons. Taken away.
    pub(crate) async fn put_aside(&self) -> Result<Vec<(Message, String)>> {
        let mut found = Vec::new();
        match &mut *self.client.lock().await {
            Client::Nats(context) => {
                let config = pull::Config {
                    durable_name: Some("look".into()),
                    ..pull::Config::default()
                };
                let consumer: PullConsumer = context
                    .get_stream("DEAD")
                    .await?
                    .get_or_create_consumer("look", config)
                    .await?;
                let mut messages = consumer
                    .fetch()
                    .max_messages(1_000)
                    .messages()
                    .await
                    .context("dead letters")?;
                while let Some(message) = messages.next().await {
                    let message = message.map_err(anyhow::Error::from_boxed)?;
                    let reason = message
                        .headers
                        .as_ref()
                        .and_then(|headers| headers.get(REASON));
                    let reason = reason.map_or_else(String::new, ToString::to_string);
                    found.push((serde_json::from_slice(&message.payload)?, reason));
                    message
                        .double_ack()
                        .await
                        .map_err(anyhow::Error::from_boxed)?;
                }
            }
            client @ Client::Rabbitmq(_) => {
                let channel = self.channel(client).await?;
                while let Some(message) = channel
                    .basic_get(DEAD.into(), BasicGetOptions::default())
                    .await?
                {
                    let headers = message.properties.headers().clone().unwrap_or_default();
                    let reason = match headers.inner().get(REASON) {
                        Some(AMQPValue::LongString(reason)) => reason.to_string(),
                        _ => String::new(),
                    };
                    found.push((serde_json::from_slice(&message.data)?, reason));
                    message.ack(BasicAckOptions::default()).await?;
                }
            }
        }
        Ok(found)
    }

    /// How many messages wait, but for those that were put aside. RabbitMQ does not count those
    /// that a consumer has.
    pub(crate) async fn left(&self) -> Result<u64> {
        match &mut *self.client.lock().await {
            Client::Nats(context) => {
                let consumer: PullConsumer = context
                    .get_stream(STREAM)
                    .await?
                    .get_consumer(QUEUE)
                    .await
                    .map_err(anyhow::Error::from_boxed)?;
                let info = consumer.cached_info();
                Ok(info.num_pending + info.num_ack_pending as u64)
            }
            client @ Client::Rabbitmq(_) => {
                let mut left = 0;
                for queue in ["", ".retry.1s", ".retry.10s", ".retry.60s"] {
                    // A queue that is not there closes the channel.
                    let channel = self.channel(client).await?;
                    let options = QueueDeclareOptions {
                        passive: true,
                        ..QueueDeclareOptions::default()
                    };
                    let name = format!("{QUEUE}{queue}");
                    let asked = channel
                        .queue_declare(name.as_str().into(), options, FieldTable::default())
                        .await;
                    match asked {
                        Ok(queue) => left += u64::from(queue.message_count()),
                        Err(error) if error.is_amqp_soft_error() && !queue.is_empty() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(left)
            }
        }
    }

    /// A channel that is open.
    async fn channel(&self, client: &mut Client) -> Result<Channel> {
        let (Server::Rabbitmq(server), Client::Rabbitmq(open)) = (&self.server, client) else {
            bail!("no RabbitMQ")
        };
        match open {
            Some((_, channel)) if channel.status().connected() => Ok(channel.clone()),
            _ => {
                let another = connected(&server.url()).await?;
                let channel = another.1.clone();
                *open = Some(another);
                Ok(channel)
            }
        }
    }
}

async fn connected(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok((connection, channel))
}

async fn make_streams(context: &Context) -> Result<()> {
    for (name, subject) in [(STREAM, "chaos.>"), ("DEAD", "dead.>")] {
        // So short that the consumers get the duplicates.
        let duplicate_window = Duration::from_millis(100);
        let subjects = vec![subject.into()];
        context
            .create_stream(stream::Config {
                name: name.into(),
                subjects,
                duplicate_window,
                ..stream::Config::default()
            })
            .await?;
    }
    // The messages of a killed process come again soon.
    let config = pull::Config {
        durable_name: Some(QUEUE.into()),
        ack_wait: Duration::from_secs(2),
        ..pull::Config::default()
    };
    context
        .get_stream(STREAM)
        .await?
        .create_consumer(config)
        .await?;
    Ok(())
}

async fn make_queues(channel: &Channel) -> Result<()> {
    let exchange = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            DEAD.into(),
            ExchangeKind::Fanout,
            exchange,
            FieldTable::default(),
        )
        .await?;
    for queue in [QUEUE, DEAD] {
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("quorum".into()),
        );
        if queue == QUEUE {
            arguments.insert(
                "x-dead-letter-exchange".into(),
                AMQPValue::LongString(DEAD.into()),
            );
        }
        // A consumer that is killed returns what it has, and so does one whose connection is cut:
        // far more often here than anywhere else.
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(100_000));
        channel
            .queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments)
            .await?;
    }
    channel
        .queue_bind(
            DEAD.into(),
            DEAD.into(),
            "".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok(())
}
