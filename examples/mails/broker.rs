//! The broker: where orders are published, and where poison ends.

use std::error::Error;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use idem::amqp::lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use idem::amqp::lapin::types::{AMQPValue, FieldTable};
use idem::amqp::lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{REASON, async_nats};
use idem_testkit::{NatsServer, RabbitMqServer};

const NOT_INSTALLED: &str =
    "no message broker is installed here, and the example starts its own. Install one, then run \
     it again:
  nats-server      apt-get install nats-server       brew install nats-server
  rabbitmq-server  apt-get install rabbitmq-server   brew install rabbitmq";

/// Which broker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Nats,
    RabbitMq,
    #[cfg(feature = "mails-kafka")]
    Kafka,
}

/// A broker that was started. It ends with this.
pub(crate) enum Server {
    Nats(NatsServer),
    RabbitMq(RabbitMqServer),
    #[cfg(feature = "mails-kafka")]
    Kafka(crate::kafka::Cluster),
}

impl Server {
    /// Starts the broker that is wanted, or the first one that is installed.
    pub(crate) async fn start(wanted: Option<Kind>) -> Result<Self, Box<dyn Error>> {
        let kinds = wanted.map_or_else(|| vec![Kind::Nats, Kind::RabbitMq], |kind| vec![kind]);
        for kind in kinds {
            let started = match kind {
                Kind::Nats => NatsServer::start().await.map(Self::Nats),
                Kind::RabbitMq => {
                    if RabbitMqServer::is_installed() {
                        println!("Starting RabbitMQ, which takes some seconds ..");
                    }
                    RabbitMqServer::start().await.map(Self::RabbitMq)
                }
                #[cfg(feature = "mails-kafka")]
                Kind::Kafka => crate::kafka::start().map(Self::Kafka),
            };
            match started {
                Ok(server) => return Ok(server),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(match wanted {
            Some(Kind::Nats) => {
                "`nats-server` is not installed: `apt-get install nats-server`, `brew install \
                 nats-server`; or use RabbitMQ, with `--broker rabbitmq`"
                    .into()
            }
            Some(Kind::RabbitMq) => {
                "`rabbitmq-server` is not installed: `apt-get install rabbitmq-server`, `brew \
                 install rabbitmq`; or use NATS, with `--broker nats`"
                    .into()
            }
            // Part of the client.
            #[cfg(feature = "mails-kafka")]
            Some(Kind::Kafka) => "librdkafka has no cluster in memory".into(),
            None => NOT_INSTALLED.into(),
        })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Nats(server) => server.url(),
            Self::RabbitMq(server) => server.url(),
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(cluster) => crate::kafka::url(cluster),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Nats(server) => format!("NATS JetStream on port {}", server.port()),
            Self::RabbitMq(server) => format!("RabbitMQ on port {}", server.port()),
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(cluster) => {
                format!(
                    "librdkafka's Kafka in memory at {}",
                    cluster.bootstrap_servers()
                )
            }
        }
    }

    /// The place of messages that no redelivery helps.
    pub(crate) fn graveyard(&self) -> &'static str {
        match self {
            Self::Nats(_) => "stream DEAD",
            Self::RabbitMq(_) => "queue mails.dead",
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(_) => "topic mails.dead",
        }
    }

    /// Connects, and makes the queues or streams.
    pub(crate) async fn prepare(&self) -> Result<Client, Box<dyn Error>> {
        match self {
            Self::Nats(server) => Client::of_nats(&server.url()).await,
            Self::RabbitMq(server) => Client::of_rabbitmq(&server.url()).await,
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(cluster) => Ok(Client::Kafka(crate::kafka::Client::new(cluster)?)),
        }
    }
}

/// The connection of the producers.
#[derive(Clone)]
pub(crate) enum Client {
    Nats(Context),
    RabbitMq(Channel),
    #[cfg(feature = "mails-kafka")]
    Kafka(crate::kafka::Client),
}

