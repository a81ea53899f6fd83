//! The suite can fail: stores with one flaw each, every one of which at least one trial must find.

#![allow(clippy::unwrap_used)]

mod flaw;
mod flawed;
mod foreign;

use std::collections::BTreeMap;
use std::sync::Arc;

use idem_core::MemoryStore;
use idem_testkit::suite::{self, Report};
use idem_testkit::{BoxError, ManualClock, Step, Subject, Time};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::flaw::Flaw;
use self::flawed::FlawedStore;
use self::foreign::Foreign;

/// A store with a flaw, whose clock the trials move.
struct Flawed {
    store: FlawedStore,
    clock: ManualClock,
}

impl Flawed {
    fn new(flaw: Option<Flaw>) -> Self {
        let clock = ManualClock::new();
        Self {
            store: FlawedStore::new(MemoryStore::with_clock(clock.clone()), flaw),
            clock,
        }
    }
}

impl Subject for Flawed {
    type Store = FlawedStore;

    async fn store(&self) -> Result<FlawedStore, BoxError> {
        Ok(self.store.another_handle())
    }

    fn time(&self) -> Time {
        self.clock.clone().into()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_flaw_every_trial_passes() {
    suite::run_all(|| Flawed::new(None)).await.assert_passed();
    suite::run_all(|| Foreign::new(None, false))
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_found_that_has_to_do_with_issued_keys() {
    every_flaw_is_found(is_about_issues).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_found_that_has_to_do_with_abandoned_records() {
    every_flaw_is_found(is_about_abandoned).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_flaw_is_found() {
    every_flaw_is_found(|flaw| !is_about_issues(flaw) && !is_about_abandoned(flaw)).await;
}

fn is_about_abandoned(flaw: Flaw) -> bool {
    let name = format!("{flaw:?}");
    ["Undo", "Question", "Silent"]
        .iter()
        .any(|begin| name.starts_with(begin))
        && !is_about_issues(flaw)
}

fn is_about_issues(flaw: Flaw) -> bool {
    format!("{flaw:?}").contains("Issue")
}

async fn every_flaw_is_found(of: impl Fn(Flaw) -> bool) {
    // Not all at once: a trial counts on its turn coming soon. Those of waiting are last in the
    // list, and take the longest.
    let places = Arc::new(Semaphore::new(24));
    let mut tasks = JoinSet::new();
    for flaw in Flaw::ALL.into_iter().rev().filter(|flaw| of(*flaw)) {
        let places = Arc::clone(&places);
        tasks.spawn(async move {
            let _place = places.acquire().await;
            (
                format!("{flaw:?}"),
                names(&suite::run_all(move || Flawed::new(Some(flaw))).await),
            )
        });
    }
    all_found(tasks.join_all().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_blindness_to_foreign_values_is_found() {
    let steps = [
        Step::Claim,
        Step::Issue,
        Step::Commit,
        Step::Release,
        Step::Renew,
        Step::Wait,
        Step::Inspect,
        Step::Remove,
    ];
    let mut found = Vec::new();
    for blind in steps {
        let report = suite::run_all(move || Foreign::new(Some(blind), false)).await;
        found.push((
            format!("ForeignValuesAreNotSeenBy{blind:?}"),
            names(&report),
        ));
    }
    let report = suite::run_all(|| Foreign::new(None, true)).await;
    found.push(("ForeignValuesSpoilABatch".to_owned(), names(&report)));
    all_found(found);
}

fn names(report: &Report) -> Vec<&'static str> {
    report.failures().map(|(name, _)| name).collect()
}

/// Says which trials found which flaw.
fn all_found(found: Vec<(String, Vec<&str>)>) {
    let found: BTreeMap<_, _> = found.into_iter().collect();
    for (flaw, trials) in &found {
        println!("{flaw}: {}", trials.join(", "));
    }
    let missed: Vec<_> = found
        .iter()
        .filter(|(_, trials)| trials.is_empty())
        .map(|(flaw, _)| flaw)
        .collect();
    assert!(missed.is_empty(), "no trial found {missed:?}");
}
