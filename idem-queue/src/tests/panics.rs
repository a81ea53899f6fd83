//! Tests of handlers, errors and clients that panic: one message must not end the consumer.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use idem_core::{Dispose, Disposition};
use tokio::sync::oneshot;

use super::fake::{Client, FakeTicket, Steps};
use crate::{Broker, Deliveries, Delivery, Fault, Room, Settings, run};

/// A broker with two messages. The first steps of its client panic.
#[derive(Default)]
struct Fake {
    panics: Arc<AtomicU32>,
    steps: Steps,
}

/// Panics in the first steps.
struct Panicking(Arc<AtomicU32>);

impl Client for Panicking {
    async fn before(&self, _: &str) {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed);
            panic!("in the client");
        }
    }
}

impl Broker for Fake {
    type Ticket = FakeTicket<Panicking>;

    const HANDS_BACK: bool = false;

    fn source(&self) -> &'static str {
        "fake"
    }

    async fn open(&self, _: Arc<Room>) -> Result<Deliveries<'_, FakeTicket<Panicking>>, Fault> {
        let messages = stream::iter(["1", "2"]).map(|id| {
            let ticket = FakeTicket {
                id: id.to_owned(),
                client: Panicking(self.panics.clone()),
                steps: self.steps.clone(),
            };
            Ok((Delivery::new("fake", "").with_id(id), ticket))
        });
        Ok(Box::pin(messages.chain(stream::pending())))
    }
}

#[derive(Debug)]
struct Unknown;

impl Dispose for Unknown {
    fn disposition(&self) -> Disposition {
        panic!("an error that nobody thought of")
    }
}

/// Handles one message at a time, until the second has been handled. Returns the steps of both.
async fn steps_of<E: Dispose>(
    broker: &Fake,
    handler: impl AsyncFn(Delivery) -> Result<(), E>,
) -> Vec<String> {
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        if delivery.id() == Some("2") {
            done.lock().unwrap().take().unwrap().send(()).unwrap();
            return Ok(());
        }
        handler(delivery).await
    };
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    run(broker, &settings, handler, ended).await.unwrap();
    broker.steps.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_message_whose_error_panics_when_it_is_disposed_of_comes_again() {
    let steps = steps_of(&Fake::default(), async |_: Delivery| Err(Unknown)).await;
    assert_eq!(steps, ["retried 1", "acknowledged 2"]);
}

/// A function that returns a future is a handler too, and part of it runs before the future.
#[tokio::test(start_paused = true)]
async fn a_message_whose_handler_panics_before_its_future_comes_again() {
    let broker = Fake::default();
    let (done, ended) = oneshot::channel();
    let done = Arc::new(Mutex::new(Some(done)));
    let handler = |delivery: Delivery| {
        assert_eq!(delivery.id(), Some("2"), "before the future");
        let done = done.clone();
        async move {
            done.lock().unwrap().take().unwrap().send(()).unwrap();
            Ok::<(), idem_core::Error>(())
        }
    };
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    run(&broker, &settings, handler, ended).await.unwrap();
    assert_eq!(
        *broker.steps.lock().unwrap(),
        ["retried 1", "acknowledged 2"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_panics_in_a_step_is_asked_again_and_at_last_the_message_is_given_up() {
    let broker = Fake {
        panics: Arc::new(AtomicU32::new(2)),
        ..Fake::default()
    };
    let handler = async |_: Delivery| Ok::<(), idem_core::Error>(());
    assert_eq!(
        steps_of(&broker, handler).await,
        ["acknowledged 1", "acknowledged 2"]
    );
    // Six tries of the acknowledgement, and the return.
    let broker = Fake {
        panics: Arc::new(AtomicU32::new(7)),
        ..Fake::default()
    };
    assert_eq!(steps_of(&broker, handler).await, ["acknowledged 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_panics_while_a_handler_runs_does_not_stop_it() {
    let broker = Fake {
        panics: Arc::new(AtomicU32::new(1)),
        ..Fake::default()
    };
    let handler = async |_: Delivery| {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        Ok::<(), idem_core::Error>(())
    };
    assert_eq!(
        steps_of(&broker, handler).await,
        ["kept alive 1", "acknowledged 1", "acknowledged 2"]
    );
}
