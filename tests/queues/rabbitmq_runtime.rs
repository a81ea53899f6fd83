//! RabbitMQ: a client that does not answer, and whose status does not say so. Its tokio runtime has
//! ended, or nothing drives it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery, Error, PublishError, Publisher};
use idem::{Idempotency, MemoryStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot, watch};

use crate::rabbitmq_broker::{Broker, LIMIT, until};

/// Short, so that the tests are, and long enough for a machine that does much else.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

async fn connect(url: &str) -> Connection {
    Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap()
}

/// A runtime of its own, with a connection.
async fn other_runtime(broker: &Broker) -> (Runtime, Connection) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let url = broker.server.url();
    let connection = runtime
        .spawn(async move { connect(&url).await })
        .await
        .unwrap();
    (runtime, connection)
}

/// Handled messages, by their ids, and a way to hold the handler of the first.
struct Handled {
    times: Mutex<BTreeMap<String, u32>>,
    gate: watch::Sender<bool>,
}

impl Handled {
    fn new() -> Self {
        Self {
            times: Mutex::default(),
            gate: watch::channel(false).0,
        }
    }

    /// Waits at the first message until the gate is open.
    async fn handle(&self, delivery: &Delivery) {
        let id = delivery.id().unwrap().to_owned();
        let is_first = id == "m-0";
        *self.times.lock().unwrap().entry(id).or_default() += 1;
        if is_first {
            self.gate.subscribe().wait_for(|open| *open).await.unwrap();
        }
    }

    fn times(&self, id: u32) -> u32 {
        self.times
            .lock()
            .unwrap()
            .get(&format!("m-{id}"))
            .copied()
            .unwrap_or_default()
    }

    async fn until(&self, id: u32, times: u32) {
        let arrived = until(LIMIT, async || self.times(id) >= times).await;
        assert!(arrived, "the message {id} came {} times", self.times(id));
    }
}

/// The runtime of the connection ends while every place of the consumer is taken.
pub(crate) async fn ended_with_reconnect(broker: &Broker) {
    broker.queue("ended").await;
    let (runtime, connection) = other_runtime(broker).await;
    let handled = Handled::new();
    let handler = async |delivery: Delivery| {
        handled.handle(&delivery).await;
        Ok::<_, idem::Error>(())
    };
    let (done, ended) = oneshot::channel::<()>();
    let consumer = Consumer::new(&connection, "ended")
        .reconnect(|| async {
            Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
        })
        .answer_timeout(ANSWER)
        .concurrency(1);
    let ending = async {
        broker.publish("ended", 0..3).await;
        handled.until(0, 1).await;
        runtime.shutdown_background();
        assert!(
            until(LIMIT, async || broker.consumers("ended").await == 0).await,
            "its socket is open"
        );
        handled.gate.send_replace(true);
        // The first comes again: its acknowledgement was lost.
        handled.until(0, 2).await;
        handled.until(2, 1).await;
        assert!(
            until(LIMIT, async || broker.messages("ended").await == 0).await,
            "messages are left"
        );
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(handler, ended), ending);
    ran.unwrap();
}

/// The same without a way to connect again, while nothing arrives, and with a handler that runs.
pub(crate) async fn ended_without_reconnect(broker: &Broker) {
    broker.queue("ended-for-good").await;
    let (runtime, connection) = other_runtime(broker).await;
    let handled = Handled::new();
    let handler = async |delivery: Delivery| {
        handled.handle(&delivery).await;
        Ok::<_, idem::Error>(())
    };
    let consumer = Consumer::new(&connection, "ended-for-good")
        .answer_timeout(ANSWER)
        .concurrency(2);
    let ending = async {
        broker.publish("ended-for-good", 0..2).await;
        handled.until(0, 1).await;
        handled.until(1, 1).await;
        runtime.shutdown_background();
        handled.gate.send_replace(true);
    };
    let (ran, ()) = tokio::join!(
        tokio::time::timeout(LIMIT, consumer.run(handler, std::future::pending::<()>())),
        ending
    );
    let ran = ran.expect("the consumer did not notice that its connection has no runtime");
    assert!(matches!(ran, Err(Error::Disconnected { .. })), "{ran:?}");
    assert!(
        connection.status().connected(),
        "lapin notices it: this is no longer needed"
    );
    // It never begins on such a connection either.
    let again = Consumer::new(&connection, "ended-for-good")
        .reconnect(|| async {
            Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
        })
        .answer_timeout(ANSWER);
    let (done, ended) = oneshot::channel::<()>();
    let looking = async {
        assert!(
            until(LIMIT, async || broker.consumers("ended-for-good").await
                == 1)
            .await,
            "it never began"
        );
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(
        again.run(async |_: Delivery| Ok::<_, idem::Error>(()), ended),
        looking
    );
    ran.unwrap();
}

/// The runtime of the consumer ends, and its connection works on another. The connection has a
/// place for the next consumer, which gets the message.
pub(crate) async fn consumer_ended(broker: &Broker) {
    broker.queue("consumer-ended").await;
    broker.publish("consumer-ended", 0..1).await;
    let connection = Arc::new(connect(&broker.server.url()).await);
    let given = connection.clone();
    let consuming = move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let begun = Notify::new();
            let handler = async |_: Delivery| {
                begun.notify_one();
                std::future::pending::<Result<(), idem::Error>>().await
            };
            let running =
                Consumer::new(&given, "consumer-ended").run(handler, std::future::pending::<()>());
            tokio::select! {
                ended = running => panic!("{ended:?}"),
                () = begun.notified() => {}
            }
        });
    };
    tokio::task::spawn_blocking(consuming).await.unwrap();
    let gone = until(LIMIT, async || {
        broker.consumers("consumer-ended").await == 0
    })
    .await;
    assert!(gone, "a consumer that has ended still takes messages");
    assert!(
        until(LIMIT, async || broker.messages("consumer-ended").await == 1).await,
        "its message did not return"
    );
    assert!(
        connection.status().connected(),
        "the connection of the application was ended"
    );
}

