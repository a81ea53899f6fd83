//! Members of a group, each in a process of its own, and messages for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idem::{Idempotency, RecordState};
use idem_testkit::RedisServer;
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::kafka::{Kafka, PARTITIONS};
use crate::kafka_offsets::{records, state};
use crate::storm::{World as _, in_time};
use crate::worker::{Kind, Mail, Worker};

/// A member, and what it has said.
pub(crate) struct Member {
    /// `None`: it has ended.
    worker: Option<Worker>,
    lines: UnboundedReceiver<String>,
    pub(crate) begun: Vec<u32>,
    pub(crate) done: Vec<u32>,
}

impl Member {
    fn take(&mut self, line: &str) {
        let mut words = line.split(' ');
        let said = match words.next() {
            Some("begun") => &mut self.begun,
            Some("done") => &mut self.done,
            _ => return,
        };
        said.extend(words.next().and_then(|word| word.parse::<u32>().ok()));
    }

    fn listen(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.take(&line);
        }
    }

    /// Whether it has handled a message from this number on.
    pub(crate) fn has_done_since(&self, first: u32) -> bool {
        self.done.iter().any(|done| *done >= first)
    }

    pub(crate) fn worker(&mut self) -> &mut Worker {
        self.worker.as_mut().expect("it has ended")
    }

    /// Has it end as a service is ended.
    pub(crate) async fn leave(&mut self) {
        let worker = self.worker.take().expect("it has ended");
        in_time("a consumer's end after its shutdown", worker.shut_down()).await;
    }

    pub(crate) async fn die(&mut self) {
        self.worker.take().expect("it has ended").kill().await;
    }
}

/// A group, and messages for it: each partition gets one after the other.
pub(crate) struct Group {
    pub(crate) kafka: Kafka,
    redis: RedisServer,
    lease: &'static str,
    /// How many record keys the messages of a partition have; 0: they have none.
    lanes: u32,
    folder: TempDir,
    pub(crate) members: Vec<Member>,
    /// How many messages.
    pub(crate) published: u32,
    records: Idempotency,
}

impl Group {
    /// Starts two members, with this lease of their calls.
    pub(crate) async fn start(lease: &'static str, lanes: u32) -> Self {
        let redis = RedisServer::start().await.unwrap();
        let kafka = Kafka::start().await;
        kafka.watch(&redis.url()).await;
        let records = records(&redis.url()).await;
        let mut group = Self {
            kafka,
            redis,
            lease,
            lanes,
            folder: tempfile::tempdir().unwrap(),
            members: Vec::new(),
            published: 0,
            records,
        };
        group.join();
        group.join();
        group
    }

    /// Starts another member.
    pub(crate) fn join(&mut self) {
        let (says, lines) = unbounded_channel();
        let (url, redis) = (self.kafka.url(), self.redis.url());
        let worker = Worker::start(&url, &redis, 32, &says, self.lease, self.folder());
        self.members.push(Member {
            worker: Some(worker),
            lines,
            begun: Vec::new(),
            done: Vec::new(),
        });
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file that the body of a message waits for.
    pub(crate) fn gate(&self, number: u32) -> PathBuf {
        self.folder().join(number.to_string())
    }

    /// The lane of a message, which is that of its record key, if it has one.
    pub(crate) fn lane(&self, number: u32) -> u32 {
        number % (self.lanes * PARTITIONS.unsigned_abs())
    }

    /// Publishes one message to each partition. Returns their numbers.
    async fn publish(&mut self, kind: Kind) -> Vec<u32> {
        let first = self.published;
        for partition in 0..PARTITIONS {
            let number = self.published;
            let mail = Mail { number, kind };
            let key = (self.lanes > 0).then(|| format!("c-{}", self.lane(number)));
            self.kafka
                .publish_to(&mail, Some(partition), key.as_deref())
                .await;
            self.published += 1;
        }
        (first..self.published).collect()
    }

    /// Waits, while messages go on to come.
    pub(crate) async fn under_load(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let waiting = async {
            loop {
                self.members.iter_mut().for_each(Member::listen);
                if condition(self) {
                    return;
                }
                self.publish(Kind::Plain).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        in_time(what, waiting).await;
    }

    /// Waits until those that live, but for one, have handled a new message of each partition.
    pub(crate) async fn others_have_all(&mut self, but: Option<usize>) {
        let first = self.published;
        let has_all = |group: &Self| {
            let members = group.members.iter().enumerate();
            let others = members.filter(|(index, of)| of.worker.is_some() && Some(*index) != but);
            let done: Vec<u32> = others.flat_map(|(_, of)| of.done.clone()).collect();
            (0..PARTITIONS.unsigned_abs()).all(|partition| {
                done.iter()
                    .any(|done| *done >= first && done % PARTITIONS.unsigned_abs() == partition)
            })
        };
        self.under_load("other members with all partitions", has_all)
            .await;
    }

    /// Publishes messages whose bodies wait, and returns their numbers when these bodies run, and
    /// nothing else does.
    pub(crate) async fn waiting(&mut self) -> Vec<u32> {
        let numbers = self.publish(Kind::Waits).await;
        let settled = async {
            loop {
                self.members.iter_mut().for_each(Member::listen);
                let has_begun = |number| self.members.iter().any(|of| of.begun.contains(number));
                if numbers.iter().all(has_begun) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            for other in 0..numbers[0] {
                while state(&self.records, other).await != Some(RecordState::Committed) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        in_time("bodies that wait, and no others", settled).await;
        numbers
    }

    /// Waits until all messages are settled, and ends all members. What was wrong with their offsets
    /// fails the test.
    pub(crate) async fn end(&mut self) {
        let settled = async {
            while self.kafka.left().await > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        in_time("offsets after all messages", settled).await;
        for member in &mut self.members {
            if member.worker.is_some() {
                member.leave().await;
            }
            while let Some(line) = member.lines.recv().await {
                member.take(&line);
            }
        }
        assert_eq!(self.kafka.watched().await, Vec::<String>::new());
    }

    /// How often bodies have begun, or have ended.
    pub(crate) fn times(&self, of: impl Fn(&Member) -> &Vec<u32>) -> BTreeMap<u32, u32> {
        let mut times = BTreeMap::new();
        for number in self.members.iter().flat_map(of) {
            *times.entry(*number).or_default() += 1;
        }
        times
    }
}
