//! The report of a run: a table for people, and Markdown for `docs/proof.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::check::{Findings, PROMISES, Violation};
use crate::history::Line;
use crate::run::Verdict;
use crate::settings::Settings;

/// How many violations of one promise are shown, and how many lines of their key's history before
/// and after.
const SHOWN: usize = 3;
const LINES: (usize, usize) = (25, 5);

/// One line that says how the run can be had again.
pub(crate) fn headline(settings: &Settings) -> String {
    let kinds: Vec<&str> = settings.kinds.iter().map(|kind| kind.name()).collect();
    let mutant = settings
        .mutant
        .as_ref()
        .map(|flaw| format!(" --mutant {flaw}"))
        .unwrap_or_default();
    let broker = settings
        .broker
        .map(|broker| format!(" --broker {}", broker.name()))
        .unwrap_or_default();
    format!(
        "--topology {}{broker} --seconds {} --seed {} --workers {} --lease {} --replicas {} \
         --nemesis {}{mutant}",
        settings.topology.name(),
        settings.length.as_secs(),
        settings.seed,
        settings.processes,
        settings.lease.as_millis(),
        settings.replicas,
        kinds.join(","),
    )
}

/// Counts, faults, decisions, and violations of each promise.
pub(crate) fn table(settings: &Settings, verdict: &Verdict) -> String {
    let Findings {
        violations,
        counts,
        faults,
        decisions,
        slowest_take_over,
    } = &verdict.findings;
    let mut text = format!("{}\n", headline(settings));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<42}{value:>9}");
    };
    line(
        "seconds in all",
        format!("{:.0}", verdict.took.as_secs_f64()),
    );
    for (name, count) in counts {
        line(name, count.to_string());
    }
    if let Some(slowest) = slowest_take_over {
        line(
            "slowest take-over after a death",
            format!("{} ms", slowest.as_millis()),
        );
    }
    for (kind, count) in faults {
        line(&format!("fault: {kind}"), count.to_string());
    }
    for (decision, count) in decisions {
        line(&format!("decision: {decision}"), count.to_string());
    }
    for (promise, what) in PROMISES {
        let _ = writeln!(
            text,
            "  {:>4} violations of {promise:<5} {what}",
            broken(violations, promise)
        );
    }
    text
}

/// The first violations of each promise, with the history of their keys around them.
pub(crate) fn details(verdict: &Verdict, history: &[Line]) -> String {
    let mut text = String::new();
    let mut shown = BTreeMap::<&str, usize>::new();
    for violation in &verdict.findings.violations {
        let shown = shown.entry(violation.promise).or_default();
        *shown += 1;
        if *shown > SHOWN {
            continue;
        }
        let Violation {
            promise,
            at,
            key,
            text: what,
        } = violation;
        let _ = writeln!(
            text,
            "\n{promise} at {} s, key {key}: {what}",
            seconds(*at, verdict.epoch)
        );
        if key.is_empty() {
            continue;
        }
        let quoted = format!("\"{key}\"");
        let mut lines: Vec<(u64, String)> = Vec::new();
        let mut calls = Vec::new();
        let mut bodies = Vec::new();
        for line in history {
            let Ok(json) = serde_json::to_string(line) else {
                continue;
            };
            // The lines of a call and of a body do not all name the key.
            let number = |name: &str| {
                serde_json::from_str::<serde_json::Value>(&json)
                    .ok()?
                    .get(name)?
                    .as_u64()
            };
            let names_key = json.contains(&quoted);
            if names_key {
                calls.extend(number("call"));
                bodies.extend(number("body"));
            }
            let is_fault = line.by == 0;
            let is_of_key = || {
                number("call").is_some_and(|call| calls.contains(&call))
                    || number("body").is_some_and(|body| bodies.contains(&body))
            };
            if names_key || is_fault || is_of_key() {
                lines.push((line.at, json));
            }
        }
        let middle = lines.partition_point(|(line, _)| line <= at);
        let range = middle.saturating_sub(LINES.0)..(middle + LINES.1).min(lines.len());
        for (at, json) in &lines[range] {
            let _ = writeln!(text, "    {} {json}", seconds(*at, verdict.epoch));
        }
    }
    text
}

/// Adds a run to a file of Markdown.
pub(crate) fn append(path: &Path, settings: &Settings, verdict: &Verdict) -> Result<()> {
    use std::io::Write as _;

    let Findings {
        violations,
        counts,
        faults,
        slowest_take_over,
        ..
    } = &verdict.findings;
    let broker = settings
        .broker
        .map(|broker| format!(", messages of {}", broker.name()))
        .unwrap_or_default();
    let mut text = format!(
        "### {}{broker}, {} s\n\n",
        settings.topology.name(),
        settings.length.as_secs()
    );
    let _ = writeln!(
        text,
        "`idem-chaos run {}`\n\n| what | count |\n| --- | ---: |",
        headline(settings)
    );
    for (name, count) in counts {
        let _ = writeln!(text, "| {name} | {count} |");
    }
    for (kind, count) in faults {
        let _ = writeln!(text, "| fault: {kind} | {count} |");
    }
    if let Some(slowest) = slowest_take_over {
        let _ = writeln!(
            text,
            "| slowest take-over after a death | {} ms |",
            slowest.as_millis()
        );
    }
    for (promise, what) in PROMISES {
        let _ = writeln!(
            text,
            "| **violations of {promise}**: {what} | **{}** |",
            broken(violations, promise)
        );
    }
    text.push('\n');
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

/// How many violations there are of each promise that is broken.
pub(crate) fn by_promise(violations: &[Violation]) -> String {
    let counted = PROMISES
        .iter()
        .map(|(promise, _)| (promise, broken(violations, promise)));
    let broken: Vec<String> = counted
        .filter(|(_, n)| *n > 0)
        .map(|(promise, n)| format!("{promise} {n}x"))
        .collect();
    broken.join(", ")
}

fn broken(violations: &[Violation], promise: &str) -> usize {
    violations
        .iter()
        .filter(|violation| violation.promise == promise)
        .count()
}

/// A time of the run in seconds.
pub(crate) fn seconds(at: u64, epoch: u64) -> String {
    let millis = at.saturating_sub(epoch) / 1_000;
    format!("{}.{:06}", millis / 1_000_000, millis % 1_000_000)
}
