//! A history, put in order: by call, by body, by key, by fault.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Answer, Event, How, Line, Receipt};
use crate::keys;

/// The history, indexed for the checks.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) bodies: BTreeMap<u64, Body>,
    pub(crate) keys: BTreeMap<String, Key>,
    /// By name (`keys::step`), and the bodies that are their closures.
    pub(crate) steps: BTreeMap<String, Step>,
    pub(crate) closures: BTreeMap<u64, Body>,
    pub(crate) faults: Vec<Fault>,
    /// When the only server was dead.
    pub(crate) dead: Vec<(u64, u64)>,
    /// Processes, and how each ended: `None` if nothing is known.
    pub(crate) processes: BTreeMap<u64, Option<Ended>>,
    pub(crate) healed: Option<u64>,
    pub(crate) decisions: BTreeMap<String, u64>,
    pub(crate) messages: BTreeMap<u64, Message>,
    /// How many messages were left in the end, if there were any at all.
    pub(crate) left: Option<(u64, u64)>,
}

/// A message, and what became of it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) key: String,
    pub(crate) poison: bool,
    pub(crate) published: u64,
    /// The reasons for which it was put aside.
    pub(crate) aside: Vec<String>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Killed(u64),
    ByItself { left: u64 },
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) by: u64,
    pub(crate) mode: String,
    pub(crate) begun: u64,
    /// How long it waits for others, in ns.
    pub(crate) wait: u64,
    pub(crate) ended: Option<u64>,
    /// `None` where it was dropped, or has not ended.
    pub(crate) answer: Option<Answer>,
    pub(crate) decisions: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub(crate) number: u64,
    pub(crate) call: u64,
    pub(crate) by: u64,
    pub(crate) key: String,
    pub(crate) attempt: u64,
    pub(crate) begun: u64,
    /// When the first poll of the call began that polled it, and the last one.
    pub(crate) first_from: u64,
    pub(crate) last_from: u64,
    /// When it was polled last.
    pub(crate) last_at: u64,
    pub(crate) ended: Option<(u64, How)>,
}

#[derive(Debug, Default)]
pub(crate) struct Key {
    /// In the order in which they began.
    pub(crate) bodies: Vec<u64>,
    pub(crate) claims: BTreeMap<u64, Claim>,
    /// Decisions that an outcome is recorded: when, which decision, under which attempt.
    pub(crate) recorded: Vec<(u64, String, u64)>,
    /// Answers that an outcome of an earlier body was given: when, and which.
    pub(crate) replays: Vec<(u64, Receipt, Given)>,
}

/// A step of a key, in all runs of it.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// In the order in which they began.
    pub(crate) closures: Vec<u64>,
    /// When each value was known to be recorded.
    pub(crate) recorded: Vec<(u64, Receipt)>,
    pub(crate) given: Vec<StepValue>,
}

/// A value that a step returned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepValue {
    pub(crate) at: u64,
    pub(crate) call: u64,
    /// The closure that the step was called with.
    pub(crate) closure: u64,
    pub(crate) receipt: Receipt,
}

impl StepValue {
    pub(crate) fn is_replayed(&self) -> bool {
        self.receipt.body != self.closure
    }
}

/// As what an outcome was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    Value,
    Kept,
}

/// What is known of one owner.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// When the claim was first sent.
    pub(crate) sent: u64,
    /// When it was answered that the key is its own, and under which attempt.
    pub(crate) owned: Option<(u64, u64)>,
    /// When those renewals were sent that were confirmed.
    pub(crate) renewed: Vec<u64>,
    /// When a release was sent first.
    pub(crate) releasing: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) number: u64,
    pub(crate) kind: String,
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

