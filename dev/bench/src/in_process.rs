//! Single calls in process: runs `benches/in_process.rs`, which criterion measures, and reads its
//! estimates.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::report::{Figure, Goal, Group, Unit};

/// The ids of the benchmarks, and what they are. Those that were not run are left out.
const CALLS: [(&str, &str); 17] = [
    ("plain", "plain call: clones 200 bytes"),
    (
        "disabled",
        "the same under #[idempotent], Idempotency::disabled()",
    ),
    ("plain_nothing", "plain call: returns at once"),
    (
        "disabled_nothing",
        "the same under #[idempotent], Idempotency::disabled()",
    ),
    ("decode", "decoding of the outcome, by serde_json"),
    ("cached_miss", "cached, sync_writes by_key: miss"),
    ("cached_hit", "cached, sync_writes by_key: hit"),
    ("moka_miss", "moka get_with: miss"),
    ("moka_hit", "moka get_with: hit"),
    ("moka_hit_by_ref", "moka get_with_by_ref: hit"),
    ("first", "idem by hand, MemoryStore: first execution"),
    ("replay", "idem by hand, MemoryStore: replay"),
    (
        "annotated_first",
        "#[idempotent], MemoryStore: first execution",
    ),
    ("annotated_replay", "#[idempotent], MemoryStore: replay"),
    (
        "fingerprinted_replay",
        "idem by hand with a fingerprint, MemoryStore: replay",
    ),
    ("l1_replay", "idem by hand, local_cache: replay"),
    ("l1_annotated_replay", "#[idempotent], local_cache: replay"),
];

/// Nanoseconds of each round, by id.
type Times = BTreeMap<&'static str, Vec<f64>>;

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// The program of `benches/in_process.rs`, and how it is run.
pub(crate) struct InProcess<'a> {
    pub(crate) program: &'a Path,
    pub(crate) rounds: usize,
    /// Too short to mean anything.
    pub(crate) quick: bool,
    /// More arguments of criterion, such as a filter.
    pub(crate) args: &'a [String],
}

/// The arguments of a quick run.
const BRIEFLY: [&str; 4] = ["--warm-up-time", "0.05", "--measurement-time", "0.1"];

/// Runs the program once for each round, and makes the tables. Criterion runs all benchmarks one
/// after the other, so a round has each once.
pub(crate) fn groups(run: &InProcess<'_>) -> Result<Vec<Group>> {
    let mut found = Times::new();
    for round in 1..=run.rounds {
        eprintln!("in process, round {round} of {}", run.rounds);
        // Its own directory, because criterion would compare it with the round before.
        let home = tempfile::tempdir()?;
        let mut program = Command::new(run.program);
        program.args(["--bench", "--noplot", "--quiet"]);
        if run.quick {
            program.args(BRIEFLY);
        }
        let status = program
            .args(run.args)
            .env("CRITERION_HOME", home.path())
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "{} failed", run.program.display());
        read(home.path(), &mut found)?;
    }
    ensure!(!found.is_empty(), "criterion has measured nothing");
    let in_ns = CALLS.into_iter().filter_map(|(id, what)| {
        let times = found.get(id)?.clone();
        Some(Figure::new(what, Unit::Nanoseconds, times))
    });
    Ok(vec![
        Group {
            title: "In process, one call".to_owned(),
            figures: in_ns.collect(),
        },
        Group {
            title: "In process, compared".to_owned(),
            figures: compared(&found),
        },
    ])
}

/// Adds the estimates of one round.
fn read(home: &Path, found: &mut Times) -> Result<()> {
    for (id, _) in CALLS {
        let file = home.join("in_process").join(id).join("new/estimates.json");
        // A benchmark that was not chosen.
        let Ok(json) = fs::read(&file) else { continue };
        let estimates: Estimates = serde_json::from_slice(&json)
            .with_context(|| format!("cannot read {}", file.display()))?;
        found
            .entry(id)
            .or_default()
            .push(estimates.median.point_estimate);
    }
    Ok(())
}

fn compared(times: &Times) -> Vec<Figure> {
    let none = Vec::new();
    let of = |id| times.get(id).unwrap_or(&none);
    let mut figures = Vec::new();
    for (what, own, beside, other, goal) in [
        (
            "first execution, by hand",
            "first",
            "moka's miss",
            "moka_miss",
            Some(0.8),
        ),
        (
            "first execution, #[idempotent]",
            "annotated_first",
            "moka's miss",
            "moka_miss",
            Some(0.8),
        ),
        (
            "replay, by hand",
            "replay",
            "moka's hit",
            "moka_hit",
            Some(1.2),
        ),
        (
            "replay, #[idempotent]",
            "annotated_replay",
            "moka's hit",
            "moka_hit",
            Some(1.2),
        ),
        (
            "first execution, by hand",
            "first",
            "cached's miss",
            "cached_miss",
            None,
        ),
        (
            "replay, by hand",
            "replay",
            "cached's hit",
            "cached_hit",
            None,
        ),
        ("disabled", "disabled", "the plain call", "plain", Some(1.5)),
        (
            "disabled",
            "disabled_nothing",
            "the plain call that returns at once",
            "plain_nothing",
            None,
        ),
    ] {
        let what = format!("{what}, over {beside}");
        let figure = Figure::ratio(what, Unit::Nanoseconds, of(own), (beside, of(other)));
        figures.push(figure.with(goal.map(Goal::AtMost)));
    }
    let hits = of("moka_hit").iter().zip(of("decode"));
    let bound: Vec<f64> = hits.map(|(hit, decode)| hit + decode).collect();
    for (what, id) in [
        ("by hand", "l1_replay"),
        ("#[idempotent]", "l1_annotated_replay"),
    ] {
        let what = format!("replay from local_cache, {what}, over moka's hit and decoding");
        let figure = Figure::ratio(what, Unit::Nanoseconds, of(id), ("both", &bound));
        figures.push(figure.at_most(1.0));
    }
    figures.retain(|figure| !figure.values.is_empty());
    figures
}
