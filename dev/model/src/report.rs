//! Explores the model, and says what was found.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _, Path};

use crate::bounds::Bounds;
use crate::life::{Act, Life};
use crate::mutant::Mutant;
use crate::promise::Promise;
use crate::state::State;

/// The results of an exploration.
#[derive(Debug, Clone)]
pub struct Found {
    /// How many states were come upon, each as often as that was.
    pub states: usize,
    /// How many there are.
    pub unique: usize,
    /// The most steps that lead to one.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The promises that were broken, each with the number of steps that led there.
    pub broken: Vec<(Promise, usize)>,
    /// Events that were not reached, if the exploration was complete.
    pub unreached: Vec<&'static str>,
    /// How the first broken promise was broken.
    pub trace: Vec<(State, Option<Act>)>,
}

/// Explores the whole, or until one of some promises is broken. (`None` only where [`Life::new`]
/// gives none.)
pub fn explore(bounds: Bounds, mutant: Option<Mutant>, until: &[Promise]) -> Option<Found> {
    let began = now();
    let life = Life::new(bounds, mutant)?;
    // The names of callers are of use in traces alone.
    let in_part = !until.is_empty();
    let life = if in_part { life.with_names() } else { life };
    let until: BTreeSet<_> = until.iter().map(|promise| promise.name()).collect();
    let until = if in_part {
        HasDiscoveries::AnyOf(until)
    } else {
        HasDiscoveries::All
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checked = life
        .checker()
        .threads(threads)
        .finish_when(until)
        .spawn_bfs()
        .join();
    let mut paths: HashMap<&str, Path<State, Act>> = checked.discoveries();
    let properties = if in_part {
        Vec::new()
    } else {
        checked.model().properties()
    };
    let unreached = properties
        .iter()
        .filter(|property| {
            property.expectation == Expectation::Sometimes && !paths.contains_key(property.name)
        })
        .map(|property| property.name)
        .collect();
    let mut broken = Vec::new();
    let mut trace = Vec::new();
    for promise in Promise::ALL {
        if let Some(path) = paths.remove(promise.name()) {
            let path = path.into_vec();
            broken.push((*promise, path.len() - 1));
            if trace.is_empty() {
                trace = path;
            }
        }
    }
    let states = checked.state_count();
    let unique = checked.unique_state_count();
    let depth = checked.max_depth();
    Some(Found {
        states,
        unique,
        depth,
        took: now().saturating_duration_since(began),
        broken,
        unreached,
        trace,
    })
}

impl Found {
    /// Whether no promise was broken.
    pub fn keeps_all(&self) -> bool {
        self.broken.is_empty()
    }

    /// Whether a promise was broken.
    pub fn breaks(&self, promise: Promise) -> bool {
        self.broken.iter().any(|(broken, _)| *broken == promise)
    }

    /// The trace: what stands at the key, what each caller does, and what happens then.
    pub fn steps(&self) -> String {
        let mut steps = String::new();
        for (state, act) in &self.trace {
            let _ = writeln!(
                steps,
                "{:?}\n    {:?}",
                state.slot,
                state.callers.map(|caller| caller.phase)
            );
            if let Some(act) = act {
                let _ = writeln!(steps, "{act:?}");
            }
        }
        steps
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            states,
            unique,
            depth,
            took,
            ..
        } = self;
        write!(
            f,
            "{states} | {unique} | {depth} | {:.1} s |",
            took.as_secs_f64()
        )?;
        for (promise, steps) in &self.broken {
            write!(f, " {promise:?} broken in {steps} steps;")?;
        }
        if self.keeps_all() {
            f.write_str(" all kept;")?;
        }
        for name in &self.unreached {
            write!(f, " never: {name};")?;
        }
        Ok(())
    }
}

/// The time that an exploration takes is none of the model's.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
