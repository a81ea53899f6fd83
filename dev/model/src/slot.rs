//! The value at the key: in a small form, and as the record that the functions of `idem-core` use.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use idem_core::record::{Encoded, InFlight, MOST_TAKEN_OVER, Metadata, Origin, Record};
use idem_core::{CodecId, Fingerprint};

use crate::caller::Id;
use crate::ticks::{duration, less, ticks};

/// A record, and what is left until it changes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The record.
    pub entry: Entry,
    /// The ticks until it changes by itself.
    pub left: u8,
    /// For a committed one: for how many ticks after that it stays as done.
    pub then_done: u8,
}

/// A [`Record`], with times in ticks, with the owner's id as the outcome, and with a number as the
/// fingerprint: 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Entry {
    /// See [`Record::Issued`].
    Issued,
    /// See [`Record::InFlight`].
    InFlight {
        /// Its owner.
        owner: Id,
        /// Which claim of this key it is.
        attempt: u8,
        /// The state that the claim found.
        origin: Origin,
        /// How long the lease is.
        lease: u8,
        /// The expiry with which the record is written.
        hold: u8,
        /// The fingerprint.
        print: u8,
        /// How many attempts only asked.
        questions: u8,
        /// The run, where the record names it.
        run: Option<Id>,
        /// The records that were taken over, the last one first.
        over: Over,
    },
    /// See [`Record::Released`].
    Released {
        /// The last attempt.
        attempt: u8,
        /// How many attempts only asked.
        questions: u8,
        /// The run that goes on with the next claim.
        run: Option<Id>,
    },
    /// See [`Record::Committed`].
    Committed {
        /// The attempt that succeeded.
        attempt: u8,
        /// Whose outcome it is.
        outcome: Id,
        /// The fingerprint.
        print: u8,
    },
    /// See [`Record::Done`].
    Done {
        /// The attempt that succeeded.
        attempt: u8,
        /// The fingerprint.
        print: u8,
    },
}

/// How many may be named in a record: the owner and the run of each attempt.
pub(crate) const NAMES: usize = 2 * (1 + MOST_TAKEN_OVER);

/// The records that were taken over, the last one first.
pub type Over = [Option<TakenOver>; MOST_TAKEN_OVER];

/// A record that was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TakenOver {
    /// Its owner.
    pub owner: Id,
    /// The state that its claim found.
    pub origin: Origin,
    /// The expiry with which it was written.
    pub hold: u8,
    /// The fingerprint.
    pub print: u8,
    /// How many attempts only asked.
    pub questions: u8,
    /// The run, where the record names it.
    pub run: Option<Id>,
}

impl Slot {
    /// Lets a tick pass.
    pub(crate) fn tick(self) -> Option<Self> {
        let left = less(self.left);
        if left > 0 {
            return Some(Self { left, ..self });
        }
        let expired = self
            .entry
            .record()
            .expired()
            .filter(|_| self.then_done > 0)?;
        Some(Self {
            entry: Entry::from(&expired),
            left: self.then_done,
            then_done: 0,
        })
    }

    /// Returns its owner, alive or not.
    pub(crate) fn owner(self) -> Option<Id> {
        match self.entry {
            Entry::InFlight { owner, .. } => Some(owner),
            _ => None,
        }
    }

    /// Whether it is in flight, and its lease has run out.
    pub(crate) fn is_abandoned(self) -> bool {
        self.owner().is_some() && !self.is_alive()
    }

    /// Whether the lease is alive.
    pub(crate) fn is_alive(self) -> bool {
        self.entry
            .record()
            .lease_left(duration(self.left))
            .is_some()
    }
}

impl Entry {
    pub(crate) fn record(self) -> Record {
        match self {
            Self::Issued => Record::Issued {
                grace: Duration::ZERO,
            },
            Self::InFlight {
                owner,
                attempt,
                origin,
                lease,
                hold,
                print,
                questions,
                run,
                over,
            } => {
                let top = TakenOver {
                    owner,
                    origin,
                    hold,
                    print,
                    questions,
                    run,
                };
                let held = |of: TakenOver, attempt: u8, took_over| {
                    InFlight::new(
                        of.owner.owner(),
                        attempt.into(),
                        of.origin,
                        Duration::ZERO,
                        duration(of.hold),
                    )
                    .with_fingerprint(fingerprint(of.print))
                    .with_questions(of.questions.into())
                    .with_run(of.run.map(Id::owner))
                    .with_took_over(took_over)
                };
                let before = over
                    .iter()
                    .flatten()
                    .zip(1..)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev();
                let took_over = before.fold(None, |took_over, (of, back)| {
                    Some(Box::new(held(*of, attempt.saturating_sub(back), took_over)))
                });
                Record::InFlight(held(top, attempt, took_over).with_lease(duration(lease)))
            }
            Self::Released {
                attempt,
                questions,
                run,
            } => Record::Released {
                attempt: attempt.into(),
                questions: questions.into(),
                run: run.map(Id::owner),
            },
            Self::Committed {
                attempt,
                outcome,
                print,
            } => Record::Committed {
                attempt: attempt.into(),
                fingerprint: fingerprint(print),
                outcome: encoded(outcome),
            },
            Self::Done { attempt, print } => Record::Done {
                attempt: attempt.into(),
                fingerprint: fingerprint(print),
            },
        }
    }

