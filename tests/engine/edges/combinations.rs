//! Options that are set together: every combination, in every state of the record. The table is the
//! promise; no option changes what another one decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use idem::{
    Abandoned, Begin, Duplicate, Error, ErrorKind, Idempotency, InFlight, MemoryStore, MissingKey,
    Operation, Outcome, Retry, StoreFailure, UnkeptAction,
};
use idem_testkit::{Fault, Step};

use super::{Res, faulty};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    InFlight,
    Released,
    Abandoned,
    Committed,
    Done,
}

const STATES: [State; 6] = [
    State::Nothing,
    State::InFlight,
    State::Released,
    State::Abandoned,
    State::Committed,
    State::Done,
];

/// How the call is written.
#[derive(Debug, Clone, Copy)]
enum Way {
    Run,
    Detached,
    WithErrors,
    DetachedWithErrors,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    in_flight: InFlight,
    duplicate: Duplicate,
    abandoned: Abandoned,
    store_failure: StoreFailure,
    missing_key: MissingKey,
    max_attempts: Option<u64>,
    /// The record's is 1.
    fingerprint: Option<u8>,
    way: Way,
}

impl Options {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for bits in 0..64_u32 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            for fingerprint in [None, Some(1), Some(2)] {
                for way in [
                    Way::Run,
                    Way::Detached,
                    Way::WithErrors,
                    Way::DetachedWithErrors,
                ] {
                    all.push(Self {
                        in_flight: if is(0) {
                            InFlight::Reject
                        } else {
                            InFlight::Wait
                        },
                        duplicate: if is(1) {
                            Duplicate::Reject
                        } else {
                            Duplicate::Replay
                        },
                        abandoned: if is(2) {
                            Abandoned::Reject
                        } else {
                            Abandoned::Rerun
                        },
                        store_failure: if is(3) {
                            StoreFailure::Run
                        } else {
                            StoreFailure::Reject
                        },
                        missing_key: if is(4) {
                            MissingKey::Run
                        } else {
                            MissingKey::Reject
                        },
                        max_attempts: is(5).then_some(1),
                        fingerprint,
                        way,
                    });
                }
            }
        }
        all
    }

    fn describe<'a>(&self, idempotency: &Idempotency) -> Operation<'a> {
        let mut call = idempotency
            .operation("op")
            .wait(Duration::from_millis(20))
            .in_flight(self.in_flight)
            .duplicate(self.duplicate)
            .abandoned(self.abandoned)
            .store_failure(self.store_failure)
            .missing_key(self.missing_key);
        if let Some(max_attempts) = self.max_attempts {
            call = call.max_attempts(max_attempts);
        }
        match self.fingerprint {
            Some(fingerprint) => call.fingerprint(&fingerprint),
            None => call,
        }
    }

    /// Calls, with a body that counts its runs and gives its attempt, or fails so many times before
    /// that.
    async fn call(
        &self,
        call: Operation<'static>,
        runs: &Arc<AtomicU32>,
        failures: u32,
    ) -> Res<Outcome<u64>> {
        let counted = runs.clone();
        let body = move || {
            let counted = counted.clone();
            async move {
                if counted.fetch_add(1, SeqCst) < failures {
                    return Err(Error::in_flight("elsewhere", "k", Duration::from_secs(1)));
                }
                Ok(idem::current().map_or(0, |call| call.attempt()))
            }
        };
        let retry =
            |_: &Error| UnkeptAction::Retry(Retry::new(2).backoff(Duration::from_millis(1)));
        match self.way {
            Way::Run => call.run(body).await,
            Way::Detached => call.run_detached(body).await,
            Way::WithErrors => call.errors(retry).run(body).await,
            Way::DetachedWithErrors => call.errors(retry).run_detached(body).await,
        }
    }

    fn retries(&self) -> bool {
        matches!(self.way, Way::WithErrors | Way::DetachedWithErrors)
    }
}

/// The result of a call: the attempt that ran, the one that is replayed, or the reason why not.
#[derive(Debug, PartialEq)]
enum Comes {
    Runs(u64),
    Replays(u64),
    Fails(ErrorKind),
}

