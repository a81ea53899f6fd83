//! The code that threads share inside a process, under many schedules: `cargo xtask explore`.
//!
//! Shuttle runs each test thousands of times. One thread runs at a time, and at each lock, counter
//! and await (`base/sync.rs`) shuttle chooses which. A schedule in which all threads wait without
//! end is a failure, which shows a lost wake-up. Time does not pass here, so no timeout hides one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::MemoryStore;
use crate::base::clock::{self, Clock};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::encoding::key::Key;
use crate::error::{StoreError, StoreErrorKind};
use crate::lease::keeper::explored as keeper;
use crate::lease::term::Term;
use crate::record::{
    Claim, Claimed, CodecId, Commit, Encoded, Origin, Owner, Ownership, RecordId, Release,
    ReleaseTo, Removed, Renewal,
};
use crate::runtime::background::Background;
use crate::runtime::flight::{Flights, Turn};
use crate::runtime::rejected::Rejected;
use crate::store::Store;

const LONG: Duration = Duration::from_secs(3600);
/// How many random schedules run, and how many that are chosen so that few switches make the
/// difference.
const SCHEDULES: usize = 2_000;
const SWITCHES: usize = 3;

pub(crate) fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    let run = |test: &dyn Fn()| {
        // Timers are created here, and none is ever due, so nothing drives them.
        let timers = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let _entered = timers.enter();
        test();
    };
    let mut config = Config::default();
    // Debug builds of timers and formatting need more than shuttle's 32 KiB.
    config.stack_size = 1 << 20;
    let random = test.clone();
    let few = test;
    Runner::new(RandomScheduler::new(SCHEDULES), config.clone()).run(move || run(&random));
    Runner::new(PctScheduler::new(SWITCHES, SCHEDULES), config).run(move || run(&few));
}

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

pub(crate) fn id(key: &str) -> RecordId {
    RecordId::new("explored", &Key::encode(key).unwrap()).unwrap()
}

pub(crate) fn claim(key: &str) -> Claim {
    Claim {
        id: id(key),
        owner: Owner::generate(),
        lease: LONG,
        hold: LONG,
        fingerprint: None,
        take_over: true,
        take_over_after: None,
        max_attempts: None,
        must_be_issued: false,
        metadata: None,
    }
}

fn outcome(text: &'static str) -> Encoded {
    Encoded {
        is_error: false,
        codec: CodecId::JSON,
        payload: Bytes::from_static(text.as_bytes()),
        metadata: None,
    }
}

pub(crate) fn commit(claim: &Claim, attempt: u64) -> Commit {
    let outcome = Some(outcome("1"));
    let id = claim.id.clone();
    let as_claimed = Some(claim.as_claimed(Origin::Nothing));
    Commit {
        id,
        owner: claim.owner,
        attempt,
        fingerprint: None,
        outcome,
        ttl: LONG,
        remember: LONG,
        as_claimed,
        claim_metadata: None,
    }
}

fn release(claim: &Claim) -> Release {
    Release {
        id: claim.id.clone(),
        owner: claim.owner,
        to: ReleaseTo::Released { keep: LONG },
        names_run: false,
    }
}

