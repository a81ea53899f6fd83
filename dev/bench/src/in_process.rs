//! Single calls in process: runs `benches/in_process.rs`, which criterion measures, and reads its
//! estimates.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::report::{Figure, Group, Unit};
use crate::stats::median;

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
    let over = |what: &str, own: &'static str, other: &'static str, goal: Option<f64>| {
        let own = of(own);
        let other = of(other);
        let ratios: Vec<f64> = own
            .iter()
            .zip(other)
            .map(|(own, other)| own / other)
            .collect();
        let beside = format!("{} over {}", ns(own), ns(other));
        let figure = Figure::new(what, Unit::Ratio, ratios).beside(beside);
        if let Some(goal) = goal {
            figure.at_most(goal)
        } else {
            figure
        }
    };
    let mut figures = vec![
        over(
            "first execution, by hand, over moka's miss",
            "first",
            "moka_miss",
            Some(0.6),
        ),
        over(
            "first execution, #[idempotent], over moka's miss",
            "annotated_first",
            "moka_miss",
            Some(0.6),
        ),
        over(
            "replay, by hand, over moka's hit",
            "replay",
            "moka_hit",
            Some(0.8),
        ),
        over(
            "replay, #[idempotent], over moka's hit",
            "annotated_replay",
            "moka_hit",
            Some(0.8),
        ),
        over(
            "first execution, by hand, over cached's miss",
            "first",
            "cached_miss",
            None,
        ),
        over(
            "replay, by hand, over cached's hit",
            "replay",
            "cached_hit",
            None,
        ),
        over(
            "disabled, over the plain call",
            "disabled",
            "plain",
            Some(1.5),
        ),
        over(
            "disabled, over the plain call that returns at once",
            "disabled_nothing",
            "plain_nothing",
            None,
        ),
    ];
    for (what, id) in [
        ("by hand", "l1_replay"),
        ("#[idempotent]", "l1_annotated_replay"),
    ] {
        let bound = of("moka_hit")
            .iter()
            .zip(of("decode"))
            .map(|(hit, decode)| hit + decode);
        let ratios = of(id)
            .iter()
            .zip(bound)
            .map(|(own, bound)| own / bound)
            .collect();
        let what = format!("replay from local_cache, {what}, over moka's hit and decoding");
        let beside = format!(
            "{} over {} and {}",
            ns(of(id)),
            ns(of("moka_hit")),
            ns(of("decode"))
        );
        figures.push(
            Figure::new(what, Unit::Ratio, ratios)
                .at_most(1.0)
                .beside(beside),
        );
    }
    figures.retain(|figure| !figure.values.is_empty());
    figures
}

fn ns(times: &[f64]) -> String {
    Unit::Nanoseconds.show(median(times))
}
