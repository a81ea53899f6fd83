//! Members of a group that join, leave and lose their partitions.

use std::sync::Arc;
use std::time::Duration;

use idem_core::{Idempotency, MemoryStore};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};

use super::{Cluster, Log, Worker, gate, guarded, pass, text, until};
use crate::{Consumer, Delivery, Error};

/// A worker that writes down what its bodies do, and waits in each for the gate.
fn worker(
    consumer: Consumer,
    name: &'static str,
    idempotency: &Arc<Idempotency>,
    log: &Log,
    gate: &Arc<tokio::sync::Semaphore>,
) -> Worker {
    let (idempotency, log, gate) = (idempotency.clone(), log.clone(), gate.clone());
    Worker::start(consumer, async move |delivery: Delivery| {
        log.push(format!("{name} gets {}", text(&delivery)));
        guarded(&idempotency, &delivery, async || {
            log.push(format!("{name} begins {}", text(&delivery)));
            pass(&gate).await;
            log.push(format!("ends {}", text(&delivery)));
        })
        .await
    })
}

fn count(log: &Log, what: &str) -> usize {
    log.all()
        .iter()
        .filter(|found| found.contains(what))
        .count()
}

fn revoked_under_a_running_body(strategy: &str) {
    let cluster = Cluster::new();
    cluster.publish(0, "", "p0");
    cluster.publish(1, "", "p1");
    let store = MemoryStore::new();
    let idempotency = Idempotency::builder(store).lease("6s").build();
    let (idempotency, log, gate) = (Arc::new(idempotency), Log::default(), gate());
    let mut config = cluster.config();
    config.set("partition.assignment.strategy", strategy);
    let consumer = || Consumer::new(&config, "orders").dead_letter("dead");
    let first = worker(consumer(), "first", &idempotency, &log, &gate);
    until(|| count(&log, "first begins") == 2);
    // Its body goes on under its lease, and the new owner finds it in flight.
    let second = worker(consumer(), "second", &idempotency, &log, &gate);
    until(|| count(&log, "second gets") > 0);
    assert_eq!(count(&log, "second begins"), 0);
    gate.add_permits(2);
    cluster.until_committed(0, 1);
    cluster.until_committed(1, 1);
    assert_eq!(
        (count(&log, "begins"), count(&log, "ends")),
        (2, 2),
        "{:?}",
        log.all()
    );
    first.stop().unwrap();
    second.stop().unwrap();
}

#[test]
fn a_body_whose_partition_is_revoked_goes_on_and_the_next_owner_does_not_run_it() {
    revoked_under_a_running_body("cooperative-sticky");
}

#[test]
fn the_same_with_an_assignor_that_revokes_all_partitions() {
    revoked_under_a_running_body("range");
}

#[test]
fn a_member_that_joins_under_load_runs_no_body_twice() {
    let cluster = Cluster::new();
    let idempotency = Arc::new(Idempotency::new(MemoryStore::new()));
    let (log, open) = (Log::default(), gate());
    open.add_permits(1_000);
    let publish = |numbers: std::ops::Range<i32>| {
        for number in numbers {
            cluster.publish(number % 2, "", &number.to_string());
        }
    };
    let first = worker(cluster.consumer(), "first", &idempotency, &log, &open);
    publish(0..20);
    until(|| count(&log, "ends") >= 1);
    let second = worker(cluster.consumer(), "second", &idempotency, &log, &open);
    publish(20..40);
    until(|| {
        publish(40..42);
        count(&log, "second begins") > 0
    });
    first.stop().unwrap();
    let third = worker(cluster.consumer(), "third", &idempotency, &log, &open);
    publish(42..50);
    until(|| [0, 1].map(|of| cluster.committed(of)) == [0, 1].map(|of| Some(cluster.end(of))));
    assert_eq!(count(&log, "begins"), count(&log, "ends"));
    let ends = cluster.end(0) + cluster.end(1);
    assert_eq!(i64::try_from(count(&log, "ends")), Ok(ends));
    second.stop().unwrap();
    third.stop().unwrap();
}

#[test]
fn a_lost_partition_voids_its_tickets_and_the_message_comes_again_as_a_duplicate() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "p0");
    let idempotency = Idempotency::builder(MemoryStore::new()).lease("6s").build();
    let (idempotency, log, gate) = (Arc::new(idempotency), Log::default(), gate());
    let worker = worker(cluster.consumer(), "it", &idempotency, &log, &gate);
    until(|| count(&log, "begins") == 1);
    let unknown = [Code::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID];
    cluster.mock.request_errors(Api::Heartbeat, &unknown);
    until(|| count(&log, "gets") == 2);
    assert_eq!(cluster.committed(0), None);
    gate.add_permits(1);
    cluster.until_committed(0, 1);
    assert_eq!((count(&log, "begins"), count(&log, "ends")), (1, 1));
    worker.stop().unwrap();
}

#[test]
fn a_shutdown_lets_bodies_end_commits_them_and_leaves_the_group() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "running");
    cluster.publish(0, "", "waiting");
    let idempotency = Arc::new(Idempotency::new(MemoryStore::new()));
    let (log, gate) = (Log::default(), gate());
    let first = worker(
        cluster.consumer().concurrency(1),
        "first",
        &idempotency,
        &log,
        &gate,
    );
    until(|| count(&log, "begins") == 1);
    let Worker { stop, thread } = first;
    stop.send(()).unwrap();
    gate.add_permits(1);
    thread.join().unwrap().unwrap();
    assert_eq!(cluster.committed(0), Some(1));
    assert_eq!(
        log.all(),
        ["first gets running", "first begins running", "ends running"]
    );

    let second = worker(cluster.consumer(), "second", &idempotency, &log, &gate);
    gate.add_permits(1);
    cluster.until_committed(0, 2);
    second.stop().unwrap();
    assert_eq!(count(&log, "begins"), 2);
}

#[test]
fn a_body_that_does_not_end_in_time_is_stopped_and_its_message_comes_again() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "endless");
    cluster.publish(0, "", "fine");
    let store = MemoryStore::new();
    let idempotency = Arc::new(Idempotency::builder(store).lease("6s").build());
    let (log, closed) = (Log::default(), gate());
    let consumer = cluster
        .consumer()
        .shutdown_timeout(Duration::from_millis(100));
    let first = worker(consumer, "first", &idempotency, &log, &closed);
    until(|| count(&log, "begins") == 2);
    first.stop().unwrap();
    assert_eq!((cluster.committed(0), count(&log, "ends")), (None, 0));
    closed.add_permits(2);
    let second = worker(cluster.consumer(), "second", &idempotency, &log, &closed);
    cluster.until_committed(0, 2);
    assert_eq!(count(&log, "ends"), 2);
    second.stop().unwrap();
}

#[test]
fn another_member_with_its_instance_id_ends_the_consumer() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let mut config = cluster.config();
    config.set("group.instance.id", "one");
    let consumer = Consumer::new(&config, "orders").dead_letter("dead");
    let worker = Worker::start(consumer, async |_: Delivery| Ok::<_, idem_core::Error>(()));
    cluster.until_committed(0, 1);
    let fenced = [Code::RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID];
    cluster.mock.request_errors(Api::Heartbeat, &fenced);
    match worker.ended() {
        Err(Error::Disconnected { reason, .. }) => {
            assert!(reason.contains("does not recover"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
