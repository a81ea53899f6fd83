//! RabbitMQ. It takes seconds to start, so each test does much with one.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::amqp::lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use idem::amqp::lapin::types::{AMQPValue, FieldTable};
use idem::amqp::lapin::{
    self, BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    Queue,
};
use idem::amqp::{Consumer, Delivery, Error, Publisher, REASON};
use idem::{Idempotency, MemoryStore};
use idem_testkit::{Proxy, RabbitMqServer};
use tokio::sync::oneshot;

use crate::storm::{World, in_time, storm};
use crate::worker::Mail;

async fn connect(url: &str) -> Connection {
    Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap()
}

pub(crate) fn table(texts: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in texts {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    table
}

pub(crate) async fn declare(channel: &Channel, queue: &str, arguments: &[(&str, &str)]) {
    channel
        .queue_declare(
            queue.into(),
            QueueDeclareOptions::durable(),
            table(arguments),
        )
        .await
        .unwrap();
}

pub(crate) async fn declare_dead(channel: &Channel) {
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            "dead".into(),
            ExchangeKind::Fanout,
            options,
            FieldTable::default(),
        )
        .await
        .unwrap();
    declare(channel, "graveyard", &[("x-queue-type", "quorum")]).await;
    let bound = channel.queue_bind(
        "graveyard".into(),
        "dead".into(),
        "".into(),
        QueueBindOptions::default(),
        table(&[]),
    );
    bound.await.unwrap();
}

pub(crate) async fn publish(
    channel: &Channel,
    queue: &str,
    id: &str,
    payload: &[u8],
) -> Option<()> {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let properties = if id.is_empty() {
        properties
    } else {
        properties.with_message_id(id.into())
    };
    let published = async {
        let options = BasicPublishOptions::default();
        channel
            .basic_publish("".into(), queue.into(), options, payload, properties)
            .await?
            .await
    };
    // A client may wait forever for a connection that is gone.
    let confirmed = tokio::time::timeout(Duration::from_secs(10), published).await;
    matches!(confirmed, Ok(Ok(Confirmation::Ack(_)))).then_some(())
}

/// Everything in the dead letters' queue, with its reason. Taken away.
pub(crate) async fn dead_letters(channel: &Channel) -> Vec<(Vec<u8>, String)> {
    let mut found = Vec::new();
    while let Some(message) = channel
        .basic_get("graveyard".into(), BasicGetOptions::default())
        .await
        .unwrap()
    {
        let headers = message.properties.headers().clone().unwrap();
        let Some(AMQPValue::LongString(reason)) = headers.inner().get(REASON) else {
            panic!("no reason: {headers:?}")
        };
        found.push((message.data.clone(), reason.to_string()));
        message.ack(BasicAckOptions::default()).await.unwrap();
    }
    found
}

struct RabbitMq {
    server: RabbitMqServer,
    proxy: Proxy,
    channel: tokio::sync::Mutex<(Connection, Channel)>,
}

impl RabbitMq {
    async fn connected(server: &RabbitMqServer) -> Option<(Connection, Channel)> {
        let connection = Connection::connect(&server.url(), ConnectionProperties::default())
            .await
            .ok()?;
        let channel = connection.create_channel().await.ok()?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .ok()?;
        Some((connection, channel))
    }

    /// A channel that is open.
    async fn channel(&self) -> Channel {
        let mut open = self.channel.lock().await;
        let opening = async {
            while !open.1.status().connected() {
                match Self::connected(&self.server).await {
                    Some(another) => *open = another,
                    None => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        };
        in_time("a channel of the restarted RabbitMQ", opening).await;
        open.1.clone()
    }

    /// What the broker says of a queue.
    async fn queue(&self, name: &str) -> lapin::Result<Queue> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        self.channel()
            .await
            .queue_declare(name.into(), options, FieldTable::default())
            .await
    }
}

impl World for RabbitMq {
    fn url(&self) -> String {
        self.server.url_through(self.proxy.address().port())
    }

