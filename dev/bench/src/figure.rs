//! One line of a table: what was measured in each round, and its goal.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::stats::{median, range};

/// One line of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) goal: Option<Goal>,
    pub(crate) unit: Unit,
    /// One of each round.
    pub(crate) values: Vec<f64>,
    /// The median of each run, if several were merged.
    medians: Vec<f64>,
    /// What is shown beside it, such as the two values of a ratio.
    beside: Vec<Series>,
    /// A note that helps to read it.
    remark: String,
}

/// Values that are shown beside a figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Series {
    name: String,
    unit: Unit,
    values: Vec<f64>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    First,
    Replay,
}

impl Figure {
    /// A line without a goal and without a remark.
    pub(crate) fn new(what: impl Into<String>, unit: Unit, values: Vec<f64>) -> Self {
        Self {
            what: what.into(),
            goal: None,
            unit,
            values,
            medians: Vec::new(),
            beside: Vec::new(),
            remark: String::new(),
        }
    }

    /// The ratio of two subjects in each round, with the values of both beside it.
    pub(crate) fn ratio(
        what: impl Into<String>,
        unit: Unit,
        own: &[f64],
        (name, other): (&str, &[f64]),
    ) -> Self {
        let ratios = own.iter().zip(other).map(|(own, other)| own / other);
        Self::new(what, Unit::Ratio, ratios.collect())
            .series("", unit, own)
            .series(name, unit, other)
    }

    pub(crate) fn at_most(mut self, goal: f64) -> Self {
        self.goal = Some(Goal::AtMost(goal));
        self
    }

    /// Sets a goal, or none.
    pub(crate) fn with(mut self, goal: Option<Goal>) -> Self {
        self.goal = goal;
        self
    }

    /// Shows the median of other values beside it.
    pub(crate) fn series(mut self, name: impl Into<String>, unit: Unit, values: &[f64]) -> Self {
        self.beside.push(Series {
            name: name.into(),
            unit,
            values: values.to_vec(),
        });
        self
    }

    pub(crate) fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = remark.into();
        self
    }

    /// Takes the same line of another run in.
    pub(crate) fn merge(&mut self, other: Self) {
        if self.medians.is_empty() {
            self.medians.push(median(&self.values));
        }
        self.medians.push(median(&other.values));
        self.values.extend(other.values);
        for (own, other) in self.beside.iter_mut().zip(other.beside) {
            own.values.extend(other.values);
        }
    }

    /// Whether the median reaches the goal; `None` where there is none.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        let median = median(&self.values);
        self.goal.map(|goal| match goal {
            Goal::AtMost(most) => median <= most,
            Goal::AtLeast(least) => median >= least,
        })
    }

    /// Its cells: what, goal, median, range, verdict, remark. The range is that of the rounds, or
    /// that of the runs' medians.
    pub(crate) fn cells(&self) -> [String; 6] {
        let goal = self.goal.map(|goal| match goal {
            Goal::AtMost(most) => format!("≤ {}", self.unit.show(most)),
            Goal::AtLeast(least) => format!("≥ {}", self.unit.show(least)),
        });
        let ranged = if self.medians.is_empty() {
            &self.values
        } else {
            &self.medians
        };
        let (least, most) = range(ranged);
        let range = if ranged.len() > 1 {
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
            self.remarks(),
        ]
    }

    fn remarks(&self) -> String {
        let series = self.beside.iter().map(|series| {
            let value = series.unit.show(median(&series.values));
            format!("{} {value}", series.name).trim_start().to_owned()
        });
        let remark = Some(self.remark.clone()).filter(|remark| !remark.is_empty());
        series.chain(remark).collect::<Vec<_>>().join("; ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_held_against_the_median() {
        let figure = Figure::new("share", Unit::Ratio, vec![0.9, 0.96, 0.97]);
        assert_eq!(figure.is_reached(), None);
        let figure = figure.with(Some(Goal::AtLeast(0.95)));
        assert_eq!(figure.is_reached(), Some(true));
        let [_, goal, median, range, verdict, _] = figure.cells();
        assert_eq!(
            [goal, median, range, verdict],
            ["≥ 0.95", "0.96", "0.90 to 0.97", "ok"]
        );
        assert_eq!(figure.at_most(0.5).is_reached(), Some(false));
    }

    #[test]
    fn merged_runs_have_the_median_of_all_rounds_and_the_range_of_their_medians() {
        let run = |own: [f64; 3]| {
            let floor = ("floor", &[2.0, 2.0, 2.0][..]);
            Figure::ratio("over the floor", Unit::Microseconds, &own, floor)
        };
        let mut figure = run([2.0, 4.0, 40.0]);
        figure.merge(run([6.0, 6.0, 6.0]));
        figure.merge(run([2.0, 2.0, 8.0]));
        let [_, _, median, range, _, remark] = figure.cells();
        assert_eq!([median, range], ["3.00", "1.00 to 3.00"]);
        assert_eq!(remark, "6.0 µs; floor 2.0 µs");
    }
}
