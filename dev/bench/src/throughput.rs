//! How many calls a second many tasks make at once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;

use crate::at_once::at_once;
use crate::report::{Figure, Group, Kind, Unit};
use crate::stats::median;
use crate::subject::{Subject, Subjects};

/// How many tasks call at once.
pub(crate) const TASKS: [usize; 4] = [1, 8, 64, 512];
/// Those for which there is a goal.
const WITH_GOAL: [usize; 2] = [64, 512];
/// How many outcomes each task replays in turn. No two tasks have one in common: calls of one key
/// would share a round trip.
const KEYS: u64 = 4;

/// The calls a second of each round, by subject and number of tasks.
#[derive(Default)]
pub(crate) struct Throughputs([[[Vec<f64>; TASKS.len()]; 2]; Subject::ALL.len()]);

/// The parts of a slice.
#[derive(Clone, Copy)]
struct Slice {
    subject: Subject,
    kind: Kind,
    tasks: usize,
    length: Duration,
}

impl Throughputs {
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
        for subject in Subject::ALL
            .into_iter()
            .filter(|subject| subject.has(Kind::Replay))
        {
            prepare(subjects, subject, replayed..next).await?;
        }
        for (place, tasks) in TASKS.into_iter().enumerate() {
            for kind in Kind::ALL {
                let mut calls = [0.0; Subject::ALL.len()];
                let mut order = Subject::ALL;
                for _ in 0..turns {
                    for subject in order.into_iter().filter(|subject| subject.has(kind)) {
                        let slice = Slice {
                            subject,
                            kind,
                            tasks,
                            length,
                        };
                        let first = if kind == Kind::Replay { replayed } else { next };
                        let (number, rate) = slice.run(subjects, first).await?;
                        next += if kind == Kind::Replay { 0 } else { number };
                        calls[subject as usize] += rate / f64::from(turns);
                    }
                    order.reverse();
                }
                for subject in Subject::ALL.into_iter().filter(|subject| subject.has(kind)) {
                    self.0[subject as usize][kind as usize][place].push(calls[subject as usize]);
                }
            }
        }
        Ok(())
    }

    /// The tables' part.
    pub(crate) fn group(&self) -> Group {
        let mut figures = Vec::new();
        for kind in Kind::ALL {
            for subject in Subject::ALL
                .into_iter()
                .skip(1)
                .filter(|subject| subject.has(kind))
            {
                for (place, tasks) in TASKS.into_iter().enumerate() {
                    let of = |subject: Subject| &self.0[subject as usize][kind as usize][place];
                    let floor = of(Subject::Floor);
                    let own = of(subject);
                    let shares = own
                        .iter()
                        .zip(floor)
                        .map(|(own, floor)| own / floor)
                        .collect();
                    let what = format!(
                        "{kind}, {tasks} at once: {}, share of the floor",
                        subject.name()
                    );
                    let per_second = |rounds| Unit::PerSecond.show(median(rounds));
                    let beside = format!("{}; floor {}", per_second(own), per_second(floor));
                    let figure = Figure::new(what, Unit::Ratio, shares).beside(beside);
                    let has_goal = subject.is_ours() && WITH_GOAL.contains(&tasks);
                    figures.push(if has_goal {
                        figure.at_least(0.95)
                    } else {
                        figure
                    });
                }
            }
        }
        Group {
            title: "Over Redis, many calls at once".to_owned(),
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
