//! JetStream: what operators and other faults do to a consumer while it runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::nats::async_nats::jetstream::consumer::{PullConsumer, pull};
use idem::nats::async_nats::jetstream::{Context, stream};
use idem::nats::{Consumer, Delivery, Error};
use idem_testkit::NatsServer;
use tokio::sync::oneshot;

use crate::nats::{context, dead_letters, make_streams, reason};
use crate::rabbitmq_broker::{LIMIT, until};
use crate::storm::in_time;

async fn publish(context: &Context, subject: &str, payload: &str) {
    context
        .publish(subject.to_owned(), payload.to_owned().into())
        .await
        .unwrap()
        .await
        .unwrap();
}

/// Deliveries by their contents, in their order, and a way to wait for one.
struct Seen {
    all: Mutex<Vec<String>>,
    changed: tokio::sync::Notify,
}

impl Seen {
    fn new() -> Self {
        Self {
            all: Mutex::default(),
            changed: tokio::sync::Notify::new(),
        }
    }

    fn see(&self, delivery: &Delivery) -> String {
        let text = String::from_utf8(delivery.payload().to_vec()).unwrap();
        self.all.lock().unwrap().push(text.clone());
        self.changed.notify_one();
        text
    }

    async fn until(&self, text: &str) {
        let waiting = async {
            while !self.all.lock().unwrap().iter().any(|seen| seen == text) {
                self.changed.notified().await;
            }
        };
        in_time(&format!("the message `{text}`"), waiting).await;
    }
}

/// The parts share one server. Each has a stream of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_a_consumer_that_operators_disturb_loses_nothing_and_takes_nothing_of_others() {
    let server = NatsServer::start().await.unwrap();
    let context = context(&server.url()).await;
    make_streams(&context).await;
    tokio::join!(
        deleted(&context),
        purged(&context),
        dead_letters_gone(&context),
        client_ended(&server)
    );
    Box::pin(stopped_server(&server, &context)).await;
}