    async fn publish(&self, mail: &Mail) {
        let payload = serde_json::to_vec(mail).unwrap();
        let id = format!("m-{}", mail.number);
        let publishing = async {
            while publish(&self.channel().await, "orders", &id, &payload)
                .await
                .is_none()
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        in_time("RabbitMQ's confirmation of a message", publishing).await;
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }

    async fn cut(&self) {
        self.proxy.cut();
        self.proxy.restore();
    }

    async fn dead_letters(&self) -> Vec<(Mail, String)> {
        let found = dead_letters(&self.channel().await).await;
        found
            .into_iter()
            .map(|(payload, reason)| (serde_json::from_slice(&payload).unwrap(), reason))
            .collect()
    }

    async fn left(&self) -> u64 {
        let mut left = 0;
        for queue in ["orders", "orders.retry.1s", "orders.retry.10s"] {
            let queue = self.queue(queue).await;
            left += queue.map_or(0, |queue| u64::from(queue.message_count()));
        }
        left
    }

    async fn consumers(&self) -> Option<usize> {
        Some(self.queue("orders").await.unwrap().consumer_count() as usize)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_each_message_is_handled_once_whatever_dies() {
    let server = RabbitMqServer::start().await.unwrap();
    let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", server.port()))
        .await
        .unwrap();
    let (connection, channel) = RabbitMq::connected(&server).await.unwrap();
    declare_dead(&channel).await;
    declare(
        &channel,
        "orders",
        &[
            ("x-queue-type", "quorum"),
            ("x-dead-letter-exchange", "dead"),
        ],
    )
    .await;
    storm(
        &RabbitMq {
            server,
            proxy,
            channel: tokio::sync::Mutex::new((connection, channel)),
        },
        200,
    )
    .await;
}

/// Runs a consumer until its handler has been called for the last of these ids, and has returned.
async fn consumed<H>(consumer: Consumer<'_>, last: &str, handler: H) -> Result<(), Error>
where
    H: AsyncFn(Delivery) -> Result<(), idem::Error>,
{
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        let is_last = delivery.id() == Some(last);
        let handled = handler(delivery).await;
        if is_last
            && handled.is_ok()
            && let Some(done) = done.lock().unwrap().take()
        {
            done.send(()).unwrap();
        }
        handled
    };
    in_time(
        "the end of the handler of the last message",
        consumer.run(handler, ended),
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "one story, in the order of its events"
)]
async fn rabbitmq_a_consumer_loses_nothing_and_runs_nothing_twice() {
    let server = RabbitMqServer::start().await.unwrap();
    let connection = connect(&server.url()).await;
    let channel = connection.create_channel().await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    declare_dead(&channel).await;
    // It drops a message that is returned twice.
    let mut own = table(&[
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", "dead"),
        ("x-overflow", "reject-publish"),
    ]);
    own.insert("x-delivery-limit".into(), AMQPValue::LongInt(1));
    channel
        .queue_declare("own".into(), QueueDeclareOptions::durable(), own)
        .await
        .unwrap();
    declare(&channel, "plain", &[]).await;

    // A consumer that could lose messages does not start.
    let never = std::future::pending::<()>;
    let handler = async |_: Delivery| Ok::<_, idem::Error>(());
    let refused = |result: Result<(), Error>, word: &str| match result.unwrap_err() {
        Error::Config { reason, .. } => assert!(reason.contains(word), "{word}: {reason}"),
        other => panic!("{word}: {other}"),
    };
    refused(
        Consumer::new(&connection, "missing")
            .run(handler, never())
            .await,
        "no queue `missing`",
    );
    refused(
        Consumer::new(&connection, "plain")
            .run(handler, never())
            .await,
        "no `x-dead-letter-exchange`",
    );
    let missing = Consumer::new(&connection, "plain").dead_letter_exchange("nowhere");
    refused(missing.run(handler, never()).await, "no exchange `nowhere`");
    let missing = Consumer::new(&connection, "plain")
        .dead_letter_exchange("dead")
        .retry_queue("nowhere");
    refused(missing.run(handler, never()).await, "no queue `nowhere`");

    // The queue's own exchange: no id, no JSON, a duplicate, and messages in flight elsewhere more
    // often than the queue's delivery limit.
    let idempotency = Idempotency::new(MemoryStore::new());
    let bodies = Mutex::new(BTreeMap::<String, u32>::new());
    let busy = AtomicU32::new(0);
    let seen = AtomicU32::new(0);
    for (id, payload) in [
        ("", "1"),
        ("m-1", "{"),
        ("m-2", "2"),
        ("m-2", "2"),
        ("m-3", "3"),
        ("m-last", "4"),
    ] {
        publish(&channel, "own", id, payload.as_bytes())
            .await
            .unwrap();
    }
    // Somebody else has the key of `m-3` until its third delivery.
    let other = Delivery::new("own", "").with_id("m-3").key().unwrap();
    let held = idempotency.operation("t.own").key(&other);
    // The lease is long, so that a slow machine renews it in time.
    let held = held.lease(Duration::from_secs(20)).begin().await;
    let idem::Begin::Execute(held) = held.unwrap() else {
        panic!("a record where there was none")
    };
    let held = Mutex::new(Some(held));
    let handler = async |delivery: Delivery| {
        let _: u32 = delivery.json()?;
        seen.fetch_add(1, Ordering::Relaxed);
        assert_eq!((delivery.source(), delivery.subject()), ("own", "own"));
        if delivery.id() == Some("m-3") && busy.fetch_add(1, Ordering::Relaxed) == 2 {
            let held = held.lock().unwrap().take().unwrap();
            held.release().await.unwrap();
        }
        if delivery.id() == Some("m-last") && busy.load(Ordering::Relaxed) < 3 {
            return Err(idem::Error::in_flight(
                "t.own",
                "m-last",
                Duration::from_millis(10),
            ));
        }
        let id = delivery.key()?.id().to_owned();
        let body = async || {
            *bodies.lock().unwrap().entry(id.clone()).or_default() += 1;
            Ok::<_, idem::Error>(())
        };
        let call = idempotency.operation("t.own").key(&delivery.key()?);
        match call.run(body).await {
            // It comes back soon, and not when the lease could have ended.
            Err(idem::Error::InFlight { .. }) => Err(idem::Error::in_flight(
                "t.own",
                "m-3",
                Duration::from_millis(10),
            )),
            ended => ended.map(drop),
        }
    };
    consumed(
        Consumer::new(&connection, "own").concurrency(1),
        "m-last",
        handler,
    )
    .await
    .unwrap();
    let expected: BTreeMap<String, u32> =
        ["m-2", "m-3", "m-last"].map(|id| (id.to_owned(), 1)).into();
    assert_eq!(*bodies.lock().unwrap(), expected);
    let mut dead = dead_letters(&channel).await;
    dead.sort();
    assert_eq!(
        dead,
        [
            (b"1".to_vec(), "missing_key".to_owned()),
            (b"{".to_vec(), "codec".to_owned())
        ]
    );

    // What does not end in time is handed back.
    publish(&channel, "plain", "m-1", b"1").await.unwrap();
    let (begun, ended) = oneshot::channel();
    let begun = Mutex::new(Some(begun));
    let hanging = async |_: Delivery| {
        begun.lock().unwrap().take().unwrap().send(()).unwrap();
        std::future::pending::<Result<(), idem::Error>>().await
    };
    let consumer = || Consumer::new(&connection, "plain").dead_letter_exchange("dead");
    let running = consumer()
        .shutdown_timeout(Duration::from_millis(50))
        .run(hanging, ended);
    in_time("the end of a consumer whose handler hangs", running)
        .await
        .unwrap();
    let redelivered = async |delivery: Delivery| {
        assert!(delivery.is_redelivered());
        Ok(())
    };
    consumed(consumer(), "m-1", redelivered).await.unwrap();

    // Published from a body, twice with one id.
    let publisher = Publisher::new(&connection);
    let outside = publisher.publish("child", "", "plain", "1").await;
    assert!(matches!(outside, Err(idem::amqp::PublishError::NotInside)));
    for _ in 0..2 {
        let publishing = idempotency
            .operation("t.publishes")
            .key("o-1")
            .run(async || {
                let published = publisher.publish("child", "", "plain", "1").await.unwrap();
                assert_eq!(published.id(), idem::current().unwrap().child_key("child"));
                Err::<(), _>(idem::Error::missing_key("t"))
            });
        publishing.await.unwrap_err();
    }
    let unroutable = idempotency
        .operation("t.unroutable")
        .key("o-1")
        .run(async || {
            let published = publisher.publish("child", "", "no such queue", "1").await;
            assert!(
                matches!(published, Err(idem::amqp::PublishError::Unconfirmed(_))),
                "{published:?}"
            );
            Ok::<_, idem::Error>(())
        });
    unroutable.await.unwrap();
    let mut ids = Vec::new();
    while let Some(message) = channel
        .basic_get("plain".into(), BasicGetOptions::default())
        .await
        .unwrap()
    {
        ids.push(message.properties.message_id().clone().unwrap());
        message.ack(BasicAckOptions::default()).await.unwrap();
    }
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");

    // A connection that nothing restores.
    server.kill().unwrap();
    let restored =
        Consumer::new(&connection, "own").run(async |_| Ok::<_, idem::Error>(()), never());
    assert!(matches!(
        restored.await.unwrap_err(),
        Error::Disconnected { .. } | Error::Broker { .. }
    ));
}