impl Index {
    pub(crate) fn new(history: &[Line]) -> Self {
        let mut index = Self::default();
        for line in history {
            index.add(line);
        }
        index
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each event")]
    fn add(&mut self, Line { at, by, event }: &Line) {
        let at = *at;
        let by = *by;
        match event.clone() {
            Event::Call {
                call,
                key,
                mode,
                wait,
            } => {
                let wait = wait * 1_000_000;
                let info = Call {
                    key,
                    by,
                    mode,
                    begun: at,
                    wait,
                    ended: None,
                    answer: None,
                    decisions: 0,
                };
                self.calls.insert(call, info);
            }
            Event::Answer { call, answer } => self.answered(at, call, answer),
            Event::Dropped { call } => {
                if let Some(call) = self.calls.get_mut(&call) {
                    call.ended = Some(at);
                }
            }
            Event::Poll {
                body,
                call,
                key,
                attempt,
                from,
                first,
            } => {
                let is_closure = keys::of_step(&key).is_some();
                if first {
                    if is_closure {
                        self.step(&key).closures.push(body);
                    } else {
                        self.key(&key).bodies.push(body);
                    }
                    let info = Body {
                        number: body,
                        call,
                        by,
                        key,
                        attempt,
                        begun: at,
                        first_from: from,
                        last_from: from,
                        last_at: at,
                        ended: None,
                    };
                    if is_closure {
                        self.closures.insert(body, info);
                    } else {
                        self.bodies.insert(body, info);
                    }
                } else if let Some(body) = self.body(body) {
                    body.last_from = body.last_from.max(from);
                    body.last_at = body.last_at.max(at);
                }
            }
            Event::End { body, how } => {
                if let Some(body) = self.body(body) {
                    body.ended = Some((at, how));
                }
            }
            Event::Recorded { step, receipt } => self.step(&step).recorded.push((at, receipt)),
            Event::Given {
                step,
                call,
                closure,
                receipt,
            } => self.step(&step).given.push(StepValue {
                at,
                call,
                closure,
                receipt,
            }),
            Event::Claimed {
                key,
                owner,
                attempt,
                sent,
            } => {
                let claim = self.claim(&key, owner, sent);
                claim.owned.get_or_insert((at, attempt));
            }
            Event::ClaimFailed { key, owner, sent } => {
                self.claim(&key, owner, sent);
            }
            Event::Renewed { key, owner, sent } => self.claim(&key, owner, sent).renewed.push(sent),
            Event::Releasing { key, owner } => {
                self.claim(&key, owner, at).releasing.get_or_insert(at);
            }
            Event::Decided {
                key,
                decision,
                attempt,
                call,
            } => {
                if let Some(call) = call.and_then(|call| self.calls.get_mut(&call)) {
                    call.decisions += 1;
                }
                if matches!(&*decision, "executed" | "error_kept") {
                    self.key(&key)
                        .recorded
                        .push((at, decision.clone(), attempt));
                }
                *self.decisions.entry(decision).or_default() += 1;
            }
            Event::Drained { left } => {
                self.processes.insert(by, Some(Ended::ByItself { left }));
            }
            Event::Started { process } => {
                self.processes.entry(process).or_default();
            }
            Event::Killed { process } => {
                self.processes.insert(process, Some(Ended::Killed(at)));
            }
            Event::FaultBegan { fault, kind, .. } => {
                self.faults.push(Fault {
                    number: fault,
                    kind,
                    began: at,
                    ended: u64::MAX,
                });
            }
            Event::FaultEnded { fault } => {
                if let Some(fault) = self
                    .faults
                    .iter_mut()
                    .rev()
                    .find(|began| began.number == fault)
                {
                    fault.ended = at;
                }
            }
            Event::ServerDown => self.dead.push((at, u64::MAX)),
            Event::ServerUp => {
                if let Some((_, up)) = self.dead.last_mut() {
                    *up = at;
                }
            }
            Event::Published {
                message,
                key,
                poison,
            } => {
                let info = Message {
                    key,
                    poison,
                    published: 0,
                    aside: Vec::new(),
                };
                self.messages.entry(message).or_insert(info).published += 1;
            }
            Event::PutAside { message, reason } => {
                if let Some(message) = self.messages.get_mut(&message) {
                    message.aside.push(reason);
                }
            }
            Event::Left { messages } => self.left = Some((at, messages)),
            Event::Healed => self.healed = Some(at),
        }
    }

    fn answered(&mut self, at: u64, call: u64, answer: Answer) {
        let Some(info) = self.calls.get_mut(&call) else {
            return;
        };
        let replay = match answer {
            Answer::Value {
                receipt,
                replayed: true,
            } => Some((receipt, Given::Value)),
            Answer::Kept { receipt } if receipt.call != call => Some((receipt, Given::Kept)),
            _ => None,
        };
        (info.ended, info.answer) = (Some(at), Some(answer));
        let key = info.key.clone();
        let Some(replay) = replay else { return };
        self.key(&key).replays.push((at, replay.0, replay.1));
    }

    fn key(&mut self, key: &str) -> &mut Key {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), Key::default());
        }
        self.keys.entry(key.to_owned()).or_default()
    }

    fn step(&mut self, name: &str) -> &mut Step {
        self.steps.entry(name.to_owned()).or_default()
    }

    /// A body, or the closure of a step.
    fn body(&mut self, number: u64) -> Option<&mut Body> {
        let body = self.bodies.get_mut(&number);
        body.or_else(|| self.closures.get_mut(&number))
    }

    fn claim(&mut self, key: &str, owner: u64, sent: u64) -> &mut Claim {
        self.key(key).claims.entry(owner).or_insert_with(|| Claim {
            sent,
            ..Claim::default()
        })
    }

    /// The bodies of a key, in the order in which they began.
    pub(crate) fn bodies_of<'a>(
        &'a self,
        key: &'a Key,
    ) -> impl DoubleEndedIterator<Item = &'a Body> {
        key.bodies.iter().filter_map(|body| self.bodies.get(body))
    }

    /// The closures of a step, in the order in which they began.
    pub(crate) fn closures_of<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = &'a Body> {
        let closures = step.closures.iter();
        closures.filter_map(|closure| self.closures.get(closure))
    }

    /// The keys that calls were made with.
    pub(crate) fn called(&self) -> BTreeSet<&str> {
        self.calls.values().map(|call| &*call.key).collect()
    }
}
