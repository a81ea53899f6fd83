//! Kafka, by tansu: a broker with Kafka's protocol, which keeps everything in its memory here.

use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use idem::kafka::rdkafka::Message as _;
use idem::kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use idem::kafka::rdkafka::client::DefaultClientContext;
use idem::kafka::rdkafka::consumer::{Consumer as _, StreamConsumer};
use idem::kafka::rdkafka::message::{Header, Headers as _, OwnedHeaders};
use idem::kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use idem::kafka::{ClientConfig, Consumer, Delivery};
use idem_testkit::HeldPort;
use tokio::net::TcpStream;

use super::{CONCURRENCY, Filled, Shared, Subject};
use crate::machine;

/// Names the program of tansu.
const PROGRAM: &str = "IDEM_TANSU_SERVER";
const DEAD: &str = "bench.dead";
const MESSAGE_ID: &str = "idem-message-id";
const PARTITIONS: i32 = 4;
/// How many publications are under way at once.
const PUBLISHING: usize = 256;
/// How long the broker may take to start.
const STARTING: Duration = Duration::from_secs(30);

pub(crate) struct Kafka {
    version: String,
    _tansu: Tansu,
    _port: HeldPort,
    config: ClientConfig,
    admin: AdminClient<DefaultClientContext>,
    /// The number of the topic that is filled. Each has a group of its own.
    topic: AtomicU32,
}

/// A broker. Killed when dropped.
struct Tansu(Child);

impl Drop for Tansu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kafka {
    pub(crate) async fn start() -> Result<Self> {
        let program = env::var(PROGRAM).with_context(|| {
            format!("{PROGRAM} does not name the program `tansu`, a broker with Kafka's protocol")
        })?;
        let version = machine::said(&program, &["--version"]);
        let version = version.with_context(|| format!("`{program}` does not run"))?;
        let port = HeldPort::hold()?;
        let address = format!("127.0.0.1:{}", port.port());
        let url = format!("tcp://{address}");
        let tansu = Command::new(&program)
            .args(["broker", "--silent", "--storage-engine", "memory://tansu/"])
            .args(["--listener-url", &url, "--advertised-listener-url", &url])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let tansu = Tansu(tansu);
        let listening = async {
            while TcpStream::connect(&address).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(STARTING, listening)
            .await
            .context("it does not listen")?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", address);
        let kafka = Self {
            version,
            _tansu: tansu,
            _port: port,
            admin: config.create()?,
            config,
            topic: AtomicU32::new(0),
        };
        kafka.create(DEAD, 1).await?;
        Ok(kafka)
    }

    pub(crate) fn version(&self) -> String {
        format!("{} (Kafka's protocol)", self.version)
    }

    async fn create(&self, topic: &str, partitions: i32) -> Result<()> {
        let topic = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let created = self.admin.create_topics([&topic], &AdminOptions::new());
        for created in created.await? {
            ensure!(created.is_ok(), "no topic: {created:?}");
        }
        Ok(())
    }

    fn topic(&self) -> String {
        format!("bench-{}", self.topic.load(Ordering::Relaxed))
    }
}

impl Filled for Kafka {
    const IS_JOINED: bool = true;

    async fn fill(&self, messages: u32) -> Result<()> {
        self.topic.fetch_add(1, Ordering::Relaxed);
        let topic = &self.topic();
        self.create(topic, PARTITIONS).await?;
        let mut config = self.config.clone();
        // tansu 0.6 delivers nothing of a batch whose middle is the offset that is asked for.
        config.set("batch.num.messages", "1");
        let producer: &FutureProducer = &config.create()?;
        futures_util::stream::iter(0..messages)
            .map(Ok::<u32, Error>)
            .try_for_each_concurrent(PUBLISHING, async |number| {
                let id = format!("m-{number}");
                let header = Header {
                    key: MESSAGE_ID,
                    value: Some(&id),
                };
                let message = FutureRecord::<str, str>::to(topic)
                    .partition(i32::try_from(number)? % PARTITIONS)
                    .payload("{}")
                    .headers(OwnedHeaders::new().insert(header));
                let sent = producer.send(message, Duration::from_secs(30)).await;
                sent.map_err(|(error, _)| error)?;
                Ok(())
            })
            .await
    }

    async fn consume(&self, subject: Subject, shared: &Shared) -> Result<()> {
        let topic = self.topic();
        let mut config = self.config.clone();
        config
            .set("group.id", &topic)
            // With the usual 45 s, a member of tansu waits 24 s for its partitions, and not 4.
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "500");
        if matches!(subject, Subject::Adapter | Subject::Guarded) {
            let handler = async |delivery: Delivery| {
                shared
                    .handler(subject, delivery.id().unwrap_or_default())
                    .await
            };
            let consumer = Consumer::new(&config, topic).dead_letter(DEAD);
            consumer
                .concurrency(CONCURRENCY)
                .run(handler, shared.all())
                .await?;
            return Ok(());
        }
        // As people write it: the highest offset that was handled is committed, as often as the
        // adapter commits. What was begun before it and has not ended is lost in a crash.
        config
            .set("enable.auto.offset.store", "false")
            .set("auto.commit.interval.ms", "200")
            .set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = config.create()?;
        consumer.subscribe(&[&topic])?;
        let handling = consumer
            .stream()
            .map_err(Error::from)
            .try_for_each_concurrent(CONCURRENCY, async |message| {
                let headers = message.headers();
                let id = headers
                    .and_then(|headers| headers.iter().find(|header| header.key == MESSAGE_ID))
                    .and_then(|header| std::str::from_utf8(header.value?).ok());
                shared.by_hand(subject, id.unwrap_or_default()).await?;
                consumer.store_offset_from_message(&message)?;
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
