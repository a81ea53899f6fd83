//! Kafka: the cluster in memory that librdkafka has for tests, on a port of this machine.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use idem::kafka::rdkafka::consumer::{BaseConsumer, Consumer as _};
use idem::kafka::rdkafka::message::{Header, Headers as _, OwnedHeaders};
use idem::kafka::rdkafka::mocking::MockCluster;
use idem::kafka::rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};
use idem::kafka::rdkafka::{Message as _, Offset, TopicPartitionList};
use idem::kafka::{ClientConfig, Consumer, REASON};

pub(crate) type Cluster = MockCluster<'static, DefaultProducerContext>;

/// The contents of a message, and the reason why it is a dead letter.
type DeadLetter = (Vec<u8>, String);

const SCHEME: &str = "kafka://";
const PARTITIONS: i32 = 6;

/// Starts a broker with the topics of the example.
pub(crate) fn start() -> io::Result<Cluster> {
    let cluster = MockCluster::new(1).map_err(io::Error::other)?;
    for (topic, partitions) in [("mails", PARTITIONS), ("mails.dead", 1)] {
        let made = cluster.create_topic(topic, partitions, 1);
        made.map_err(io::Error::other)?;
    }
    Ok(cluster)
}

pub(crate) fn url(cluster: &Cluster) -> String {
    format!("{SCHEME}{}", cluster.bootstrap_servers())
}

fn config(servers: &str, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("group.id", group)
        // The messages of a killed consumer come again after this time.
        .set("session.timeout.ms", "3000")
        .set("heartbeat.interval.ms", "500");
    config
}

/// A member of the group, which shares the partitions with the others.
pub(crate) fn consumer(url: &str) -> Consumer {
    let servers = url.strip_prefix(SCHEME).unwrap_or(url);
    Consumer::new(&config(servers, "mails"), "mails").dead_letter("mails.dead")
}

/// The connections of the producers, and of the reader of dead letters.
#[derive(Clone)]
pub(crate) struct Client {
    producer: FutureProducer,
    dead: Arc<BaseConsumer>,
}

impl Client {
    pub(crate) fn new(cluster: &Cluster) -> Result<Self, Box<dyn Error>> {
        let config = config(&cluster.bootstrap_servers(), "look");
        let dead: BaseConsumer = config.create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("mails.dead", 0, Offset::Beginning)?;
        dead.assign(&list)?;
        let mut producer = ClientConfig::new();
        producer.set("bootstrap.servers", cluster.bootstrap_servers());
        Ok(Self {
            producer: producer.create()?,
            dead: Arc::new(dead),
        })
    }

    pub(crate) async fn publish(&self, id: &str, payload: &[u8]) -> Result<(), String> {
        let header = Header {
            key: "idem-message-id",
            value: Some(id),
        };
        // The record key: a duplicate is in the partition of the first message.
        let message = FutureRecord::to("mails")
            .key(id)
            .payload(payload)
            .headers(OwnedHeaders::new().insert(header));
        let sent = self.producer.send(message, Duration::from_secs(10)).await;
        sent.map(drop).map_err(|(error, _)| error.to_string())
    }

    /// The dead letters since the last time, with their reasons.
    pub(crate) fn put_aside(&self) -> Result<Vec<DeadLetter>, Box<dyn Error>> {
        let mut found = Vec::new();
        while let Some(message) = self.dead.poll(Duration::from_millis(100)) {
            let message = message?;
            let headers = message.headers().into_iter().flat_map(|all| all.iter());
            let reason = headers
                .filter(|header| header.key == REASON)
                .find_map(|header| std::str::from_utf8(header.value?).ok());
            let payload = message.payload().unwrap_or_default().to_vec();
            found.push((payload, reason.unwrap_or_default().to_owned()));
        }
        Ok(found)
    }
}
