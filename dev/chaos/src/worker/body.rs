//! The body of a call: some steps, and then some pauses, each poll written down. The closure of a
//! step is a body without steps.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use idem_core::Error;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::history::{Event, How, Journal, Receipt};
use crate::keys;
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
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) steps: Vec<(Step, Script)>,
    pub(crate) pauses: u32,
    pub(crate) pause: Duration,
    pub(crate) end: BodyExit,
}

/// The name of a step: a text, and a further part.
type Step = (&'static str, Option<&'static str>);

/// The steps of bodies. Each body that has steps has some of these, in this order.
const STEPS: [Step; 5] = [
    ("charge", None),
    ("reserve", Some("1")),
    ("reserve", Some("2")),
    ("send", None),
    ("note", None),
];

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
        let steps = if dice.bool() {
            Self::throw_steps(dice)
        } else {
            Vec::new()
        };
        let pauses = if dice.u8(..100) < 25 {
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
            pauses,
            pause: Duration::from_millis(dice.u64(5..60)),
            end,
        }
    }

    /// Two to four steps. Most succeed, and some are longer than a lease.
    fn throw_steps(dice: &mut Rng) -> Vec<(Step, Self)> {
        let mut steps = STEPS.to_vec();
        for _ in 0..dice.usize(1..=3) {
            steps.remove(dice.usize(..steps.len()));
        }
        let closure = |dice: &mut Rng| Self {
            steps: Vec::new(),
            pauses: if dice.u8(..100) < 10 {
                dice.u32(10..30)
            } else {
                dice.u32(..4)
            },
            pause: Duration::from_millis(dice.u64(5..60)),
            end: match dice.u8(..100) {
                0..85 => BodyExit::Value,
                85..90 => BodyExit::Again,
                90..96 => BodyExit::Released,
                96..98 => BodyExit::Unknown,
                _ => BodyExit::Panic,
            },
        };
        steps
            .into_iter()
            .map(|step| (step, closure(dice)))
            .collect()
    }

    /// Has the body fail wherever it would panic.
    pub(crate) fn without_panics(&mut self) {
        if self.end == BodyExit::Panic {
            self.end = BodyExit::Released;
        }
        for (_, closure) in &mut self.steps {
            closure.without_panics();
        }
    }
}

/// Whose body it is.
#[derive(Debug, Clone)]
pub(crate) struct Whose {
    pub(crate) journal: Journal,
    pub(crate) key: String,
    pub(crate) receipt: Receipt,
    /// Known beforehand only by hand, and to the closure of a step.
    pub(crate) attempt: Option<u64>,
    /// Numbers for the closures of its steps.
    pub(crate) next: Arc<AtomicU64>,
}

type Work = Pin<Box<dyn Future<Output = Result<Receipt, Failure>> + Send>>;

/// A body that writes down each of its polls, and its end.
pub(crate) struct Body {
    whose: Whose,
    work: Work,
    begun: bool,
    ended: bool,
}

impl Body {
    pub(crate) fn new(whose: Whose, script: Script) -> Self {
        let work = Box::pin(run(whose.clone(), script));
        Self {
            whose,
            work,
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
        let polled = self.work.as_mut().poll(context);
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
async fn run(whose: Whose, script: Script) -> Result<Receipt, Failure> {
    let Script {
        steps,
        pauses,
        pause,
        end,
    } = script;
    let receipt = whose.receipt;
    for (name, script) in steps {
        step(&whose, name, script).await?;
    }
    for _ in 0..pauses {
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

/// Runs a step of a body, and writes down which value it returned.
async fn step(whose: &Whose, (name, part): Step, script: Script) -> Result<Receipt, Failure> {
    let call = whose.receipt.call;
    let closure = whose.next.fetch_add(1, Ordering::Relaxed);
    let key = keys::step(&whose.key, name, part);
    let of_closure = Whose {
        key: key.clone(),
        receipt: Receipt {
            call,
            body: closure,
        },
        attempt: idem_core::current().map(|call| call.attempt()),
        ..whose.clone()
    };
    let body = async || Body::new(of_closure, script).await;
    let receipt = match part {
        None => idem_core::step(name, body).await?,
        Some(part) => idem_core::step((name, part), body).await?,
    };
    whose.journal.write(Event::Given {
        step: key,
        call,
        closure,
        receipt,
    });
    Ok(receipt)
}
