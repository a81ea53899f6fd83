//! Tests of brokers that accept and never answer. Their time is the runtime's, which moves when
//! nothing else can.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use idem_core::Disposition;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fake::{Client, FakeTicket, Steps};
use crate::settle::settle;
use crate::{BoxError, Broker, Deliveries, Delivery, Error, Fault, Room, Settings, Ticket, run};

/// How often each step is asked for, until it answers.
#[derive(Debug, Default)]
struct Silent {
    opens: u32,
    acks: u32,
    hand_backs: u32,
    keep_alives: u32,
}

/// A broker that has three messages, and is silent the first times.
#[derive(Debug, Default)]
struct Fake {
    silent: Silent,
    opened: AtomicU32,
    steps: Steps,
    counts: Arc<Counts>,
    /// The subscription ends after the first message, once.
    interrupted: bool,
}

#[derive(Debug, Default)]
struct Counts {
    acks: AtomicU32,
    hand_backs: AtomicU32,
    keep_alives: AtomicU32,
}

/// Does not answer the first steps of each kind.
struct Limited {
    limits: [u32; 3],
    counts: Arc<Counts>,
}

impl Client for Limited {
    async fn before(&self, step: &str) {
        let [acks, hand_backs, keep_alives] = self.limits;
        match step {
            "acknowledged" => answered(&self.counts.acks, acks).await,
            "handed back" => answered(&self.counts.hand_backs, hand_backs).await,
            "kept alive" => answered(&self.counts.keep_alives, keep_alives).await,
            _ => {}
        }
    }
}

/// Never answers the first times.
async fn answered(asked: &AtomicU32, silent: u32) {
    if asked.fetch_add(1, Ordering::Relaxed) < silent {
        pending::<()>().await;
    }
}

impl Broker for Fake {
    type Ticket = FakeTicket<Limited>;

    const HANDS_BACK: bool = false;

    fn source(&self) -> &'static str {
        "fake"
    }

    async fn open(&self, _: Arc<Room>) -> Result<Deliveries<'_, FakeTicket<Limited>>, Fault> {
        let first = self.opened.load(Ordering::Relaxed) == 0;
        // The one that works at first is not counted as silent.
        if self.interrupted && first {
            self.opened.fetch_add(1, Ordering::Relaxed);
        } else {
            answered(
                &self.opened,
                self.silent.opens + u32::from(self.interrupted),
            )
            .await;
        }
        let ids = if self.interrupted && first {
            1..=1
        } else {
            1..=3
        };
        let Silent {
            acks,
            hand_backs,
            keep_alives,
            ..
        } = self.silent;
        let counts = self.counts.clone();
        let steps = self.steps.clone();
        let messages = stream::iter(ids).map(move |number| {
            let id = number.to_string();
            let delivery = Delivery::new("fake", "").with_id(id.clone());
            let client = Limited {
                limits: [acks, hand_backs, keep_alives],
                counts: counts.clone(),
            };
            let steps = steps.clone();
            Ok((delivery, FakeTicket { id, client, steps }))
        });
        let rest = if self.interrupted && first {
            stream::iter([Err(Fault::passing("interrupted"))]).boxed()
        } else {
            stream::pending().boxed()
        };
        Ok(Box::pin(messages.chain(rest)))
    }
}

/// Runs until the handler has had the third message, for an hour at most. Returns the steps
/// of its tickets, and how long it took.
async fn consumed(broker: &Fake, concurrency: usize) -> (Vec<String>, Duration) {
    let begun = Instant::now();
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        // The broker should hear of it several times meanwhile.
        tokio::time::sleep(Duration::from_millis(6_500)).await;
        if delivery.id() == Some("3")
            && let Some(done) = done.lock().unwrap().take()
        {
            done.send(()).unwrap();
        }
        Ok::<(), idem_core::Error>(())
    };
    let settings = Settings {
        concurrency,
        shutdown_timeout: Duration::from_secs(600),
        ..Settings::default()
    };
    let running = tokio::time::timeout(
        Duration::from_secs(3_600),
        run(broker, &settings, handler, ended),
    );
    running
        .await
        .unwrap_or_else(|_| panic!("it hangs; {:?}", broker.steps.lock().unwrap()))
        .unwrap();
    (broker.steps.lock().unwrap().clone(), begun.elapsed())
}

