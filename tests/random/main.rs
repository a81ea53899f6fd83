//! Calls of two processes over one store, and what operators do by hand, with options, faults and
//! drops drawn at random. Time is paused, so it advances only when all calls wait. Promises that
//! hold whatever is drawn are checked: P1, P2, P3, P7, P9, P10. `IDEM_SEEDS=1000..2000` draws
//! others.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]
#![allow(
    clippy::struct_excessive_bools,
    clippy::single_match_else,
    clippy::collapsible_match
)]
#![allow(
    clippy::disallowed_methods,
    reason = "it writes down when things happened, and is no part of the library"
)]

mod checker;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::store::Store;
use idem::store::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem::{
    Abandoned, Duplicate, Error, ErrorAction, Idempotency, InFlight, Lookup, MemoryStore,
    RecordState, Retry, StoreError,
};
use idem_testkit::{Fault, FaultStore, Step};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(2);
const LONGEST_DELAY: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_secs(3600);
const KEYS: u64 = 2;

/// The outcome of a body: which call it was, and the fingerprint that it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Value {
    call: usize,
    fingerprint: Option<u8>,
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    #[serde(skip)]
    Ours(#[from] Error),
}

/// The events, in order.
#[derive(Debug, Clone)]
enum Event {
    Begins { call: usize, key: u64 },
    Stops { key: u64 },
    Succeeds { call: usize, key: u64 },
    Recorded { key: u64 },
    Refused { key: u64 },
    Forgotten { key: u64 },
    Looks { call: usize },
    Looked { call: usize, key: u64, finds: bool },
    Returned { call: usize, text: String },
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Instant, Event)>>>);

impl Log {
    fn add(&self, event: Event) {
        self.0.lock().unwrap().push((Instant::now(), event));
    }
}

/// Writes down what a store accepts.
#[derive(Clone, Debug)]
struct Seen(MemoryStore, Log);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

fn key_of(id: &RecordId) -> u64 {
    id.as_str()
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap_or(99)
}

impl Store for Seen {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.0.claim(claim).await
    }
    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let was = self.0.inspect(&commit.id).await?;
        let answer = self.0.commit(commit).await?;
        if answer == Ownership::Lost {
            self.1.add(Event::Refused {
                key: key_of(&commit.id),
            });
        }
        let is_new = was.is_some_and(|was| was.state != RecordState::Committed);
        if answer == Ownership::Held && is_new {
            self.1.add(Event::Recorded {
                key: key_of(&commit.id),
            });
        }
        Ok(answer)
    }
    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.0.release(release).await
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.0.renew(renewals).await
    }
    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.0.wait(id, attempt, limit).await
    }
    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.0.inspect(id).await
    }
    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        let removed = self.0.remove(id).await?;
        if removed == Removed::Removed {
            self.1.add(Event::Forgotten { key: key_of(id) });
        }
        Ok(removed)
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.0.issue(issues).await
    }
}

/// Counts a body out, however it ends.
struct Running(Log, u64);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.add(Event::Stops { key: self.1 });
    }
}

fn fault(random: &mut fastrand::Rng) -> Fault {
    let time = LONGEST_DELAY.mul_f64(random.f64());
    match random.u8(0..6) {
        0 => Fault::LoseRequest,
        1 => Fault::LoseReply,
        2 => Fault::Refuse,
        3 => Fault::Delay(time),
        4 => Fault::DelayReply(time),
        _ => Fault::Pass,
    }
}

struct World {
    log: Log,
    inner: Seen,
    processes: Vec<Idempotency>,
}

fn world(random: &mut fastrand::Rng) -> World {
    let log = Log::default();
    let inner = Seen(MemoryStore::with_capacity(1000), log.clone());
    let processes = (0..2)
        .map(|_| {
            let store = FaultStore::new(inner.clone());
            let faults = store.faults();
            for step in [
                Step::Claim,
                Step::Commit,
                Step::Release,
                Step::Renew,
                Step::Wait,
                Step::Inspect,
                Step::Remove,
            ] {
                for _ in 0..random.u8(0..6) {
                    faults.next(step, fault(random));
                }
            }
            let builder = Idempotency::builder(store).ttl(TTL).lease(LEASE);
            let builder = if random.bool() {
                builder.local_cache(100)
            } else {
                builder
            };
            builder.build()
        })
        .collect();
    World {
        log,
        inner,
        processes,
    }
}

