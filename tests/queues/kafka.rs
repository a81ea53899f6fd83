//! Kafka, by tansu: a broker with Kafka's protocol, whose messages and offsets are in an S3 of this
//! test, so that it keeps them when it is killed. The tests of `idem-kafka` are over a cluster in
//! memory.

use std::collections::BTreeMap;
use std::env;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use idem::kafka::rdkafka::client::DefaultClientContext;
use idem::kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use idem::kafka::rdkafka::message::{Header, Headers as _, Message, OwnedHeaders, OwnedMessage};
use idem::kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use idem::kafka::rdkafka::{Offset, TopicPartitionList};
use idem::kafka::{ClientConfig, REASON};
use idem_testkit::{HeldPort, Proxy};
use tokio::process::{Child, Command};

use crate::kafka_offsets::{Place, Watch};
use crate::s3;
use crate::storm::{World, in_time, storm};
use crate::worker::Mail;

pub(crate) const PARTITIONS: i32 = 4;
/// Names the program of tansu.
const PROGRAM: &str = "IDEM_TANSU_SERVER";

/// The settings of members of the group.
pub(crate) fn config(url: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", url.trim_start_matches("kafka://"))
        .set("group.id", "workers")
        // Messages of a killed consumer are delivered again soon.
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "500");
    config
}

