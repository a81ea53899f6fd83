//! The conformance suite: what every [`Store`](idem_core::Store) must do, one trial for each
//! sentence of its contract.
//!
//! [`run`] is the `main` of a test with `harness = false`, in which each trial is a test of its
//! own. [`run_all`] runs the whole suite inside any other async test.

use std::fmt;
use std::sync::Arc;

use idem_core::store::AdminStore;
use libtest_mimic::{Arguments, Completion};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::cases;
use crate::check::{Failure, broken};
use crate::subject::Subject;
pub use crate::trial::{Outcome, Trial};
use crate::trial::{Subjects, admin, plain};

/// How many trials are under way at a time, unless the user says otherwise. Most of them wait.
const AT_A_TIME: usize = 16;

/// All trials.
pub fn trials() -> impl Iterator<Item = Trial> {
    cases::ALL.iter().copied().flatten().copied()
}

/// The trials of [`AdminStore`]: of stores whose records can be listed.
pub fn admin_trials() -> impl Iterator<Item = Trial> {
    cases::ADMIN.iter().copied().flatten().copied()
}

/// Runs the suite as the `main` of a test with `harness = false`, with the command line of any Rust
/// test, and ends the process.
///
/// `subject` is called for each trial. See the [crate's page](crate) for an example.
pub fn run<S: Subject>(subject: impl Fn() -> S + Send + Sync + 'static) -> ! {
    run_tests(tests("", subject))
}

/// The suite as tests of [`libtest_mimic`], for a `main` with more than this: other tests, or
/// several stores.
///
/// `prefix` comes before each name.
pub fn tests<S: Subject>(
    prefix: &str,
    subject: impl Fn() -> S + Send + Sync + 'static,
) -> Vec<libtest_mimic::Trial> {
    tests_of(prefix, trials(), &plain(subject))
}

/// The trials of [`AdminStore`] as tests, likewise.
pub fn admin_tests<S: Subject<Store: AdminStore>>(
    prefix: &str,
    subject: impl Fn() -> S + Send + Sync + 'static,
) -> Vec<libtest_mimic::Trial> {
    tests_of(prefix, admin_trials(), &admin(subject))
}

fn tests_of(
    prefix: &str,
    trials: impl Iterator<Item = Trial>,
    subjects: &Subjects,
) -> Vec<libtest_mimic::Trial> {
    let test = |trial: Trial| {
        let subjects = Arc::clone(subjects);
        libtest_mimic::Trial::ignorable_test([prefix, trial.name].concat(), move || {
            // Some trials are races, which need two threads.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            match runtime.block_on(trial.run_on(&subjects))? {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
            }
        })
    };
    trials.map(test).collect()
}

/// Runs tests as the `main` of a test with `harness = false`, and ends the process.
pub fn run_tests(tests: Vec<libtest_mimic::Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_A_TIME);
    libtest_mimic::run(&arguments, tests).exit()
}

/// Runs the suite in the current tokio runtime, which must have time enabled, several trials at a
/// time.
///
/// # Examples
///
/// ```
/// use idem_core::MemoryStore;
/// use idem_testkit::{Clones, ManualClock, suite};
///
/// # #[tokio::main]
/// # async fn main() {
/// let report = suite::run_all(|| {
///     let clock = ManualClock::new();
///     Clones::of(MemoryStore::with_clock(clock.clone())).with_time(clock)
/// })
/// .await;
/// report.assert_passed();
/// # }
/// ```
pub async fn run_all<S: Subject>(subject: impl Fn() -> S + Send + Sync + 'static) -> Report {
    run_all_of(trials(), plain(subject)).await
}

/// Runs the trials of [`AdminStore`], likewise.
pub async fn run_all_admin<S: Subject<Store: AdminStore>>(
    subject: impl Fn() -> S + Send + Sync + 'static,
) -> Report {
    run_all_of(admin_trials(), admin(subject)).await
}

async fn run_all_of(trials: impl Iterator<Item = Trial>, subjects: Subjects) -> Report {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut tasks = JoinSet::new();
    for (index, trial) in trials.enumerate() {
        let subjects = Arc::clone(&subjects);
        let places = Arc::clone(&places);
        tasks.spawn(async move {
            let _place = places.acquire().await;
            // A task of its own, so that a store that panics fails one trial.
            let mut task = JoinSet::new();
            task.spawn(async move { trial.run_on(&subjects).await });
            let result = match task.join_next().await {
                Some(Ok(result)) => result,
                Some(Err(error)) => Err(broken(format!("panicked: {error}"))),
                None => Err(Failure::delayed()),
            };
            (index, trial.name, result)
        });
    }
    let mut results = tasks.join_all().await;
    results.sort_by_key(|(index, ..)| *index);
    Report(
        results
            .into_iter()
            .map(|(_, name, result)| (name, result))
            .collect(),
    )
}

/// The results of the suite.
#[derive(Debug)]
#[must_use = "a report may tell of failures"]
pub struct Report(Vec<(&'static str, Result<Outcome, Failure>)>);

impl Report {
    /// Each trial's name and result, in the order of [`trials`].
    pub fn results(&self) -> impl Iterator<Item = (&'static str, Result<Outcome, &Failure>)> {
        self.0
            .iter()
            .map(|(name, result)| (*name, result.as_ref().copied()))
    }

    /// The trials that failed, by name, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, &Failure)> {
        self.results()
            .filter_map(|(name, result)| Some((name, result.err()?)))
    }

    /// Panics if a trial failed.
    ///
    /// # Panics
    ///
    /// If a trial failed, saying which and why.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self
            .results()
            .filter(|(_, result)| matches!(result, Ok(Outcome::Skipped(_))))
            .count();
        writeln!(
            f,
            "{} of {} trials failed, {skipped} were skipped",
            self.failures().count(),
            self.0.len()
        )?;
        self.failures()
            .try_for_each(|(name, failure)| writeln!(f, "{name}: {failure}"))
    }
}
