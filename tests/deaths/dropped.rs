//! A future that is dropped at each step, in a process that lives on.

use crate::matrix::At::{Body, On, Pause, Question, Woken};
use crate::matrix::Leaves::{Abandoned, Committed, InFlight, Nothing, Released};
use crate::matrix::Next::{Reconciles, Replays, Runs};
use crate::matrix::Soon::{AfterLease, Sooner};
use crate::matrix::{Death, Row, on_each_server};
use crate::wire::Leg::{Reply, Request};
use crate::wire::Step::{Claim, Commit, Release, Renew, Subscribe, TakeOver, Watch};

#[rustfmt::skip]
const DROPPED: &[Row] = &[
    // dropped at             the record is  the next caller        bodies
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Claim, Reply),        Nothing,       Runs(1),    Sooner,     1, ""),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, ""),
    (On(TakeOver, Reply),     Abandoned(1),  Runs(2),    Sooner,     1, ""),
    // The body was cut: a crash.
    (Body,                    InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Renew, Reply),        InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (Question,                InFlight(2),   Reconciles, AfterLease, 0, ""),
    // No body was cut: what is left to do is done.
    (Pause,                   Released(1),   Runs(2),    Sooner,     2, ""),
    (On(Commit, Request),     Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Release, Request),    Released(1),   Runs(2),    Sooner,     2, ""),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, ""),
    // One that waits for another, who commits then.
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Subscribe, Reply),    InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, ""),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, ""),
    (Woken(Reply),            Released(1),   Runs(2),    Sooner,     1, ""),
];

#[rustfmt::skip]
const UNHEARD: &[Row] = &[
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Claim, Reply),        Nothing,       Runs(1),    Sooner,     1, ""),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, ""),
    (On(TakeOver, Reply),     Abandoned(1),  Runs(2),    Sooner,     1, ""),
    (On(Commit, Request),     Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Release, Request),    Released(1),   Runs(2),    Sooner,     2, ""),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, ""),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, ""),
    (Woken(Reply),            Released(1),   Runs(2),    Sooner,     1, ""),
];

on_each_server! {
    p8_and_p10_a_call_dropped_at_any_step_is_undone_carried_on_or_a_crash: super::Death::Dropped, super::DROPPED, super::DROPPED;
    p9_and_p10_the_same_if_what_it_sent_before_it_was_dropped_is_lost: super::Death::DroppedUnheard, super::UNHEARD, super::UNHEARD;
}
