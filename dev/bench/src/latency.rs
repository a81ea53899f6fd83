//! The duration of a single call without other calls.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use crate::report::{Figure, Goal, Group, Kind, Unit};
use crate::stats::quantile;
use crate::subject::{Subject, Subjects};

/// The microseconds of each call, by subject and round.
#[derive(Default)]
pub(crate) struct Latencies([[Vec<Vec<f64>>; 2]; Subject::ALL.len()]);

impl Latencies {
    /// One round: call by call in turns, in an order that goes round, so that none is always behind
    /// the same other.
    pub(crate) async fn round(
        &mut self,
        subjects: &Arc<Subjects>,
        calls: u64,
        from: u64,
    ) -> Result<()> {
        // In a task, as a service has it: the thread that drives the connection can be the one that
        // calls.
        let times = tokio::spawn(sequential(subjects.clone(), calls, from)).await??;
        for (all, round) in self.0.iter_mut().zip(times) {
            for (all, round) in all.iter_mut().zip(round) {
                all.push(round);
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
                for (name, share, goal) in [("p50", 0.5, 1.03), ("p99", 0.99, 1.10)] {
                    let of = |subject| self.quantiles(subject, kind, share);
                    let what = format!("{kind}, {name}: {} over the floor", subject.name());
                    let floor = of(Subject::Floor);
                    let floor = ("floor", &*floor);
                    let figure = Figure::ratio(what, Unit::Microseconds, &of(subject), floor);
                    let goal = subject.is_ours().then_some(Goal::AtMost(goal));
                    figures.push(figure.with(goal));
                }
            }
        }
        Group {
            title: "Over Redis, one call at a time".to_owned(),
            figures,
        }
    }

    fn of(&self, subject: Subject, kind: Kind) -> &[Vec<f64>] {
        &self.0[subject as usize][kind as usize]
    }

    fn quantiles(&self, subject: Subject, kind: Kind, share: f64) -> Vec<f64> {
        self.of(subject, kind)
            .iter()
            .map(|round| quantile(round, share))
            .collect()
    }
}

type Times = [[Vec<f64>; 2]; Subject::ALL.len()];

async fn sequential(subjects: Arc<Subjects>, calls: u64, from: u64) -> Result<Times> {
    let mut times = Times::default();
    let mut order = Subject::ALL;
    for call in from..from + calls {
        order.rotate_left(1);
        for kind in Kind::ALL {
            for subject in order.into_iter().filter(|subject| subject.has(kind)) {
                let key = subjects.key(subject, call);
                let begun = Instant::now();
                subjects.call(subject, kind, &key).await?;
                times[subject as usize][kind as usize].push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}
