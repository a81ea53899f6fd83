//! The committed offsets, as another client reads them all along.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use idem_core::{Dispose, Disposition, Idempotency, MemoryStore};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};
use rdkafka::{Offset, TopicPartitionList};

use super::{Cluster, Worker, committed, guarded, text, until};
use crate::{Consumer, Delivery};

/// Why a handler failed.
#[derive(Debug)]
enum Failed {
    Poison,
    Call(idem_core::Error),
}

impl Dispose for Failed {
    fn disposition(&self) -> Disposition {
        match self {
            Self::Poison => Disposition::dead_letter("poison"),
            Self::Call(error) => error.disposition(),
        }
    }
}

/// The members and the messages, as `partition-offset`, of the bodies that have ended.
type Ended = Arc<Mutex<Vec<(&'static str, String)>>>;

fn is_poison(offset: i64) -> bool {
    offset % 10 == 9
}

/// A member of the group whose bodies take a moment, which differs.
fn member(
    consumer: Consumer,
    name: &'static str,
    idempotency: &Arc<Idempotency>,
    ended: &Ended,
) -> Worker {
    let (idempotency, ended) = (idempotency.clone(), ended.clone());
    Worker::start(consumer, async move |delivery: Delivery| {
        let place = text(&delivery);
        let offset: i64 = place[2..].parse().unwrap();
        if is_poison(offset) {
            return Err(Failed::Poison);
        }
        let body = async || {
            let moment = if offset % 7 == 0 { 400 } else { 20 };
            tokio::time::sleep(Duration::from_millis(moment)).await;
            ended.lock().unwrap().push((name, place.clone()));
        };
        guarded(&idempotency, &delivery, body)
            .await
            .map_err(Failed::Call)
    })
}

/// Reads until all is done. What an offset passes was settled before, and none goes back.
fn watch(admin: &BaseConsumer, ended: &Ended, is_done: &AtomicBool) -> u32 {
    let limit = Duration::from_secs(5);
    let mut before = [0, 0];
    let mut reads = 0;
    while !is_done.load(Ordering::SeqCst) {
        for partition in [0, 1] {
            let Some(offset) = committed(admin, partition) else {
                continue;
            };
            reads += 1;
            let before = &mut before[usize::try_from(partition).unwrap()];
            assert!(
                *before <= offset,
                "{partition} went back from {before} to {offset}"
            );
            *before = offset;
            let ended = ended.lock().unwrap().clone();
            let ended: BTreeSet<String> = ended.into_iter().map(|(_, place)| place).collect();
            let passed = (0..offset).filter(|offset| !is_poison(*offset));
            let unsettled = passed
                .map(|offset| format!("{partition}-{offset}"))
                .find(|place| !ended.contains(place));
            assert_eq!(unsettled, None, "{offset} is committed");
        }
        // Poison of both partitions that was passed has a dead letter.
        let passed = before.iter().map(|offset| offset / 10).sum::<i64>();
        if let Ok((_, letters)) = admin.fetch_watermarks("dead", 0, limit) {
            assert!(letters >= passed, "{letters} dead letters of {passed}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    reads
}

/// Ends the watch, also after a failure.
struct Done<'d>(&'d AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn no_offset_passes_what_is_not_settled_or_goes_back_while_members_come_and_go() {
    let cluster = Cluster::new();
    let store = MemoryStore::new();
    let idempotency = Arc::new(Idempotency::builder(store).lease("1m").build());
    let ended = Ended::default();
    let begin = |name| {
        member(
            cluster.consumer().concurrency(8),
            name,
            &idempotency,
            &ended,
        )
    };
    let count = |name: &str| {
        let ended = ended.lock().unwrap();
        ended.iter().filter(|(of, _)| of.contains(name)).count()
    };
    let mut end = 0;
    // Publishes until so many more bodies have ended.
    let mut more = |name: &str, messages: usize| {
        let goal = count(name) + messages;
        until(|| {
            for partition in [0, 1] {
                cluster.publish(partition, "", &format!("{partition}-{end}"));
            }
            end += 1;
            count(name) >= goal
        });
    };
    let is_done = AtomicBool::new(false);
    let admin: BaseConsumer = cluster.config().create().unwrap();
    let reads = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&admin, &ended, &is_done));
        let done = Done(&is_done);
        let first = begin("first");
        more("first", 20);
        let second = begin("second");
        more("second", 20);
        let mut back = TopicPartitionList::new();
        back.add_partition_offset("orders", 0, Offset::Offset(0))
            .unwrap();
        let refused = admin.commit(&back, CommitMode::Sync);
        assert!(refused.is_err(), "a client that is no member has committed");
        // A member loses its partitions.
        let unknown = [Code::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID];
        cluster.mock.request_errors(Api::Heartbeat, &unknown);
        more("", 100);
        cluster.mock.broker_down(1).unwrap();
        thread::sleep(Duration::from_secs(1));
        cluster.mock.broker_up(1).unwrap();
        more("", 40);
        first.stop().unwrap();
        let third = begin("third");
        more("third", 20);
        until(|| [0, 1].map(|of| cluster.committed(of)) == [0, 1].map(|of| Some(cluster.end(of))));
        second.stop().unwrap();
        third.stop().unwrap();
        drop(done);
        watching.join().unwrap()
    });
    assert!(reads > 20, "{reads} reads");
    let mut all = ended.lock().unwrap().clone();
    let bodies = all.len();
    all.sort_by(|(_, one), (_, other)| one.cmp(other));
    all.dedup_by(|(_, one), (_, other)| one == other);
    let good = 2 * (0..end).filter(|offset| !is_poison(*offset)).count();
    assert_eq!((bodies, all.len()), (good, good));
}