impl Client {
    async fn of_nats(url: &str) -> Result<Self, Box<dyn Error>> {
        let context = async_nats::jetstream::new(async_nats::connect(url).await?);
        for (name, subject) in [("ORDERS", "orders.>"), ("DEAD", "dead.>")] {
            let config = stream::Config {
                name: name.into(),
                subjects: vec![subject.into()],
                // So short that the consumers get the duplicates. Usual are two minutes.
                duplicate_window: Duration::from_millis(100),
                ..stream::Config::default()
            };
            context.create_stream(config).await?;
        }
        // The messages of a killed consumer come again after this time.
        let config = pull::Config {
            durable_name: Some("mails".into()),
            ack_wait: Duration::from_secs(3),
            ..pull::Config::default()
        };
        context
            .get_stream("ORDERS")
            .await?
            .create_consumer(config)
            .await?;
        Ok(Self::Nats(context))
    }

    async fn of_rabbitmq(url: &str) -> Result<Self, Box<dyn Error>> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let exchange = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                "mails.dead".into(),
                ExchangeKind::Fanout,
                exchange,
                FieldTable::default(),
            )
            .await?;
        for queue in ["mails", "mails.dead"] {
            let mut arguments = FieldTable::default();
            arguments.insert(
                "x-queue-type".into(),
                AMQPValue::LongString("quorum".into()),
            );
            if queue == "mails" {
                arguments.insert(
                    "x-dead-letter-exchange".into(),
                    AMQPValue::LongString("mails.dead".into()),
                );
            }
            channel
                .queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments)
                .await?;
        }
        let options = QueueBindOptions::default();
        channel
            .queue_bind(
                "mails.dead".into(),
                "mails.dead".into(),
                "".into(),
                options,
                FieldTable::default(),
            )
            .await?;
        Ok(Self::RabbitMq(channel))
    }

    /// Publishes a message, and waits until the broker has it.
    pub(crate) async fn publish(&self, id: &str, payload: Vec<u8>) -> Result<(), String> {
        match self {
            Self::Nats(context) => {
                let message = PublishMessage::build()
                    .payload(payload.into())
                    .message_id(id);
                let sent = context
                    .send_publish("orders.placed", message)
                    .await
                    .map_err(|error| error.to_string())?;
                sent.await.map_err(|error| error.to_string())?;
            }
            Self::RabbitMq(channel) => {
                let properties = BasicProperties::default()
                    .with_message_id(id.into())
                    .with_delivery_mode(2);
                let options = BasicPublishOptions::default();
                let sent = channel
                    .basic_publish("".into(), "mails".into(), options, &payload, properties)
                    .await;
                sent.map_err(|error| error.to_string())?
                    .await
                    .map_err(|error| error.to_string())?;
            }
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(client) => client.publish(id, &payload).await?,
        }
        Ok(())
    }

    /// The messages that were put aside by now, with their reasons. Taken away.
    pub(crate) async fn put_aside(&self) -> Result<Vec<(Vec<u8>, String)>, Box<dyn Error>> {
        let mut found = Vec::new();
        match self {
            Self::Nats(context) => {
                let config = pull::Config {
                    durable_name: Some("look".into()),
                    ..pull::Config::default()
                };
                let stream = context.get_stream("DEAD").await?;
                let consumer: PullConsumer = stream.get_or_create_consumer("look", config).await?;
                let mut messages = consumer.fetch().max_messages(500).messages().await?;
                while let Some(message) = messages.next().await {
                    let message = message.map_err(|error| error.to_string())?;
                    let reason = message
                        .headers
                        .as_ref()
                        .and_then(|headers| headers.get(REASON));
                    found.push((
                        message.payload.to_vec(),
                        reason.map_or_else(String::new, ToString::to_string),
                    ));
                    message.ack().await.map_err(|error| error.to_string())?;
                }
            }
            Self::RabbitMq(channel) => {
                while let Some(message) = channel
                    .basic_get("mails.dead".into(), BasicGetOptions::default())
                    .await?
                {
                    let headers = message.properties.headers().clone().unwrap_or_default();
                    let reason = match headers.inner().get(REASON) {
                        Some(AMQPValue::LongString(reason)) => reason.to_string(),
                        _ => String::new(),
                    };
                    found.push((message.data.clone(), reason));
                    message.ack(BasicAckOptions::default()).await?;
                }
            }
            #[cfg(feature = "mails-kafka")]
            Self::Kafka(client) => found.extend(client.put_aside()?),
        }
        Ok(found)
    }
}
