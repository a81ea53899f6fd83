//! Calls from messages: a consumer in place of callers.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use idem_amqp::lapin::{Connection, ConnectionProperties};
use idem_core::{Dispose, Disposition};
use idem_nats::async_nats;
use idem_nats::{Delivery, Error};

use super::ENDING;
use super::calls::Caller;
use crate::broker::{DEAD, Message, QUEUE, STREAM};
use crate::history::Answer;

/// How many messages a process handles at once.
const CONCURRENCY: usize = 12;
/// How long the handlers that run at the end may take.
const LAST: Duration = Duration::from_secs(10);
/// The pause before a message comes again.
const SOON: Duration = Duration::from_millis(200);

/// The fate of a message that is not done with.
#[derive(Debug)]
struct Unhandled(Disposition);

impl Dispose for Unhandled {
    fn disposition(&self) -> Disposition {
        self.0.clone()
    }
}

impl From<idem_core::Error> for Unhandled {
    fn from(error: idem_core::Error) -> Self {
        Self(error.disposition())
    }
}

fn disposition(answer: &Answer) -> Result<(), Unhandled> {
    let soon = Unhandled(Disposition::Retry { after: SOON });
    match answer {
        Answer::Value { .. } => Ok(()),
        Answer::Kept { .. } => Err(Unhandled(Disposition::dead_letter("kept"))),
        Answer::Failed | Answer::Panicked => Err(soon),
        Answer::Error { name } if matches!(&**name, "InFlight" | "Store" | "LeaseLost") => {
            Err(soon)
        }
        Answer::Error { name } => Err(Unhandled(Disposition::dead_letter(name.clone()))),
        Answer::Unexpected { text } => Err(Unhandled(Disposition::dead_letter(text.clone()))),
    }
}

/// Consumes until the parent says that it is over. A broker that is down when the consumer starts
/// is asked again.
pub(super) async fn run(url: &str, process: u64, caller: &Caller, dice: Rng) {
    let dice = RefCell::new(dice);
    let handler = async |delivery: Delivery| {
        let message: Message = delivery.json()?;
        if message.poison {
            return Err(Unhandled(Disposition::dead_letter("poison")));
        }
        let plan = caller.plan_of_message(&mut dice.borrow_mut());
        disposition(&caller.handle(&message.key, plan).await)
    };
    while !ENDING.load(Ordering::Relaxed) {
        let ran = if url.starts_with("nats") {
            over_nats(url, &handler).await
        } else {
            over_rabbitmq(url, process, &handler).await
        };
        if ran.is_err() {
            tokio::time::sleep(SOON).await;
        }
    }
}

async fn over() {
    while !ENDING.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn over_nats<H>(url: &str, handler: &H) -> Result<()>
where
    H: AsyncFn(Delivery) -> Result<(), Unhandled>,
{
    let context = async_nats::jetstream::new(async_nats::connect(url).await?);
    let consumer = idem_nats::Consumer::new(&context, STREAM, QUEUE).dead_letter(DEAD);
    consumer
        .concurrency(CONCURRENCY)
        .shutdown_timeout(LAST)
        .run(handler, over())
        .await
        .map_err(unexpected)
}

/// Every second process has lapin restore its connection; the others make another one.
async fn over_rabbitmq<H>(url: &str, process: u64, handler: &H) -> Result<()>
where
    H: AsyncFn(Delivery) -> Result<(), Unhandled>,
{
    let connect = |properties| Connection::connect(url, properties);
    let restores = process.is_multiple_of(2);
    let properties = ConnectionProperties::default();
    let properties = if restores {
        properties.enable_auto_recover()
    } else {
        properties
    };
    let connection = connect(properties).await?;
    let consumer = idem_amqp::Consumer::new(&connection, QUEUE);
    let consumer = if restores {
        consumer
    } else {
        consumer.reconnect(|| connect(ConnectionProperties::default()))
    };
    consumer
        .concurrency(CONCURRENCY)
        .shutdown_timeout(LAST)
        .run(handler, over())
        .await
        .map_err(unexpected)
}

/// The broker may be down at the start; nothing else is expected.
fn unexpected(error: Error) -> anyhow::Error {
    if !matches!(error, Error::Broker { .. }) {
        eprintln!("a consumer ended: {error}");
    }
    error.into()
}
