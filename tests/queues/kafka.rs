//! Kafka, by tansu: a broker with Kafka's protocol, whose messages and offsets are in an S3 of this
//! test, so that it keeps them when it is killed. The tests of `idem-kafka` have all the rest.

use std::collections::BTreeMap;
use std::env;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use idem::kafka::rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use idem::kafka::rdkafka::client::DefaultClientContext;
use idem::kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use idem::kafka::rdkafka::message::{Header, Headers as _, OwnedHeaders, OwnedMessage};
use idem::kafka::rdkafka::producer::{FutureProducer, FutureRecord};
use idem::kafka::rdkafka::{Message as _, Offset, TopicPartitionList};
use idem::kafka::{ClientConfig, REASON};
use idem_testkit::Proxy;
use tokio::process::{Child, Command};

use crate::s3;
use crate::storm::{World, in_time, storm};
use crate::worker::Mail;

const PARTITIONS: i32 = 4;
/// Names the program of tansu.
const PROGRAM: &str = "IDEM_TANSU_SERVER";
const PORT: u16 = 29_092;

/// An address of this host that no other test has, so that a port on it stays free while a server
/// is down.
fn address(server: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{server}.{high}.{}:{PORT}", low.max(1))
}

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
    let child = command.kill_on_drop(true).spawn().unwrap();
    let listening = async {
        while TcpStream::connect(address).is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(address, listening).await;
    child
}

async fn start_tansu(proxy: &str) -> Child {
    let program = env::var_os(PROGRAM).map_or_else(
        || panic!("`{PROGRAM}` must name the program `tansu`, as `cargo xtask night` makes it"),
        PathBuf::from,
    );
    let (listener, s3) = (address(78), address(79));
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
    start(&mut command, &listener).await
}

struct Kafka {
    tansu: tokio::sync::Mutex<Child>,
    proxy: Proxy,
    producer: FutureProducer,
    admin: BaseConsumer,
    dead: BaseConsumer,
    /// The offset after the last message of each partition: tansu's own answer is too low.
    ends: Mutex<BTreeMap<i32, i64>>,
}

impl Kafka {
    async fn start() -> Self {
        s3::serve(&address(79)).await;
        let proxy = Proxy::start_opaque(&address(78)).await.unwrap();
        let advertised = format!("127.0.0.1:{}", proxy.address().port());
        let tansu = start_tansu(&advertised).await;
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
            tansu: tokio::sync::Mutex::new(tansu),
            proxy,
            producer: producer.create().unwrap(),
            admin: config.create().unwrap(),
            dead,
            ends: Mutex::default(),
        }
    }

    fn committed(&self) -> Option<BTreeMap<i32, i64>> {
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition("orders", partition);
        }
        let limit = Duration::from_secs(5);
        let found = tokio::task::block_in_place(|| self.admin.committed_offsets(list, limit));
        let found = found.ok()?;
        let offset = |offset| match offset {
            Offset::Offset(offset) => offset,
            _ => 0,
        };
        let elements = found.elements();
        let of = elements
            .iter()
            .map(|of| (of.partition(), offset(of.offset())));
        Some(of.collect())
    }
}

fn reason(message: &OwnedMessage) -> String {
    let mut headers = message.headers().unwrap().iter();
    let found = headers.find(|header| header.key == REASON).unwrap();
    String::from_utf8(found.value.unwrap().to_vec()).unwrap()
}

impl World for Kafka {
    fn url(&self) -> String {
        format!("kafka://127.0.0.1:{}", self.proxy.address().port())
    }

    async fn publish(&self, mail: &Mail) {
        let payload = serde_json::to_vec(mail).unwrap();
        let (id, key) = (
            format!("m-{}", mail.number),
            format!("c-{}", mail.number % 50),
        );
        let publishing = async {
            loop {
                let header = Header {
                    key: "idem-message-id",
                    value: Some(&id),
                };
                let message = FutureRecord::to("orders")
                    .key(&key)
                    .payload(&payload)
                    .headers(OwnedHeaders::new().insert(header));
                if let Ok(sent) = self.producer.send(message, Duration::from_secs(5)).await {
                    let mut ends = self.ends.lock().unwrap();
                    let end = ends.entry(sent.partition).or_default();
                    *end = sent.offset.saturating_add(1).max(*end);
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        in_time("Kafka's confirmation of a message", publishing).await;
    }

    async fn restart(&self) {
        let mut tansu = self.tansu.lock().await;
        tansu.kill().await.unwrap();
        *tansu = start_tansu(&format!("127.0.0.1:{}", self.proxy.address().port())).await;
    }

    async fn cut(&self) {
        self.proxy.cut();
        self.proxy.restore();
    }

    async fn dead_letters(&self) -> Vec<(Mail, String)> {
        let poll = || self.dead.poll(Duration::from_millis(200));
        let mut found = Vec::new();
        while let Some(message) = tokio::task::block_in_place(poll) {
            if let Ok(message) = message {
                let message = message.detach();
                let mail = serde_json::from_slice(message.payload().unwrap()).unwrap();
                found.push((mail, reason(&message)));
            }
        }
        found
    }

    async fn left(&self) -> u64 {
        let Some(committed) = self.committed() else {
            return u64::MAX;
        };
        let ends = self.ends.lock().unwrap();
        let left = ends.iter().map(|(of, end)| end - committed[of]);
        left.map(|left| u64::try_from(left).unwrap_or(0)).sum()
    }

    /// tansu does not tell its members. A worker tries to start until there is a broker.
    async fn consumers(&self) -> Option<usize> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_each_message_is_handled_once_whatever_dies() {
    storm(&Kafka::start().await, 300).await;
}
