//! What is simulated: first one machine, beside what was measured there, then many.

use std::fmt::Write as _;

use anyhow::Result;

use super::constants::Constants;
use super::page::{name, round, time};
use super::sim::{self, Load, Outcome, Scenario, Service, Spread};
use crate::report::Kind;

pub(super) const PRIMARIES: [usize; 3] = [1, 3, 9];
pub(super) const PROCESSES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Shares of what it can do at the most.
pub(super) const LOADS: [f64; 7] = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.2];
/// Those of the table.
const SHOWN: [f64; 4] = [0.2, 0.6, 0.9, 0.95];
/// Callers in each process, for what it can do at the most.
const CALLERS: usize = 256;
/// Between hosts of one zone: an assumption.
const DELAY: f64 = 100.0;
const KEYS: u32 = 1_000_000;
const EXPONENT: f64 = 1.0;
const CALLS: usize = 60_000;
const SEED: u64 = 20_26;

/// The distribution of keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mix {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) spread: Spread,
}

pub(super) const MIXES: [Mix; 3] = [
    Mix { name: "first executions", kind: Kind::First, spread: Spread::Uniform },
    Mix { name: "replays, even keys", kind: Kind::Replay, spread: Spread::Uniform },
    Mix { name: "replays, hot keys", kind: Kind::Replay, spread: Spread::Zipf(KEYS, EXPONENT) },
];

/// All of it.
pub(super) struct Simulated {
    /// Beside its point: rate, p50, p99 and messages a call.
    checks: Vec<(super::constants::Point, Outcome)>,
    pub(super) rows: Vec<Row>,
}

/// So many processes, each with one processor, and so many primaries.
pub(super) struct Row {
    pub(super) mix: Mix,
    pub(super) primaries: usize,
    pub(super) processes: usize,
    /// With so many callers in each process as to keep it busy.
    pub(super) most: Outcome,
    /// The least of what the servers' and the callers' processor time allow, by formula.
    pub(super) bound: f64,
    /// By share of the most: the offered load, and what came of it.
    pub(super) loads: Vec<(f64, f64, Outcome)>,
}

/// Simulates everything.
pub(super) fn all(constants: &Constants) -> Result<Simulated> {
    let base = |delay| Scenario {
        costs: constants.costs(delay),
        kind: Kind::First,
        spread: Spread::Uniform,
        processes: 1,
        processors: 1,
        primaries: 1,
        load: Load::Closed(1),
        calls: CALLS,
        together: true,
        service: Service::Fixed,
        seed: SEED,
    };
    let mut checks = Vec::new();
    for point in &constants.points {
        if point.payload + 2 == constants.payload_bytes && point.connections == 1 {
            let one = Scenario { kind: point.kind, load: Load::Closed(point.tasks), ..base(constants.delay) };
            checks.push((point.clone(), sim::run(&one)?));
        }
    }
    let mut rows = Vec::new();
    for mix in MIXES {
        for primaries in PRIMARIES {
            for processes in PROCESSES {
                let callers = processes * CALLERS;
                let one = Scenario { kind: mix.kind, spread: mix.spread, processes, primaries, ..base(DELAY) };
                let most = sim::run(&Scenario { load: Load::Closed(callers), calls: CALLS.max(callers * 24), ..one })?;
                let mut loads = Vec::new();
                for share in LOADS {
                    let offered = most.rate * share;
                    loads.push((share, offered, sim::run(&Scenario { load: Load::Open(offered), ..one })?));
                }
                let bound = (constants.most(mix.kind, f64::INFINITY) * primaries as f64)
                    .min(constants.most_of_processor(mix.kind, f64::INFINITY) * processes as f64);
                rows.push(Row { mix, primaries, processes, most, bound, loads });
            }
        }
    }
    Ok(Simulated { checks, rows })
}

impl Simulated {
    pub(super) fn tables(&self) -> [(&'static str, String); 3] {
        [("validation", self.validation()), ("capacity", self.capacity()), ("latency", self.latency())]
    }

    fn validation(&self) -> String {
        let mut text = String::from(
            "| | tasks | calls a second: measured | simulated | error | p50: measured | simulated | error | messages a call: measured | simulated |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for (point, found) in &self.checks {
            let error = |found: f64, measured: f64| format!("{:+.0} %", (found / measured - 1.0) * 100.0);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.2} |",
                name(point.kind),
                point.tasks,
                round(point.rate),
                round(found.rate),
                error(found.rate, point.rate),
                time(point.p50),
                time(found.p50),
                error(found.p50, point.p50),
                point.messages,
                found.messages
            );
        }
        text
    }

    fn capacity(&self) -> String {
        let mut text = String::from("| thousand calls a second | primaries |");
        for processes in PROCESSES {
            let _ = write!(text, " {processes} |");
        }
        text.push_str("\n| --- | ---: |");
        text.push_str(&" ---: |".repeat(PROCESSES.len()));
        text.push('\n');
        for mix in MIXES {
            for primaries in PRIMARIES {
                let _ = write!(text, "| {} | {primaries} |", mix.name);
                for row in self.rows.iter().filter(|row| row.mix == mix && row.primaries == primaries) {
                    let _ = write!(text, " {:.0} |", row.most.rate / 1e3);
                }
                text.push('\n');
            }
        }
        text
    }

    fn latency(&self) -> String {
        let mut text = String::from("| | primaries | processes | most, calls a second | by formula |");
        for share in SHOWN {
            let _ = write!(text, " p50 / p99 at {:.0} % |", share * 100.0);
        }
        text.push_str("\n| --- | ---: | ---: | ---: | ---: |");
        text.push_str(&" ---: |".repeat(SHOWN.len()));
        text.push('\n');
        for row in self
            .rows
            .iter()
            .filter(|row| [(1, 1), (1, 4), (1, 16), (3, 16), (9, 64)].contains(&(row.primaries, row.processes)))
        {
            let _ = write!(
                text,
                "| {} | {} | {} | {} | {} |",
                row.mix.name,
                row.primaries,
                row.processes,
                round(row.most.rate),
                round(row.bound)
            );
            for (_, _, found) in row.loads.iter().filter(|(share, _, _)| SHOWN.contains(share)) {
                let _ = write!(text, " {} / {} |", time(found.p50), time(found.p99));
            }
            text.push('\n');
        }
        text
    }

    /// Returns every load of every row. If fewer calls end than are offered, times grow as long as
    /// that lasts.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from(
            "mix,primaries,processes,most_per_second,offered_share,offered_per_second,ended_per_second,p50_us,p99_us,messages_per_call,busiest_primary,shared_flights\n",
        );
        for row in &self.rows {
            let Row { mix, primaries, processes, most, .. } = row;
            for (share, offered, found) in &row.loads {
                let _ = writeln!(
                    text,
                    "\"{}\",{primaries},{processes},{:.0},{share},{offered:.0},{:.0},{:.0},{:.0},{:.3},{:.3},{:.4}",
                    mix.name, most.rate, found.rate, found.p50, found.p99, found.messages, found.busiest, found.shared
                );
            }
        }
        text
    }
}
