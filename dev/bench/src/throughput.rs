//! How many calls a second many tasks make at once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use crate::at_once::at_once;
use crate::report::{Figure, Goal, Group, Kind, Unit};
use crate::subject::{Subject, Subjects};

/// The subjects.
const SUBJECTS: [Subject; 3] = [Subject::Floor, Subject::ByHand, Subject::Annotated];
/// Those on a Valkey; the runtime of annotated functions is on the Redis.
const ON_VALKEY: [Subject; 2] = [Subject::Floor, Subject::ByHand];
/// How many tasks call at once.
const TASKS: [usize; 4] = [1, 8, 64, 512];
/// Those for which there is a goal.
const WITH_GOAL: [usize; 2] = [64, 512];
/// How many outcomes each task replays in turn. No two tasks have one in common: calls of one key
/// would share a round trip.
const KEYS: u64 = 4;

/// The calls a second of each round, by kind, number of tasks and subject.
pub(crate) struct Throughputs {
    subjects: &'static [Subject],
    tasks: &'static [usize],
    kinds: &'static [Kind],
    rates: Vec<Vec<f64>>,
}

/// The parts of a slice.
#[derive(Clone, Copy)]
struct Slice {
    subject: Subject,
    kind: Kind,
    tasks: usize,
    length: Duration,
}

impl Throughputs {
    pub(crate) fn on_redis() -> Self {
        Self::of(&SUBJECTS, &TASKS, &Kind::ALL)
    }

    pub(crate) fn on_valkey() -> Self {
        Self::of(&ON_VALKEY, &WITH_GOAL, &[Kind::First])
    }

    fn of(subjects: &'static [Subject], tasks: &'static [usize], kinds: &'static [Kind]) -> Self {
        Self {
            subjects,
            tasks,
            kinds,
            rates: vec![Vec::new(); subjects.len() * tasks.len() * kinds.len()],
        }
    }

    /// What is measured, in the order of the rates.
    fn places(&self) -> Vec<(Kind, usize)> {
        let mut places = Vec::new();
        for kind in self.kinds {
            places.extend(self.tasks.iter().map(|tasks| (*kind, *tasks)));
        }
        places
    }

    /// One round: slices in turns, so that what slows the machine down hits all. Numbers of keys
    /// from `from` on are used.
    pub(crate) async fn round(
        &mut self,
        subjects: &Arc<Subjects>,
        length: Duration,
        turns: u32,
        from: u64,
    ) -> Result<()> {
        // Numbers of keys: the first ones are replayed, and those behind are for first executions.
        let mut next = from;
        let replayed = next;
        next += KEYS * TASKS[TASKS.len() - 1] as u64;
        if self.kinds.contains(&Kind::Replay) {
            for subject in self.subjects {
                prepare(subjects, *subject, replayed..next).await?;
            }
        }
        let mut order: Vec<usize> = (0..self.subjects.len()).collect();
        for (place, (kind, tasks)) in self.places().into_iter().enumerate() {
            let mut calls = vec![0.0; self.subjects.len()];
            for _ in 0..turns {
                for &subject in &order {
                    let slice = Slice {
                        subject: self.subjects[subject],
                        kind,
                        tasks,
                        length,
                    };
                    let first = if kind == Kind::Replay { replayed } else { next };
                    let (number, rate) = slice.run(subjects, first).await?;
                    next += if kind == Kind::Replay { 0 } else { number };
                    calls[subject] += rate / f64::from(turns);
                }
                order.reverse();
            }
            for (subject, rate) in calls.into_iter().enumerate() {
                self.rates[place * self.subjects.len() + subject].push(rate);
            }
        }
        Ok(())
    }

    /// The tables' part: the share of the floor's rate, which is the first subject.
    pub(crate) fn group(&self, server: &str, least: f64) -> Group {
        let mut figures = Vec::new();
        // Each line has a name of its own in the whole report.
        let of = if server == "Redis" {
            ""
        } else {
            &format!("{server}, ")
        };
        for (rates, (kind, tasks)) in self.rates.chunks(self.subjects.len()).zip(self.places()) {
            let Some((floor, rates)) = rates.split_first() else {
                continue;
            };
            for (subject, rates) in self.subjects.iter().skip(1).zip(rates) {
                let name = subject.name();
                let what = format!("{of}{kind}, {tasks} at once: {name}, share of the floor");
                let figure = Figure::ratio(what, Unit::PerSecond, rates, ("floor", floor));
                let has_goal = WITH_GOAL.contains(&tasks);
                figures.push(figure.with(has_goal.then_some(Goal::AtLeast(least))));
            }
        }
        Group {
            title: format!("Over {server}, many calls at once"),
            figures,
        }
    }
}

impl Slice {
    /// The numbers of keys that may have been used, and the calls a second.
    async fn run(self, subjects: &Arc<Subjects>, from: u64) -> Result<(u64, f64)> {
        let Self {
            subject,
            kind,
            tasks,
            length,
        } = self;
        let tasks = tasks as u64;
        let subjects = subjects.clone();
        let call = move |task, calls| {
            let subjects = subjects.clone();
            async move {
                let number = match kind {
                    Kind::First => calls * tasks + task,
                    Kind::Replay => task * KEYS + calls % KEYS,
                };
                subjects
                    .call(subject, kind, &subjects.key(subject, from + number))
                    .await
            }
        };
        at_once(tasks, length, call).await
    }
}

/// Makes outcomes.
async fn prepare(
    subjects: &Arc<Subjects>,
    subject: Subject,
    numbers: std::ops::Range<u64>,
) -> Result<()> {
    const AT_ONCE: usize = 64;
    let mut running = JoinSet::new();
    for task in 0..AT_ONCE {
        let subjects = subjects.clone();
        let numbers = numbers.clone();
        running.spawn(async move {
            for number in numbers.skip(task).step_by(AT_ONCE) {
                subjects
                    .call(subject, Kind::First, &subjects.key(subject, number))
                    .await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}
