//! The trials, by what they try. A trial is a row of the table of its file, by [`lines`] or by
//! [`code`], and nothing else names it. A trial by lines says what callers do and what the store
//! answers; [`script`] plays it.
//!
//! [`lines`]: crate::trial::lines
//! [`code`]: crate::trial::code
//! [`script`]: crate::script

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
mod list_keys;
mod outcome;
mod question;
mod release;
mod remove;
mod renew;
mod replace;
mod run;
mod takeover;
mod time;
mod trace;
mod undo;
mod wait;

use crate::trial::Trial;

// A file that is left out here is dead code, which the compiler finds.

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
    run::TRIALS,
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
pub(crate) const ADMIN: &[&[Trial]] = &[
    list::TRIALS,
    list_keys::TRIALS,
    intervene::TRIALS,
    replace::TRIALS,
];