fn by_the_table(state: State, options: &Options) -> Comes {
    let holds_fingerprint = !matches!(state, State::Nothing | State::Released);
    if holds_fingerprint && options.fingerprint == Some(2) {
        return Comes::Fails(ErrorKind::FingerprintMismatch);
    }
    let exhausted = options.max_attempts == Some(1);
    match state {
        State::Nothing => Comes::Runs(1),
        State::InFlight => Comes::Fails(ErrorKind::InFlight),
        State::Abandoned if options.abandoned == Abandoned::Reject => {
            Comes::Fails(ErrorKind::Abandoned)
        }
        State::Released | State::Abandoned if exhausted => {
            Comes::Fails(ErrorKind::AttemptsExhausted)
        }
        State::Released | State::Abandoned => Comes::Runs(2),
        State::Committed if options.duplicate == Duplicate::Reject => {
            Comes::Fails(ErrorKind::Duplicate)
        }
        State::Committed => Comes::Replays(1),
        State::Done => Comes::Fails(ErrorKind::AlreadyDone),
    }
}

fn came(outcome: Res<Outcome<u64>>) -> Comes {
    match outcome {
        Ok(outcome) if outcome.is_replayed() => Comes::Replays(outcome.into_inner()),
        Ok(outcome) => Comes::Runs(outcome.into_inner()),
        Err(error) => Comes::Fails(error.kind()),
    }
}

/// Brings the key `k` into a state; what is given holds it there.
async fn bring_about(state: State, idempotency: &Idempotency) -> Option<Begin> {
    let call = || idempotency.operation("op").key("k").fingerprint(&1_u8);
    let body = async || Ok::<_, Error>(1_u64);
    match state {
        State::Nothing => {}
        State::InFlight => return Some(call().begin().await.unwrap()),
        State::Released | State::Abandoned => {
            let gives_up = |_: &Error| {
                if state == State::Released {
                    UnkeptAction::Release
                } else {
                    UnkeptAction::Abandon
                }
            };
            let fails =
                async || Err::<u64, _>(Error::in_flight("elsewhere", "k", Duration::from_secs(1)));
            call().errors(gives_up).run(fails).await.unwrap_err();
        }
        State::Committed => drop(call().run(body).await.unwrap()),
        State::Done => {
            let second = Duration::from_secs(1);
            call()
                .ttl(second)
                .remember(60 * second)
                .run(body)
                .await
                .unwrap();
            tokio::time::advance(2 * second).await;
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn p2_p5_p7_all_options_together_do_in_each_state_what_each_does_alone() {
    for state in STATES {
        for options in Options::all() {
            let idempotency = Idempotency::new(MemoryStore::with_capacity(10));
            let held = bring_about(state, &idempotency).await;
            let runs = Arc::new(AtomicU32::new(0));
            let failures = if options.retries() { 2 } else { 0 };
            let outcome = options
                .call(options.describe(&idempotency).key("k"), &runs, failures)
                .await;
            let expected = by_the_table(state, &options);
            // Tries of one call are one attempt.
            let expected_runs = if let Comes::Runs(_) = expected {
                failures + 1
            } else {
                0
            };
            assert_eq!(
                (came(outcome), runs.load(SeqCst)),
                (expected, expected_runs),
                "{state:?}, {options:?}"
            );
            drop(held);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p4_without_the_store_or_a_key_bodies_run_and_are_retried_only_where_that_is_said_whatever_else_is()
 {
    for options in Options::all() {
        let (idempotency, faults) = faulty(&MemoryStore::with_capacity(10));
        faults.always(Step::Claim, Fault::Refuse);
        for (key, says, kind) in [
            (
                "k",
                options.store_failure == StoreFailure::Run,
                ErrorKind::Store,
            ),
            (
                "",
                options.missing_key == MissingKey::Run,
                ErrorKind::MissingKey,
            ),
        ] {
            // It succeeds at its third try, if there are so many.
            let runs = Arc::new(AtomicU32::new(0));
            let failures = 2;
            let outcome = options
                .call(options.describe(&idempotency).key(key), &runs, failures)
                .await;
            let (expected, expected_runs) = match (says, options.retries()) {
                (false, _) => (Comes::Fails(kind), 0),
                (true, true) => (Comes::Runs(0), 3),
                (true, false) => (Comes::Fails(ErrorKind::InFlight), 1),
            };
            assert_eq!(
                (came(outcome), runs.load(SeqCst)),
                (expected, expected_runs),
                "key {key:?}, {options:?}"
            );
        }
        // Nothing of it was recorded.
        faults.clear();
        let next = idempotency
            .operation("op")
            .key("k")
            .run(async || Res::Ok(5))
            .await
            .unwrap();
        assert!(!next.is_replayed(), "{options:?}");
    }
}
