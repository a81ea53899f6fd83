//! Tests on the cluster in memory that librdkafka has for them. Its groups wait three seconds for
//! their first members.
#![allow(clippy::unwrap_used, clippy::panic)]

mod dead_letters;
mod faults;
mod handled;
mod members;
mod offsets;
mod published;
mod refused;
mod revoked;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use idem_core::{Dispose, Disposition, Idempotency};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, OwnedHeaders, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

use crate::producer::Outgoing;
use crate::{Consumer, Delivery, Error};

/// A cluster with the topics `orders`, of two partitions, and `dead`, of one.
struct Cluster {
    mock: MockCluster<'static, DefaultProducerContext>,
    runtime: Runtime,
    producer: FutureProducer,
    admin: BaseConsumer,
}

impl Cluster {
    fn new() -> Self {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 2, 1).unwrap();
        mock.create_topic("dead", 1, 1).unwrap();
        let config = config_of(&mock);
        Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            producer: config.create().unwrap(),
            admin: config.create().unwrap(),
            mock,
        }
    }

    fn config(&self) -> ClientConfig {
        config_of(&self.mock)
    }

    fn consumer(&self) -> Consumer {
        Consumer::new(&self.config(), "orders").dead_letter("dead")
    }

    /// Publishes a message with a record key, or without one if it is empty.
    fn publish(&self, partition: i32, key: &str, payload: &str) {
        self.send(
            partition,
            key,
            Some(payload.as_bytes()),
            OwnedHeaders::new(),
        );
    }

    fn send(&self, partition: i32, key: &str, payload: Option<&[u8]>, headers: OwnedHeaders) {
        let mut message = Outgoing::to("orders").partition(partition).headers(headers);
        message.key = Some(key.as_bytes()).filter(|key| !key.is_empty());
        message.payload = payload;
        let sent = self.producer.send(message, Duration::from_secs(10));
        self.runtime.block_on(sent).unwrap();
    }

    /// The offset that the group has committed in a partition of `orders`.
    fn committed(&self, partition: i32) -> Option<i64> {
        committed(&self.admin, partition)
    }

    fn until_committed(&self, partition: i32, offset: i64) {
        until(|| self.committed(partition) == Some(offset));
    }

    /// How many messages a partition of `orders` has.
    fn end(&self, partition: i32) -> i64 {
        let limit = Duration::from_secs(5);
        self.admin
            .fetch_watermarks("orders", partition, limit)
            .unwrap()
            .1
    }

    /// How many messages the topic of dead letters has.
    fn dead_letters_now(&self) -> i64 {
        let limit = Duration::from_secs(5);
        self.admin.fetch_watermarks("dead", 0, limit).unwrap().1
    }

    /// Waits for this many messages in the topic of dead letters.
    fn dead_letters(&self, count: usize) -> Vec<OwnedMessage> {
        let reader: BaseConsumer = self.config().set("group.id", "reader").create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("dead", 0, Offset::Beginning)
            .unwrap();
        reader.assign(&list).unwrap();
        let mut found = Vec::new();
        until(|| {
            if let Some(Ok(message)) = reader.poll(Duration::from_millis(50)) {
                found.push(message.detach());
            }
            found.len() >= count
        });
        found
    }
}

fn committed(admin: &BaseConsumer, partition: i32) -> Option<i64> {
    let mut list = TopicPartitionList::new();
    list.add_partition("orders", partition);
    let limit = Duration::from_secs(5);
    let list = admin.committed_offsets(list, limit).ok()?;
    match list.find_partition("orders", partition)?.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

fn config_of(mock: &MockCluster<'static, DefaultProducerContext>) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", mock.bootstrap_servers())
        .set("group.id", "workers")
        .set("topic.metadata.refresh.interval.ms", "500")
        .set("fetch.wait.max.ms", "50")
        .set("session.timeout.ms", "6000")
        .set("heartbeat.interval.ms", "200");
    config
}

fn header<'m>(message: &'m OwnedMessage, name: &str) -> Option<&'m str> {
    let headers = message.headers()?;
    let found = headers.iter().find(|header| header.key == name)?;
    std::str::from_utf8(found.value?).ok()
}

/// A consumer that runs on a thread of its own.
struct Worker {
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<Result<(), Error>>,
}

impl Worker {
    fn start<H, E>(consumer: Consumer, handler: H) -> Self
    where
        H: AsyncFn(Delivery) -> Result<(), E> + Send + 'static,
        E: Dispose,
    {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(consumer.run(handler, stopped))
        });
        Self { stop, thread }
    }

    fn stop(self) -> Result<(), Error> {
        let _ = self.stop.send(());
        self.thread.join().unwrap()
    }

    /// Waits until it ends by itself.
    fn ended(self) -> Result<(), Error> {
        self.thread.join().unwrap()
    }
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn push(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn until(&self, count: usize) -> Vec<String> {
        until(|| self.all().len() >= count);
        self.all()
    }
}

/// A gate for handlers, which lets through as many as are admitted.
fn gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

async fn pass(gate: &Semaphore) {
    gate.acquire().await.unwrap().forget();
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload().to_vec()).unwrap()
}

/// Runs a guarded body for a message.
async fn guarded(
    idempotency: &Idempotency,
    delivery: &Delivery,
    body: impl AsyncFn(),
) -> Result<(), idem_core::Error> {
    let call = idempotency.operation("on_order").key(&delivery.key()?);
    call.run(|| async {
        body().await;
        Ok::<_, idem_core::Error>(())
    })
    .await
    .map(drop)
}

/// An error of a handler.
#[derive(Debug)]
struct Again(Duration);

impl Dispose for Again {
    fn disposition(&self) -> Disposition {
        Disposition::Retry { after: self.0 }
    }
}

/// Waits for a condition, at most half a minute.
fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not happen within half a minute");
}