#[derive(Debug, Clone)]
struct Plan {
    call: usize,
    process: usize,
    key: u64,
    fingerprint: Option<u8>,
    starts: Duration,
    takes: Duration,
    fails: bool,
    panics: bool,
    in_flight: InFlight,
    wait: Duration,
    duplicate: Duplicate,
    abandoned: Abandoned,
    detached: bool,
    abandons: bool,
    retries: bool,
    keeps: bool,
    dropped_after: Option<Duration>,
    max_attempts: Option<u64>,
    instead: Option<Instead>,
}

/// An action instead of a call.
#[derive(Debug, Clone, Copy)]
enum Instead {
    Forgets,
    LooksUp,
    Settles,
    Releases,
}

fn plan(call: usize, random: &mut fastrand::Rng) -> Plan {
    let millis = |random: &mut fastrand::Rng, most: u64| Duration::from_millis(random.u64(0..most));
    Plan {
        call,
        process: random.usize(0..2),
        key: random.u64(0..KEYS),
        fingerprint: [None, Some(1), Some(1), Some(1), Some(2)][random.usize(0..5)],
        starts: millis(random, 12_000),
        takes: if random.u8(0..3) == 0 {
            Duration::ZERO
        } else {
            millis(random, 5000)
        },
        fails: random.u8(0..3) == 0,
        panics: random.u8(0..12) == 0,
        in_flight: if random.u8(0..4) == 0 {
            InFlight::Reject
        } else {
            InFlight::Wait
        },
        wait: millis(random, 8000),
        duplicate: if random.u8(0..5) == 0 {
            Duplicate::Reject
        } else {
            Duplicate::Replay
        },
        abandoned: if random.u8(0..5) == 0 {
            Abandoned::Reject
        } else {
            Abandoned::Rerun
        },
        detached: random.u8(0..3) == 0,
        abandons: random.bool(),
        retries: random.u8(0..4) == 0,
        keeps: random.u8(0..4) == 0,
        dropped_after: (random.u8(0..3) == 0).then(|| millis(random, 6000)),
        max_attempts: (random.u8(0..6) == 0).then_some(2),
        instead: match random.u8(0..24) {
            0 | 1 => Some(Instead::Forgets),
            2..=5 => Some(Instead::LooksUp),
            6 => Some(Instead::Settles),
            7 => Some(Instead::Releases),
            _ => None,
        },
    }
}

type Res = Result<idem::Outcome<Value>, Failure>;

/// Carries out what comes instead of a call, unless its caller goes away.
async fn by_hand(operation: idem::Operation<'_>, log: &Log, plan: &Plan, instead: Instead) {
    let Plan { call, key, .. } = *plan;
    let work = async {
        match instead {
            Instead::Forgets => drop(operation.forget().await),
            Instead::Settles => drop(
                operation
                    .settle(&Value {
                        call,
                        fingerprint: None,
                    })
                    .await,
            ),
            Instead::Releases => drop(operation.release().await),
            Instead::LooksUp => {
                log.add(Event::Looks { call });
                match operation.lookup::<Value>().await {
                    Ok(Lookup::Outcome(_) | Lookup::Error(_)) => log.add(Event::Looked {
                        call,
                        key,
                        finds: true,
                    }),
                    Ok(_) => log.add(Event::Looked {
                        call,
                        key,
                        finds: false,
                    }),
                    Err(Error::Store { .. }) => {}
                    Err(error) => panic!("a lookup: {error}"),
                }
            }
        }
    };
    let _ = tokio::time::timeout(plan.dropped_after.unwrap_or(TTL / 2), work).await;
}

