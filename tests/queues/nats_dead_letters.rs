//! JetStream: messages that are hard to put aside.

use std::sync::Mutex;

use idem::nats::async_nats::HeaderMap;
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery};
use idem::{Dispose, Disposition, Idempotency, MemoryStore};
use idem_testkit::NatsServer;
use tokio::sync::oneshot;

use crate::nats::{context, dead_letters, make_streams, reason};
use crate::storm::in_time;

/// Poison, with the reason for people.
struct Poison(&'static str);

impl Dispose for Poison {
    fn disposition(&self) -> Disposition {
        Disposition::dead_letter(self.0)
    }
}

async fn publish(context: &Context, message: PublishMessage) {
    context
        .send_publish("orders.placed", message)
        .await
        .unwrap()
        .await
        .unwrap();
}

/// Handles messages one after the other until the one with the text `last`: all others are poison.
/// Returns the ids.
async fn put_aside_until_last(context: &Context, why: &'static str) -> Vec<String> {
    publish(context, PublishMessage::build().payload("last".into())).await;
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let ids = Mutex::new(Vec::new());
    let handler = async |delivery: Delivery| {
        ids.lock()
            .unwrap()
            .push(delivery.id().unwrap_or("none").to_owned());
        if delivery.payload() != "last" {
            return Err(Poison(why));
        }
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok(())
    };
    let consumer = Consumer::new(context, "ORDERS", "workers")
        .dead_letter("dead.orders")
        .concurrency(1);
    in_time(
        "the message after the poison",
        Box::pin(consumer.run(handler, ended)),
    )
    .await
    .unwrap();
    ids.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_stream_that_is_made_again_has_dead_letters_of_its_own() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    for name in ["first", "second"] {
        publish(
            &context,
            PublishMessage::build()
                .payload(name.into())
                .message_id(name),
        )
        .await;
        put_aside_until_last(&context, "poison").await;
        context.delete_stream("ORDERS").await.unwrap();
        let subjects = vec!["orders.>".to_owned()];
        context
            .create_stream(stream::Config {
                name: "ORDERS".into(),
                subjects,
                ..Default::default()
            })
            .await
            .unwrap();
    }
    let dead = dead_letters(&context).await;
    assert_eq!(
        dead.iter()
            .map(|letter| &letter.payload[..])
            .collect::<Vec<_>>(),
        [&b"first"[..], b"second"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_reason_of_several_lines_is_one_line_in_the_dead_letter() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    publish(&context, PublishMessage::build().payload("poison".into())).await;
    put_aside_until_last(&context, "the bank says:\nno\rtwice").await;
    let dead = dead_letters(&context).await;
    assert_eq!(
        dead.iter().map(reason).collect::<Vec<_>>(),
        ["the bank says: no twice"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_message_that_leaves_no_room_for_headers_is_put_aside_in_two() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    let largest = vec![b'x'; context.client().server_info().max_payload];
    publish(
        &context,
        PublishMessage::build().payload(largest.clone().into()),
    )
    .await;
    // JetStream takes 64 KiB of headers.
    let mut headers = HeaderMap::new();
    let long = "y".repeat(65_480);
    headers.insert("trace", long.as_str());
    publish(
        &context,
        PublishMessage::build()
            .payload("poison".into())
            .headers(headers),
    )
    .await;
    put_aside_until_last(&context, "poison").await;
    let dead = dead_letters(&context).await;
    let [contents, letter, second, second_letter] = &dead[..] else {
        panic!("{} dead letters", dead.len())
    };
    assert!(contents.payload == largest, "the contents are lost");
    assert_eq!(
        (
            &second.payload[..],
            second
                .headers
                .as_ref()
                .unwrap()
                .get("trace")
                .unwrap()
                .as_str()
        ),
        (&b"poison"[..], &*long)
    );
    for (letter, contents, sequence) in [(letter, "1", "1"), (second_letter, "3", "2")] {
        assert_eq!(
            (reason(letter), letter.payload.len()),
            ("poison".to_owned(), 0)
        );
        let headers = letter.headers.as_ref().unwrap();
        let value = |name: &str| headers.get(name).unwrap().as_str();
        assert_eq!(
            (value("idem-contents"), value("idem-sequence")),
            (contents, sequence)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_an_empty_id_is_no_id() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    publish(
        &context,
        PublishMessage::build()
            .payload("poison".into())
            .header("Nats-Msg-Id", ""),
    )
    .await;
    assert_eq!(
        put_aside_until_last(&context, "poison").await,
        ["sequence-1", "sequence-2"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_an_id_of_a_publisher_is_never_the_sequence_of_another_message() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    for message in ["sequence-2", "", "Nats-Msg-Id:sequence-2"] {
        let message = PublishMessage::build()
            .payload(format!("id {message}").into())
            .header("Nats-Msg-Id", message);
        publish(&context, message).await;
    }
    let idempotency = Idempotency::new(MemoryStore::new());
    let handled = Mutex::new(Vec::new());
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        let message = String::from_utf8_lossy(delivery.payload()).into_owned();
        let is_last = message == "id Nats-Msg-Id:sequence-2";
        let call = idempotency.operation("t.sequences").key(&delivery.key()?);
        let body = async || {
            handled.lock().unwrap().push(message);
            Ok::<_, idem::Error>(())
        };
        call.run(body).await?;
        if is_last {
            done.lock().unwrap().take().unwrap().send(()).unwrap();
            return Err(idem::Error::missing_key("put aside"));
        }
        Ok(())
    };
    let consumer = Consumer::new(&context, "ORDERS", "workers")
        .dead_letter("dead.orders")
        .concurrency(1);
    in_time(
        "the last of three messages",
        Box::pin(consumer.run(handler, ended)),
    )
    .await
    .unwrap();
    let all = ["id sequence-2", "id ", "id Nats-Msg-Id:sequence-2"];
    assert_eq!(
        handled.into_inner().unwrap(),
        all,
        "one was acknowledged and not handled"
    );
    // A dead letter names the id as it was published.
    let dead = dead_letters(&context).await;
    let id = dead[0]
        .headers
        .as_ref()
        .unwrap()
        .get("idem-message-id")
        .unwrap();
    assert_eq!(id.as_str(), "Nats-Msg-Id:sequence-2");
}