/// Publishes from a body, with a key of its own each time.
async fn published(publisher: &Publisher<'_>, queue: &str, key: u32) -> Result<(), PublishError> {
    let idempotency = Idempotency::new(MemoryStore::new());
    let publishing = idempotency.operation("t.runtime").key(&key).run(async || {
        Ok::<_, idem::Error>(
            publisher
                .publish("child", "", queue, "1")
                .await
                .map_err(|error| error.to_string())
                .err(),
        )
    });
    match tokio::time::timeout(LIMIT, Box::pin(publishing))
        .await
        .expect("the publication never ended")
        .unwrap()
        .into_inner()
    {
        None => Ok(()),
        Some(error) => Err(PublishError::Unconfirmed(error.into())),
    }
}

/// The runtime of a publisher's connection ends after its first message.
pub(crate) async fn publisher_ended(broker: &Broker) {
    broker.queue("ended-publisher").await;
    let (runtime, connection) = other_runtime(broker).await;
    let without = Publisher::new(&connection).answer_timeout(ANSWER);
    let with = Publisher::new(&connection)
        .answer_timeout(ANSWER)
        .reconnect(|| async {
            Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
        });
    published(&without, "ended-publisher", 0).await.unwrap();
    published(&with, "ended-publisher", 1).await.unwrap();
    runtime.shutdown_background();
    for key in 2..4 {
        published(&without, "ended-publisher", key)
            .await
            .unwrap_err();
    }
    // One fails, and says so. A later one finds out that the connection is silent, and makes
    // another.
    published(&with, "ended-publisher", 4).await.unwrap_err();
    let works = until(LIMIT, async || {
        published(&with, "ended-publisher", 5).await.is_ok()
    });
    assert!(works.await, "the connection was not replaced");
    assert!(
        connection.status().connected(),
        "lapin notices it: this is no longer needed"
    );
    let arrived = until(LIMIT, async || {
        broker.messages("ended-publisher").await >= 3
    });
    assert!(arrived.await, "a confirmed message is not there");
}

/// A caller begins to connect again, and is not polled any more.
pub(crate) async fn left_while_reconnecting(broker: &Broker) {
    broker.queue("left").await;
    let lost = connect(&broker.server.url()).await;
    lost.close(200, "lost".into()).await.unwrap();
    let gate = watch::channel(false).0;
    let begun = Notify::new();
    let publisher = Publisher::new(&lost).reconnect(|| async {
        begun.notify_one();
        gate.subscribe().wait_for(|open| *open).await.unwrap();
        Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
    });
    let mut left = pin!(published(&publisher, "left", 0));
    tokio::select! {
        _ = &mut left => panic!("published without a connection"),
        () = begun.notified() => {}
    }
    gate.send_replace(true);
    published(&publisher, "left", 1).await.unwrap();
    left.await.unwrap();
    assert!(until(LIMIT, async || broker.messages("left").await == 2).await);
}

/// A connection on a thread that drives its runtime only while the gate is open.
struct Parked {
    connection: Arc<Connection>,
    gate: mpsc::Sender<Option<oneshot::Receiver<()>>>,
    park: Option<oneshot::Sender<()>>,
}

