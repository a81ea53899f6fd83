//! The body of a call: some steps with pauses in between, each poll written down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use idem_core::Error;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::history::{Event, How, Journal, Receipt};
use crate::worker::stamp::poll_began;

/// The error of a body.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// Kept.
    Kept(Receipt),
    /// The body is tried again in place.
    Again,
    /// The key is released.
    Released,
    /// The key is abandoned.
    Unknown,
    /// The runtime's own.
    #[serde(skip)]
    Idem(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idem(error)
    }
}

/// The random behaviour of a body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Script {
    pub(crate) steps: u32,
    pub(crate) pause: Duration,
    pub(crate) end: BodyExit,
}

/// How a body is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyExit {
    /// With a value.
    Value,
    /// With an error that is kept.
    Kept,
    /// With an error that is tried again.
    Again,
    /// With one that releases the key.
    Released,
    /// With one that abandons it.
    Unknown,
    /// It panics.
    Panic,
}

/// The marker in the panics that bodies make on purpose.
pub(crate) const ON_PURPOSE: &str = "a body that was told to panic";

impl Script {
    /// Some bodies are short, some longer than several leases.
    pub(crate) fn throw(dice: &mut Rng) -> Self {
        let steps = if dice.u8(..100) < 25 {
            dice.u32(10..40)
        } else {
            dice.u32(1..8)
        };
        let end = match dice.u8(..100) {
            0..50 => BodyExit::Value,
            50..60 => BodyExit::Kept,
            60..70 => BodyExit::Again,
            70..85 => BodyExit::Released,
            85..93 => BodyExit::Unknown,
            _ => BodyExit::Panic,
        };
        Self {
            steps,
            pause: Duration::from_millis(dice.u64(5..60)),
            end,
        }
    }
}

/// Whose body it is.
#[derive(Debug, Clone)]
pub(crate) struct Whose {
    pub(crate) journal: Journal,
    pub(crate) key: String,
    pub(crate) receipt: Receipt,
    /// Known beforehand only by hand.
    pub(crate) attempt: Option<u64>,
}

type Steps = Pin<Box<dyn Future<Output = Result<Receipt, Failure>> + Send>>;

/// A body that writes down each of its polls, and its end.
pub(crate) struct Body {
    whose: Whose,
    steps: Steps,
    begun: bool,
    ended: bool,
}

impl Body {
    pub(crate) fn new(whose: Whose, script: Script) -> Self {
        let steps = Box::pin(run(whose.receipt, script));
        Self {
            whose,
            steps,
            begun: false,
            ended: false,
        }
    }

    fn end(&mut self, how: How) {
        self.ended = true;
        self.whose.journal.write(Event::End {
            body: self.whose.receipt.body,
            how,
        });
    }
}

impl Future for Body {
    type Output = Result<Receipt, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // First of all, the time.
        let at = clock::now();
        let first = !std::mem::replace(&mut self.begun, true);
        let attempt = *self
            .whose
            .attempt
            .get_or_insert_with(|| idem_core::current().map_or(0, |call| call.attempt()));
        let Whose {
            journal,
            key,
            receipt: Receipt { call, body },
            ..
        } = &self.whose;
        let call = *call;
        let body = *body;
        let key = key.clone();
        journal.write_at(
            at,
            Event::Poll {
                body,
                call,
                key,
                attempt,
                from: poll_began(),
                first,
            },
        );
        let polled = self.steps.as_mut().poll(context);
        if let Poll::Ready(returned) = &polled {
            self.end(match returned {
                Ok(_) => How::Value,
                Err(Failure::Kept(_)) => How::Kept,
                Err(_) => How::Failed,
            });
        }
        polled
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.begun && !self.ended {
            self.end(if std::thread::panicking() {
                How::Panicked
            } else {
                How::Cut
            });
        }
    }
}

#[allow(
    clippy::panic,
    reason = "that a body panics is one of the things to try"
)]
async fn run(receipt: Receipt, Script { steps, pause, end }: Script) -> Result<Receipt, Failure> {
    for _ in 0..steps {
        tokio::time::sleep(pause).await;
    }
    match end {
        BodyExit::Value => Ok(receipt),
        BodyExit::Kept => Err(Failure::Kept(receipt)),
        BodyExit::Again => Err(Failure::Again),
        BodyExit::Released => Err(Failure::Released),
        BodyExit::Unknown => Err(Failure::Unknown),
        BodyExit::Panic => panic!("{ON_PURPOSE}"),
    }
}