fn has(steps: &[String], wanted: &str) -> bool {
    steps.iter().any(|line| line == wanted)
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_never_answers_at_the_start_is_an_error_and_not_a_silence() {
    let broker = Fake {
        silent: Silent {
            opens: 1,
            ..Silent::default()
        },
        ..Fake::default()
    };
    let handler = async |_: Delivery| Ok::<(), idem_core::Error>(());
    let settings = Settings::default();
    let running = run(&broker, &settings, handler, pending::<()>());
    let ended = tokio::time::timeout(Duration::from_secs(3_600), running)
        .await
        .unwrap();
    let Err(Error::Broker { source }) = ended else {
        panic!("{ended:?}")
    };
    assert!(
        source.to_string().contains("did not answer within 30s"),
        "{source}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_is_never_answered_is_tried_again() {
    let silent = Silent {
        opens: 2,
        ..Silent::default()
    };
    let broker = Fake {
        silent,
        interrupted: true,
        ..Fake::default()
    };
    let (steps, _) = consumed(&broker, 1).await;
    assert!(
        (1..=3).all(|id| has(&steps, &format!("acknowledged {id}"))),
        "{steps:?}"
    );
    assert_eq!(
        broker.opened.load(Ordering::Relaxed),
        4,
        "the first, two that are silent, and one that answers"
    );
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_is_never_answered_is_sent_again() {
    let broker = Fake {
        silent: Silent {
            acks: 2,
            ..Silent::default()
        },
        ..Fake::default()
    };
    let (steps, took) = consumed(&broker, 1).await;
    assert!(
        (1..=3).all(|id| has(&steps, &format!("acknowledged {id}"))),
        "{steps:?}"
    );
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_nothing_settles_does_not_keep_its_place_for_ever() {
    // Six tries of the first message, and its return: all in vain.
    let silent = Silent {
        acks: 6,
        hand_backs: 1,
        ..Silent::default()
    };
    let broker = Fake {
        silent,
        ..Fake::default()
    };
    let (steps, took) = consumed(&broker, 1).await;
    assert!(
        !has(&steps, "acknowledged 1") && !has(&steps, "handed back 1"),
        "{steps:?}"
    );
    assert!(
        has(&steps, "acknowledged 2") && has(&steps, "acknowledged 3"),
        "{steps:?}"
    );
    assert!(took < Duration::from_secs(180), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sign_of_life_that_is_never_answered_is_followed_by_the_next() {
    let broker = Fake {
        silent: Silent {
            keep_alives: 1,
            ..Silent::default()
        },
        ..Fake::default()
    };
    let (steps, _) = consumed(&broker, 1).await;
    assert!(has(&steps, "kept alive 1"), "{steps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_although_the_broker_takes_no_message_back() {
    let broker = Fake {
        silent: Silent {
            hand_backs: u32::MAX,
            ..Silent::default()
        },
        ..Fake::default()
    };
    let (begun, ended) = oneshot::channel();
    let begun = Mutex::new(Some(begun));
    let handler = async |_: Delivery| {
        if let Some(begun) = begun.lock().unwrap().take() {
            begun.send(()).unwrap();
        }
        pending::<Result<(), idem_core::Error>>().await
    };
    let settings = Settings {
        shutdown_timeout: Duration::from_secs(1),
        ..Settings::default()
    };
    let running = tokio::time::timeout(
        Duration::from_secs(3_600),
        run(&broker, &settings, handler, ended),
    );
    running
        .await
        .unwrap_or_else(|_| panic!("it hangs; {:?}", broker.steps.lock().unwrap()))
        .unwrap();
    assert!(
        !broker
            .steps
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.starts_with("acknowledged")),
        "no handler has ended"
    );
}

/// A ticket whose broker refuses a dead letter for some time, and drops what is returned.
struct Refused(AtomicU32);

impl Ticket for Refused {
    const KEEPS: bool = true;

    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        Ok(())
    }

    async fn ack(&self) -> Result<(), BoxError> {
        panic!("it is not handled")
    }

    async fn retry(&self, _: &Delivery, _: Duration) -> Result<(), BoxError> {
        panic!("it is poison")
    }

    async fn dead_letter(&self, _: &Delivery, _: &str) -> Result<(), BoxError> {
        let left = self.0.fetch_sub(1, Ordering::Relaxed);
        if left > 1 {
            Err("no queue is bound".into())
        } else {
            Ok(())
        }
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        panic!("it is lost")
    }

    fn is_void(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_is_refused_for_hours_is_kept_where_a_return_could_lose_it() {
    let ticket = Refused(AtomicU32::new(1_000));
    let delivery = Delivery::new("fake", "").with_id("m-1");
    settle(
        &ticket,
        &delivery,
        &Disposition::dead_letter("poison"),
        None,
    )
    .await;
    assert_eq!(ticket.0.into_inner(), 0, "it is put aside at last");
}

/// A broker with three messages, which ends for good, or not, after some of them. It has deliveries
/// handed back.
struct Ending {
    messages: u32,
    /// What comes after the messages.
    ends: bool,
    opened: AtomicU32,
    counts: Arc<Counts>,
    steps: Steps,
}

impl Ending {
    fn new(messages: u32, ends: bool) -> Self {
        Self {
            messages,
            ends,
            opened: AtomicU32::new(0),
            counts: Arc::default(),
            steps: Arc::default(),
        }
    }
}

impl Broker for Ending {
    type Ticket = FakeTicket<Limited>;

    const HANDS_BACK: bool = true;

    fn source(&self) -> &'static str {
        "ending"
    }

    async fn open(&self, _: Arc<Room>) -> Result<Deliveries<'_, FakeTicket<Limited>>, Fault> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let messages = stream::iter(1..=self.messages).map(|number| {
            let id = number.to_string();
            let delivery = Delivery::new("ending", "").with_id(id.clone());
            let client = Limited {
                limits: [0; 3],
                counts: self.counts.clone(),
            };
            let steps = self.steps.clone();
            Ok((delivery, FakeTicket { id, client, steps }))
        });
        let end = || Err(Fault::Final(Error::disconnected("it has ended")));
        let rest = if self.ends {
            stream::once(async move { end() }).boxed()
        } else {
            stream::pending().boxed()
        };
        Ok(Box::pin(messages.chain(rest)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ends_while_every_place_is_taken_is_noticed() {
    let broker = Ending::new(1, true);
    let handler = async |_: Delivery| pending::<Result<(), idem_core::Error>>().await;
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    let running = run(&broker, &settings, handler, pending::<()>());
    let ended = tokio::time::timeout(Duration::from_secs(3_600), running)
        .await
        .expect("it was not noticed");
    assert!(
        matches!(ended, Err(Error::Disconnected { .. })),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_waits_for_a_place_begins_when_there_is_one_and_is_handed_back_at_the_shutdown()
 {
    let broker = Ending::new(3, false);
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        // The second handler still runs at the shutdown, and the third message waits for its place.
        if delivery.id() == Some("2")
            && let Some(done) = done.lock().unwrap().take()
        {
            done.send(()).unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok::<(), idem_core::Error>(())
    };
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    let running = run(&broker, &settings, handler, ended);
    tokio::time::timeout(Duration::from_secs(3_600), running)
        .await
        .expect("it hangs")
        .unwrap();
    let steps: Vec<_> = broker
        .steps
        .lock()
        .unwrap()
        .iter()
        .filter(|line| !line.starts_with("kept"))
        .cloned()
        .collect();
    assert_eq!(steps, ["acknowledged 1", "handed back 3", "acknowledged 2"]);
}

#[tokio::test(start_paused = true)]
async fn no_messages_are_asked_for_again_while_every_place_is_taken() {
    let broker = Fake {
        interrupted: true,
        ..Fake::default()
    };
    let opened_meanwhile = AtomicU32::new(0);
    let (done, ended) = oneshot::channel();
    let done = Mutex::new(Some(done));
    let handler = async |delivery: Delivery| {
        tokio::time::sleep(Duration::from_secs(60)).await;
        if delivery.id() == Some("1") {
            let opened = broker.opened.load(Ordering::Relaxed);
            let _ =
                opened_meanwhile.compare_exchange(0, opened, Ordering::Relaxed, Ordering::Relaxed);
        }
        if delivery.id() == Some("2")
            && let Some(done) = done.lock().unwrap().take()
        {
            done.send(()).unwrap();
        }
        Ok::<(), idem_core::Error>(())
    };
    let settings = Settings {
        concurrency: 1,
        ..Settings::default()
    };
    let running = run(&broker, &settings, handler, ended);
    tokio::time::timeout(Duration::from_secs(3_600), running)
        .await
        .expect("it hangs")
        .unwrap();
    assert_eq!(
        opened_meanwhile.into_inner(),
        1,
        "messages were taken that nobody could handle"
    );
}
