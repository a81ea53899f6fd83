//! A request or a reply that is lost at each step, with the connection and without it. The sender
//! continues.

use crate::matrix::At::{On, Woken};
use crate::matrix::Leaves::{Abandoned, Committed, InFlight, Nothing, Released};
use crate::matrix::Next::{Replays, Runs};
use crate::matrix::Soon::{AfterLease, Sooner};
use crate::matrix::{Death, Row, on_each_server};
use crate::wire::Leg::{Reply, Request};
use crate::wire::Step::{Claim, Commit, Release, Renew, Subscribe, TakeOver, Undo, Watch};

#[rustfmt::skip]
const CUT: &[Row] = &[
    // lost is                the record is  the next caller        bodies  the caller itself gets
    (On(Claim, Request),      Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Claim, Reply),        Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(TakeOver, Request),   Committed(2),  Replays(2), Sooner,     1, "value 2"),
    (On(TakeOver, Reply),     Committed(2),  Replays(2), Sooner,     1, "value 2"),
    (On(Renew, Request),      InFlight(1),   Replays(1), Sooner,     1, "value 1"),
    (On(Renew, Reply),        InFlight(1),   Replays(1), Sooner,     1, "value 1"),
    (On(Commit, Request),     Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Release, Request),    Released(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Undo, Request),       Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Undo, Reply),         Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Subscribe, Reply),    InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (Woken(Request),          Committed(2),  Replays(2), Sooner,     1, "value 2"),
    (Woken(Reply),            Committed(2),  Replays(2), Sooner,     1, "value 2"),
];

/// The store gives a connection that says nothing three seconds, and then another one: what is done
/// once more comes through then.
#[rustfmt::skip]
const SILENT: &[Row] = &[
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, "store"),
    (On(Claim, Reply),        Nothing,       Runs(1),    Sooner,     1, "store"),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, "store"),
    (On(TakeOver, Reply),     Abandoned(1),  Runs(2),    Sooner,     1, "store"),
    // Nothing can be renewed, so the body is stopped before anybody else may claim.
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Renew, Reply),        InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Commit, Request),     InFlight(1),   Replays(1), Sooner,     1, "value 1"),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Release, Request),    InFlight(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Undo, Request),       InFlight(1),   Runs(1),    Sooner,     1, ""),
    (On(Undo, Reply),         Nothing,       Runs(1),    Sooner,     1, ""),
    // Subscriptions have a connection of their own, so that nothing else falls silent.
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, "store"),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, "store"),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, "store"),
    (Woken(Reply),            Released(1),   Runs(2),    Sooner,     1, "store"),
];

/// The same on databases: the store gives each step three seconds here, and sends what may be sent
/// again on another connection. So no caller has to be told of it.
#[rustfmt::skip]
const SILENT_DATABASE: &[Row] = &[
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, "replay 1"),
    (On(Claim, Reply),        Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, "replay 2"),
    (On(TakeOver, Reply),     Committed(2),  Replays(2), Sooner,     1, "value 2"),
    // Nothing can be renewed, so the body is stopped before anybody else may claim.
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Renew, Reply),        InFlight(1),   Runs(2),    AfterLease, 2, "lost"),
    (On(Commit, Request),     InFlight(1),   Replays(1), Sooner,     1, "value 1"),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, "value 1"),
    (On(Release, Request),    InFlight(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, "declined"),
    (On(Undo, Request),       InFlight(1),   Runs(1),    Sooner,     1, ""),
    (On(Undo, Reply),         Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, "replay 1"),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, "replay 2"),
    (Woken(Reply),            Committed(2),  Replays(2), Sooner,     1, "value 2"),
];

on_each_server! {
    p9_and_p10_a_request_or_reply_lost_with_its_connection_is_noticed_by_nobody: super::Death::Lost, super::CUT, super::CUT;
    p9_and_p10_a_connection_that_falls_silent_locks_nobody_out_and_has_no_body_run_twice: super::Death::Silent, super::SILENT, super::SILENT_DATABASE;
}
