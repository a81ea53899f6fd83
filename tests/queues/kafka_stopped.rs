//! Members of a group that stand still for longer than its session, and go on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use idem::{Idempotency, RecordState};
use idem_testkit::RedisServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::kafka::{Kafka, PARTITIONS};
use crate::kafka_offsets::{records, state};
use crate::storm::{World as _, in_time};
use crate::worker::{Kind, Mail, Worker, first_of};

/// What a member has said.
struct Heard {
    lines: UnboundedReceiver<String>,
    begun: Vec<u32>,
    done: Vec<u32>,
}

impl Heard {
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
    fn has_done_since(&self, first: usize) -> bool {
        self.done.iter().any(|done| *done as usize >= first)
    }
}

/// Two members, and messages for them.
struct Group {
    kafka: Kafka,
    workers: Vec<Worker>,
    heard: Vec<Heard>,
    /// The partitions of the messages, by their numbers.
    published: Vec<i32>,
    records: Idempotency,
}

impl Group {
    async fn start(redis: &str, lease: &str, gates: &Path) -> Self {
        let kafka = Kafka::start().await;
        kafka.watch(redis).await;
        let (mut workers, mut heard) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (says, lines) = unbounded_channel();
            let worker = Worker::holding(&kafka.url(), redis, 32, &says, lease, gates);
            workers.push(worker);
            heard.push(Heard {
                lines,
                begun: Vec::new(),
                done: Vec::new(),
            });
        }
        Self {
            kafka,
            workers,
            heard,
            published: Vec::new(),
            records: records(redis).await,
        }
    }

    /// Publishes one message to each partition, without record keys. Returns their numbers.
    async fn publish(&mut self, kind: Kind) -> Vec<u32> {
        let mut numbers = Vec::new();
        for partition in 0..PARTITIONS {
            let number = u32::try_from(self.published.len()).unwrap();
            let mail = Mail { number, kind };
            self.kafka.publish_to(&mail, Some(partition), None).await;
            self.published.push(partition);
            numbers.push(number);
        }
        numbers
    }

    /// Waits, while messages go on to come.
    async fn under_load(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let waiting = async {
            loop {
                self.heard.iter_mut().for_each(Heard::listen);
                if condition(self) {
                    return;
                }
                self.publish(Kind::Plain).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        in_time(what, waiting).await;
    }

    /// Publishes messages whose bodies wait, and returns their numbers when these bodies run, and
    /// nothing else does.
    async fn waiting(&mut self) -> Vec<u32> {
        let numbers = self.publish(Kind::Waits).await;
        let settled = async {
            loop {
                self.heard.iter_mut().for_each(Heard::listen);
                let has_begun = |number| self.heard.iter().any(|of| of.begun.contains(number));
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

    /// How often bodies have begun, or have ended.
    fn times(&self, of: impl Fn(&Heard) -> &Vec<u32>) -> BTreeMap<u32, u32> {
        let mut times = BTreeMap::new();
        for number in self.heard.iter().flat_map(of) {
            *times.entry(*number).or_default() += 1;
        }
        times
    }
}

/// Stops one member after the other while bodies run on it, until the other one has its partitions,
/// and if the leases end by then, its messages.
async fn stopped(lease: &str, ends_leases: bool) {
    let redis = RedisServer::start().await.unwrap();
    let gates = tempfile::tempdir().unwrap();
    let open = |number: &u32| fs::write(gates.path().join(number.to_string()), "").unwrap();
    let mut group = Group::start(&redis.url(), lease, gates.path()).await;
    for victim in [0, 1] {
        let other = 1 - victim;
        let first = group.published.len();
        let both = |group: &Group| group.heard.iter().all(|of| of.has_done_since(first));
        group.under_load("two members with messages", both).await;
        let waiting = group.waiting().await;
        group.workers[victim].stop().await;
        let (held, others): (Vec<u32>, Vec<u32>) = waiting
            .iter()
            .partition(|number| group.heard[victim].begun.contains(number));
        assert!(!held.is_empty(), "the member that is stopped runs no body");
        others.iter().for_each(open);

        let first = group.published.len();
        let has_all = |group: &Group| {
            (0..PARTITIONS).all(|partition| {
                let mut done = group.heard[other].done.iter().map(|done| *done as usize);
                done.any(|done| done >= first && group.published[done] == partition)
            })
        };
        group
            .under_load("one member with all partitions", has_all)
            .await;
        if ends_leases {
            let all = |group: &Group| {
                let done = &group.heard[other].done;
                held.iter().all(|number| done.contains(number))
            };
            group.under_load("the other member's bodies", all).await;
        }
        let first = group.published.len();
        group.workers[victim].go_on().await;
        if !ends_leases {
            held.iter().for_each(open);
        }
        let goes_on = |group: &Group| {
            let has_done = |number| group.heard.iter().any(|of| of.done.contains(number));
            group.heard[victim].has_done_since(first) && waiting.iter().all(has_done)
        };
        group.under_load("a member that goes on", goes_on).await;
    }

    let settled = async {
        while group.kafka.left().await > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    in_time("offsets after all messages", settled).await;
    for worker in std::mem::take(&mut group.workers) {
        in_time("a consumer's end after its shutdown", worker.shut_down()).await;
    }
    for heard in &mut group.heard {
        while let Some(line) = heard.lines.recv().await {
            heard.take(&line);
        }
    }
    assert_eq!(group.kafka.watched().await, Vec::<String>::new());
    let all = 0..u32::try_from(group.published.len()).unwrap();
    let done = group.times(|of| &of.done);
    let not_once = all.clone().filter(|number| done.get(number) != Some(&1));
    assert_eq!(first_of(not_once), "", "lost, or handled by two bodies");
    if !ends_leases {
        let begun = group.times(|of| &of.begun);
        let not_once = all.filter(|number| begun.get(number) != Some(&1));
        assert_eq!(first_of(not_once), "", "begun again under its lease");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_member_stopped_for_longer_than_its_session_ends_its_bodies_when_it_goes_on() {
    // A message that the other member has found in flight comes again after the lease.
    stopped("90s", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_member_stopped_for_longer_than_its_leases_ends_none_of_its_bodies() {
    stopped("10s", true).await;
}
