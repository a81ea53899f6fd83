//! Limits of the consumer's loop, which is in idem-queue, over a real RabbitMQ: a step that it
//! gives up is dropped here, so that no test waits as long as the loop does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use idem_queue::Ticket as _;
use idem_testkit::RabbitMqServer;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::Consumer;

const QUEUE: &str = "orders";
/// After this, a step is given up here.
const SHORT: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Connection {
    let properties = ConnectionProperties::default();
    Connection::connect(url, properties).await.unwrap()
}

/// A server with the queue, and a channel to it.
async fn broker() -> (RabbitMqServer, Connection, Channel) {
    let server = RabbitMqServer::start().await.unwrap();
    let connection = connect(&server.url()).await;
    let channel = connection.create_channel().await.unwrap();
    let confirm = ConfirmSelectOptions::default();
    channel.confirm_select(confirm).await.unwrap();
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let declared = channel.exchange_declare(
        "dead".into(),
        ExchangeKind::Fanout,
        durable,
        FieldTable::default(),
    );
    declared.await.unwrap();
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", "dead"),
    ] {
        arguments.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let durable = QueueDeclareOptions::durable();
    let declared = channel.queue_declare(QUEUE.into(), durable, arguments);
    declared.await.unwrap();
    (server, connection, channel)
}

async fn publish(channel: &Channel, id: &str) {
    let properties = BasicProperties::default().with_message_id(id.into());
    let options = BasicPublishOptions::default();
    let published = channel.basic_publish("".into(), QUEUE.into(), options, b"1", properties);
    published.await.unwrap().await.unwrap();
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LIMIT, waiting).await.expect(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_takes_longer_than_a_try_to_subscribe_serves_a_later_try() {
    let (server, _connection, channel) = broker().await;
    let lost = connect(&server.url()).await;
    let gate = watch::channel(false).0;
    let begun = AtomicU32::new(0);
    let consumer = Consumer::new(&lost, QUEUE).reconnect(|| async {
        begun.fetch_add(1, Ordering::Relaxed);
        gate.subscribe().wait_for(|open| *open).await.unwrap();
        Connection::connect(&server.url(), ConnectionProperties::default()).await
    });
    let subscribed = consumer.subscribe().await.unwrap();
    // Before the consumer's channels are: lapin closes no connection with a channel that is closing.
    lost.close(200, "lost".into()).await.unwrap();
    drop(subscribed);
    for _ in 0..2 {
        let given_up = timeout(SHORT, consumer.subscribe()).await;
        assert!(given_up.is_err(), "subscribed without a connection");
    }
    gate.send_replace(true);
    let subscribed = timeout(LIMIT, consumer.subscribe()).await.expect("in time");
    let mut deliveries = subscribed.unwrap();
    publish(&channel, "m-1").await;
    let (delivery, _ticket) = deliveries.next().await.unwrap().unwrap();
    assert_eq!(delivery.id(), Some("m-1"));
    assert_eq!(begun.load(Ordering::Relaxed), 1, "connections begun");
}

/// lapin sends an acknowledgement once: a second try must wait for the first, and is no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_was_given_up_while_the_broker_blocks_is_sent_afterwards() {
    let (server, _connection, channel) = broker().await;
    let (inject, injected) = mpsc::channel(1);
    let url = server.url_through(injecting(server.port(), injected).await);
    let connection = connect(&url).await;
    let answer_timeout = Duration::from_secs(3);
    let consumer = Consumer::new(&connection, QUEUE)
        .answer_timeout(answer_timeout)
        .concurrency(1);
    let mut deliveries = consumer.subscribe().await.unwrap();
    for id in ["m-0", "m-1"] {
        publish(&channel, id).await;
    }
    let (_, ticket) = deliveries.next().await.unwrap().unwrap();
    let memory = connection_frame(60, &[3, b'm', b'e', b'm']);
    inject.send(memory).await.unwrap();
    until("it is blocked", async || connection.status().blocked()).await;
    for _ in 0..2 {
        let _ = timeout(SHORT, ticket.ack()).await;
    }
    // Nothing is judged silent while it is blocked.
    let next = timeout(answer_timeout * 2, deliveries.next()).await;
    assert!(
        next.is_err(),
        "a blocked connection was given up, or sent more"
    );
    inject.send(connection_frame(61, &[])).await.unwrap();
    timeout(LIMIT, ticket.ack())
        .await
        .expect("in time")
        .unwrap();
    let next = timeout(LIMIT, deliveries.next())
        .await
        .expect("its place is free");
    let (delivery, _ticket) = next.unwrap().unwrap();
    assert_eq!(
        (delivery.id(), delivery.is_redelivered()),
        (Some("m-1"), false)
    );
}

/// A proxy to the broker, which also sends to the client what is injected.
async fn injecting(upstream: u16, mut inject: mpsc::Receiver<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_server, mut to_server) = TcpStream::connect(("127.0.0.1", upstream))
            .await
            .unwrap()
            .into_split();
        let (mut from_client, mut to_client) = client.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let mut head = [0; 7];
        loop {
            // Between two frames. Only the first byte is waited for, so nothing is half read.
            tokio::select! {
                read = from_server.read(&mut head[..1]) => {
                    if !matches!(read, Ok(1)) || from_server.read_exact(&mut head[1..]).await.is_err() {
                        return;
                    }
                    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
                    let mut rest = vec![0; length + 1];
                    if from_server.read_exact(&mut rest).await.is_err() {
                        return;
                    }
                    if to_client.write_all(&[&head, &rest[..]].concat()).await.is_err() {
                        return;
                    }
                }
                Some(frame) = inject.recv() => {
                    if to_client.write_all(&frame).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    port
}

/// A method frame of channel 0 without arguments but for these bytes.
fn connection_frame(method: u8, arguments: &[u8]) -> Vec<u8> {
    let length = u8::try_from(4 + arguments.len()).unwrap();
    [
        &[1, 0, 0, 0, 0, 0, length, 0, 10, 0, method][..],
        arguments,
        &[0xCE],
    ]
    .concat()
}
