//! NATS JetStream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use idem::nats::async_nats::jetstream::consumer::{self, PullConsumer, pull};
use idem::nats::async_nats::jetstream::message::PublishMessage;
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery, Error, Publisher, REASON, async_nats};
use idem::{Idempotency, MemoryStore, idempotent};
use idem_testkit::{Fault, FaultStore, NatsServer, Proxy, Step};
use tokio::sync::oneshot;

use crate::storm::{World, in_time, storm};
use crate::worker::{Kind, Mail};

struct Nats {
    server: NatsServer,
    proxy: Proxy,
    context: Context,
}

pub(crate) async fn context(url: &str) -> Context {
    async_nats::jetstream::new(async_nats::connect(url).await.unwrap())
}

pub(crate) async fn make_streams(context: &Context) {
    for (name, subject) in [("ORDERS", "orders.>"), ("DEAD", "dead.>")] {
        let config = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            ..stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
    }
}

impl Nats {
    async fn info(&self) -> consumer::Info {
        let stream = self.context.get_stream("ORDERS").await.unwrap();
        let consumer: PullConsumer = stream.get_consumer("workers").await.unwrap();
        consumer.cached_info().clone()
    }
}

/// Dead letters, taken away.
pub(crate) async fn dead_letters(context: &Context) -> Vec<async_nats::jetstream::Message> {
    let stream = context.get_stream("DEAD").await.unwrap();
    let config = pull::Config {
        durable_name: Some("test".into()),
        ..pull::Config::default()
    };
    let consumer: PullConsumer = stream.get_or_create_consumer("test", config).await.unwrap();
    let mut found = Vec::new();
    let mut messages = consumer.fetch().max_messages(500).messages().await.unwrap();
    while let Some(Ok(message)) = messages.next().await {
        message.double_ack().await.unwrap();
        found.push(message);
    }
    found
}

pub(crate) fn reason(message: &async_nats::jetstream::Message) -> String {
    message
        .headers
        .as_ref()
        .unwrap()
        .get(REASON)
        .unwrap()
        .to_string()
}

