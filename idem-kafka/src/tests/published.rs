//! Messages that guarded bodies publish.

use std::sync::Arc;

use idem_core::{Idempotency, MemoryStore};

use super::{Cluster, Log, Worker, guarded, text};
use crate::{Delivery, PublishError, Publisher};

#[test]
fn each_attempt_of_a_body_publishes_the_same_id_and_a_consumer_handles_it_once() {
    let cluster = Cluster::new();
    let publisher = Publisher::new(&cluster.config()).unwrap();
    let idempotency = Idempotency::new(MemoryStore::new());
    let ids = Log::default();
    let body = async || {
        let first = publisher.publish("order.placed", "orders", Some("c-7"), "first");
        let first = first.await.unwrap();
        // As another attempt of this body would.
        let again = publisher.publish_json("order.placed", "orders", Some("c-7"), "again");
        let again = again.await.unwrap();
        let other = publisher
            .publish("order.paid", "orders", None, "other")
            .await
            .unwrap();
        assert!(!again.is_duplicate());
        for published in [first, again, other] {
            ids.push(published.id());
        }
    };
    let placing = async {
        let delivery = Delivery::new("http", "").with_id("r-1");
        guarded(&idempotency, &delivery, body).await.unwrap();
    };
    cluster.runtime.block_on(placing);
    let ids = ids.all();
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);

    let log = Log::default();
    let handler = {
        let (log, idempotency) = (log.clone(), Arc::new(Idempotency::new(MemoryStore::new())));
        async move |delivery: Delivery| {
            guarded(&idempotency, &delivery, async || {
                log.push(format!("{} {}", text(&delivery), delivery.subject()));
            })
            .await
        }
    };
    let worker = Worker::start(cluster.consumer(), handler);
    until_all_committed(&cluster, 3);
    let mut texts = log.all();
    texts.sort();
    assert_eq!(texts, ["first c-7", "other "]);
    worker.stop().unwrap();
}

fn until_all_committed(cluster: &Cluster, messages: i64) {
    super::until(|| {
        let committed = [0, 1].map(|partition| cluster.committed(partition).unwrap_or(0));
        committed.iter().sum::<i64>() == messages
    });
}

#[test]
fn publishing_outside_of_a_guarded_body_fails_and_so_does_a_value_that_is_not_json() {
    let cluster = Cluster::new();
    let publisher = Publisher::new(&cluster.config()).unwrap();
    let sending = publisher.publish("order.placed", "orders", None, "1");
    let sent = cluster.runtime.block_on(sending);
    assert!(matches!(sent, Err(PublishError::NotInside)));
    let unwritable = std::collections::BTreeMap::from([(vec![1], 1)]);
    let sending = publisher.publish_json("order.placed", "orders", None, &unwritable);
    let sent = cluster.runtime.block_on(sending);
    assert!(matches!(sent, Err(PublishError::Unwritable(_))));
}

#[test]
fn a_message_that_is_not_confirmed_fails_and_a_configuration_of_nonsense_is_refused() {
    let cluster = Cluster::new();
    let mut config = cluster.config();
    config.set("message.timeout.ms", "1000");
    let publisher = Publisher::new(&config).unwrap();
    cluster.mock.broker_down(1).unwrap();
    let idempotency = Idempotency::new(MemoryStore::new());
    let publishing = async {
        let delivery = Delivery::new("http", "").with_id("r-1");
        guarded(&idempotency, &delivery, async || {
            let sent = publisher.publish("order.placed", "orders", None, "1").await;
            assert!(
                matches!(sent, Err(PublishError::Unconfirmed(_))),
                "{sent:?}"
            );
        })
        .await
        .unwrap();
    };
    cluster.runtime.block_on(publishing);

    config.set("acks", "nonsense").set("no.such.setting", "1");
    let error = Publisher::new(&config).unwrap_err();
    assert!(matches!(error, crate::Error::Config { .. }), "{error:?}");
}