#[expect(clippy::too_many_lines, reason = "an arm for each plan")]
async fn call(idempotency: Idempotency, log: Log, plan: Plan) {
    tokio::time::sleep(plan.starts).await;
    let operation = || idempotency.operation("op").key(&plan.key);
    if let Some(instead) = plan.instead {
        return by_hand(operation(), &log, &plan, instead).await;
    }
    let mut operation = operation()
        .in_flight(plan.in_flight)
        .wait(plan.wait)
        .duplicate(plan.duplicate)
        .abandoned(plan.abandoned);
    if let Some(fingerprint) = plan.fingerprint {
        operation = operation.fingerprint(&fingerprint);
    }
    if let Some(most) = plan.max_attempts {
        operation = operation.max_attempts(most);
    }
    let logged = log.clone();
    let planned = plan.clone();
    let mut tries = 0;
    let body = move || {
        let log = logged.clone();
        let plan = planned.clone();
        tries += 1;
        let tries = tries;
        async move {
            log.add(Event::Begins {
                call: plan.call,
                key: plan.key,
            });
            let running = Running(log.clone(), plan.key);
            for _ in 0..4 {
                tokio::time::sleep(plan.takes / 4).await;
            }
            assert!(!plan.panics, "on purpose");
            drop(running);
            if plan.fails && tries < 3 {
                return Err(Failure::Declined);
            }
            log.add(Event::Succeeds {
                call: plan.call,
                key: plan.key,
            });
            Ok(Value {
                call: plan.call,
                fingerprint: plan.fingerprint,
            })
        }
    };
    let abandons = plan.abandons;
    let retries = plan.retries;
    let keeps = plan.keeps;
    let policy = move |_: &Failure| {
        if retries {
            ErrorAction::Retry(Retry::new(2).backoff(Duration::from_millis(300)))
        } else if keeps {
            ErrorAction::Keep
        } else if abandons {
            ErrorAction::Abandon
        } else {
            ErrorAction::Release
        }
    };
    let detached = plan.detached;
    let running = async move {
        let returned: Res = if detached {
            operation.errors(policy).run_detached(body).await
        } else {
            operation.errors(policy).run(body).await
        };
        returned
    };
    let running = std::panic::AssertUnwindSafe(running);
    let returned = match plan.dropped_after {
        Some(time) => {
            match tokio::time::timeout(time, futures_util::FutureExt::catch_unwind(running)).await {
                Ok(returned) => returned,
                Err(_) => {
                    log.add(Event::Returned {
                        call: plan.call,
                        text: "dropped".to_owned(),
                    });
                    return;
                }
            }
        }
        None => futures_util::FutureExt::catch_unwind(running).await,
    };
    let text = match &returned {
        Ok(Ok(outcome)) => format!(
            "{} {:?}",
            if outcome.is_replayed() {
                "replay"
            } else {
                "executed"
            },
            outcome.get()
        ),
        Ok(Err(error)) => format!("{error:?}"),
        Err(_) => "panicked".to_owned(),
    };
    log.add(Event::Returned {
        call: plan.call,
        text,
    });
    if let Ok(Ok(outcome)) = returned {
        if outcome.is_replayed() {
            let found = outcome.into_inner();
            if let (Some(one), Some(two)) = (plan.fingerprint, found.fingerprint) {
                assert_eq!(
                    one, two,
                    "P7: the call {} got the outcome of {found:?}",
                    plan.call
                );
            }
        } else {
            assert_eq!(
                outcome.into_inner().call,
                plan.call,
                "an executed call has its own value"
            );
        }
    }
}

async fn scenario(seed: u64) -> Result<(), String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let World {
        log,
        inner,
        processes,
    } = world(&mut random);
    let count = random.usize(2..9);
    let plans: Vec<_> = (0..count).map(|call| plan(call, &mut random)).collect();
    let begun = Instant::now();
    let calls: Vec<_> = plans
        .iter()
        .map(|plan| {
            tokio::spawn(call(
                processes[plan.process].clone(),
                log.clone(),
                plan.clone(),
            ))
        })
        .collect();
    let mut failed = None;
    for call in calls {
        if let Err(error) = call.await {
            failed = Some(format!("{error:?}"));
        }
    }
    for process in &processes {
        if let Err(left) = process.shutdown(Duration::from_secs(120)).await {
            failed = Some(format!("P9: {left:?}"));
        }
    }
    let history = log.0.lock().unwrap().clone();
    let found = failed.map_or_else(|| checker::check(&history, &plans), Err);
    let found = match found {
        Ok(()) => checker::afterwards(&inner, &history).await,
        error => error,
    };
    found.map_err(|error| {
        let mut text = format!("seed {seed}: {error}\n");
        for plan in &plans {
            let _ = writeln!(text, "{plan:?}");
        }
        for (at, event) in &history {
            let _ = writeln!(
                text,
                "{:>7} {event:?}",
                at.duration_since(begun).as_millis()
            );
        }
        text
    })
}

#[test]
fn p1_p2_p3_p7_p9_p10_hold_whatever_options_faults_and_drops_are_drawn() {
    let seeds = std::env::var("IDEM_SEEDS").unwrap_or_else(|_| "0..200".to_owned());
    let (from, to) = seeds
        .split_once("..")
        .expect("IDEM_SEEDS is a range, such as 0..200");
    let seeds = from.parse::<u64>().unwrap()..to.parse::<u64>().unwrap();
    // Bodies panic on purpose.
    std::panic::set_hook(Box::new(|_| {}));
    let mut broken = Vec::new();
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        if let Err(error) = runtime.block_on(scenario(seed)) {
            broken.push(error);
            if broken.len() >= 3 {
                break;
            }
        }
        runtime.shutdown_background();
    }
    let _ = std::panic::take_hook();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}
