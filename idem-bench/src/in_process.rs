//! Reads the results of the other two programs: criterion's estimates of `benches/in_process.rs`,
//! and the counts of `allocations`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::report::{Figure, Group, Unit};
use crate::stats::median;

/// The ids of the benchmarks, and what they are. Those that were not run are left out.
const CALLS: [(&str, &str); 17] = [
    ("plain", "plain call: clones 200 bytes"),
    ("disabled", "the same under #[idempotent], Idempotency::disabled()"),
    ("plain_nothing", "plain call: returns at once"),
    ("disabled_nothing", "the same under #[idempotent], Idempotency::disabled()"),
    ("decode", "decoding of the outcome, by serde_json"),
    ("cached_miss", "cached, sync_writes by_key: miss"),
    ("cached_hit", "cached, sync_writes by_key: hit"),
    ("moka_miss", "moka get_with: miss"),
    ("moka_hit", "moka get_with: hit"),
    ("moka_hit_by_ref", "moka get_with_by_ref: hit"),
    ("first", "idem by hand, MemoryStore: first execution"),
    ("replay", "idem by hand, MemoryStore: replay"),
    ("annotated_first", "#[idempotent], MemoryStore: first execution"),
    ("annotated_replay", "#[idempotent], MemoryStore: replay"),
    ("fingerprinted_replay", "idem by hand with a fingerprint, MemoryStore: replay"),
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

/// The tables of a directory that has one of criterion's for each round.
pub(crate) fn times(rounds: &Path) -> Result<Vec<Group>> {
    let mut found = Times::new();
    for round in sorted(rounds)? {
        for (id, _) in CALLS {
            let file = round.join("in_process").join(id).join("new/estimates.json");
            // A benchmark that was not chosen.
            let Ok(json) = fs::read(&file) else { continue };
            let estimates: Estimates =
                serde_json::from_slice(&json).with_context(|| format!("cannot read {}", file.display()))?;
            found.entry(id).or_default().push(estimates.median.point_estimate);
        }
    }
    ensure!(!found.is_empty(), "criterion has left nothing in {}", rounds.display());
    let in_ns = CALLS.into_iter().filter_map(|(id, what)| {
        let times = found.get(id)?.clone();
        Some(Figure::new(what, Unit::Nanoseconds, times))
    });
    Ok(vec![
        Group { title: "In process, one call".to_owned(), figures: in_ns.collect() },
        Group { title: "In process, compared".to_owned(), figures: compared(&found) },
    ])
}

fn compared(times: &Times) -> Vec<Figure> {
    let none = Vec::new();
    let of = |id| times.get(id).unwrap_or(&none);
    let over = |what: &str, own: &'static str, other: &'static str, goal: Option<f64>| {
        let (own, other) = (of(own), of(other));
        let ratios: Vec<f64> = own.iter().zip(other).map(|(own, other)| own / other).collect();
        let beside = format!("{} over {}", ns(own), ns(other));
        let figure = Figure::new(what, Unit::Ratio, ratios).beside(beside);
        if let Some(goal) = goal { figure.at_most(goal) } else { figure }
    };
    let mut figures = vec![
        over("first execution, by hand, over moka's miss", "first", "moka_miss", Some(0.6)),
        over("first execution, #[idempotent], over moka's miss", "annotated_first", "moka_miss", Some(0.6)),
        over("replay, by hand, over moka's hit", "replay", "moka_hit", Some(0.8)),
        over("replay, #[idempotent], over moka's hit", "annotated_replay", "moka_hit", Some(0.8)),
        over("first execution, by hand, over cached's miss", "first", "cached_miss", None),
        over("replay, by hand, over cached's hit", "replay", "cached_hit", None),
        over("disabled, over the plain call", "disabled", "plain", Some(1.5)),
        over("disabled, over the plain call that returns at once", "disabled_nothing", "plain_nothing", None),
    ];
    for (what, id) in [("by hand", "l1_replay"), ("#[idempotent]", "l1_annotated_replay")] {
        let bound = of("moka_hit").iter().zip(of("decode")).map(|(hit, decode)| hit + decode);
        let ratios = of(id).iter().zip(bound).map(|(own, bound)| own / bound).collect();
        let what = format!("replay from local_cache, {what}, over moka's hit and decoding");
        let beside = format!("{} over {} and {}", ns(of(id)), ns(of("moka_hit")), ns(of("decode")));
        figures.push(Figure::new(what, Unit::Ratio, ratios).at_most(1.0).beside(beside));
    }
    figures.retain(|figure| !figure.values.is_empty());
    figures
}

/// The counts of `allocations`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    body: Count,
    encoding: Count,
    decoding: Count,
    first: Count,
    replay: Count,
    annotated_first: Count,
    annotated_replay: Count,
    disabled: Count,
}

/// Of a call.
#[derive(Deserialize)]
struct Count {
    median: f64,
    /// With the tables that grow now and then.
    mean: f64,
}

/// The table of its file.
pub(crate) fn allocations(file: &Path) -> Result<Group> {
    let json = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Counts { body, encoding, decoding, first, replay, annotated_first, annotated_replay, disabled } =
        serde_json::from_slice(&json).with_context(|| format!("cannot read {}", file.display()))?;
    let figure = |what: &str, all: &Count, inevitable: f64, goal: f64| {
        let [median, mean, of_others] = [all.median, all.mean, inevitable].map(|count| Unit::Count.show(count));
        let beside = format!("{median} in all, of which {of_others}; mean {mean}, with tables that grow");
        Figure::new(what, Unit::Count, vec![all.median - inevitable]).at_most(goal).beside(beside)
    };
    let first_of = |name: &str, all: &Count| {
        let what = format!("first execution, {name}, beyond body and encoding");
        figure(&what, all, body.median + encoding.median, 4.0)
    };
    let replay_of =
        |name: &str, all: &Count| figure(&format!("replay, {name}, beyond decoding"), all, decoding.median, 1.0);
    let figures = vec![
        first_of("by hand", &first),
        first_of("#[idempotent]", &annotated_first),
        replay_of("by hand", &replay),
        replay_of("#[idempotent]", &annotated_replay),
        figure("disabled, beyond the body", &disabled, body.median, 0.0),
    ];
    Ok(Group { title: "Allocations a call, MemoryStore".to_owned(), figures })
}

fn ns(times: &[f64]) -> String {
    Unit::Nanoseconds.show(median(times))
}

fn sorted(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths: Vec<_> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    Ok(paths)
}