async fn make_stream(context: &Context, name: &str, subject: &str) -> stream::Stream {
    let config = stream::Config {
        name: name.into(),
        subjects: vec![subject.into()],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap()
}

/// A consumer with a filter is deleted while it runs, and created again by hand. One that `idem`
/// has created is created again by `idem`.
async fn deleted(context: &Context) {
    let stream = make_stream(context, "DELETED", "deleted.>").await;
    let filtered = || pull::Config {
        durable_name: Some("filtered".into()),
        filter_subject: "deleted.mine".into(),
        ..pull::Config::default()
    };
    stream.create_consumer(filtered()).await.unwrap();
    let mine = Seen::new();
    let any = Seen::new();
    let (done, ended) = tokio::sync::watch::channel(false);
    let over = || {
        let mut ended = ended.clone();
        async move { drop(ended.wait_for(|over| *over).await) }
    };
    let handler = async |delivery: Delivery| {
        assert_eq!(
            delivery.subject(),
            "deleted.mine",
            "it has no filter any more"
        );
        mine.see(&delivery);
        Ok::<_, idem::Error>(())
    };
    let first = Consumer::new(context, "DELETED", "filtered")
        .dead_letter("dead.deleted")
        .run(handler, over());
    let handler = async |delivery: Delivery| {
        any.see(&delivery);
        Ok::<_, idem::Error>(())
    };
    let second = Consumer::new(context, "DELETED", "made")
        .dead_letter("dead.deleted")
        .run(handler, over());
    let harming = async {
        publish(context, "deleted.mine", "1").await;
        tokio::join!(mine.until("1"), any.until("1"));
        for consumer in ["filtered", "made"] {
            stream.delete_consumer(consumer).await.unwrap();
        }
        publish(context, "deleted.others", "2").await;
        publish(context, "deleted.mine", "3").await;
        any.until("3").await;
        assert!(
            stream
                .get_consumer::<pull::Config>("filtered")
                .await
                .is_err(),
            "it was made with other settings"
        );
        stream.create_consumer(filtered()).await.unwrap();
        mine.until("3").await;
        done.send(true).unwrap();
    };
    let (first, second, ()) = tokio::join!(first, second, harming);
    first.unwrap();
    second.unwrap();
}

/// The stream is emptied while a message is handled and others wait.
async fn purged(context: &Context) {
    let stream = make_stream(context, "PURGED", "purged.>").await;
    let seen = Seen::new();
    let (go_on, gate) = tokio::sync::watch::channel(false);
    let (done, ended) = oneshot::channel::<()>();
    let handler = async |delivery: Delivery| {
        if seen.see(&delivery) == "poison" {
            gate.clone().wait_for(|open| *open).await.unwrap();
            return Err(idem::Error::missing_key("t.purged"));
        }
        Ok(())
    };
    let consumer = Consumer::new(context, "PURGED", "workers")
        .concurrency(1)
        .dead_letter("dead.purged");
    let harming = async {
        publish(context, "purged.placed", "poison").await;
        publish(context, "purged.placed", "lost").await;
        seen.until("poison").await;
        stream.purge().await.unwrap();
        go_on.send(true).unwrap();
        publish(context, "purged.placed", "next").await;
        seen.until("next").await;
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(handler, ended), harming);
    ran.unwrap();
    let found = dead_letters(context).await;
    assert!(
        found
            .iter()
            .any(|letter| letter.payload == "poison" && reason(letter) == "missing_key")
    );
}

/// The stream of the dead letters is deleted while the consumer runs, and made again.
async fn dead_letters_gone(context: &Context) {
    let stream = make_stream(context, "GRAVES", "graves.>").await;
    let graves = make_stream(context, "GRAVEYARD", "graveyard.>").await;
    let seen = Seen::new();
    let (done, ended) = oneshot::channel::<()>();
    let handler = async |delivery: Delivery| match seen.see(&delivery).as_str() {
        "poison" => Err(idem::Error::missing_key("t.graves")),
        _ => Ok(()),
    };
    let consumer = Consumer::new(context, "GRAVES", "workers")
        .concurrency(1)
        .dead_letter("graveyard.all");
    let harming = async {
        publish(context, "graves.placed", "1").await;
        seen.until("1").await;
        context.delete_stream("GRAVEYARD").await.unwrap();
        drop(graves);
        publish(context, "graves.placed", "poison").await;
        seen.until("poison").await;
        make_stream(context, "GRAVEYARD", "graveyard.>").await;
        publish(context, "graves.placed", "2").await;
        seen.until("2").await;
        let is_there = until(LIMIT, async || {
            let graves = context.get_stream("GRAVEYARD").await.unwrap();
            graves.cached_info().state.messages == 1
        });
        assert!(is_there.await, "the message was lost");
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(handler, ended), harming);
    ran.unwrap();
    let consumer: PullConsumer = stream.get_consumer("workers").await.unwrap();
    assert_eq!(consumer.cached_info().num_pending, 0);
}

/// The tokio runtime on which the client was connected ends.
async fn client_ended(server: &NatsServer) {
    let url = server.url();
    let (runtime, other) = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let other = runtime.block_on(context(&url));
        (runtime, other)
    })
    .await
    .unwrap();
    make_stream(&other, "ENDED", "ended.>").await;
    publish(&other, "ended.placed", "1").await;
    let seen = Seen::new();
    let handler = async |delivery: Delivery| {
        seen.see(&delivery);
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(&other, "ENDED", "workers").dead_letter("dead.ended");
    let running = consumer.run(handler, std::future::pending::<()>());
    let harming = async {
        seen.until("1").await;
        runtime.shutdown_background();
    };
    let (ran, ()) = tokio::join!(
        in_time("the end of a consumer whose client has ended", running),
        harming
    );
    assert!(matches!(ran, Err(Error::Disconnected { .. })), "{ran:?}");
}

/// The server stands still when the consumer is to end.
async fn stopped_server(server: &NatsServer, context: &Context) {
    make_stream(context, "STOPPED", "stopped.>").await;
    publish(context, "stopped.placed", "1").await;
    let calls = AtomicU32::new(0);
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |_: Delivery| {
        calls.fetch_add(1, Ordering::Relaxed);
        server.pause().unwrap();
        done.lock().unwrap().take().unwrap().send(()).unwrap();
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(context, "STOPPED", "workers").dead_letter("dead.stopped");
    let running = consumer
        .shutdown_timeout(Duration::from_secs(1))
        .run(handler, ended);
    in_time(
        "the end of a consumer whose server stands still",
        Box::pin(running),
    )
    .await
    .unwrap();
    server.resume().unwrap();
    assert_eq!(calls.into_inner(), 1);
}
