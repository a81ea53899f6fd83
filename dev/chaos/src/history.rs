//! The events, written down by each process as they happen.
//!
//! Each process has a file of its own and writes each event with one call of the system, so that a
//! process that is killed leaves all that came before. Times are those of the clock (`clock.rs`)
//! that all processes share.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::clock;

/// An event, when it happened, and in which process: 0 is the one that makes the faults.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at: u64,
    pub(crate) by: u64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// The value of a body, or of the closure of a step: its own number, and the call that it ran for.
/// No two are equal, so a replay shows its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) call: u64,
    pub(crate) body: u64,
}

/// An event.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A call begins, and waits for others for so long (ms).
    Call {
        call: u64,
        key: String,
        mode: String,
        wait: u64,
    },
    /// It has an answer.
    Answer { call: u64, answer: Answer },
    /// Its future was dropped.
    Dropped { call: u64 },
    /// A body is polled, or the closure of a step: then `body` is the closure's number, and `key`
    /// the name of the step (`keys::step`). `from`: when the poll of the call's whole future began,
    /// before anything looked at the lease; the event's own time is that of the body.
    Poll {
        body: u64,
        call: u64,
        key: String,
        attempt: u64,
        from: u64,
        first: bool,
    },
    /// A body or a closure has ended.
    End { body: u64, how: How },
    /// The store was asked to claim, and gave the key.
    Claimed {
        key: String,
        owner: u64,
        attempt: u64,
        sent: u64,
    },
    /// The store was asked to claim, and failed: what became of the claim is not known.
    ClaimFailed { key: String, owner: u64, sent: u64 },
    /// The value of a step was committed, and the store has confirmed it.
    Recorded { step: String, receipt: Receipt },
    /// A step returned a value: replayed, unless it is that of the closure it was called with.
    Given {
        step: String,
        call: u64,
        closure: u64,
        receipt: Receipt,
    },
    /// A renewal was confirmed.
    Renewed { key: String, owner: u64, sent: u64 },
    /// A release is about to be sent.
    Releasing { key: String, owner: u64 },
    /// The runtime has reported a decision.
    Decided {
        key: String,
        decision: String,
        attempt: u64,
        call: Option<u64>,
    },
    /// A process of workers has ended by itself, with so many calls unanswered.
    Drained { left: u64 },
    /// The parent has started a process of workers.
    Started { process: u64 },
    /// The parent has killed one.
    Killed { process: u64 },
    /// A fault begins; `process` is the one that is hit, if it is one.
    FaultBegan {
        fault: u64,
        kind: String,
        process: Option<u64>,
    },
    /// It is over.
    FaultEnded { fault: u64 },
    /// The only server is dead.
    ServerDown,
    /// It is about to be started again.
    ServerUp,
    /// A message was published.
    Published {
        message: u64,
        key: String,
        poison: bool,
    },
    /// A message was found where those are that no redelivery helps.
    PutAside { message: u64, reason: String },
    /// So many messages are left when all consumers have ended.
    Left { messages: u64 },
    /// All faults are healed: from here on everything must succeed.
    Healed,
}

/// The answer to a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// A value.
    Value { receipt: Receipt, replayed: bool },
    /// An error that is kept.
    Kept { receipt: Receipt },
    /// An error of its own body, which is not kept.
    Failed,
    /// A panic of its own body.
    Panicked,
    /// An error of `idem`, by name.
    Error { name: String },
    /// The calling code itself failed.
    Unexpected { text: String },
}

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// With a value.
    Value,
    /// With an error that is to be kept.
    Kept,
    /// With another error.
    Failed,
    /// It panicked.
    Panicked,
    /// It was dropped.
    Cut,
}

/// The writer of a process's events. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    file: Arc<File>,
    by: u64,
}

impl Journal {
    /// Opens the file of a process in the folder of the run.
    pub(crate) fn open(folder: &Path, by: u64) -> Result<Self> {
        let path = folder.join(format!("{by}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            file: Arc::new(file),
            by,
        })
    }

    /// Writes an event down. If that fails, the history is incomplete, so the process ends.
    pub(crate) fn write(&self, event: Event) {
        self.write_at(clock::now(), event);
    }

    /// As `write`, with a time that was read before.
    pub(crate) fn write_at(&self, at: u64, event: Event) {
        let line = serde_json::to_vec(&Line {
            at,
            by: self.by,
            event,
        });
        let written = line.map_err(Into::into).and_then(|mut line| {
            line.push(b'\n');
            (&*self.file).write_all(&line)
        });
        if let Err(error) = written {
            eprintln!("the history cannot be written: {error}");
            std::process::exit(3);
        }
    }
}

/// All events of a run, in the order in which they happened.
pub(crate) fn read(folder: &Path) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jsonl")
        {
            let text = std::fs::read_to_string(&path)?;
            // A process that is killed, or is writing now, may leave a line without its end.
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                lines.push(
                    serde_json::from_str(line)
                        .with_context(|| format!("{}: {line}", path.display()))?,
                );
            }
        }
    }
    lines.sort_by_key(|line: &Line| line.at);
    Ok(lines)
}
