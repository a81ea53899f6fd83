//! The table of endings: for each way in which a body ends, what becomes of the record, and what the
//! caller gets.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_core::record::RecordId;
use idem_core::store::admin::{AdminStore as _, Intervention};
use idem_core::{
    Error, ErrorAction, Idempotency, Key, MemoryStore, MissingKey, Operation, Outcome, RecordState,
    Retry, Store as _,
};
use serde::{Deserialize, Serialize, Serializer};

const OPERATION: &str = "table.of.endings";
const TTL: Duration = Duration::from_secs(300);
const MINUTE: Duration = Duration::from_secs(60);
/// Shorter than the lease and the pause between tries, so a call can be dropped in each.
const SOON: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(2);

/// How a try of the body ends, or the answer of `reconcile`.
#[derive(Debug, Clone, Copy)]
enum End {
    Value,
    /// After `omit_outcome`.
    Omitted,
    /// A value that fails to encode.
    Unwritable,
    Fails(ErrorAction),
    /// The policy panics when it is asked.
    PolicyPanics,
    /// An error that fails to encode.
    FailsUnwritable(ErrorAction),
    /// An error with one of idem among its sources.
    Wraps(ErrorAction),
    /// A guarded call inside has failed with an error of idem.
    Tainted(ErrorAction),
    TaintedValue,
    Panics,
    /// The closure that makes the body panics.
    ClosurePanics,
    /// The caller drops the call while the body runs.
    Dropped,
    /// The record goes to nobody, and the body waits until it is stopped.
    Loses,
    /// The same, and the body goes on and returns its value.
    LosesAndValue,
    LosesAndFails(ErrorAction),
    /// `reconcile` knows of nothing.
    Unknown,
}

/// What is left at the key.
#[derive(Debug, PartialEq)]
enum Left {
    Nothing,
    Value,
    /// It is known that there was an outcome, and not which.
    NoValue,
    Error,
    ErrorFor(Duration),
    Released,
    Abandoned,
    InFlight,
}

/// What the caller gets.
#[derive(Debug, PartialEq)]
enum Gets {
    Value,
    Error,
    Panic,
    LeaseLost,
    /// It has dropped the call.
    Nothing,
}

/// What there was at the key, and which kind of call is made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Given {
    Free,
    Abandoned,
    /// The call asks first what an abandoned attempt did.
    Asks,
    AsksOverFree,
    /// The call has no key.
    NoKey,
    Observed,
    ObservedAsks,
    /// The body runs in a task of its own.
    Detached,
    /// Errors that no policy names abandon the record.
    UnlistedAbandons,
}

#[derive(Debug, Serialize, Deserialize)]
enum Failed {
    By(Says),
    #[serde(skip)]
    Idem(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Idem(error)
    }
}

/// An error that tells the policy what to do.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Says {
    #[serde(skip)]
    action: Option<ErrorAction>,
    #[serde(skip_deserializing, serialize_with = "unless")]
    is_unwritable: bool,
    #[serde(skip)]
    source: Option<Box<Error>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn unless<S: Serializer>(fails: &bool, to: S) -> Result<S::Ok, S::Error> {
    if *fails {
        return Err(serde::ser::Error::custom("it cannot be written"));
    }
    to.serialize_bool(false)
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl StdError for Failed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::By(says) => says.source.as_deref().map(|source| source as _),
            Self::Idem(error) => Some(error),
        }
    }
}

