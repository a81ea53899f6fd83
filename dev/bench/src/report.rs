//! The report: tables of figures and their goals, in Markdown that a terminal shows as well.

use std::fmt::{self, Write as _};

use crate::machine::{self, Machine};
use crate::stats::{median, range};

const HEAD: [&str; 6] = ["", "goal", "median", "range", "", "figures"];

/// Everything of one run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The server's version.
    pub(crate) server: String,
    pub(crate) rounds: usize,
    pub(crate) groups: Vec<Group>,
    /// The parts that were left out, and why.
    pub(crate) left_out: Vec<String>,
}

/// A table.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) figures: Vec<Figure>,
}

/// One line of a table.
#[derive(Debug)]
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
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    First,
    Replay,
}

impl Report {
    /// Writes the whole report.
    pub(crate) fn markdown(&self, command: &str) -> String {
        let machine = &self.machine;
        let of = |package| machine::locked(package);
        let mut text = format!("{}\n", self.goals());
        let _ = write!(
            text,
            "\n`{command}`, {} rounds\n\n| | |\n| --- | --- |\n",
            self.rounds
        );
        for (name, value) in [
            (
                "processor",
                format!("{}, {} cores", machine.processor, machine.cores),
            ),
            ("memory", machine.memory.clone()),
            ("system", machine.kernel.clone()),
            ("load before the run", machine.load.clone()),
            ("compiler", machine.rustc.clone()),
            (
                "server",
                format!("{}, over loopback, on the same machine", self.server),
            ),
            ("idem", format!("commit {}", machine::commit())),
            (
                "compared with",
                format!(
                    "redis-rs {}, moka {}, cached {}",
                    of("redis"),
                    of("moka"),
                    of("cached")
                ),
            ),
        ] {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        text.push_str(&tables(&self.groups));
        for what in &self.left_out {
            let _ = writeln!(text, "\nLeft out: {what}.");
        }
        text
    }

    /// Counts the goals that are reached, and names the others.
    fn goals(&self) -> String {
        let mut goals = 0;
        let mut missed = Vec::new();
        for group in &self.groups {
            for figure in &group.figures {
                let reached = figure.is_reached();
                goals += usize::from(reached.is_some());
                if reached == Some(false) {
                    let [what, goal, median, ..] = figure.cells();
                    let title = &group.title;
                    missed.push(format!("\n- {title}: {what}: {median}, goal {goal}"));
                }
            }
        }
        match goals - missed.len() {
            reached if reached == goals => format!("All of {goals} goals are reached."),
            reached => format!(
                "{reached} of {goals} goals are reached; missed:\n{}",
                missed.concat()
            ),
        }
    }
}

/// All tables. Their columns are aligned for readers of a terminal.
pub(crate) fn tables(groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        let cells = |figure: &Figure| {
            figure.cells().map(|cell| {
                cell.replace('|', "\\|")
                    .replace("#[idempotent]", "`#[idempotent]`")
            })
        };
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(group.figures.iter().map(cells));
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let [what, goal, median, range, verdict, _] = [0, 1, 2, 3, 4, 5].map(width);
        let _ = writeln!(text, "\n## {}\n", group.title);
        for (line, [a, b, c, d, e, f]) in rows.iter().enumerate() {
            let _ = writeln!(
                text,
                "| {a:<what$} | {b:>goal$} | {c:>median$} | {d:>range$} | {e:<verdict$} | {f} |"
            );
            if line == 0 {
                text.push_str("| --- | ---: | ---: | ---: | --- | --- |\n");
            }
        }
    }
    text
}

impl Figure {
    /// A line without a goal and without a remark.
    pub(crate) fn new(what: impl Into<String>, unit: Unit, values: Vec<f64>) -> Self {
        Self {
            what: what.into(),
            goal: None,
            unit,
            values,
            beside: String::new(),
        }
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
        assert_eq!(
            [goal, median, range, verdict],
            ["≥ 0.95", "0.96", "0.90 to 0.97", "ok"]
        );
        assert_eq!(figure.at_most(0.5).is_reached(), Some(false));
    }

    #[test]
    fn the_report_names_what_is_missed_and_its_tables_are_markdown() {
        let missed = Figure::new("#[idempotent] over the floor", Unit::Ratio, vec![1.06]);
        let reached = Figure::new("commands", Unit::Count, vec![2.0]);
        let report = Report {
            machine: Machine::look(),
            server: "Redis 7".to_owned(),
            rounds: 1,
            groups: vec![Group {
                title: "Over Redis".to_owned(),
                figures: vec![missed.at_most(1.05), reached.at_most(2.0)],
            }],
            left_out: Vec::new(),
        };
        let text = report.markdown("cargo xtask bench");
        assert!(
            text.starts_with("1 of 2 goals are reached; missed:\n\n- Over Redis: #[idempotent]")
        );
        for row in [
            "| `#[idempotent] over the floor` | ≤ 1.05 |   1.06 |       | missed |  |",
            "| commands",
        ] {
            assert!(
                text.lines()
                    .any(|line| line.replace('`', "").starts_with(&row.replace('`', ""))),
                "{text}"
            );
        }
    }
}