/// Starts a program, and waits until it listens.
async fn start(command: &mut Command, address: &str) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.kill_on_drop(true).spawn().unwrap();
    let listening = async {
        while TcpStream::connect(address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the broker has ended");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(address, listening).await;
    child
}

async fn start_tansu(listener: &str, s3: &str, proxy: &str) -> Child {
    let program = env::var_os(PROGRAM).map_or_else(
        || panic!("`{PROGRAM}` must name the program `tansu`, as `cargo xtask ci` makes it"),
        PathBuf::from,
    );
    let mut command = Command::new(program);
    command
        .args(["broker", "--silent", "--cluster-id", "idem"])
        .args(["--storage-engine", "s3://tansu/"])
        .args(["--listener-url", &format!("tcp://{listener}")])
        .args(["--advertised-listener-url", &format!("tcp://{proxy}")])
        .env("AWS_ENDPOINT", format!("http://{s3}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_DEFAULT_REGION", "us-east-1");
    start(&mut command, listener).await
}

pub(crate) struct Kafka {
    _port: HeldPort,
    listener: String,
    s3: String,
    tansu: tokio::sync::Mutex<Child>,
    proxy: Proxy,
    producer: FutureProducer,
    admin: BaseConsumer,
    dead: BaseConsumer,
    /// Where the messages are. The end of a partition is after its last one: tansu's own answer is
    /// too low.
    published: Arc<Mutex<BTreeMap<Place, Mail>>>,
    /// When the dead letter of each message was published first, in milliseconds.
    put_aside: Mutex<BTreeMap<Place, i64>>,
    watch: Mutex<Option<Watch>>,
}

impl Kafka {
    pub(crate) async fn start() -> Self {
        let port = HeldPort::hold().unwrap();
        let listener = format!("127.0.0.1:{}", port.port());
        let s3 = s3::serve().await;
        let proxy = Proxy::start_opaque(&listener).await.unwrap();
        let advertised = format!("127.0.0.1:{}", proxy.address().port());
        let tansu = start_tansu(&listener, &s3, &advertised).await;
        let config = config(&advertised);
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let topics = [("orders", PARTITIONS), ("orders.dead", 1)];
        let topics = topics
            .map(|(name, partitions)| NewTopic::new(name, partitions, TopicReplication::Fixed(1)));
        for made in admin
            .create_topics(&topics, &AdminOptions::new())
            .await
            .unwrap()
        {
            made.unwrap();
        }
        let dead: BaseConsumer = config.clone().set("group.id", "dead").create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("orders.dead", 0, Offset::Beginning)
            .unwrap();
        dead.assign(&list).unwrap();
        let mut producer = ClientConfig::new();
        producer
            .set("bootstrap.servers", &advertised)
            .set("message.timeout.ms", "5000");
        Self {
            _port: port,
            listener,
            s3,
            tansu: tokio::sync::Mutex::new(tansu),
            proxy,
            producer: producer.create().unwrap(),
            admin: config.create().unwrap(),
            dead,
            published: Arc::default(),
            put_aside: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// Publishes a message to a partition, or where its record key belongs, however often that
    /// takes.
    pub(crate) async fn publish_to(&self, mail: &Mail, partition: Option<i32>, key: Option<&str>) {
        let payload = serde_json::to_vec(mail).unwrap();
        let id = format!("m-{}", mail.number);
        let publishing = async {
            loop {
                let header = Header {
                    key: "idem-message-id",
                    value: Some(&id),
                };
                let mut message = FutureRecord::<str, _>::to("orders")
                    .payload(&payload)
                    .headers(OwnedHeaders::new().insert(header));
                (message.partition, message.key) = (partition, key);
                if let Ok(sent) = self.producer.send(message, Duration::from_secs(5)).await {
                    let place = (sent.partition, sent.offset);
                    self.published.lock().unwrap().insert(place, mail.clone());
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        in_time("Kafka's confirmation of a message", publishing).await;
    }

    /// Reads the dead letters that have come, and keeps when they were published.
    fn read_dead_letters(&self) -> Vec<OwnedMessage> {
        let poll = || self.dead.poll(Duration::from_millis(200));
        let mut found = Vec::new();
        while let Some(message) = tokio::task::block_in_place(poll) {
            if let Ok(message) = message {
                let at = message.timestamp().to_millis().unwrap();
                let number = |name| header(&message, name).parse::<i64>().unwrap();
                let place = (
                    i32::try_from(number("idem-partition")).unwrap(),
                    number("idem-offset"),
                );
                let mut put_aside = self.put_aside.lock().unwrap();
                let first = put_aside.entry(place).or_insert(at);
                *first = at.min(*first);
                found.push(message.detach());
            }
        }
        found
    }
}

/// The offsets that the group has committed; `None` if the broker is away. 0 where it has none.
pub(crate) fn committed(admin: &BaseConsumer) -> Option<BTreeMap<i32, i64>> {
    let mut list = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        list.add_partition("orders", partition);
    }
    let limit = Duration::from_secs(5);
    let found = tokio::task::block_in_place(|| admin.committed_offsets(list, limit));
    let found = found.ok()?;
    let offset = |offset| match offset {
        Offset::Offset(offset) => offset,
        _ => 0,
    };
    let elements = found.elements();
    // A partition that the coordinator has no answer for.
    if elements.iter().any(|of| of.error().is_err()) {
        return None;
    }
    let of = elements
        .iter()
        .map(|of| (of.partition(), offset(of.offset())));
    Some(of.collect())
}

fn header(message: &impl Message, name: &str) -> String {
    let mut headers = message.headers().unwrap().iter();
    let found = headers.find(|header| header.key == name).unwrap();
    String::from_utf8(found.value.unwrap().to_vec()).unwrap()
}

impl World for Kafka {
    fn url(&self) -> String {
        format!("kafka://127.0.0.1:{}", self.proxy.address().port())
    }

    async fn publish(&self, mail: &Mail) {
        let key = format!("c-{}", mail.number % 50);
        self.publish_to(mail, None, Some(&key)).await;
    }

    fn lane(&self, number: u32) -> Option<u32> {
        Some(number % 50)
    }

    async fn restart(&self) {
        let mut tansu = self.tansu.lock().await;
        tansu.kill().await.unwrap();
        let proxy = format!("127.0.0.1:{}", self.proxy.address().port());
        *tansu = start_tansu(&self.listener, &self.s3, &proxy).await;
    }

    async fn cut(&self) {
        self.proxy.cut();
        self.proxy.restore();
    }

    async fn dead_letters(&self) -> Vec<(Mail, String)> {
        let found = self.read_dead_letters().into_iter();
        found
            .map(|message| {
                let mail = serde_json::from_slice(message.payload().unwrap()).unwrap();
                (mail, header(&message, REASON))
            })
            .collect()
    }

    async fn left(&self) -> u64 {
        let Some(committed) = committed(&self.admin) else {
            return u64::MAX;
        };
        let published = self.published.lock().unwrap();
        let ends: BTreeMap<_, _> = published
            .keys()
            .map(|(partition, offset)| (*partition, offset + 1))
            .collect();
        let left = ends.iter().map(|(of, end)| end - committed[of]);
        left.map(|left| u64::try_from(left).unwrap_or(0)).sum()
    }

    /// tansu does not tell its members. A worker tries to start until there is a broker.
    async fn consumers(&self) -> Option<usize> {
        None
    }

    async fn watch(&self, redis: &str) {
        let client = config(&self.url()).create().unwrap();
        let watch = Watch::begin(client, redis, self.published.clone()).await;
        *self.watch.lock().unwrap() = Some(watch);
    }

    async fn watched(&self) -> Vec<String> {
        let watch = self.watch.lock().unwrap().take().unwrap();
        let (mut wrong, passed) = watch.end().await;
        for (place, at) in passed {
            let there = async {
                loop {
                    if let Some(at) = self.put_aside.lock().unwrap().get(&place) {
                        return *at;
                    }
                    self.read_dead_letters();
                    tokio::task::yield_now().await;
                }
            };
            let put_aside = in_time("the dead letter of poison that was passed", there).await;
            if put_aside > at {
                wrong.push(format!(
                    "{place:?} was passed at {at}, put aside at {put_aside}"
                ));
            }
        }
        wrong
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_each_message_is_handled_once_whatever_dies() {
    storm(&Kafka::start().await, 300).await;
}
