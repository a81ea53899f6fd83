//! RabbitMQ: what a consumer says about a `consumer_timeout` that is too short.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Consumer, Delivery};
use tokio::sync::oneshot;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber as _;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::rabbitmq_broker::{Broker, LIMIT, until};

/// The warnings, by their decisions.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn has(&self, decision: &str) -> bool {
        self.0.lock().unwrap().iter().any(|found| found == decision)
    }
}

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "decision" {
            self.0
                .lock()
                .unwrap()
                .push(format!("{value:?}").trim_matches('"').to_owned());
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem" && *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// It is compared with the lease at the start, and with how long a handler takes.
pub(crate) async fn short_consumer_timeout(broker: &Broker) {
    // While a process has one subscriber, the first thread at an event decides for all threads
    // whether anybody wants it, and the other parts of this test have none.
    let _second = Dispatch::new(NoSubscriber::default());
    broker.queue("impatient").await;
    let connection = Connection::connect(&broker.server.url(), ConnectionProperties::default())
        .await
        .unwrap();
    for (timeout, warns) in [
        (Duration::from_millis(400), true),
        (Duration::from_secs(30 * 60), false),
    ] {
        let warnings = Warnings::default();
        let (done, ended) = oneshot::channel::<()>();
        let done = Mutex::new(Some(done));
        let handler = async |_: Delivery| {
            if warns {
                let warned = until(LIMIT, async || warnings.has("not_kept_alive")).await;
                assert!(warned, "the handler took longer than half of the timeout");
            }
            done.lock().unwrap().take().unwrap().send(()).unwrap();
            Ok::<_, idem::Error>(())
        };
        broker.publish("impatient", [u32::from(warns)]).await;
        let consumer = Consumer::new(&connection, "impatient").consumer_timeout(timeout);
        consumer
            .run(handler, ended)
            .with_subscriber(warnings.clone())
            .await
            .unwrap();
        assert_eq!(warnings.has("consumer_timeout_short"), warns);
        assert_eq!(warnings.has("not_kept_alive"), warns);
    }
}
