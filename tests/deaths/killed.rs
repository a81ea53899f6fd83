//! A killed process at each step.

use crate::matrix::At::{Body, On, Pause, Question, Woken};
use crate::matrix::Leaves::{Abandoned, Committed, InFlight, Nothing, Released};
use crate::matrix::Next::{Reconciles, Replays, Runs};
use crate::matrix::Soon::{AfterLease, Sooner};
use crate::matrix::{Death, Row, on_each_server};
use crate::wire::Leg::{Reply, Request};
use crate::wire::Step::{Claim, Commit, Release, Renew, Subscribe, TakeOver, Undo, Watch};

#[rustfmt::skip]
const HEARD: &[Row] = &[
    // killed at              the record is  the next caller        bodies
    (On(Claim, Request),      InFlight(1),   Runs(2),    AfterLease, 1, ""),
    (On(Claim, Reply),        InFlight(1),   Runs(2),    AfterLease, 1, ""),
    (On(TakeOver, Request),   InFlight(2),   Runs(3),    AfterLease, 1, ""),
    (On(TakeOver, Reply),     InFlight(2),   Runs(3),    AfterLease, 1, ""),
    (Body,                    InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Renew, Reply),        InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (Pause,                   InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (Question,                InFlight(2),   Reconciles, AfterLease, 0, ""),
    (On(Commit, Request),     Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Commit, Reply),       Committed(1),  Replays(1), Sooner,     1, ""),
    (On(Release, Request),    Released(1),   Runs(2),    Sooner,     2, ""),
    (On(Release, Reply),      Released(1),   Runs(2),    Sooner,     2, ""),
    (On(Undo, Request),       Nothing,       Runs(1),    Sooner,     1, ""),
    (On(Undo, Reply),         Nothing,       Runs(1),    Sooner,     1, ""),
    // One that waits for another, who commits then.
    (On(Subscribe, Request),  InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Subscribe, Reply),    InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Watch, Request),      InFlight(1),   Replays(1), Sooner,     0, ""),
    (On(Watch, Reply),        InFlight(1),   Replays(1), Sooner,     0, ""),
    (Woken(Request),          InFlight(2),   Runs(3),    AfterLease, 1, ""),
    (Woken(Reply),            InFlight(2),   Runs(3),    AfterLease, 1, ""),
];

#[rustfmt::skip]
const UNHEARD: &[Row] = &[
    (On(Claim, Request),      Nothing,       Runs(1),    Sooner,     1, ""),
    (On(TakeOver, Request),   Abandoned(1),  Runs(2),    Sooner,     1, ""),
    (On(Renew, Request),      InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Commit, Request),     InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Release, Request),    InFlight(1),   Runs(2),    AfterLease, 2, ""),
    (On(Undo, Request),       InFlight(1),   Runs(2),    AfterLease, 1, ""),
    (Woken(Request),          Released(1),   Runs(2),    Sooner,     1, ""),
];

/// The promise on time: at once, or within a second after the lease.
mod quiet {
    use super::{AfterLease, Body, Commit, Committed, Death, InFlight, On, Replays, Reply, Row};
    use super::{Runs, Sooner};
    use crate::matrix::soon;
    use crate::server::Kind;

    #[rustfmt::skip]
    const SOON: &[Row] = &[
        (Body,              InFlight(1),  Runs(2),    AfterLease, 2, ""),
        (On(Commit, Reply), Committed(1), Replays(1), Sooner,     1, ""),
    ];

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p5_the_next_caller_of_a_killed_process_has_its_answer_within_a_second_on_redis() {
        soon(Kind::Redis, Death::Killed, SOON).await;
    }

    #[cfg(feature = "postgres")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p5_the_next_caller_of_a_killed_process_has_its_answer_within_a_second_on_postgres() {
        soon(Kind::Postgres, Death::Killed, SOON).await;
    }

    #[cfg(feature = "mysql")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p5_the_next_caller_of_a_killed_process_has_its_answer_within_a_second_on_mariadb() {
        soon(Kind::MariaDb, Death::Killed, SOON).await;
    }
}

on_each_server! {
    p5_a_process_killed_at_any_step_leaves_the_key_to_the_next_caller_within_a_lease: super::Death::Killed, super::HEARD, super::HEARD;
    p5_the_same_if_what_it_sent_before_it_was_killed_never_arrives: super::Death::KilledUnheard, super::UNHEARD, super::UNHEARD;
}