impl Parked {
    async fn start(url: String) -> Self {
        let (gate, opened) = mpsc::channel::<Option<oneshot::Receiver<()>>>();
        let (give, connection) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let _ = give.send(runtime.block_on(connect(&url)));
            while let Ok(Some(until)) = opened.recv() {
                let _ = runtime.block_on(until);
            }
        });
        let mut parked = Self {
            connection: Arc::new(connection.await.unwrap()),
            gate,
            park: None,
        };
        parked.drive();
        parked
    }

    fn drive(&mut self) {
        let (park, parked) = oneshot::channel();
        self.gate.send(Some(parked)).unwrap();
        self.park = Some(park);
    }

    fn park(&mut self) {
        self.park = None;
    }
}

/// Nothing drives the runtime of the connection for a while. What the consumer had taken comes
/// again when the runtime is driven, and what its handlers had done is not lost.
pub(crate) async fn parked(broker: &Broker) {
    broker.queue("parked").await;
    let mut parked = Parked::start(broker.server.url()).await;
    let connection = parked.connection.clone();
    let handled = Handled::new();
    let idempotency = Idempotency::new(MemoryStore::new());
    let bodies = Mutex::new(BTreeMap::<String, u32>::new());
    let handler = async |delivery: Delivery| {
        handled.handle(&delivery).await;
        let call = idempotency.operation("t.parked").key(&delivery.key()?);
        let body = async || {
            *bodies
                .lock()
                .unwrap()
                .entry(delivery.id().unwrap().to_owned())
                .or_default() += 1;
            Ok::<_, idem::Error>(())
        };
        call.run(body).await?;
        Ok::<_, idem::Error>(())
    };
    let (done, ended) = oneshot::channel::<()>();
    let consumer = Consumer::new(&connection, "parked")
        .reconnect(|| async {
            Connection::connect(&broker.server.url(), ConnectionProperties::default()).await
        })
        .answer_timeout(ANSWER)
        .concurrency(2);
    let parking = async {
        broker.publish("parked", 0..2).await;
        handled.until(0, 1).await;
        handled.until(1, 1).await;
        parked.park();
        // Its handler ends, and its acknowledgement is not sent.
        handled.gate.send_replace(true);
        assert!(
            until(LIMIT, async || broker.consumers("parked").await == 2).await,
            "the connection was not replaced"
        );
        broker.publish("parked", 2..4).await;
        parked.drive();
        // The ghost of the first consumer goes, and hands back what it gets.
        assert!(
            until(LIMIT, async || broker.consumers("parked").await == 1).await,
            "the first consumer is still there"
        );
        for id in 0..4 {
            handled.until(id, 1).await;
        }
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(handler, ended), parking);
    ran.unwrap();
    assert!(
        until(LIMIT, async || broker.messages("parked").await == 0).await,
        "messages are left"
    );
    let expected: BTreeMap<String, u32> = (0..4).map(|id| (format!("m-{id}"), 1)).collect();
    assert_eq!(
        *bodies.lock().unwrap(),
        expected,
        "a body ran twice, or never"
    );
}

/// The broker's frames reach the client while the gate is open.
async fn gated(upstream: u16, mut gate: watch::Receiver<bool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(("127.0.0.1", upstream)).await.unwrap();
        let (mut from_server, mut to_server) = server.into_split();
        let (mut from_client, mut to_client) = client.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            gate.wait_for(|open| *open).await.unwrap();
            to_client.write_all(&bytes[..length]).await.unwrap();
        }
    });
    port
}

/// A broker that answers late, but within the limit, keeps its consumer.
pub(crate) async fn slow(broker: &Broker) {
    broker.queue("slow").await;
    let (gate, opened) = watch::channel(true);
    let port = gated(broker.server.port(), opened).await;
    let url = broker.server.url_through(port);
    let connection = connect(&url).await;
    let handled = Handled::new();
    handled.gate.send_replace(true);
    let handler = async |delivery: Delivery| {
        assert!(
            !delivery.is_redelivered(),
            "the consumer left a connection that answers"
        );
        handled.handle(&delivery).await;
        Ok::<_, idem::Error>(())
    };
    let (done, ended) = oneshot::channel::<()>();
    let consumer = Consumer::new(&connection, "slow").answer_timeout(Duration::from_secs(8));
    let slowing = async {
        broker.publish("slow", 0..1).await;
        handled.until(0, 1).await;
        // It is asked after four seconds, and would be given up eight seconds after that.
        gate.send_replace(false);
        let opening = async {
            tokio::time::sleep(Duration::from_secs(6)).await;
            gate.send_replace(true);
        };
        tokio::join!(broker.publish("slow", 1..2), opening);
        handled.until(1, 1).await;
        done.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(handler, ended), slowing);
    ran.expect("a slow broker was given up");
}
