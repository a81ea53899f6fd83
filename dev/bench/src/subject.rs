//! What is measured beside what: the floor, and the library in its two forms.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use idem::{Error, Idempotency};
use idem_bench::{KEY_BYTES, RESULT_BYTES, annotated, plain, result};

use crate::floor::Floor;
use crate::lock::Lock;
use crate::report::Kind;
use crate::target::Target;

/// The names, in the order in which they are shown. The first is what the others are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    Floor,
    PlainFloor,
    ByHand,
    Annotated,
    Lock,
}

/// All of them, connected to one server.
pub(crate) struct Subjects {
    floor: Floor,
    lock: Lock,
    pub(crate) idempotency: Idempotency,
    result: String,
    /// The prefix of all keys of this run, so that runs on one server do not collide.
    run: String,
}

impl Subject {
    pub(crate) const ALL: [Self; 5] = [
        Self::Floor,
        Self::PlainFloor,
        Self::ByHand,
        Self::Annotated,
        Self::Lock,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::PlainFloor => "floor with a plain SET XX",
            Self::ByHand => "idem by hand",
            Self::Annotated => "#[idempotent]",
            Self::Lock => "a lock around a look",
        }
    }

    /// Whether it is the library.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::ByHand | Self::Annotated)
    }

    /// Whether it does anything of its own in such a call: the floors' replays are the same.
    pub(crate) fn has(self, kind: Kind) -> bool {
        self != Self::PlainFloor || kind == Kind::First
    }
}

impl Subjects {
    pub(crate) async fn connect(target: &Target) -> Result<Self> {
        let idempotency = target.idempotency(target.store().await?);
        let floor = Floor::connect(target.url(), target.ttl_ms()).await?;
        Ok(Self {
            lock: Lock::connect(target.url(), target.ttl_ms()).await?,
            floor,
            idempotency,
            result: result(),
            run: target.run.clone(),
        })
    }

    /// A key of this run, which differs by subject and number.
    pub(crate) fn key(&self, subject: Subject, number: u64) -> String {
        let width = KEY_BYTES - self.run.len() - 1;
        format!("{}{}{number:0width$}", self.run, subject as u8)
    }

    /// One call.
    pub(crate) async fn call(&self, subject: Subject, kind: Kind, key: &str) -> Result<()> {
        match (subject, kind) {
            (Subject::Floor, Kind::First) => self.floor.first(key, &self.result).await,
            (Subject::PlainFloor, Kind::First) => {
                self.floor.first_unchecked(key, &self.result).await
            }
            (Subject::Floor | Subject::PlainFloor, Kind::Replay) => {
                let length = self.floor.replay(key).await?;
                ensure!(length == RESULT_BYTES, "{length} bytes are no outcome");
                Ok(())
            }
            (Subject::Lock, _) => {
                let length = self.lock.run(key, &self.result).await?;
                ensure!(length == RESULT_BYTES, "{length} bytes are no outcome");
                Ok(())
            }
            (Subject::ByHand | Subject::Annotated, _) => {
                ours(subject, &self.idempotency, key, &self.result).await
            }
        }
    }
}

/// A call of the library, by the attribute or by hand.
pub(crate) async fn ours(
    subject: Subject,
    idempotency: &Idempotency,
    key: &str,
    result: &str,
) -> Result<()> {
    let outcome: Result<_, Error> = if subject == Subject::Annotated {
        annotated(key, result).await
    } else {
        let operation = idempotency.operation("bench").key(key);
        let outcome = operation.run(|| plain(result)).await;
        outcome.map(idem::Outcome::into_inner)
    };
    ensure!(outcome?.len() == RESULT_BYTES, "not the outcome");
    Ok(())
}
