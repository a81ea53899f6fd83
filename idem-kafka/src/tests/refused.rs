//! Configurations that could lose messages.

use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::metadata::MetadataTopic;

use super::{Cluster, Worker};
use crate::config::{of_consumer, of_dead_letters, of_producer};
use crate::{ClientConfig, Consumer, Delivery, Error};

async fn handled(_: Delivery) -> Result<(), idem_core::Error> {
    Ok(())
}

fn refusal(consumer: Consumer) -> String {
    match Worker::start(consumer, handled).ended() {
        Err(Error::Config { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_configuration_that_could_lose_messages_is_refused_at_the_start() {
    let cluster = Cluster::new();
    for (setting, value, expected) in [
        ("group.id", "", "no `group.id`"),
        ("enable.auto.commit", "true", "`enable.auto.commit` is on"),
        (
            "enable.auto.offset.store",
            "1",
            "`enable.auto.offset.store` is on",
        ),
        (
            "auto.offset.reset",
            "latest",
            "`auto.offset.reset` is `latest`",
        ),
        (
            "auto.offset.reset",
            "largest",
            "`auto.offset.reset` is `largest`",
        ),
        ("no.such.setting", "1", "no.such.setting"),
    ] {
        let mut config = cluster.config();
        config.set(setting, value);
        let consumer = Consumer::new(&config, "orders").dead_letter("dead");
        let reason = refusal(consumer);
        assert!(reason.contains(expected), "{reason}");
    }
    let mut config = cluster.config();
    config.remove("group.id");
    let consumer = Consumer::new(&config, "orders").dead_letter("dead");
    assert!(refusal(consumer).contains("no `group.id`"));
}

#[test]
fn what_is_not_chosen_loses_nothing() {
    let mut config = ClientConfig::new();
    config.set("group.id", "workers");
    let consumer = of_consumer(&config).unwrap();
    for (name, value) in [
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_committed"),
        ("partition.assignment.strategy", "cooperative-sticky"),
    ] {
        assert_eq!(consumer.get(name), Some(value), "{name}");
    }
    config.set("acks", "0").set("enable.idempotence", "false");
    for producer in [of_producer(&config), of_dead_letters(&config)] {
        assert_eq!(producer.get("acks"), Some("all"));
        assert_eq!(producer.get("enable.idempotence"), Some("true"));
    }
}

#[test]
fn a_dead_letter_topic_that_could_lose_messages_is_refused_and_none_is_created() {
    let cluster = Cluster::new();
    let consumer = || Consumer::new(&cluster.config(), "orders");
    for (consumer, expected) in [
        (consumer(), "no place for messages"),
        (consumer().dead_letter(""), "no place for messages"),
        (
            consumer().dead_letter("orders"),
            "is the one that is consumed",
        ),
        (
            consumer().dead_letter("missing"),
            "there is no dead-letter topic `missing`",
        ),
        (
            Consumer::new(&cluster.config(), "absent").dead_letter("dead"),
            "there is no topic `absent`",
        ),
        (
            Consumer::new(&cluster.config(), "^orders.*").dead_letter("dead"),
            "is a pattern",
        ),
        (cluster.consumer().concurrency(0), "`concurrency` is 0"),
    ] {
        let reason = refusal(consumer);
        assert!(reason.contains(expected), "{reason}");
    }
    let described = cluster
        .admin
        .fetch_metadata(None, Duration::from_secs(10))
        .unwrap();
    let mut topics: Vec<_> = described.topics().iter().map(MetadataTopic::name).collect();
    topics.sort_unstable();
    assert_eq!(topics, ["dead", "orders"]);
}

#[test]
fn automatic_commits_that_are_off_already_are_accepted_and_so_is_another_assignor() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let mut config = cluster.config();
    config
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "error")
        .set("partition.assignment.strategy", "range");
    let checked = crate::config::of_consumer(&config).unwrap();
    for (name, value) in [
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("isolation.level", "read_committed"),
        ("partition.assignment.strategy", "range"),
    ] {
        assert_eq!(checked.get(name), Some(value));
    }
    config.remove("auto.offset.reset");
    let worker = Worker::start(
        Consumer::new(&config, "orders").dead_letter("dead"),
        handled,
    );
    cluster.until_committed(0, 1);
    worker.stop().unwrap();
}

#[test]
fn a_group_without_an_offset_ends_the_consumer_if_it_must_not_choose_one() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "1");
    let mut config = cluster.config();
    config.set("auto.offset.reset", "error");
    let consumer = Consumer::new(&config, "orders").dead_letter("dead");
    match Worker::start(consumer, handled).ended() {
        Err(Error::Disconnected { reason, .. }) => {
            assert!(reason.contains("set the offset of the group"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
