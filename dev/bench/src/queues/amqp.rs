//! RabbitMQ.

use anyhow::Result;
use futures_util::TryStreamExt as _;
use idem::amqp::lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use idem::amqp::lapin::types::{AMQPValue, FieldTable};
use idem::amqp::lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use idem::amqp::{Consumer, Delivery};
use idem_testkit::RabbitMqServer;

use super::{CONCURRENCY, Filled, PREFETCH, Shared, Subject};
use crate::machine;

const QUEUE: &str = "bench";
const DEAD: &str = "bench.dead";

pub(crate) struct RabbitMq {
    _server: RabbitMqServer,
    connection: Connection,
    channel: Channel,
}

impl RabbitMq {
    pub(crate) async fn start() -> Result<Self> {
        let server = RabbitMqServer::start().await?;
        let connection =
            Connection::connect(&server.url(), ConnectionProperties::default()).await?;
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
                DEAD.into(),
                ExchangeKind::Fanout,
                exchange,
                FieldTable::default(),
            )
            .await?;
        let mut arguments = FieldTable::default();
        for (name, value) in [("x-queue-type", "quorum"), ("x-dead-letter-exchange", DEAD)] {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        channel
            .queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), arguments)
            .await?;
        Ok(Self {
            _server: server,
            connection,
            channel,
        })
    }

    /// Asked of its program, because the client does not say it.
    pub(crate) fn version() -> String {
        let version = machine::said("rabbitmqctl", &["version"]);
        format!("RabbitMQ {}", version.unwrap_or_default())
    }
}

impl Filled for RabbitMq {
    async fn fill(&self, messages: u32) -> Result<()> {
        for number in 0..messages {
            let properties =
                BasicProperties::default().with_message_id(format!("m-{number}").into());
            let options = BasicPublishOptions::default();
            let properties = properties.with_delivery_mode(2);
            // The confirmations are waited for together.
            drop(
                self.channel
                    .basic_publish("".into(), QUEUE.into(), options, b"{}", properties)
                    .await?,
            );
        }
        self.channel.wait_for_confirms().await?;
        Ok(())
    }

    async fn consume(&self, subject: Subject, shared: &Shared) -> Result<()> {
        if matches!(subject, Subject::Adapter | Subject::Guarded) {
            let handler = async |delivery: Delivery| {
                shared
                    .handler(subject, delivery.id().unwrap_or_default())
                    .await
            };
            let consumer = Consumer::new(&self.connection, QUEUE).concurrency(CONCURRENCY);
            consumer.run(handler, shared.all()).await?;
            return Ok(());
        }
        let channel = self.connection.create_channel().await?;
        channel
            .basic_qos(PREFETCH, BasicQosOptions::default())
            .await?;
        let options = BasicConsumeOptions::default();
        let consumer = channel
            .basic_consume(QUEUE.into(), "".into(), options, FieldTable::default())
            .await?;
        let handling = consumer
            .map_err(anyhow::Error::from)
            .try_for_each_concurrent(CONCURRENCY, async |message| {
                let id = message
                    .properties
                    .message_id()
                    .as_ref()
                    .map_or("", |id| id.as_str());
                shared.by_hand(subject, id).await?;
                message.ack(BasicAckOptions::default()).await?;
                shared.count();
                Ok(())
            });
        tokio::select! {
            ended = handling => ended?,
            () = shared.all() => {}
        }
        channel.close(200, "done".into()).await?;
        Ok(())
    }
}
