//! Brokers that go and come, and bodies that take long.

use std::thread;
use std::time::Duration;

use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};

use super::{Cluster, Log, Worker, gate, pass, text};
use crate::{Consumer, Delivery};

/// Handles each message when the gate lets it.
fn start(consumer: Consumer, log: &Log, gate: &std::sync::Arc<tokio::sync::Semaphore>) -> Worker {
    let (log, gate) = (log.clone(), gate.clone());
    Worker::start(consumer, async move |delivery: Delivery| {
        log.push(format!("begins {}", text(&delivery)));
        pass(&gate).await;
        log.push(format!("ends {}", text(&delivery)));
        Ok::<_, idem_core::Error>(())
    })
}

#[test]
fn a_body_goes_on_while_the_broker_is_away_and_is_committed_when_it_is_back() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let (log, gate) = (Log::default(), gate());
    let worker = start(cluster.consumer(), &log, &gate);
    log.until(1);
    cluster.mock.broker_down(1).unwrap();
    gate.add_permits(2);
    log.until(2);
    thread::sleep(Duration::from_secs(1));
    cluster.mock.broker_up(1).unwrap();
    cluster.until_committed(0, 1);
    cluster.publish(0, "", "2");
    cluster.until_committed(0, 2);
    assert_eq!(log.all(), ["begins 1", "ends 1", "begins 2", "ends 2"]);
    worker.stop().unwrap();
}

#[test]
fn a_commit_that_fails_is_repeated() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let (log, open) = (Log::default(), gate());
    open.add_permits(2);
    let refused = [Code::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 3];
    cluster.mock.request_errors(Api::OffsetCommit, &refused);
    let worker = start(cluster.consumer(), &log, &open);
    cluster.until_committed(0, 1);
    cluster.publish(0, "", "2");
    cluster.until_committed(0, 2);
    worker.stop().unwrap();
}

#[test]
fn a_handler_that_blocks_its_thread_may_take_longer_than_the_interval_between_polls() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let mut config = cluster.config();
    config
        .set("max.poll.interval.ms", "4000")
        .set("session.timeout.ms", "4000");
    let log = Log::default();
    let handler = {
        let log = log.clone();
        async move |delivery: Delivery| {
            log.push(text(&delivery));
            if text(&delivery) == "1" {
                thread::sleep(Duration::from_secs(6));
            }
            Ok::<_, idem_core::Error>(())
        }
    };
    let worker = Worker::start(
        Consumer::new(&config, "orders").dead_letter("dead"),
        handler,
    );
    log.until(1);
    for number in 2..1_200 {
        let payload = number.to_string();
        let message = crate::producer::Outgoing::to("orders").partition(0);
        drop(
            cluster
                .producer
                .send_result(message.payload(payload.as_bytes()))
                .unwrap(),
        );
    }
    cluster.until_committed(0, 1_199);
    assert_eq!(log.all().len(), 1_199, "it was delivered twice");
    worker.stop().unwrap();
}

#[test]
fn a_topic_that_is_away_for_a_while_is_consumed_again() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let (log, open) = (Log::default(), gate());
    open.add_permits(10);
    let worker = start(cluster.consumer(), &log, &open);
    cluster.until_committed(0, 1);
    let unknown = Code::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    cluster.mock.topic_error("orders", unknown).unwrap();
    thread::sleep(Duration::from_secs(2));
    cluster
        .mock
        .topic_error("orders", Code::RD_KAFKA_RESP_ERR_NO_ERROR)
        .unwrap();
    cluster.publish(0, "", "2");
    cluster.until_committed(0, 2);
    assert_eq!(log.all(), ["begins 1", "ends 1", "begins 2", "ends 2"]);
    worker.stop().unwrap();
}

#[test]
fn a_consumer_that_may_not_read_for_a_while_goes_on_afterwards() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let (log, open) = (Log::default(), gate());
    open.add_permits(10);
    let worker = start(cluster.consumer(), &log, &open);
    cluster.until_committed(0, 1);
    let forbidden = [Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 4];
    cluster.mock.request_errors(Api::Fetch, &forbidden);
    cluster.publish(0, "", "2");
    cluster.until_committed(0, 2);
    assert_eq!(log.all(), ["begins 1", "ends 1", "begins 2", "ends 2"]);
    worker.stop().unwrap();
}
