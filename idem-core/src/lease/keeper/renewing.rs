//! The loop of a keeper: it renews the leases that are due, and waits.

use std::future::pending;
use std::panic::AssertUnwindSafe;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep};

use super::{BATCH, LeaseKeeper, Look, Next, PAUSE, Renewing, Running};
use crate::base::clock;
use crate::base::race::{first, until};
use crate::error::StoreError;
use crate::lease::term::Term;
use crate::observe::Event;
use crate::record::{Ownership, Renewal};
use crate::store::AnyStore;

type Batch = BoxFuture<'static, (Instant, Vec<Renewing>, Vec<Result<Ownership, StoreError>>)>;

pub(super) async fn keep(running: Running) {
    let keeper = &running.0;
    let mut under_way = FuturesUnordered::<Batch>::new();
    let mut idle_since = None;
    // A panic ends a round, not the keeper. It may come from the application's subscriber to
    // events.
    loop {
        let round = AssertUnwindSafe(round(keeper, &mut under_way, &mut idle_since));
        match round.catch_unwind().await {
            Ok(true) => {}
            Ok(false) => return,
            // The next round may panic as well, so other tasks run first.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// Renews what is due, and waits until there is something to do. Returns `false` if nothing is
/// left.
async fn round(
    keeper: &LeaseKeeper,
    under_way: &mut FuturesUnordered<Batch>,
    idle_since: &mut Option<Instant>,
) -> bool {
    let Some(Look { mut due, next }) = keeper.look(idle_since) else {
        return false;
    };
    while !due.is_empty() {
        let rest = due.split_off(due.len().min(BATCH));
        under_way.push(renew(
            keeper.store.clone(),
            std::mem::replace(&mut due, rest),
        ));
    }
    let answered = async {
        loop {
            match under_way.next().await {
                None => pending().await,
                Some((sent, leases, answers)) => apply_answers(keeper, sent, &leases, answers),
            }
            if matches!(next, Next::At(_)) {
                return;
            }
        }
    };
    let waited = async {
        match next {
            // The pause begins here, because the answers may have taken as long.
            Next::Soon => sleep(PAUSE).await,
            Next::At(next) => first(keeper.wake.notified(), until(next)).await,
        }
    };
    first(answered, waited).await;
    true
}

/// Renews some leases. Other batches continue meanwhile.
fn renew(store: AnyStore, due: Vec<Renewing>) -> Batch {
    Box::pin(async move {
        let renewals: Vec<Renewal> = due.iter().map(|renewing| renewing.term.renewal()).collect();
        let sent = clock::now();
        // A panic of the store counts as no answer.
        let answers = AssertUnwindSafe(async {
            let mut answers = store.renew(&renewals).await;
            for (Renewing { term, .. }, answer) in due.iter().zip(&mut answers) {
                if matches!(answer, Ok(Ownership::Lost)) && term.may_be_recorded() {
                    *answer = recorded(&store, term).await;
                }
            }
            answers
        });
        let answers = answers.catch_unwind().await.unwrap_or_default();
        (sent, due, answers)
    })
}

/// Asks whether the lease ended with a transaction of its owner, which recorded the outcome. In
/// that case the body may still run, and is not stopped.
async fn recorded(store: &AnyStore, term: &Term) -> Result<Ownership, StoreError> {
    if store
        .inspect(&term.id)
        .await?
        .is_some_and(|found| term.recorded(&found))
    {
        term.end();
        return Ok(Ownership::Held);
    }
    Ok(Ownership::Lost)
}

fn apply_answers(
    keeper: &LeaseKeeper,
    sent: Instant,
    leases: &[Renewing],
    answers: Vec<Result<Ownership, StoreError>>,
) {
    let round_trips = &*keeper.round_trips;
    let now = clock::now();
    let mut answers = answers.into_iter();
    let answers: Vec<_> = leases
        .iter()
        .map(|renewing| (&renewing.term, answers.next()))
        .collect();
    // Updates all leases before it reports anything, because reporting runs code of the
    // application.
    for (lease, answer) in &answers {
        match answer {
            Some(Ok(Ownership::Held)) => lease.renewed(sent),
            Some(Ok(Ownership::Lost)) => lease.mark_lost(),
            Some(Err(_)) | None => lease.not_renewed(),
        }
    }
    keeper.plan_again(leases);
    for (lease, answer) in answers {
        let failed = |why: &dyn std::fmt::Display| {
            round_trips.observer().report(
                Event::warn("renewal_failed"),
                &lease.id,
                lease.attempt,
                Some(why),
            );
        };
        match answer {
            Some(Ok(_)) => round_trips.took(&lease.id, lease.attempt, lease.length(), sent..now),
            Some(Err(error)) => failed(&error),
            None => failed(&"the store gave no answer"),
        }
    }
}
