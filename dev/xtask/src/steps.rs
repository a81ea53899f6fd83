//! The steps of a chore: a headline before each, its duration after it, and one line at the end.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The steps of one chore so far.
pub(crate) struct Steps {
    chore: &'static str,
    started: Instant,
    finished: Vec<Finished>,
}

struct Finished {
    name: &'static str,
    passed: bool,
    took: Duration,
}

impl Steps {
    pub(crate) fn of(chore: &'static str) -> Self {
        Self {
            chore,
            started: Instant::now(),
            finished: Vec::new(),
        }
    }

    /// Runs one step, prints its error, and returns whether it passed.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        about: &str,
        step: impl FnOnce() -> Result<()>,
    ) -> bool {
        println!("\n=== {} / {name}: {about}", self.chore);
        let started = Instant::now();
        let result = step();
        let took = started.elapsed();
        match &result {
            Ok(()) => println!("--- {} / {name}: ok in {}", self.chore, pretty(took)),
            Err(error) => println!(
                "--- {} / {name}: FAILED after {}: {error:#}",
                self.chore,
                pretty(took)
            ),
        }
        self.finished.push(Finished {
            name,
            passed: result.is_ok(),
            took,
        });
        result.is_ok()
    }

    /// Prints the summary. An error names the steps that failed.
    pub(crate) fn finish(self) -> Result<()> {
        let steps: Vec<_> = self.finished.iter().map(ToString::to_string).collect();
        println!(
            "\n{} in {}: {}",
            self.chore,
            pretty(self.started.elapsed()),
            steps.join(", ")
        );
        let failed: Vec<_> = self
            .finished
            .iter()
            .filter(|step| !step.passed)
            .map(|step| step.name)
            .collect();
        if !failed.is_empty() {
            bail!("{} failed: {}", self.chore, failed.join(", "));
        }
        Ok(())
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed { "ok" } else { "FAILED" };
        write!(f, "{} {verdict} ({})", self.name, pretty(self.took))
    }
}

pub(crate) fn pretty(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}
