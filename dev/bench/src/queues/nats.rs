//! NATS JetStream.

use anyhow::{Error, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery, async_nats};
use idem_testkit::NatsServer;

use super::{CONCURRENCY, Filled, Shared, Subject};

const STREAM: &str = "BENCH";
const DURABLE: &str = "bench";
/// How many publications are under way at once.
const PUBLISHING: usize = 256;

pub(crate) struct Nats {
    _server: NatsServer,
    client: async_nats::Client,
    context: Context,
}

impl Nats {
    pub(crate) async fn start() -> Result<Self> {
        let server = NatsServer::start().await?;
        let client = async_nats::connect(server.url()).await?;
        let context = async_nats::jetstream::new(client.clone());
        let config = stream::Config {
            name: "DEAD".into(),
            subjects: vec!["dead.>".into()],
            ..stream::Config::default()
        };
        context.create_stream(config).await?;
        Ok(Self {
            _server: server,
            client,
            context,
        })
    }

    pub(crate) fn version(&self) -> String {
        format!("NATS {}", self.client.server_info().version)
    }
}

impl Filled for Nats {
    /// The stream is made again, so that the ids are new to it.
    async fn fill(&self, messages: u32) -> Result<()> {
        let _ = self.context.delete_stream(STREAM).await;
        let config = stream::Config {
            name: STREAM.into(),
            subjects: vec!["bench.>".into()],
            ..stream::Config::default()
        };
        let stream = self.context.create_stream(config).await?;
        let config = pull::Config {
            durable_name: Some(DURABLE.into()),
            max_ack_pending: 10_000,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await?;
        futures_util::stream::iter(0..messages)
            .map(Ok::<u32, Error>)
            .try_for_each_concurrent(PUBLISHING, async |number| {
                let message = PublishMessage::build()
                    .payload("{}".into())
                    .message_id(format!("m-{number}"));
                self.context
                    .send_publish("bench.messages", message)
                    .await?
                    .await?;
                Ok(())
            })
            .await
    }

    async fn consume(&self, subject: Subject, shared: &Shared) -> Result<()> {
        if matches!(subject, Subject::Adapter | Subject::Guarded) {
            let handler = async |delivery: Delivery| {
                shared
                    .handler(subject, delivery.id().unwrap_or_default())
                    .await
            };
            let consumer = Consumer::new(&self.context, STREAM, DURABLE).dead_letter("dead.bench");
            consumer
                .concurrency(CONCURRENCY)
                .run(handler, shared.all())
                .await?;
            return Ok(());
        }
        let consumer: PullConsumer = self
            .context
            .get_stream(STREAM)
            .await?
            .get_consumer(DURABLE)
            .await
            .map_err(Error::from_boxed)?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(CONCURRENCY)
            .messages()
            .await?;
        let handling =
            messages
                .map_err(Error::from)
                .try_for_each_concurrent(CONCURRENCY, async |message| {
                    let id = message
                        .headers
                        .as_ref()
                        .and_then(|headers| headers.get("Nats-Msg-Id"));
                    shared
                        .by_hand(subject, id.map_or("", |id| id.as_str()))
                        .await?;
                    message.ack().await.map_err(Error::from_boxed)?;
                    shared.count();
                    Ok(())
                });
        tokio::select! {
            ended = handling => ended?,
            () = shared.all() => {}
        }
        Ok(())
    }
}
