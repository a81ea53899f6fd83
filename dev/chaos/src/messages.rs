//! The producer of a run whose calls come from messages, and what is left of them in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::{Broker, Message};
use crate::clock;
use crate::history::{Event, Journal};
use crate::keys;

/// How long no message may wait until it is believed that all are handled: longer than a pause, and
/// than the longest body.
const QUIET: Duration = Duration::from_secs(5);
/// How long it may take, when all is healed, until no message waits.
const DRAINING: Duration = Duration::from_secs(90);
/// How long the producer may take to end.
const LAST: Duration = Duration::from_secs(30);

/// Publishes until its shutdown: one message in ten twice, and one in fifty poison.
#[derive(Debug)]
pub(crate) struct Producer {
    ending: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Producer {
    pub(crate) fn start(broker: Arc<Broker>, journal: Journal, seed: u64, epoch: u64) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(produce(broker, journal, seed, epoch, ending.clone()));
        Self { ending, task }
    }

    pub(crate) async fn end(self) -> Result<()> {
        self.ending.store(true, Ordering::Relaxed);
        timeout(LAST, self.task).await??
    }
}

async fn produce(
    broker: Arc<Broker>,
    journal: Journal,
    seed: u64,
    epoch: u64,
    ending: Arc<AtomicBool>,
) -> Result<()> {
    let mut dice = Rng::with_seed(seed ^ 0x6d65_7373);
    let mut number = 0;
    while !ending.load(Ordering::Relaxed) {
        number += 1;
        let poison = dice.u8(..50) == 0;
        let key = keys::pick(clock::now().saturating_sub(epoch), &mut dice);
        let message = Message {
            number,
            key,
            poison,
        };
        let twice = dice.u8(..10) == 0;
        for _ in 0..if twice { 2 } else { 1 } {
            broker.publish(&message).await?;
            journal.write(Event::Published {
                message: number,
                key: message.key.clone(),
                poison,
            });
            sleep(Duration::from_millis(if twice { 110 } else { 0 })).await;
        }
        sleep(Duration::from_millis(dice.u64(2..20))).await;
    }
    Ok(())
}

/// Waits until no message waits, and writes down those that were put aside.
pub(crate) async fn drained(broker: &Broker, journal: &Journal) -> Result<()> {
    let begun = Instant::now();
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET && begun.elapsed() < DRAINING {
        sleep(Duration::from_millis(200)).await;
        let aside = look(broker, journal).await;
        let left = broker.left().await;
        if !matches!((aside, left), (Ok(0), Ok(0))) {
            quiet_since = Instant::now();
        }
    }
    Ok(())
}

/// Writes down, when all processes have ended, what is left.
pub(crate) async fn left(broker: &Broker, journal: &Journal) -> Result<()> {
    // The broker takes back what they had.
    sleep(Duration::from_secs(1)).await;
    look(broker, journal).await?;
    journal.write(Event::Left {
        messages: broker.left().await?,
    });
    Ok(())
}

async fn look(broker: &Broker, journal: &Journal) -> Result<usize> {
    let aside = broker.put_aside().await?;
    for (message, reason) in &aside {
        journal.write(Event::PutAside {
            message: message.number,
            reason: reason.clone(),
        });
    }
    Ok(aside.len())
}
