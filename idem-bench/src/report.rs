//! The results, as the measuring program passes them to the one that shows them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::stats::{median, range};

/// Everything of one run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The server's version.
    pub(crate) server: String,
    pub(crate) rounds: usize,
    pub(crate) groups: Vec<Group>,
    /// Sequential calls, by percentile.
    pub(crate) latencies: Vec<Latency>,
    /// Calls of many tasks at once.
    pub(crate) throughputs: Vec<Throughput>,
    /// The parts that were left out, and why.
    pub(crate) left_out: Vec<String>,
}

/// A table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) figures: Vec<Figure>,
}

/// One line of a table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) goal: Option<Goal>,
    pub(crate) unit: Unit,
    /// One of each round.
    pub(crate) values: Vec<f64>,
    /// A note that helps to read it.
    pub(crate) beside: String,
}

/// The goal of a figure.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    Ratio,
    Count,
    Bytes,
    Nanoseconds,
    Microseconds,
    Milliseconds,
    PerSecond,
}

/// The two kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    First,
    Replay,
}

/// How long sequential calls of one subject took.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) subject: String,
    pub(crate) kind: Kind,
    /// Shares of the calls, and the microseconds below which they were.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

/// How many calls a second so many tasks made of one subject, in each round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) subject: String,
    pub(crate) kind: Kind,
    pub(crate) tasks: usize,
    pub(crate) rounds: Vec<f64>,
}

impl Figure {
    /// A line without a goal and without a remark.
    pub(crate) fn new(what: impl Into<String>, unit: Unit, values: Vec<f64>) -> Self {
        Self { what: what.into(), goal: None, unit, values, beside: String::new() }
    }

    pub(crate) fn at_most(mut self, goal: f64) -> Self {
        self.goal = Some(Goal::AtMost(goal));
        self
    }

    pub(crate) fn at_least(mut self, goal: f64) -> Self {
        self.goal = Some(Goal::AtLeast(goal));
        self
    }

    pub(crate) fn beside(mut self, beside: impl Into<String>) -> Self {
        self.beside = beside.into();
        self
    }

    /// Whether the median reaches the goal; `None` where there is none.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        let median = median(&self.values);
        self.goal.map(|goal| match goal {
            Goal::AtMost(most) => median <= most,
            Goal::AtLeast(least) => median >= least,
        })
    }

    /// Its cells: what, goal, median, range, verdict, remark.
    pub(crate) fn cells(&self) -> [String; 6] {
        let goal = self.goal.map(|goal| match goal {
            Goal::AtMost(most) => format!("≤ {}", self.unit.show(most)),
            Goal::AtLeast(least) => format!("≥ {}", self.unit.show(least)),
        });
        let (least, most) = range(&self.values);
        let range = if self.values.len() > 1 {
            format!("{} to {}", self.unit.show(least), self.unit.show(most))
        } else {
            String::new()
        };
        let verdict = match self.is_reached() {
            Some(true) => "ok",
            Some(false) => "missed",
            None => "",
        };
        [
            self.what.clone(),
            goal.unwrap_or_default(),
            self.unit.show(median(&self.values)),
            range,
            verdict.to_owned(),
            self.beside.clone(),
        ]
    }
}

impl Unit {
    /// A value as a person reads it.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Count => format!("{}", (value * 100.0).round() / 100.0),
            Self::Bytes => format!("{value:.0} B"),
            Self::Nanoseconds if value < 9.95 => format!("{value:.1} ns"),
            Self::Nanoseconds => format!("{value:.0} ns"),
            Self::Microseconds => format!("{value:.1} µs"),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::PerSecond if value >= 10_000.0 => format!("{:.1} k/s", value / 1000.0),
            Self::PerSecond => format!("{value:.0}/s"),
        }
    }
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::First, Self::Replay];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first execution",
            Self::Replay => "replay",
        })
    }
}

/// The calls of one kind, by subject, in the order in which they were measured.
pub(crate) fn subjects<T>(all: &[T], of: impl Fn(&T) -> (Kind, &str), kind: Kind) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for (_, name) in all.iter().map(of).filter(|(of, _)| *of == kind) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_held_against_the_median() {
        let figure = Figure::new("share", Unit::Ratio, vec![0.9, 0.96, 0.97]);
        assert_eq!(figure.is_reached(), None);
        let figure = figure.at_least(0.95);
        assert_eq!(figure.is_reached(), Some(true));
        let [_, goal, median, range, verdict, _] = figure.cells();
        assert_eq!([goal, median, range, verdict], ["≥ 0.95", "0.96", "0.90 to 0.97", "ok"]);
        assert_eq!(figure.at_most(0.5).is_reached(), Some(false));
    }
}
