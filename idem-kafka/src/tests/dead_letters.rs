//! Messages that no redelivery helps.

use std::time::Duration;

use idem_core::{Dispose, Disposition};
use rdkafka::Message as _;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};

use super::{Cluster, Log, Worker, header, text};
use crate::Delivery;

/// A reason of a handler.
#[derive(Debug)]
struct Poison;

impl Dispose for Poison {
    fn disposition(&self) -> Disposition {
        Disposition::dead_letter("a card\nis closed")
    }
}

async fn poison(_: Delivery) -> Result<(), Poison> {
    Err(Poison)
}

#[test]
fn a_dead_letter_says_where_it_comes_from_and_keeps_key_value_and_headers() {
    let cluster = Cluster::new();
    let headers = OwnedHeaders::new()
        .insert(Header {
            key: "x-id",
            value: Some("m-1"),
        })
        .insert(Header {
            key: "binary",
            value: Some(&[0xff_u8, 0][..]),
        })
        .insert(Header {
            key: "null",
            value: None::<&str>,
        })
        .insert(Header {
            key: "idem-reason",
            value: Some("of an earlier one"),
        });
    cluster.send(1, "c-7", Some(b"payload"), headers);
    let worker = Worker::start(cluster.consumer().id_header("x-id"), poison);
    cluster.until_committed(1, 1);
    let letters = cluster.dead_letters(1);
    let letter = &letters[0];
    assert_eq!(
        (letter.key(), letter.payload()),
        (Some(&b"c-7"[..]), Some(&b"payload"[..]))
    );
    for (name, value) in [
        ("idem-reason", Some("a card\nis closed")),
        ("idem-message-id", Some("m-1")),
        ("idem-topic", Some("orders")),
        ("idem-partition", Some("1")),
        ("idem-offset", Some("0")),
        ("x-id", Some("m-1")),
        ("null", None),
    ] {
        assert_eq!(header(letter, name), value, "{name}");
    }
    let raw = letter.headers().unwrap();
    let binary = rdkafka::message::Headers::iter(raw).find(|header| header.key == "binary");
    assert_eq!(binary.unwrap().value, Some(&[0xff_u8, 0][..]));
    worker.stop().unwrap();
}

#[test]
fn what_is_not_json_is_dead_lettered_and_a_tombstone_stays_one() {
    let cluster = Cluster::new();
    cluster.send(0, "k", Some(b"{"), OwnedHeaders::new());
    cluster.send(0, "k", None, OwnedHeaders::new());
    let handler = async |delivery: Delivery| delivery.json::<u32>().map(drop);
    let worker = Worker::start(cluster.consumer(), handler);
    cluster.until_committed(0, 2);
    let letters = cluster.dead_letters(2);
    assert_eq!(letters[0].payload(), Some(&b"{"[..]));
    assert_eq!(letters[1].payload(), None);
    for letter in &letters {
        assert_eq!(header(letter, "idem-reason"), Some("codec"));
    }
    worker.stop().unwrap();
}

#[test]
fn the_offset_waits_until_the_dead_letter_is_confirmed() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "poison");
    cluster.publish(0, "", "fine");
    let refusals = [Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 3];
    cluster.mock.request_errors(Api::Produce, &refusals);
    let log = Log::default();
    let handler = {
        let log = log.clone();
        async move |delivery: Delivery| {
            log.push(text(&delivery));
            if text(&delivery) == "poison" {
                Err(Poison)
            } else {
                Ok(())
            }
        }
    };
    let worker = Worker::start(cluster.consumer(), handler);
    let mut seen = Vec::new();
    super::until(|| {
        seen.push((cluster.committed(0), cluster.dead_letters_now()));
        seen.last().unwrap().0 == Some(2)
    });
    for (committed, letters) in seen {
        assert!(
            committed.is_none() || letters == 1,
            "{committed:?}, {letters}"
        );
    }
    assert_eq!(log.all(), ["poison", "fine"]);
    worker.stop().unwrap();
}

#[test]
fn a_dead_letter_with_headers_that_do_not_fit_becomes_two_messages() {
    let cluster = Cluster::new();
    cluster.publish(0, "k", "large");
    let too_large = [Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE];
    cluster.mock.request_errors(Api::Produce, &too_large);
    let worker = Worker::start(cluster.consumer(), poison);
    cluster.until_committed(0, 1);
    let letters = cluster.dead_letters(2);
    assert_eq!(letters[0].payload(), Some(&b"large"[..]));
    assert_eq!(header(&letters[0], "idem-reason"), None);
    assert_eq!(letters[1].payload(), Some(&b""[..]));
    assert_eq!(letters[1].key(), Some(&b"k"[..]));
    assert_eq!(header(&letters[1], "idem-contents"), Some("0-0"));
    assert_eq!(header(&letters[1], "idem-offset"), Some("0"));
    worker.stop().unwrap();
}

#[test]
fn a_message_that_the_dead_letter_topic_never_takes_keeps_its_offset() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "large");
    cluster.publish(0, "", "fine");
    let too_large = [Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE; 100];
    cluster.mock.request_errors(Api::Produce, &too_large);
    let log = Log::default();
    let handler = {
        let log = log.clone();
        async move |delivery: Delivery| {
            log.push(text(&delivery));
            if text(&delivery) == "large" {
                Err(Poison)
            } else {
                Ok(())
            }
        }
    };
    let worker = Worker::start(
        cluster.consumer().shutdown_timeout(Duration::from_secs(1)),
        handler,
    );
    log.until(2);
    worker.stop().unwrap();
    assert_eq!(cluster.committed(0), None);
    // The topic takes it now.
    cluster.mock.clear_request_errors(Api::Produce);
    let worker = Worker::start(cluster.consumer(), poison);
    cluster.until_committed(0, 2);
    worker.stop().unwrap();
}

#[test]
fn a_producer_that_has_ended_for_good_is_made_anew() {
    let cluster = Cluster::new();
    cluster.publish(0, "", "poison");
    let desynchronised = [Code::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER];
    cluster.mock.request_errors(Api::Produce, &desynchronised);
    let worker = Worker::start(cluster.consumer(), poison);
    cluster.until_committed(0, 1);
    assert_eq!(cluster.dead_letters(1).len(), 1);
    worker.stop().unwrap();
}