fn policy(error: &Failed) -> ErrorAction {
    match error {
        Failed::By(says) => says.action.expect("the policy panics"),
        Failed::Idem(_) => ErrorAction::Release,
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Value(#[serde(skip_deserializing, serialize_with = "unless")] bool);

/// The tries of a call that are still to come.
#[derive(Clone)]
struct Script {
    ends: Arc<Mutex<VecDeque<End>>>,
    idempotency: Idempotency,
    store: MemoryStore,
}

impl Script {
    /// Calls the closure of the body.
    fn start(&self) -> impl Future<Output = Result<Value, Failed>> + Send + use<> {
        let end = self.ends.lock().unwrap().pop_front();
        let end = end.expect("no more tries were expected");
        assert!(!matches!(end, End::ClosurePanics), "the closure panics");
        let script = self.clone();
        async move { script.end(end).await }
    }

    /// The answer of `reconcile`.
    async fn answer(&self) -> Result<Option<Value>, Failed> {
        let end = self.ends.lock().unwrap().pop_front();
        match end.expect("it was not expected to be asked") {
            End::Unknown => Ok(None),
            end => self.end(end).await.map(Some),
        }
    }

    async fn end(&self, end: End) -> Result<Value, Failed> {
        let fails = |says| Err(Failed::By(says));
        let says = |action| Says {
            action: Some(action),
            ..Says::default()
        };
        match end {
            End::Value => Ok(Value(false)),
            End::Unwritable => Ok(Value(true)),
            End::Omitted => {
                if let Some(call) = idem_core::current() {
                    call.omit_outcome();
                }
                Ok(Value(false))
            }
            End::Fails(action) => fails(says(action)),
            End::PolicyPanics => fails(Says::default()),
            End::FailsUnwritable(action) => fails(Says {
                is_unwritable: true,
                ..says(action)
            }),
            End::Wraps(action) => fails(Says {
                source: Some(self.fail_inside().await.into()),
                ..says(action)
            }),
            End::Tainted(action) => {
                self.fail_inside().await;
                fails(says(action))
            }
            End::TaintedValue => {
                self.fail_inside().await;
                Ok(Value(false))
            }
            End::Panics | End::ClosurePanics => panic!("the body panics"),
            End::Dropped => std::future::pending().await,
            End::Loses => {
                self.lose().await;
                std::future::pending().await
            }
            End::LosesAndValue => {
                self.lose().await;
                tokio::time::sleep(MINUTE).await;
                Ok(Value(false))
            }
            End::LosesAndFails(action) => {
                self.lose().await;
                fails(says(action))
            }
            End::Unknown => unreachable!("only `reconcile` knows of nothing"),
        }
    }

    /// A guarded call inside of the body, which fails with an error of idem.
    async fn fail_inside(&self) -> Error {
        let inner = self.idempotency.operation("table.of.endings.inner");
        let inner = inner.run(|| async { Ok::<_, Error>(1) });
        inner.await.expect_err("it has no key")
    }

    async fn lose(&self) {
        let forget = Intervention::forget(id()).force(true);
        self.store.intervene(&forget).await.unwrap();
    }
}

fn id() -> RecordId {
    RecordId::new(OPERATION, &Key::encode("k").unwrap()).unwrap()
}

/// Makes one call, whose tries end as the script says.
async fn call(given: Given, script: &Script) -> Result<Outcome<Value>, Failed> {
    let operation = || script.idempotency.operation(OPERATION).ttl(TTL);
    let keyed = || operation().key("k");
    let plain = |operation: Operation<'static>| operation.errors(policy).check_sources();
    let start = script.clone();
    let body = move || start.start();
    let asked = script.clone();
    let asked = || async move { asked.answer().await };
    match given {
        Given::NoKey => {
            plain(operation().missing_key(MissingKey::Run))
                .run(body)
                .await
        }
        Given::Observed => plain(keyed().observe()).run(body).await,
        Given::Detached => plain(keyed()).run_detached(body).await,
        Given::Asks | Given::AsksOverFree => {
            let asks = keyed().reconcile(asked).errors(policy);
            asks.check_sources().run(body).await
        }
        Given::ObservedAsks => {
            let asks = keyed().observe().reconcile(asked).errors(policy);
            asks.check_sources().run(body).await
        }
        _ => plain(keyed()).run(body).await,
    }
}

/// Carries out one row. Returns what was left, the attempt, and what the caller got.
async fn carry_out(given: Given, ends: &[End]) -> (Left, u64, Gets) {
    let store = MemoryStore::new();
    let builder = Idempotency::builder(store.clone());
    let idempotency = match given {
        Given::UnlistedAbandons => builder.default_error(ErrorAction::Abandon).build(),
        _ => builder.build(),
    };
    let script = Script {
        ends: Arc::new(Mutex::new(ends.iter().copied().collect())),
        idempotency,
        store: store.clone(),
    };
    if matches!(given, Given::Abandoned | Given::Asks | Given::ObservedAsks) {
        let earlier = script.idempotency.operation(OPERATION).ttl(TTL).key("k");
        let earlier = earlier.errors(|_: &Failed| ErrorAction::Abandon);
        let failed = earlier.run(|| async { Err::<u32, _>(Failed::By(Says::default())) });
        failed.await.unwrap_err();
    }
    let is_dropped = ends.iter().any(|end| matches!(end, End::Dropped));
    let within = if is_dropped { SOON } else { MINUTE * 10 };
    let calling = AssertUnwindSafe(call(given, &script)).catch_unwind();
    let gets = match tokio::time::timeout(within, calling).await {
        Ok(Ok(Ok(_))) => Gets::Value,
        Ok(Ok(Err(Failed::By(_)))) => Gets::Error,
        Ok(Ok(Err(Failed::Idem(Error::LeaseLost { .. })))) => Gets::LeaseLost,
        Ok(Ok(Err(Failed::Idem(error)))) => panic!("{error:?}"),
        Ok(Err(_)) => Gets::Panic,
        Err(_) => Gets::Nothing,
    };
    let left = script.ends.lock().unwrap().len();
    assert!(left == 0 || is_dropped, "{left} tries were not made");
    // What a dropped call leaves to do is done in the background.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let Some(info) = store.inspect(&id()).await.unwrap() else {
        return (Left::Nothing, 0, gets);
    };
    let left = match info.state {
        RecordState::Committed if !info.is_error => Left::Value,
        RecordState::Committed if info.expires_in <= MINUTE => Left::ErrorFor(MINUTE),
        RecordState::Committed => Left::Error,
        RecordState::Done => Left::NoValue,
        RecordState::Released => Left::Released,
        RecordState::Abandoned => Left::Abandoned,
        RecordState::InFlight => Left::InFlight,
        state => panic!("{state:?}"),
    };
    (left, info.attempt, gets)
}

#[expect(clippy::too_many_lines, reason = "a row for each ending")]
#[tokio::test(start_paused = true)]
async fn each_ending_leaves_its_record_and_gives_its_answer() {
    use End::{
        ClosurePanics, Dropped, Fails, FailsUnwritable, Loses, LosesAndFails, LosesAndValue,
        Omitted, Panics, PolicyPanics, Tainted, TaintedValue, Unknown, Unwritable, Value, Wraps,
    };
    use ErrorAction::{Abandon, Keep, KeepFor, Release, Unlisted};
    use Given::{
        Abandoned, Asks, AsksOverFree, Detached, Free, NoKey, Observed, ObservedAsks,
        UnlistedAbandons,
    };

    const fn again(retry: Retry) -> End {
        Fails(ErrorAction::Retry(retry.backoff(PAUSE)))
    }
    const ONCE: Retry = Retry::new(1);
    const RELEASE: End = again(ONCE);
    const KEEP: End = again(ONCE.then_keep());
    const KEEP_FOR: End = again(ONCE.then_keep_for(MINUTE));
    const ABANDON: End = again(ONCE.then_abandon());
    const ABANDON_2: End = again(Retry::new(2).then_abandon());
    const RELEASE_2: End = again(Retry::new(2));
    const NONE: ErrorAction = ErrorAction::Retry(Retry::new(0));
    const NONE_KEEP: ErrorAction = ErrorAction::Retry(Retry::new(0).then_keep());
    const AT_ONCE: End = Fails(ErrorAction::Retry(
        Retry::new(1).backoff(Duration::from_millis(1)),
    ));

    let table: &[(Given, &[End], Left, u64, Gets)] = &[
        // The first attempt, in one try.
        (Free, &[Value], Left::Value, 1, Gets::Value),
        (Free, &[TaintedValue], Left::Value, 1, Gets::Value),
        (Free, &[Omitted], Left::NoValue, 1, Gets::Value),
        (Free, &[Unwritable], Left::NoValue, 1, Gets::Value),
        (Free, &[Fails(Keep)], Left::Error, 1, Gets::Error),
        (
            Free,
            &[Fails(KeepFor(MINUTE))],
            Left::ErrorFor(MINUTE),
            1,
            Gets::Error,
        ),
        (Free, &[Fails(Release)], Left::Released, 1, Gets::Error),
        (Free, &[Fails(Abandon)], Left::Abandoned, 1, Gets::Error),
        (Free, &[Fails(Unlisted)], Left::Released, 1, Gets::Error),
        (
            UnlistedAbandons,
            &[Fails(Unlisted)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        (
            UnlistedAbandons,
            &[Fails(Release)],
            Left::Released,
            1,
            Gets::Error,
        ),
        (UnlistedAbandons, &[Panics], Left::Released, 1, Gets::Panic),
        (Free, &[Fails(NONE)], Left::Released, 1, Gets::Error),
        (Free, &[Fails(NONE_KEEP)], Left::Error, 1, Gets::Error),
        (
            Free,
            &[FailsUnwritable(Keep)],
            Left::Released,
            1,
            Gets::Error,
        ),
        (Free, &[Wraps(Keep)], Left::Released, 1, Gets::Error),
        (Free, &[Wraps(Abandon)], Left::Abandoned, 1, Gets::Error),
        (Free, &[Tainted(Keep)], Left::Released, 1, Gets::Error),
        (Free, &[Panics], Left::Released, 1, Gets::Panic),
        (Free, &[PolicyPanics], Left::Released, 1, Gets::Panic),
        (Free, &[Dropped], Left::InFlight, 1, Gets::Nothing),
        (Free, &[Loses], Left::Nothing, 0, Gets::LeaseLost),
        // Several tries.
        (Free, &[RELEASE, Value], Left::Value, 1, Gets::Value),
        (Free, &[RELEASE, Omitted], Left::NoValue, 1, Gets::Value),
        (Free, &[RELEASE, RELEASE], Left::Released, 1, Gets::Error),
        (Free, &[RELEASE, KEEP], Left::Error, 1, Gets::Error),
        (Free, &[KEEP, KEEP], Left::Error, 1, Gets::Error),
        (
            Free,
            &[KEEP_FOR, KEEP_FOR],
            Left::ErrorFor(MINUTE),
            1,
            Gets::Error,
        ),
        (Free, &[ABANDON, ABANDON], Left::Abandoned, 1, Gets::Error),
        (Free, &[RELEASE, Panics], Left::Released, 1, Gets::Panic),
        (
            Free,
            &[RELEASE, PolicyPanics],
            Left::Released,
            1,
            Gets::Panic,
        ),
        (
            Free,
            &[RELEASE, ClosurePanics],
            Left::Released,
            1,
            Gets::Panic,
        ),
        (Free, &[RELEASE, Dropped], Left::Released, 1, Gets::Nothing),
        (Free, &[KEEP, Dropped], Left::Released, 1, Gets::Nothing),
        (Free, &[AT_ONCE, Dropped], Left::InFlight, 1, Gets::Nothing),
        (Free, &[RELEASE, Loses], Left::Nothing, 0, Gets::LeaseLost),
        (Free, &[LosesAndFails(NONE)], Left::Nothing, 0, Gets::Error),
        // What counts for one try alone.
        (
            Free,
            &[Tainted(ErrorAction::Retry(ONCE)), Fails(Keep)],
            Left::Error,
            1,
            Gets::Error,
        ),
        // After a try of unknown outcome nothing releases the key.
        (Free, &[ABANDON, Value], Left::Value, 1, Gets::Value),
        (Free, &[ABANDON, Omitted], Left::NoValue, 1, Gets::Value),
        (Free, &[ABANDON, Fails(Keep)], Left::Error, 1, Gets::Error),
        (
            Free,
            &[ABANDON, Fails(Release)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        (
            Free,
            &[ABANDON, Fails(Unlisted)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        (
            Free,
            &[ABANDON, Tainted(Keep)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        (
            Free,
            &[ABANDON, FailsUnwritable(Keep)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        (Free, &[ABANDON, Panics], Left::Abandoned, 1, Gets::Panic),
        (
            Free,
            &[ABANDON, PolicyPanics],
            Left::Abandoned,
            1,
            Gets::Panic,
        ),
        (
            Free,
            &[ABANDON, ClosurePanics],
            Left::Abandoned,
            1,
            Gets::Panic,
        ),
        (Free, &[ABANDON, Dropped], Left::Abandoned, 1, Gets::Nothing),
        (
            Free,
            &[ABANDON_2, RELEASE_2, Fails(Release)],
            Left::Abandoned,
            1,
            Gets::Error,
        ),
        // A later attempt.
        (Abandoned, &[Value], Left::Value, 2, Gets::Value),
        (Abandoned, &[Fails(Release)], Left::Released, 2, Gets::Error),
        (Abandoned, &[Panics], Left::Released, 2, Gets::Panic),
        (Abandoned, &[Dropped], Left::InFlight, 2, Gets::Nothing),
        // `reconcile` is asked first, once, and only over an abandoned record.
        (AsksOverFree, &[Value], Left::Value, 1, Gets::Value),
        (Asks, &[Value], Left::Value, 2, Gets::Value),
        (Asks, &[Unknown, Value], Left::Value, 2, Gets::Value),
        (
            Asks,
            &[Unknown, Fails(Release)],
            Left::Released,
            2,
            Gets::Error,
        ),
        (Asks, &[Unknown, Panics], Left::Released, 2, Gets::Panic),
        (
            Asks,
            &[Unknown, RELEASE, Value],
            Left::Value,
            2,
            Gets::Value,
        ),
        (Asks, &[Fails(Release)], Left::Abandoned, 2, Gets::Error),
        (Asks, &[Fails(Keep)], Left::Abandoned, 2, Gets::Error),
        (Asks, &[RELEASE], Left::Abandoned, 2, Gets::Error),
        (Asks, &[PolicyPanics], Left::Abandoned, 2, Gets::Error),
        (Asks, &[Panics], Left::Abandoned, 2, Gets::Panic),
        (Asks, &[Dropped], Left::InFlight, 2, Gets::Nothing),
        // A body in a task of its own is not dropped with its caller.
        (Detached, &[Value], Left::Value, 1, Gets::Value),
        (Detached, &[Fails(Keep)], Left::Error, 1, Gets::Error),
        (Detached, &[Panics], Left::Released, 1, Gets::Panic),
        (
            Detached,
            &[RELEASE, Dropped],
            Left::InFlight,
            1,
            Gets::Nothing,
        ),
        (Detached, &[Loses], Left::Nothing, 0, Gets::LeaseLost),
        // Without a key there is no record, and a policy can only ask for another try.
        (NoKey, &[Value], Left::Nothing, 0, Gets::Value),
        (NoKey, &[Fails(Keep)], Left::Nothing, 0, Gets::Error),
        (NoKey, &[KEEP, KEEP], Left::Nothing, 0, Gets::Error),
        (NoKey, &[RELEASE, Value], Left::Nothing, 0, Gets::Value),
        (NoKey, &[Panics], Left::Nothing, 0, Gets::Panic),
        (NoKey, &[PolicyPanics], Left::Nothing, 0, Gets::Panic),
        (NoKey, &[Dropped], Left::Nothing, 0, Gets::Nothing),
        // An observed call records what a guarded one would, and its losses stop nobody.
        (Observed, &[Value], Left::Value, 1, Gets::Value),
        (Observed, &[Fails(Keep)], Left::Error, 1, Gets::Error),
        (Observed, &[Fails(Release)], Left::Released, 1, Gets::Error),
        (Observed, &[RELEASE, Value], Left::Value, 1, Gets::Value),
        (Observed, &[Panics], Left::Released, 1, Gets::Panic),
        (Observed, &[LosesAndValue], Left::Nothing, 0, Gets::Value),
        (ObservedAsks, &[Value], Left::Value, 2, Gets::Value),
    ];
    let mut differ = Vec::new();
    for (row, (given, ends, left, attempt, gets)) in table.iter().enumerate() {
        let found = carry_out(*given, ends).await;
        if (&found.0, found.1, &found.2) != (left, *attempt, gets) {
            differ.push(format!("{row}: {given:?} {ends:?}: {found:?}"));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
