//! The trials. Each is a few lines; what a table of the contract says of many states is tried in
//! each of them.

mod claim;
mod commit;
mod concurrency;
mod fingerprint;
mod foreign;
mod hold;
mod inspect;
mod intervene;
mod issue;
mod issued;
mod list;
mod outcome;
mod question;
mod release;
mod remove;
mod renew;
mod replace;
mod takeover;
mod time;
mod trace;
mod undo;
mod wait;

use crate::trial::Trial;

/// All of them, by subject.
pub(crate) const ALL: &[&[Trial]] = &[
    claim::TRIALS,
    fingerprint::TRIALS,
    takeover::TRIALS,
    commit::TRIALS,
    outcome::TRIALS,
    release::TRIALS,
    undo::TRIALS,
    question::TRIALS,
    hold::TRIALS,
    trace::TRIALS,
    renew::TRIALS,
    wait::TRIALS,
    inspect::TRIALS,
    remove::TRIALS,
    time::TRIALS,
    concurrency::TRIALS,
    issue::TRIALS,
    issued::TRIALS,
    foreign::TRIALS,
];

/// Those of stores that can list.
pub(crate) const ADMIN: &[&[Trial]] = &[list::TRIALS, intervene::TRIALS, replace::TRIALS];

/// The list of a file's trials. A trial that is left out is dead code, which the compiler finds.
macro_rules! trials {
    ($group:ident, [$($name:ident),* $(,)?]) => {
        &[$($crate::trial::Trial {
            name: concat!(stringify!($group), "::", stringify!($name)),
            run: |bench| Box::pin($name(bench)),
        }),*]
    };
}

use trials;
