//! Tests of what consumers report: the events, and what is counted of them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use futures_util::{StreamExt as _, stream};
use idem_core::{Dispose, Disposition, Error, Idempotency, MemoryStore};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::Notify;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use super::fake::{Client, FakeTicket};
use crate::{Broker, Deliveries, Delivery, Fault, Room, Settings, run};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The only line with this text.
    fn line(&self, text: &str) -> String {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(text)).collect();
        assert_eq!(lines.len(), 1, "{text}: {log}");
        lines[0].to_owned()
    }
}

/// With one subscriber alone, the first thread at an event decides for all threads whether it is
/// wanted. That may be the thread of another test, which has none.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

struct Ready;

impl Client for Ready {
    async fn before(&self, _: &str) {}
}

/// What is counted of the consumer.
struct Metrics {
    snapshots: Snapshotter,
    /// By decision. A snapshot takes what it reads.
    messages: Mutex<BTreeMap<String, u64>>,
    /// The gauge of lost consumers, at each look.
    lost: Mutex<Vec<f64>>,
}

impl Metrics {
    fn look(&self) {
        for (key, _, _, value) in self.snapshots.snapshot().into_vec() {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| label.value().to_owned())
                .collect();
            match (key.key().name(), value, &labels[..]) {
                ("idem_messages_total", DebugValue::Counter(count), [source, decision]) => {
                    assert_eq!(source, "orders");
                    *self
                        .messages
                        .lock()
                        .unwrap()
                        .entry(decision.clone())
                        .or_default() += count;
                }
                ("idem_consumers_lost", DebugValue::Gauge(more), _) => {
                    let mut lost = self.lost.lock().unwrap();
                    let before = lost.last().copied().unwrap_or_default();
                    lost.push(before + *more);
                }
                _ => {}
            }
        }
    }
}

/// A broker that is lost after two messages, and comes back with a third.
struct Interrupted {
    opened: AtomicU32,
    metrics: Metrics,
}

impl Broker for Interrupted {
    type Ticket = FakeTicket<Ready>;

    const HANDS_BACK: bool = false;

    fn source(&self) -> &'static str {
        "orders"
    }

    async fn open(&self, _: Arc<Room>) -> Result<Deliveries<'_, FakeTicket<Ready>>, Fault> {
        self.metrics.look();
        let messages = match self.opened.fetch_add(1, Ordering::Relaxed) {
            0 => vec![("1", "\"4111 1111\""), ("2", "2")],
            1 => return Err(Fault::passing("still away")),
            _ => vec![("3", "3")],
        };
        let first = messages.len() == 2;
        let messages = stream::iter(messages).map(|(id, payload)| {
            let ticket = FakeTicket {
                id: id.to_owned(),
                client: Ready,
                steps: Arc::default(),
            };
            Ok((
                Delivery::new("orders", payload)
                    .with_id(id)
                    .with_subject("orders.placed"),
                ticket,
            ))
        });
        let rest = if first {
            stream::iter([Err(Fault::passing("away"))]).boxed()
        } else {
            stream::pending().boxed()
        };
        Ok(Box::pin(messages.chain(rest)))
    }
}

enum Failure {
    Poison,
    Idempotency(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

impl Dispose for Failure {
    fn disposition(&self) -> Disposition {
        match self {
            Self::Poison => Disposition::dead_letter("poison"),
            Self::Idempotency(error) => error.disposition(),
        }
    }
}

/// Runs a consumer of `broker` until its third message is handled. The first message is unreadable,
/// and the second one is poison.
fn consume(
    broker: &Interrupted,
    idempotency: &Idempotency,
    log: &Log,
    recorder: &DebuggingRecorder,
) {
    LazyLock::force(&SECOND);
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        // Its digits may be those that must not be shown.
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let done = Notify::new();
    let handler = async |delivery: Delivery| {
        let number: u32 = delivery.json()?;
        let call = idempotency.operation("mails.send").key(&delivery.key()?);
        call.run(async || Ok::<_, Error>(number)).await?;
        if number == 2 {
            return Err(Failure::Poison);
        }
        done.notify_one();
        Ok(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let consumed = || runtime.block_on(run(broker, &Settings::default(), handler, done.notified()));
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(recorder, consumed)
    })
    .unwrap();
}

#[test]
fn each_event_names_its_message_and_is_counted_from_zero() {
    let recorder = DebuggingRecorder::new();
    let log = Log::default();
    let metrics = Metrics {
        snapshots: recorder.snapshotter(),
        messages: Mutex::default(),
        lost: Mutex::default(),
    };
    let broker = Interrupted {
        opened: AtomicU32::new(0),
        metrics,
    };
    let idempotency = Idempotency::new(MemoryStore::new());
    consume(&broker, &idempotency, &log, &recorder);

    let unreadable = log.line("decision=\"dead_lettered\" reason=\"codec\"");
    for expected in [
        "WARN",
        "source=\"orders\"",
        " subject=\"orders.placed\"",
        " id=\"1\"",
        "at line 1, column 11",
    ] {
        assert!(unreadable.contains(expected), "{expected}: {unreadable}");
    }
    assert!(!unreadable.contains("4111"), "{unreadable}");
    let poison = log.line("reason=\"poison\"");
    let key = Delivery::new("orders", "").with_id("2").key().unwrap();
    let digest = idempotency
        .operation("mails.send")
        .key(&key)
        .digest()
        .unwrap();
    assert!(
        poison.contains(" id=\"2\"") && poison.contains(&format!("key={digest}")),
        "{poison}"
    );
    log.line("decision=\"consumer_recovered\"");

    broker.metrics.look();
    assert_eq!(
        *broker.metrics.lost.lock().unwrap(),
        [0.0, 1.0, 1.0, 0.0],
        "before, at both further tries, and after"
    );
    let messages = broker.metrics.messages.into_inner().unwrap();
    let counted: Vec<_> = messages
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| (&**name, *count))
        .collect();
    let expected = [
        ("acknowledged", 1),
        ("consumer_lost", 2),
        ("consumer_recovered", 1),
        ("dead_lettered", 2),
    ];
    assert_eq!(counted, expected);
    assert_eq!(
        messages.len(),
        11,
        "a decision that was not made is not counted as 0: {messages:?}"
    );
}
