//! Messages that are handled: offsets, ids, and the order of a record key.

use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};

use super::{Again, Cluster, Log, Worker, gate, pass, text};
use crate::Delivery;

#[test]
fn a_handler_gets_the_record_key_and_an_id_of_the_publisher_or_of_the_place() {
    let cluster = Cluster::new();
    let log = Log::default();
    cluster.publish(0, "c-7", "1");
    for (name, id) in [
        ("idem-message-id", "m-1"),
        ("idem-message-id", "0-0"),
        ("x-id", "m-3"),
    ] {
        let header = Header {
            key: name,
            value: Some(id),
        };
        cluster.send(0, "", Some(b"2"), OwnedHeaders::new().insert(header));
    }
    let handler = {
        let log = log.clone();
        async move |delivery: Delivery| {
            let id = delivery.id().unwrap_or_default();
            log.push(format!("{} {id} {}", delivery.source(), delivery.subject()));
            Ok::<_, idem_core::Error>(())
        }
    };
    let worker = Worker::start(cluster.consumer().concurrency(1), handler);
    cluster.until_committed(0, 4);
    assert_eq!(
        log.all(),
        [
            "orders 0-0 c-7",
            "orders m-1 ",
            "orders idem-message-id:0-0 ",
            "orders 0-3 "
        ]
    );
    worker.stop().unwrap();
}

#[test]
fn no_offset_is_committed_above_a_message_that_is_not_settled() {
    let cluster = Cluster::new();
    for payload in ["slow", "1", "2", "3"] {
        cluster.publish(0, "", payload);
    }
    cluster.publish(1, "", "elsewhere");
    let (log, gate) = (Log::default(), gate());
    let handler = {
        let (log, gate) = (log.clone(), gate.clone());
        async move |delivery: Delivery| {
            if text(&delivery) == "slow" {
                pass(&gate).await;
            }
            log.push(text(&delivery));
            Ok::<_, idem_core::Error>(())
        }
    };
    let worker = Worker::start(cluster.consumer(), handler);
    log.until(4);
    // A commit of this partition shows that the others had their turn.
    cluster.until_committed(1, 1);
    cluster.publish(1, "", "once more");
    cluster.until_committed(1, 2);
    assert_eq!(cluster.committed(0), None);
    gate.add_permits(1);
    cluster.until_committed(0, 4);
    worker.stop().unwrap();
}

#[test]
fn messages_of_one_record_key_run_one_after_the_other_and_others_at_once() {
    let cluster = Cluster::new();
    for (key, payload) in [
        ("a", "a1"),
        ("a", "a2"),
        ("b", "b1"),
        ("", "c1"),
        ("", "c2"),
    ] {
        cluster.publish(0, key, payload);
    }
    let (log, gate) = (Log::default(), gate());
    let handler = {
        let (log, gate) = (log.clone(), gate.clone());
        async move |delivery: Delivery| {
            log.push(format!("begins {}", text(&delivery)));
            pass(&gate).await;
            log.push(format!("ends {}", text(&delivery)));
            Ok::<_, idem_core::Error>(())
        }
    };
    let worker = Worker::start(cluster.consumer(), handler);
    log.until(4);
    assert_eq!(
        log.all(),
        ["begins a1", "begins b1", "begins c1", "begins c2"]
    );
    gate.add_permits(5);
    cluster.until_committed(0, 5);
    let all = log.all();
    let place = |what: &str| all.iter().position(|found| found == what).unwrap();
    assert!(place("ends a1") < place("begins a2"), "{all:?}");
    worker.stop().unwrap();
}

#[test]
fn a_message_that_comes_again_takes_no_place_and_only_its_record_key_waits() {
    let cluster = Cluster::new();
    for (key, payload) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("", "c1")] {
        cluster.publish(0, key, payload);
    }
    let log = Log::default();
    let handler = {
        let log = log.clone();
        async move |delivery: Delivery| {
            let text = text(&delivery);
            log.push(format!("{text} {}", delivery.is_redelivered()));
            if text == "a1" && !delivery.is_redelivered() {
                return Err(Again(Duration::from_secs(1)));
            }
            Ok(())
        }
    };
    // One place: the pause does not take it.
    let worker = Worker::start(cluster.consumer().concurrency(1), handler);
    let all = log.until(5);
    assert_eq!(
        all,
        ["a1 false", "b1 false", "c1 false", "a1 true", "a2 false"]
    );
    cluster.until_committed(0, 4);
    worker.stop().unwrap();
}

#[test]
fn a_partition_stops_a_thousand_messages_after_one_that_is_not_settled_and_others_go_on() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "slow");
    for number in 1..1_500 {
        let payload = number.to_string();
        let message = crate::producer::Outgoing::to("orders").partition(0);
        drop(
            cluster
                .producer
                .send_result(message.payload(payload.as_bytes()))
                .unwrap(),
        );
    }
    cluster.publish(0, "", "last");
    let (log, gate) = (Log::default(), gate());
    let handler = {
        let (log, gate) = (log.clone(), gate.clone());
        async move |delivery: Delivery| {
            if text(&delivery) == "slow" {
                pass(&gate).await;
            }
            log.push(text(&delivery));
            Ok::<_, idem_core::Error>(())
        }
    };
    let worker = Worker::start(cluster.consumer(), handler);
    log.until(999);
    for offset in 1..4 {
        cluster.publish(1, "", "elsewhere");
        cluster.until_committed(1, offset);
    }
    let is_ours = |text: &String| text != "elsewhere";
    let count = log.all().into_iter().filter(is_ours).count();
    assert_eq!((count, cluster.committed(0)), (999, None));
    gate.add_permits(1);
    cluster.until_committed(0, 1_501);
    let mut texts: Vec<_> = log.all().into_iter().filter(is_ours).collect();
    assert_eq!(texts.len(), 1_501, "handled twice");
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 1_501, "lost");
    worker.stop().unwrap();
}