    /// Those who are named in it.
    pub(crate) fn names(&mut self) -> [Option<&mut Id>; NAMES] {
        let mut names = [const { None }; NAMES];
        let mut places = names.iter_mut();
        let mut name = |id| {
            if let Some(place) = places.next() {
                *place = id;
            }
        };
        match self {
            Self::InFlight {
                owner, run, over, ..
            } => {
                name(Some(owner));
                name(run.as_mut());
                for over in over.iter_mut().flatten() {
                    name(Some(&mut over.owner));
                    name(over.run.as_mut());
                }
            }
            Self::Released { run, .. } => name(run.as_mut()),
            Self::Committed { outcome, .. } => name(Some(outcome)),
            Self::Issued | Self::Done { .. } => {}
        }
        names
    }

    /// The run that it belongs to, or that goes on with the next claim.
    pub(crate) fn run(self) -> Option<Id> {
        match self.record() {
            Record::InFlight(held) => Some(Id::from_owner(held.run())),
            Record::Released { run, .. } => run.map(Id::from_owner),
            _ => None,
        }
    }

    /// The fingerprint, where it has one.
    pub(crate) fn print(self) -> u8 {
        match self {
            Self::InFlight { print, .. }
            | Self::Committed { print, .. }
            | Self::Done { print, .. } => print,
            Self::Issued | Self::Released { .. } => 0,
        }
    }
}

/// Those that callers have: the first is 1.
static PRINTS: LazyLock<[Option<Fingerprint>; 2]> =
    LazyLock::new(|| ["one", "two"].map(|text| Fingerprint::of(text).ok()));

/// As the functions of `idem-core` take it.
pub(crate) fn fingerprint(print: u8) -> Option<Fingerprint> {
    PRINTS
        .get(usize::from(print.checked_sub(1)?))
        .copied()
        .flatten()
}

fn print(fingerprint: Option<Fingerprint>) -> u8 {
    let Some(fingerprint) = fingerprint else {
        return 0;
    };
    PRINTS
        .iter()
        .zip(1..)
        .find(|(print, _)| **print == Some(fingerprint))
        .map_or(0, |(_, number)| number)
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl From<&Record> for Entry {
    fn from(record: &Record) -> Self {
        let attempt = small(record.attempt());
        let print_of = print(record.fingerprint());
        match record {
            Record::Issued { .. } => Self::Issued,
            Record::InFlight(held) => {
                let mut over = Over::default();
                let mut next = held.took_over.as_deref();
                for place in &mut over {
                    *place = next.map(|of| TakenOver {
                        owner: Id::from_owner(of.owner),
                        origin: of.origin,
                        hold: ticks(of.hold),
                        print: print(of.fingerprint),
                        questions: small(of.questions),
                        run: of.run.map(Id::from_owner),
                    });
                    next = next.and_then(|of| of.took_over.as_deref());
                }
                Self::InFlight {
                    owner: Id::from_owner(held.owner),
                    attempt,
                    origin: held.origin,
                    lease: ticks(held.lease),
                    hold: ticks(held.hold),
                    print: print_of,
                    questions: small(held.questions),
                    run: held.run.map(Id::from_owner),
                    over,
                }
            }
            Record::Released { questions, run, .. } => Self::Released {
                attempt,
                questions: small(*questions),
                run: run.map(Id::from_owner),
            },
            Record::Committed { outcome, .. } => Self::Committed {
                attempt,
                outcome: whose(outcome),
                print: print_of,
            },
            Record::Done { .. } => Self::Done {
                attempt,
                print: print_of,
            },
        }
    }
}

/// The outcome that a body of this owner gives, or an operator.
pub(crate) fn encoded(id: Id) -> Encoded {
    let by_hand = matches!(id, Id::SETTLED | Id::REPLACED);
    let metadata = by_hand
        .then(|| Metadata::parse("a1;b3BlcmF0b3I;"))
        .flatten();
    Encoded::new(CodecId::JSON, vec![id.0].into()).with_metadata(metadata.map(Arc::new))
}

/// Whose outcome it is.
pub(crate) fn whose(outcome: &Encoded) -> Id {
    Id(outcome.payload.first().copied().unwrap_or_default())
}
