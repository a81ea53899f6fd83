//! A process that is stopped at each step, and goes on when the next caller has its answer. Its
//! messages, or the replies to it, arrive only then.

use crate::matrix::At::{Body, On, Pause, Question, Woken};
use crate::matrix::Leaves::{Abandoned, Committed, InFlight, Nothing, Released};
use crate::matrix::Next::{Reconciles, Replays, Runs};
use crate::matrix::Soon::{AfterLease, Sooner};
use crate::matrix::{Death, Row, on_each_server};
use crate::wire::Leg::{Reply, Request};
use crate::wire::Step::{Claim, Commit, Release, Renew, Subscribe, TakeOver, Watch};

#[rustfmt::skip]
const STOPPED: &[Row] = &[
    // stopped at             the record is  the next caller        bodies  it itself gets
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, "replay 1"),
    (On(Claim, Reply),        InFlight(1),   Runs(2),    AfterLease, 1, "lost|replay 2"),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, "replay 2"),
    (On(TakeOver, Reply),     InFlight(2),   Runs(3),    AfterLease, 1, "lost|replay 3"),
    (Body,                    InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Renew, Reply),        InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (Pause,                   InFlight(1),   Runs(2),    AfterLease, 2, "declined"),
    (Question,                InFlight(2),   Reconciles, AfterLease, 0, "lost"),
    // A late commit or release is refused; the body's own caller gets what it gave.
    (On(Commit, Request),     InFlight(1),   Runs(2),    AfterLease, 2, "value 1"),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Release, Request),    InFlight(1),   Runs(2),    AfterLease, 2, "declined"),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Subscribe, Reply),    InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, "replay 2"),
    (Woken(Reply),            InFlight(2),   Runs(3),    AfterLease, 1, "lost|replay 3"),
];

#[cfg(target_os = "linux")]
on_each_server! {
    p1_and_p3_a_process_stopped_at_any_step_begins_nothing_and_changes_nothing_when_it_goes_on: super::Death::Stopped, super::STOPPED, super::STOPPED;
}