impl World for Nats {
    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.proxy.address().port())
    }

    async fn publish(&self, mail: &Mail) {
        let payload = serde_json::to_vec(mail).unwrap();
        let publishing = async {
            loop {
                let message = PublishMessage::build().payload(payload.clone().into());
                let message = message.header("Nats-Msg-Id", format!("m-{}", mail.number));
                if let Ok(ack) = self.context.send_publish("orders.placed", message).await
                    && ack.await.is_ok()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        in_time("JetStream's confirmation of a message", publishing).await;
    }

    async fn restart(&self) {
        self.server.restart().await.unwrap();
    }

    async fn cut(&self) {
        self.proxy.cut();
        self.proxy.restore();
    }

    async fn dead_letters(&self) -> Vec<(Mail, String)> {
        let found = dead_letters(&self.context).await;
        found
            .iter()
            .map(|message| {
                (
                    serde_json::from_slice(&message.payload).unwrap(),
                    reason(message),
                )
            })
            .collect()
    }

    async fn left(&self) -> u64 {
        let info = self.info().await;
        info.num_pending + info.num_ack_pending as u64
    }

    async fn consumers(&self) -> Option<usize> {
        Some(self.info().await.num_waiting)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_each_message_is_handled_once_whatever_dies() {
    let server = NatsServer::start().await.unwrap();
    let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", server.port()))
        .await
        .unwrap();
    let context = context(&server.url()).await;
    for (name, subject, window) in [("ORDERS", "orders.>", 100), ("DEAD", "dead.>", 120_000)] {
        let config = stream::Config {
            name: name.into(),
            subjects: vec![subject.into()],
            // So short that duplicates reach the consumers.
            duplicate_window: Duration::from_millis(window),
            ..stream::Config::default()
        };
        context.create_stream(config).await.unwrap();
    }
    // Messages of a killed consumer are delivered again soon.
    let config = pull::Config {
        durable_name: Some("workers".into()),
        ack_wait: Duration::from_secs(2),
        ..pull::Config::default()
    };
    context
        .get_stream("ORDERS")
        .await
        .unwrap()
        .create_consumer(config)
        .await
        .unwrap();
    storm(
        &Nats {
            server,
            proxy,
            context,
        },
        1_000,
    )
    .await;
}

static RAN: AtomicU32 = AtomicU32::new(0);

#[idempotent(
    name = "t.nats",
    key = (delivery.source(), delivery.id()),
    ttl = "10m",
    max_attempts = 5,
)]
async fn counted(delivery: &Delivery) -> Result<u32, idem::Error> {
    Ok(RAN.fetch_add(1, Ordering::Relaxed) + 1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::too_many_lines, reason = "a paragraph for each refused stream")]
async fn jetstream_a_consumer_that_could_lose_messages_does_not_start() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    let never = std::future::pending::<()>;
    let handler = async |_: Delivery| Ok::<_, idem::Error>(());
    let refused = |error: Error, word: &str| match error {
        Error::Config { reason, .. } => assert!(reason.contains(word), "{word}: {reason}"),
        other => panic!("{word}: {other}"),
    };
    let consumer = || Consumer::new(&context, "ORDERS", "workers");
    refused(
        consumer().run(handler, never()).await.unwrap_err(),
        "dead_letter",
    );
    refused(
        consumer()
            .dead_letter("nowhere")
            .run(handler, never())
            .await
            .unwrap_err(),
        "no stream has",
    );
    refused(
        consumer()
            .dead_letter("orders.dead")
            .run(handler, never())
            .await
            .unwrap_err(),
        "would receive",
    );
    let missing = Consumer::new(&context, "MISSING", "workers").dead_letter("dead.orders");
    refused(
        missing.run(handler, never()).await.unwrap_err(),
        "no stream `MISSING`",
    );
    let limited = pull::Config {
        durable_name: Some("limited".into()),
        max_deliver: 5,
        ..pull::Config::default()
    };
    context
        .get_stream("ORDERS")
        .await
        .unwrap()
        .create_consumer(limited)
        .await
        .unwrap();
    let limited = Consumer::new(&context, "ORDERS", "limited").dead_letter("dead.orders");
    refused(
        limited.run(handler, never()).await.unwrap_err(),
        "max_deliver",
    );
    let timed = |ack_wait| {
        let consumer = Consumer::new(&context, "ORDERS", "timed").dead_letter("dead.orders");
        consumer.ack_wait(ack_wait)
    };
    for invalid in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
        let error = timed(invalid).run(handler, never()).await.unwrap_err();
        refused(error, "and may be 100ms to");
    }
    let orders = context.get_stream("ORDERS").await.unwrap();
    let created = async {
        while orders.consumer_info("timed").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let five = Duration::from_secs(5);
    timed(five).run(handler, created).await.unwrap();
    let info = orders.consumer_info("timed").await.unwrap();
    assert_eq!(info.config.ack_wait, five);
    refused(
        timed(five * 2).run(handler, never()).await.unwrap_err(),
        "exists with ack_wait = 5s, not 10s",
    );
    // A filter that the stream no longer has. Newer servers also accept one that it never had.
    let subjects = |names: &[&str]| stream::Config {
        name: "FILTERED".into(),
        subjects: names.iter().map(ToString::to_string).collect(),
        ..stream::Config::default()
    };
    let stream = context
        .create_stream(subjects(&["filtered.eu.*", "filtered.us.>"]))
        .await
        .unwrap();
    let config = pull::Config {
        durable_name: Some("european".into()),
        filter_subject: "filtered.eu.>".into(),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let filtered = || Consumer::new(&context, "FILTERED", "european").dead_letter("dead.orders");
    filtered().run(handler, async {}).await.unwrap();
    context
        .update_stream(subjects(&["filtered.us.>"]))
        .await
        .unwrap();
    refused(
        filtered().run(handler, never()).await.unwrap_err(),
        "would receive nothing",
    );

    // An unreadable message is dead-lettered. A message without an id has its sequence as the id.
    let idempotency = Idempotency::new(MemoryStore::new());
    context
        .publish("orders.placed", "no JSON".into())
        .await
        .unwrap()
        .await
        .unwrap();
    context
        .publish("orders.placed", "7".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let (done, ended) = oneshot::channel();
    let done = Arc::new(std::sync::Mutex::new(Some(done)));
    let handler = async |delivery: Delivery| {
        let _: u32 = delivery.json()?;
        assert_eq!(delivery.id(), Some("sequence-2"));
        counted(&delivery).await?;
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok::<_, idem::Error>(())
    };
    let running = idem::scope(
        idempotency,
        consumer().dead_letter("dead.orders").run(handler, ended),
    );
    in_time("the message after an unreadable one", Box::pin(running))
        .await
        .unwrap();
    let dead = dead_letters(&context).await;
    assert_eq!(dead.iter().map(reason).collect::<Vec<_>>(), ["codec"]);
    assert_eq!(dead[0].payload, "no JSON");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_long_body_keeps_its_message_and_in_flight_elsewhere_returns_with_a_delay() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    // Redelivered after this time unless the server hears of the handler.
    let short = pull::Config {
        durable_name: Some("workers".into()),
        ack_wait: Duration::from_secs(4),
        ..pull::Config::default()
    };
    context
        .get_stream("ORDERS")
        .await
        .unwrap()
        .create_consumer(short)
        .await
        .unwrap();
    let idempotency = Idempotency::new(MemoryStore::new());

    // Somebody else has the key of the second message.
    let other = Delivery::new("ORDERS", "").with_id("m-2").key().unwrap();
    let held = idempotency
        .operation("t.nats.long")
        .key(&other)
        .lease(Duration::from_secs(5))
        .begin()
        .await
        .unwrap();
    let idem::Begin::Execute(held) = held else {
        panic!("a record where there was none")
    };
    for id in ["m-1", "m-2"] {
        let message = PublishMessage::build().payload("".into()).message_id(id);
        context
            .send_publish("orders.placed", message)
            .await
            .unwrap()
            .await
            .unwrap();
    }
    let deliveries = AtomicU32::new(0);
    let long = AtomicU32::new(0);
    let bodies = AtomicU32::new(0);
    let (done, ended) = oneshot::channel();
    let done = std::sync::Mutex::new(Some(done));
    let held = std::sync::Mutex::new(Some(held));
    let handler = async |delivery: Delivery| {
        let is_long = delivery.id() == Some("m-1");
        if is_long { &long } else { &deliveries }.fetch_add(1, Ordering::Relaxed);
        let call = idempotency.operation("t.nats.long").key(&delivery.key()?);
        let body = async || {
            bodies.fetch_add(1, Ordering::Relaxed);
            if is_long {
                // Longer than `ack_wait`.
                tokio::time::sleep(Duration::from_secs(7)).await;
                drop(held.lock().unwrap().take());
            }
            Ok::<_, idem::Error>(())
        };
        call.run(body).await?;
        if !is_long {
            done.lock().unwrap().take().unwrap().send(()).unwrap();
        }
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(&context, "ORDERS", "workers").dead_letter("dead.orders");
    let running = consumer
        .wait(Duration::from_millis(100))
        .run(handler, ended);
    in_time("the message whose key another call had", Box::pin(running))
        .await
        .unwrap();
    assert_eq!(bodies.load(Ordering::Relaxed), 2);
    assert_eq!(
        long.load(Ordering::Relaxed),
        1,
        "the server heard that the handler runs"
    );
    // Once for each time that the lease had left.
    let deliveries = deliveries.load(Ordering::Relaxed);
    assert!((2..=7).contains(&deliveries), "{deliveries}");
    assert!(dead_letters(&context).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_each_attempt_of_a_body_publishes_the_same_id() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    let publisher = Publisher::new(&context);
    assert!(matches!(
        publisher.publish("placed", "orders.placed", "1").await,
        Err(idem::nats::PublishError::NotInside)
    ));
    let idempotency = Idempotency::new(MemoryStore::new());
    let attempt = || {
        idempotency
            .operation("t.nats.publishes")
            .key("o-1")
            .run(async || {
                let published = publisher
                    .publish("placed", "orders.placed", "1")
                    .await
                    .unwrap();
                assert_eq!(published.id(), idem::current().unwrap().child_key("placed"));
                if published.is_duplicate() {
                    Ok(())
                } else {
                    Err(idem::Error::missing_key("t"))
                }
            })
    };
    attempt().await.unwrap_err();
    attempt().await.unwrap();
    let mut stream = context.get_stream("ORDERS").await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_at_shutdown_what_does_not_end_in_time_is_handed_back() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    let mail = serde_json::to_vec(&Mail {
        number: 1,
        kind: Kind::Plain,
    })
    .unwrap();
    context
        .publish("orders.placed", mail.into())
        .await
        .unwrap()
        .await
        .unwrap();
    let consumer = || Consumer::new(&context, "ORDERS", "workers").dead_letter("dead.orders");
    let (begun, ended) = oneshot::channel();
    let begun = std::sync::Mutex::new(Some(begun));
    let handler = async |_: Delivery| {
        begun.lock().unwrap().take().unwrap().send(()).unwrap();
        std::future::pending::<Result<(), idem::Error>>().await
    };
    let running = consumer()
        .shutdown_timeout(Duration::from_millis(50))
        .run(handler, ended);
    in_time(
        "the end of a consumer whose handler hangs",
        Box::pin(running),
    )
    .await
    .unwrap();
    // At once, not after the 30 s of `ack_wait`.
    let (done, ended) = oneshot::channel();
    let done = std::sync::Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        assert!(delivery.is_redelivered());
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok::<_, idem::Error>(())
    };
    let again = consumer().run(handler, ended);
    tokio::time::timeout(Duration::from_secs(20), again)
        .await
        .expect("it was not handed back")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_message_whose_outcome_is_not_recorded_is_not_acknowledged() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    context
        .publish("orders.placed", "1".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let store = FaultStore::new(MemoryStore::new());
    store.faults().next(Step::Commit, Fault::Refuse);
    let idempotency = Idempotency::new(store);
    let deliveries = AtomicU32::new(0);
    let bodies = AtomicU32::new(0);
    let (done, ended) = oneshot::channel();
    let done = std::sync::Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        let body = async || {
            bodies.fetch_add(1, Ordering::Relaxed);
            Ok::<_, idem::Error>(())
        };
        idempotency
            .operation("t.nats.unrecorded")
            .key(&delivery.key()?)
            .run(body)
            .await?;
        // The commit is tried again in the background, so the second delivery is a replay.
        if deliveries.fetch_add(1, Ordering::Relaxed) == 1 {
            done.lock().unwrap().take().unwrap().send(()).unwrap();
        }
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(&context, "ORDERS", "workers").dead_letter("dead.orders");
    let run = consumer.run(handler, ended);
    tokio::time::timeout(Duration::from_secs(20), run)
        .await
        .expect("it was acknowledged")
        .unwrap();
    assert_eq!(
        (
            deliveries.load(Ordering::Relaxed),
            bodies.load(Ordering::Relaxed)
        ),
        (2, 1)
    );
}