/// Runs the futures at once, each on a thread of its own, and waits for all.
pub(crate) fn at_once<F: Future<Output = ()> + Send + 'static>(
    futures: impl IntoIterator<Item = F>,
) {
    let threads: Vec<_> = futures
        .into_iter()
        .map(|future| thread::spawn(move || block_on(future)))
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn memory_of_claims_at_once_one_owns_and_waiters_are_woken_by_commit_and_by_release() {
    explore(|| {
        let store = MemoryStore::with_clock(Still);
        let bodies = Arc::new(AtomicUsize::new(0));
        let caller = |fails: bool| {
            let store = store.clone();
            let bodies = bodies.clone();
            async move {
                let claim = claim("k");
                loop {
                    match store.claim(&claim).await.unwrap() {
                        Claimed::Owned { attempt, .. } => {
                            assert_eq!(
                                bodies.fetch_add(1, Ordering::SeqCst),
                                0,
                                "two bodies at once"
                            );
                            thread::yield_now();
                            bodies.fetch_sub(1, Ordering::SeqCst);
                            let step = if fails && attempt == 1 {
                                store.release(&release(&claim)).await
                            } else {
                                store.commit(&commit(&claim, attempt)).await
                            };
                            assert_eq!(step.unwrap(), Ownership::Held);
                            if !fails || attempt > 1 {
                                return;
                            }
                        }
                        Claimed::InFlight { attempt, .. } => {
                            store.wait(&claim.id, attempt, LONG).await.unwrap()
                        }
                        Claimed::Committed { outcome, .. } => {
                            return assert_eq!(&*outcome.payload, b"1");
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        at_once([caller(true), caller(false), caller(false)]);
        assert_eq!(store.waiting(), 0, "a waiter's place was left behind");
    });
}

#[test]
fn memory_counts_its_records_however_they_come_and_go() {
    explore(|| {
        let store = MemoryStore::with_capacity(2);
        let refused = Arc::new(AtomicUsize::new(0));
        let come_and_go = |key: &'static str, goes: bool| {
            let store = store.clone();
            let refused = refused.clone();
            async move {
                let claim = claim(key);
                if store.claim(&claim).await.is_err() {
                    refused.fetch_add(1, Ordering::SeqCst);
                } else if goes {
                    store.release(&release(&claim)).await.unwrap();
                    assert_eq!(store.remove(&claim.id).await.unwrap(), Removed::Removed);
                }
                assert!(store.len() <= 2, "more than fit in");
            }
        };
        at_once([
            come_and_go("a", false),
            come_and_go("b", true),
            come_and_go("c", false),
        ]);
        let left = store.len();
        assert!(
            left <= 2 && left + refused.load(Ordering::SeqCst) >= 2,
            "{left} are left"
        );
    });
}

#[test]
fn memory_an_owner_that_is_renewed_while_it_commits_changes_nothing_twice() {
    explore(|| {
        let store = MemoryStore::with_clock(Still);
        let claim = claim("k");
        block_on(store.claim(&claim)).unwrap();
        let renewal = [Renewal {
            id: claim.id.clone(),
            owner: claim.owner,
            hold: LONG,
        }];
        let renewing = store.clone();
        let committing = store.clone();
        let late = store.clone();
        let step = commit(&claim, 1);
        let nobody = commit(&super::explored::claim("k"), 1);
        let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + Send>>; 3] = [
            Box::pin(async move { drop(renewing.renew(&renewal).await) }),
            Box::pin(async move {
                assert_eq!(committing.commit(&step).await.unwrap(), Ownership::Held)
            }),
            Box::pin(async move {
                // Another owner's commit is accepted only as the very same record.
                let _ = late
                    .commit(&Commit {
                        outcome: Some(outcome("2")),
                        ..nobody
                    })
                    .await;
            }),
        ];
        at_once(futures);
        let found = block_on(store.claim(&super::explored::claim("k"))).unwrap();
        assert_eq!(
            found,
            Claimed::Committed {
                attempt: 1,
                outcome: outcome("1")
            }
        );
    });
}

/// A clock that the test sets, in seconds.
#[derive(Clone, Default)]
struct Set(Arc<AtomicU64>);

impl Clock for Set {
    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

#[test]
fn memory_what_has_expired_is_swept_in_time_whatever_the_sweeper_does_when_it_is_put() {
    explore(|| {
        let clock = Set::default();
        let store = MemoryStore::swept(clock.clone());
        let puts = |key: &'static str, seconds: u64, goes: bool| {
            let store = store.clone();
            async move {
                let claim = Claim {
                    lease: Duration::ZERO,
                    hold: Duration::from_secs(seconds),
                    ..claim(key)
                };
                store.claim(&claim).await.unwrap();
                if goes {
                    // The sweeper may find that nothing is left, and end.
                    store.remove(&claim.id).await.unwrap();
                }
            }
        };
        at_once([
            puts("a", 1_000, false),
            puts("b", 1, false),
            puts("c", 1, true),
        ]);
        // No call comes. The times allow for how late the sweeper may be, and no more.
        for (from, until, left) in [(0, 60, 1), (1_000, 1_060, 0)] {
            clock.0.store(from, Ordering::SeqCst);
            // This loop does not end if nothing makes the sweeper look, which the explorer reports.
            while store.len() > left {
                if clock.elapsed().as_secs() < until {
                    clock.0.fetch_add(1, Ordering::SeqCst);
                }
                store.time_passes();
                thread::yield_now();
            }
            assert_eq!(store.len(), left);
        }
    });
}

/// The store of one key, as far as flights use it: whether there is an outcome, and how many lives
/// of the key are over.
#[derive(Default)]
struct Stored {
    lives: u64,
    committed: Option<u64>,
    owned: bool,
}

/// One key of one process, whose calls share flights: each asks, or gets another call's answer, and
/// none gets an outcome that was forgotten before the call began.
#[test]
fn flights_ask_once_at_a_time_forget_nobody_and_give_no_answer_that_is_older_than_the_call() {
    explore(|| {
        let flights = Arc::new(Flights::new());
        let asking = Arc::new(AtomicUsize::new(0));
        let key = Arc::new(Mutex::new(Stored::default()));
        let caller = |gives_up: bool| {
            let flights = flights.clone();
            let asking = asking.clone();
            let key = key.clone();
            async move {
                // This call must not get the outcome of a life that is over now.
                let begun = key.lock().unwrap().lives;
                let deadline = Some(clock::after(clock::now(), LONG));
                let mut seat = flights.join(question());
                let mut first = seat.is_first();
                loop {
                    if !std::mem::replace(&mut first, false) {
                        match seat.turn(deadline).await.0 {
                            Turn::Ask => {}
                            Turn::Answer(Rejected::Committed { outcome, .. }) => {
                                let life: u64 = std::str::from_utf8(&outcome.payload)
                                    .unwrap()
                                    .parse()
                                    .unwrap();
                                return assert!(
                                    life >= begun,
                                    "an outcome of life {life} for a call of life {begun}"
                                );
                            }
                            _ => panic!("a call learned what nobody said"),
                        }
                    }
                    assert_eq!(asking.fetch_add(1, Ordering::SeqCst), 0, "two ask");
                    thread::yield_now();
                    // The store decides, and its answer takes time. A call that came after the
                    // owner had sent its commit asks while that commit is on its way, and gets its
                    // answer.
                    let (committed, life) = loop {
                        let mut key = key.lock().unwrap();
                        if !key.owned {
                            key.owned = key.committed.is_none();
                            break (key.committed, key.lives);
                        }
                        drop(key);
                        thread::yield_now();
                    };
                    thread::yield_now();
                    asking.fetch_sub(1, Ordering::SeqCst);
                    if let Some(life) = committed {
                        return seat.share(Rejected::Committed {
                            attempt: 1,
                            outcome: of_life(life),
                        });
                    }
                    seat.become_owner(Arc::new(term()));
                    thread::yield_now();
                    if gives_up {
                        key.lock().unwrap().owned = false;
                        // Dropped: another one asks.
                        return;
                    }
                    seat.sending_step();
                    thread::yield_now();
                    {
                        let mut key = key.lock().unwrap();
                        (key.committed, key.owned) = (Some(life), false);
                    }
                    thread::yield_now();
                    return seat.share(Rejected::Committed {
                        attempt: 1,
                        outcome: of_life(life),
                    });
                }
            }
        };
        let forgets = {
            let key = key.clone();
            async move {
                let mut key = key.lock().unwrap();
                if key.committed.take().is_some() {
                    key.lives += 1;
                }
            }
        };
        let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + Send>>; 4] = [
            Box::pin(caller(true)),
            Box::pin(caller(false)),
            Box::pin(forgets),
            Box::pin(caller(false)),
        ];
        at_once(futures);
        assert!(
            flights.join(question()).is_first(),
            "a flight was left behind"
        );
    });
}

/// A call whose claim gets no answer learns from another call that the store gives none.
#[test]
fn flights_that_the_store_gives_no_answer_ends_each_claim_that_is_under_way() {
    explore(|| {
        let flights = Arc::new(Flights::new());
        let asks = flights.join(question());
        let other = flights.join(question());
        let asking = thread::spawn(move || {
            let answer = block_on(asks.while_asking(std::future::pending::<()>()));
            assert!(matches!(answer, Err(Rejected::Store(_))));
        });
        other.share(Rejected::Store(StoreError::new(
            StoreErrorKind::Timeout,
            "",
        )));
        asking.join().unwrap();
    });
}

fn question() -> Claim {
    Claim {
        owner: Owner::NOBODY,
        ..claim("k")
    }
}

fn of_life(life: u64) -> Encoded {
    Encoded {
        payload: Bytes::from(life.to_string()),
        ..outcome("")
    }
}

fn term() -> Term {
    Term::first(id("k"), LONG)
}

#[test]
fn lease_that_is_lost_is_told_to_all_who_wait_for_it() {
    explore(|| {
        let term = Arc::new(term());
        let waiters = [term.clone(), term.clone()].map(|term| {
            thread::spawn(move || {
                block_on(term.lost());
                assert!(term.is_lost());
            })
        });
        let renewing = thread::spawn({
            let term = term.clone();
            move || term.renewed(clock::now())
        });
        term.mark_lost();
        renewing.join().unwrap();
        for waiter in waiters {
            waiter.join().unwrap();
        }
        assert!(term.is_lost(), "a renewal brought a lost lease back");
    });
}

#[test]
fn keeper_ends_after_its_last_lease_and_not_before() {
    explore(|| {
        let keeper = keeper::start();
        let kept = shuttle::future::spawn(keeper::run(&keeper));
        let holders = [(); 2].map(|()| {
            let keeper = keeper.clone();
            thread::spawn(move || {
                let lease = keeper::enrol(&keeper, term());
                thread::yield_now();
                assert!(
                    !keeper::has_ended(&keeper),
                    "it ended while there was a lease"
                );
                drop(lease);
            })
        });
        for holder in holders {
            holder.join().unwrap();
        }
        keeper::close(&keeper);
        block_on(kept).unwrap();
    });
}

#[test]
fn keeper_that_is_told_to_end_ends_with_the_leases_that_outlive_its_runtime() {
    explore(|| {
        let keeper = keeper::start();
        let kept = shuttle::future::spawn(keeper::run(&keeper));
        let lease = keeper::enrol(&keeper, term());
        let closing = thread::spawn({
            let keeper = keeper.clone();
            move || keeper::close(&keeper)
        });
        drop(lease);
        closing.join().unwrap();
        block_on(kept).unwrap();
    });
}

#[test]
fn background_is_finished_when_the_last_has_ended_and_not_before() {
    explore(|| {
        let background = Arc::new(Background::default());
        let done = Arc::new(AtomicUsize::new(0));
        let body = background.body();
        let ending = thread::spawn({
            let background = background.clone();
            let done = done.clone();
            move || {
                // A detached body whose commit continues after it.
                let step = background.step(8).unwrap();
                drop(body);
                thread::yield_now();
                // The commit of a call that has steps to remove.
                let removal = background.removal().unwrap();
                drop(step);
                thread::yield_now();
                done.store(1, Ordering::SeqCst);
                drop(removal);
            }
        });
        block_on(background.finished(LONG)).unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 1, "it was not waited for");
        ending.join().unwrap();
    });
}
