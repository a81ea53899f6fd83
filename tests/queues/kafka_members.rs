//! Members of a group that join, leave and die under load, a message that ends its process, and one
//! whose outcome is not recorded.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::kafka::{Consumer, Delivery};
use idem::{Idempotency, MemoryStore};
use idem_testkit::{Fault, FaultStore, RedisServer, Step};
use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;

use crate::kafka::{Kafka, config};
use crate::kafka_group::Group;
use crate::storm::{World as _, in_time, messages};
use crate::worker::{Kind, Mail, Worker, first_of, out_of_order};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_members_join_and_leave_under_load_and_record_keys_keep_their_order_whatever_dies()
 {
    let mut group = Group::start("5s", 5).await;
    let (count, mut killed) = (messages(200), Vec::new());
    let mut oldest = 0;
    while killed.is_empty() || group.published < count {
        let first = group.published;
        let joined = |group: &Group| {
            group
                .members
                .iter()
                .rev()
                .take(2)
                .all(|of| of.has_done_since(first))
        };
        group.under_load("two members with messages", joined).await;
        group.join();
        let first = group.published;
        let joined = |group: &Group| {
            group
                .members
                .last()
                .is_some_and(|of| of.has_done_since(first))
        };
        group.under_load("a member that joins", joined).await;
        group.members[oldest].leave().await;
        group.others_have_all(None).await;
        group.members[oldest + 1].die().await;
        killed.push(oldest + 1);
        group.others_have_all(None).await;
        group.join();
        oldest += 2;
    }

    group.end().await;
    let (members, killed_members) = (group.members.len(), killed.len());
    println!(
        "{} messages, {members} members, {killed_members} killed",
        group.published
    );
    let early = out_of_order(group.folder(), |number| group.lane(number), |_| true);
    assert_eq!(early, Vec::<String>::new(), "out of order");
    let done = group.times(|of| &of.done);
    let lost = (0..group.published).filter(|number| !done.contains_key(number));
    assert_eq!(first_of(lost), "", "lost");
    // A body that was killed runs once more, and one that was done by then, and not yet recorded.
    let begun = group.times(|of| &of.begun);
    let was_killed = |number: &u32| {
        let mut killed = killed.iter().map(|index| &group.members[*index]);
        killed.any(|member| member.begun.contains(number))
    };
    let again = begun.iter().filter(|(_, times)| **times > 1);
    let again = again
        .map(|(number, _)| *number)
        .filter(|number| !was_killed(number));
    assert_eq!(first_of(again), "", "handled by two bodies");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_message_that_ends_its_process_is_put_aside_and_the_others_are_handled() {
    const CRASHES: u32 = 7;
    let redis = RedisServer::start().await.unwrap();
    let kafka = Kafka::start().await;
    kafka.watch(&redis.url()).await;
    for number in 0..40 {
        let kind = if number == CRASHES {
            Kind::Crashes
        } else {
            Kind::Plain
        };
        kafka.publish(&Mail { number, kind }).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let (says, mut lines) = unbounded_channel();
    let (url, redis) = (kafka.url(), redis.url());
    let mut ends = 0;
    let worker = loop {
        // One body at a time, so that nothing dies with it.
        let mut worker = Worker::start(&url, &redis, 1, &says, "5s", folder.path());
        let settled = async {
            while kafka.left().await > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = worker.ended() => ends += 1,
            () = in_time("offsets after all messages", settled) => break worker,
        }
    };
    assert_eq!(ends, 2, "it has two attempts");
    in_time("a consumer's end after its shutdown", worker.shut_down()).await;
    drop(says);
    let mut done = Vec::new();
    while let Some(line) = lines.recv().await {
        let number = line
            .strip_prefix("done ")
            .and_then(|rest| rest.split(' ').next());
        done.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    done.sort_unstable();
    let others: Vec<u32> = (0..40).filter(|number| *number != CRASHES).collect();
    assert_eq!(done, others);
    let dead = kafka.dead_letters().await;
    let dead: Vec<_> = dead
        .iter()
        .map(|(mail, reason)| (mail.number, &**reason))
        .collect();
    assert_eq!(dead, [(CRASHES, "attempts_exhausted")]);
    assert_eq!(kafka.watched().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_message_whose_outcome_is_not_recorded_comes_again_before_its_offset_moves() {
    let kafka = Kafka::start().await;
    kafka
        .publish(&Mail {
            number: 0,
            kind: Kind::Plain,
        })
        .await;
    let store = FaultStore::new(MemoryStore::new());
    store.faults().next(Step::Commit, Fault::Refuse);
    let idempotency = Idempotency::new(store);
    let (deliveries, bodies) = (AtomicU32::new(0), AtomicU32::new(0));
    let again = Notify::new();
    let handler = async |delivery: Delivery| {
        // The commit is tried again in the background, so the second delivery is a replay.
        if deliveries.fetch_add(1, Ordering::Relaxed) == 1 {
            assert_eq!(kafka.left().await, 1);
            again.notify_one();
        }
        let call = idempotency
            .operation("kafka.unrecorded")
            .key(&delivery.key()?);
        let body = async || {
            bodies.fetch_add(1, Ordering::Relaxed);
            Ok::<_, idem::Error>(())
        };
        call.run(body).await.map(drop)
    };
    let consumer = Consumer::new(&config(&kafka.url()), "orders").dead_letter("orders.dead");
    let run = consumer.run(handler, again.notified());
    in_time("the second delivery", run).await.unwrap();
    assert_eq!((deliveries.into_inner(), bodies.into_inner()), (2, 1));
    assert_eq!(kafka.left().await, 0);
}
