//! The report: tables of figures and their goals, in Markdown that a terminal shows as well.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

pub(crate) use crate::figure::{Figure, Goal, Kind, Unit};
use crate::machine::{self, Machine};

const HEAD: [&str; 6] = ["", "goal", "median", "range", "", "figures"];

/// Everything of one run, or of several of one commit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) commit: String,
    /// The servers' names and versions.
    pub(crate) servers: Vec<String>,
    pub(crate) runs: usize,
    /// Of each run.
    pub(crate) rounds: usize,
    pub(crate) groups: Vec<Group>,
    /// The parts that were left out, and why.
    pub(crate) left_out: Vec<String>,
}

/// A table.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) figures: Vec<Figure>,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What `run --json` wrote, of each run
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Also write the report there
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The command that the report names
    #[arg(long, default_value = "idem-bench run")]
    command: String,
}

/// Shows one report of several runs.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut all: Option<Report> = None;
    for file in &args.runs {
        let json = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let run: Report = serde_json::from_slice(&json)
            .with_context(|| format!("{} is no run", file.display()))?;
        match &mut all {
            Some(all) => all.merge(run)?,
            None => all = Some(run),
        }
    }
    let text = all.context("there is no run")?.markdown(&args.command);
    print!("{text}");
    if let Some(file) = &args.write {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}

impl Report {
    /// A report of nothing yet.
    pub(crate) fn begin(rounds: usize) -> Self {
        Self {
            machine: Machine::look(),
            commit: machine::commit(),
            servers: Vec::new(),
            runs: 1,
            rounds,
            groups: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Names a server, once.
    pub(crate) fn server(&mut self, version: String) {
        if !self.servers.contains(&version) {
            self.servers.push(version);
        }
    }

    /// What was started; names it under what was left out if it did not start.
    pub(crate) fn started<T, E: std::fmt::Display>(
        &mut self,
        name: &str,
        started: Result<T, E>,
    ) -> Option<T> {
        if let Err(error) = &started {
            let name = format!("{name}: {error:#}");
            if !self.left_out.contains(&name) {
                self.left_out.push(name);
            }
        }
        started.ok()
    }

    fn merge(&mut self, other: Self) -> Result<()> {
        let lines = |report: &Self| -> Vec<_> {
            let of = |group: &Group| {
                let whats = group.figures.iter().map(|figure| figure.what.clone());
                (group.title.clone(), whats.collect::<Vec<_>>())
            };
            report.groups.iter().map(of).collect()
        };
        let is_alike = self.commit == other.commit && self.rounds == other.rounds;
        ensure!(
            is_alike && lines(self) == lines(&other),
            "the runs are not of one commit and of the same parts"
        );
        self.runs += other.runs;
        for (own, other) in self.groups.iter_mut().zip(other.groups) {
            for (own, other) in own.figures.iter_mut().zip(other.figures) {
                own.merge(other);
            }
        }
        let load = &mut self.machine.load;
        *load = format!("{load}, {}", other.machine.load);
        Ok(())
    }

    /// Writes the whole report.
    pub(crate) fn markdown(&self, command: &str) -> String {
        let machine = &self.machine;
        let of = |package| format!("{package} {}", machine::locked(package));
        let mut text = format!("{}\n\n`{command}`, ", self.goals());
        if self.runs > 1 {
            let _ = write!(
                text,
                "{} runs of {} rounds: the median of all rounds, and the range of the runs' medians",
                self.runs, self.rounds
            );
        } else {
            let _ = write!(text, "{} rounds", self.rounds);
        }
        text.push_str("\n\n| | |\n| --- | --- |\n");
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
                "servers",
                format!(
                    "{}, over loopback, on the same machine",
                    self.servers.join(", ")
                ),
            ),
            ("idem", format!("commit {}", self.commit)),
            (
                "compared with",
                ["redis", "sqlx", "moka", "cached", "axum-idempotent"]
                    .map(of)
                    .join(", "),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratio: f64) -> Report {
        let missed = Figure::new("#[idempotent] over the floor", Unit::Ratio, vec![ratio]);
        let reached = Figure::new("commands", Unit::Count, vec![2.0]);
        let mut report = Report::begin(1);
        report.groups.push(Group {
            title: "Over Redis".to_owned(),
            figures: vec![missed.at_most(1.05), reached.at_most(2.0)],
        });
        report
    }

    #[test]
    fn the_report_names_what_is_missed_and_its_tables_are_markdown() {
        let text = report(1.06).markdown("cargo xtask bench");
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

    #[test]
    fn runs_of_other_parts_or_commits_are_not_merged() {
        let mut all = report(1.0);
        all.merge(report(1.2)).expect("a run of the same parts");
        assert!(all.markdown("").contains("2 runs of 1 rounds"));
        let mut other = report(1.0);
        other.groups.clear();
        assert!(all.merge(other).is_err());
        let other = Report {
            commit: "another".to_owned(),
            ..report(1.0)
        };
        assert!(all.merge(other).is_err());
    }
}
