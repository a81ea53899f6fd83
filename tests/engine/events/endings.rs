//! The consequences of the end of a body, for every kind of call.
//!
//! A row is a kind of call, a column is an end of its body. Each cell says how many bodies run,
//! what the caller gets, what is reported, and what a duplicate gets. Outcomes are encrypted where
//! that feature is there, so an outcome that is written for another attempt fails to decode.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use idem::sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use idem::{Error, ErrorAction, Idempotency, Operation, Outcome, Retry, SqliteStore};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing::Event;
use tracing::field::{Field, Visit};

use crate::support::LONG;
use crate::support::events::{AtEachEvent, logging};

#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
enum Failure {
    #[error("declined")]
    Declined,
    /// Fails to encode.
    #[error("unwritable")]
    #[serde(skip)]
    Unwritable,
    #[error("{}", .0.code())]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// The value of a body; [`UNWRITABLE`] fails to encode.
#[derive(Debug, PartialEq)]
struct Value(u32);

const UNWRITABLE: u32 = 13;

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == UNWRITABLE {
            return Err(S::Error::custom("it cannot be written"));
        }
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Leased,
    /// In a task of its own.
    Detached,
    /// Its body records a value with its own transaction.
    CommitIn,
    /// In a transaction of the caller's.
    RunIn,
    /// In a transaction that the library begins and commits.
    Transaction,
    Observed,
    ObservedRunIn,
    ObservedTransaction,
    Disabled,
    DisabledRunIn,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Leased,
        Self::Detached,
        Self::CommitIn,
        Self::RunIn,
        Self::Transaction,
        Self::Observed,
        Self::ObservedRunIn,
        Self::ObservedTransaction,
        Self::Disabled,
        Self::DisabledRunIn,
    ];

    fn is_disabled(self) -> bool {
        matches!(self, Self::Disabled | Self::DisabledRunIn)
    }

    fn observes(self) -> bool {
        matches!(
            self,
            Self::Observed | Self::ObservedRunIn | Self::ObservedTransaction
        )
    }

    fn is_in_transaction(self) -> bool {
        matches!(
            self,
            Self::RunIn
                | Self::Transaction
                | Self::ObservedRunIn
                | Self::ObservedTransaction
                | Self::DisabledRunIn
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Value,
    ValueOmitted,
    ValueUnwritable,
    ErrorKept,
    ErrorUnwritable,
    /// The policy keeps the error, and a guarded call inside of the body has failed.
    ErrorKeptAfterNested,
    ErrorReleased,
    ErrorRetried,
    ErrorRetriedThenKept,
    ErrorAbandoned,
    BodyPanics,
    PolicyPanics,
}

/// A cell of the table.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    bodies: u32,
    answer: &'static str,
    /// Each with its attempt, where it has one.
    reported: Vec<&'static str>,
    /// The answer to the next call with the key, whose body returns 2.
    duplicate: &'static str,
}

/// The results of a call with a lease. The other kinds differ from it as [`expected`] says.
fn of_a_lease(ending: Ending) -> Cell {
    let cell = |bodies, answer, reported: &[&'static str], duplicate| Cell {
        bodies,
        answer,
        reported: reported.to_vec(),
        duplicate,
    };
    match ending {
        Ending::Value => cell(1, "1", &["executed 1"], "again 1"),
        Ending::ValueOmitted => cell(1, "1", &["executed 1"], "already_done"),
        Ending::ValueUnwritable => cell(1, "13", &["not_encoded 1", "executed 1"], "already_done"),
        Ending::ErrorKept => cell(1, "declined", &["error_kept 1"], "declined"),
        Ending::ErrorUnwritable => cell(1, "unwritable", &["error_not_kept 1", "released 1"], "2"),
        Ending::ErrorKeptAfterNested => cell(
            1,
            "declined",
            &["misconfigured", "error_not_kept 1", "released 1"],
            "2",
        ),
        Ending::ErrorReleased => cell(1, "declined", &["released 1"], "2"),
        Ending::ErrorRetried => cell(2, "declined", &["retried 1", "released 1"], "2"),
        Ending::ErrorRetriedThenKept => {
            cell(2, "declined", &["retried 1", "error_kept 1"], "declined")
        }
        Ending::ErrorAbandoned => cell(1, "declined", &["abandoned 1"], "2"),
        Ending::BodyPanics => cell(1, "panic of the body", &["panicked 1", "released 1"], "2"),
        Ending::PolicyPanics => cell(1, "panic of the policy", &["panicked 1", "released 1"], "2"),
    }
}

fn expected(kind: Kind, ending: Ending) -> Cell {
    let mut cell = of_a_lease(ending);
    if kind.is_in_transaction() {
        let is_retried = matches!(ending, Ending::ErrorRetried | Ending::ErrorRetriedThenKept);
        if is_retried {
            cell.bodies = 1;
        }
        // Nothing is tried again in place, and nothing is left to be abandoned.
        if is_retried || ending == Ending::ErrorAbandoned {
            cell.reported = vec!["released 1"];
            cell.duplicate = "2";
        }
        // The claim comes after the body, and none comes after a panic.
        if kind.observes() && matches!(ending, Ending::BodyPanics | Ending::PolicyPanics) {
            cell.reported = vec!["panicked"];
        }
    }
    if kind.is_disabled() {
        // Only a retry is reported, and the nested call, whose runtime is not disabled.
        cell.reported = match ending {
            Ending::ErrorKeptAfterNested => vec!["misconfigured"],
            _ if cell.bodies == 2 => vec!["retried"],
            _ => vec![],
        };
        cell.duplicate = "2";
    }
    // Without a record, a policy is asked only where a retry is possible.
    if kind == Kind::DisabledRunIn && ending == Ending::PolicyPanics {
        cell.answer = "declined";
    }
    cell
}

fn policy(ending: Ending) -> ErrorAction {
    let retry = Retry::new(1).backoff(Duration::from_millis(1));
    match ending {
        Ending::ErrorKept | Ending::ErrorUnwritable | Ending::ErrorKeptAfterNested => {
            ErrorAction::Keep
        }
        Ending::ErrorRetried => ErrorAction::Retry(retry),
        Ending::ErrorRetriedThenKept => ErrorAction::Retry(retry.then_keep()),
        Ending::ErrorAbandoned => ErrorAction::Abandon,
        Ending::PolicyPanics => panic!("the policy"),
        _ => ErrorAction::Release,
    }
}

/// The store, and the runtimes over it.
#[derive(Clone)]
struct Shop {
    pool: SqlitePool,
    guarding: Idempotency,
    disabled: Idempotency,
    bodies: Arc<AtomicU32>,
}

impl Shop {
    async fn open() -> Self {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
        store.migrate().await.unwrap();
        let builder = Idempotency::builder(store);
        #[cfg(feature = "encryption")]
        let builder = {
            let key = idem::EncryptionKey::new([7; 32]);
            let keys = idem::KeyRing::new("k", key).unwrap();
            builder.codec(idem::EncryptedCodec::new(keys))
        };
        Self {
            pool,
            guarding: builder.build(),
            disabled: Idempotency::disabled(),
            bodies: Arc::default(),
        }
    }

    fn operation<'a>(&self, kind: Kind, key: &'a str) -> Operation<'a> {
        let runtime = if kind.is_disabled() {
            &self.disabled
        } else {
            &self.guarding
        };
        let operation = runtime.operation("events.endings").key(key);
        if kind.observes() {
            operation.observe()
        } else {
            operation
        }
    }

    async fn body(self, kind: Kind, ending: Ending) -> Result<Value, Failure> {
        self.bodies.fetch_add(1, SeqCst);
        let value = Value(match ending {
            Ending::ValueUnwritable => UNWRITABLE,
            _ => 1,
        });
        match ending {
            Ending::Value | Ending::ValueOmitted | Ending::ValueUnwritable => {}
            Ending::BodyPanics => panic!("the body"),
            Ending::ErrorUnwritable => return Err(Failure::Unwritable),
            Ending::ErrorKeptAfterNested => {
                let nested = self.guarding.operation("not a name").key("k");
                nested.run(async || Ok::<_, Error>(1)).await.unwrap_err();
                return Err(Failure::Declined);
            }
            _ => return Err(Failure::Declined),
        }
        if let (Ending::ValueOmitted, Some(call)) = (ending, idem::current()) {
            call.omit_outcome();
        }
        if kind == Kind::CommitIn {
            let mut tx = self.pool.begin().await.unwrap();
            let call = idem::current().unwrap();
            call.commit_in(&mut tx, &value).await.unwrap();
            tx.commit().await.unwrap();
        }
        Ok(value)
    }

    async fn call(&self, kind: Kind, ending: Ending, key: &str) -> Result<Outcome<Value>, Failure> {
        let call = self
            .operation(kind, key)
            .errors(move |_: &Failure| policy(ending));
        let shop = self.clone();
        match kind {
            Kind::Leased | Kind::CommitIn | Kind::Observed | Kind::Disabled => {
                call.run(|| shop.clone().body(kind, ending)).await
            }
            Kind::Detached => {
                call.run_detached(move || shop.clone().body(kind, ending))
                    .await
            }
            Kind::RunIn | Kind::ObservedRunIn | Kind::DisabledRunIn => {
                let mut tx = self.pool.begin().await.unwrap();
                let body = async |_: &mut _| shop.body(kind, ending).await;
                let ended = AssertUnwindSafe(call.run_in(&mut tx, body))
                    .catch_unwind()
                    .await;
                // A caller that commits whatever came of the call.
                tx.commit().await.unwrap();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
            Kind::Transaction | Kind::ObservedTransaction => {
                call.transaction(&self.pool, async |_| shop.clone().body(kind, ending).await)
                    .await
            }
        }
    }
}

fn text(ended: std::thread::Result<Result<Outcome<Value>, Failure>>) -> String {
    match ended {
        Ok(Ok(outcome)) => {
            let again = if outcome.is_replayed() { "again " } else { "" };
            format!("{again}{}", outcome.get().0)
        }
        Ok(Err(failure)) => failure.to_string(),
        Err(panic) => format!("panic of {}", panic.downcast_ref::<&str>().unwrap()),
    }
}

/// The decision of an event, and its attempt.
#[derive(Default)]
struct Reported {
    decision: String,
    attempt: String,
}

impl Visit for Reported {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "decision" => text.trim_matches('"').clone_into(&mut self.decision),
            "attempt" => self.attempt = format!(" {text}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn p6_p8_p12_the_end_of_a_body_means_the_same_for_every_kind_of_call() {
    let shop = Shop::open().await;
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let events = reported.clone();
    let _logging = logging(AtEachEvent::new(move |event: &Event<'_>| {
        let mut seen = Reported::default();
        event.record(&mut seen);
        let Reported { decision, attempt } = seen;
        events.lock().unwrap().push(format!("{decision}{attempt}"));
    }));
    let mut wrong = Vec::new();
    for kind in Kind::ALL {
        for ending in [
            Ending::Value,
            Ending::ValueOmitted,
            Ending::ValueUnwritable,
            Ending::ErrorKept,
            Ending::ErrorUnwritable,
            Ending::ErrorKeptAfterNested,
            Ending::ErrorReleased,
            Ending::ErrorRetried,
            Ending::ErrorRetriedThenKept,
            Ending::ErrorAbandoned,
            Ending::BodyPanics,
            Ending::PolicyPanics,
        ] {
            let case = format!("{kind:?}, {ending:?}");
            shop.bodies.store(0, SeqCst);
            reported.lock().unwrap().clear();
            let ended = AssertUnwindSafe(shop.call(kind, ending, &case))
                .catch_unwind()
                .await;
            let answer = text(ended);
            let bodies = shop.bodies.load(SeqCst);
            let reported = std::mem::take(&mut *reported.lock().unwrap());
            let duplicate = shop
                .guarding
                .operation("events.endings")
                .key(&case)
                .errors(|_: &Failure| ErrorAction::Keep)
                .run(async || Ok(Value(2)))
                .await;
            let found = (bodies, answer, reported, text(Ok(duplicate)));
            let cell = expected(kind, ending);
            let same = found.0 == cell.bodies
                && found.1 == cell.answer
                && found.2 == cell.reported
                && found.3 == cell.duplicate;
            if !same {
                wrong.push(format!("{case}: {found:?}, not {cell:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A call that is dropped while another panic unwinds was cut, and did not panic itself.
#[tokio::test]
async fn p8_a_call_that_another_panic_drops_is_dropped_in_a_lease_and_in_a_transaction() {
    let shop = Shop::open().await;
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    let events = reported.clone();
    let _logging = logging(AtEachEvent::new(move |event: &Event<'_>| {
        let mut seen = Reported::default();
        event.record(&mut seen);
        events.lock().unwrap().push(seen.decision);
    }));
    let begun = AtomicU32::new(0);
    let waits = async || {
        begun.fetch_add(1, SeqCst);
        std::future::pending::<Result<u32, Error>>().await
    };
    for (bodies, kind) in [(1, Kind::Leased), (2, Kind::RunIn)] {
        reported.lock().unwrap().clear();
        let call = shop.operation(
            kind,
            if bodies == 1 {
                "leased"
            } else {
                "in a transaction"
            },
        );
        let beside = async {
            let mut tx;
            let mut running: Pin<Box<dyn Future<Output = _>>> = if kind == Kind::Leased {
                Box::pin(call.run(waits))
            } else {
                tx = shop.pool.begin().await.unwrap();
                Box::pin(call.run_in_local(&mut tx, async |_| waits().await))
            };
            while begun.load(SeqCst) < bodies {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(running.as_mut().now_or_never().is_none());
            }
            panic!("beside it");
        };
        assert!(AssertUnwindSafe(beside).catch_unwind().await.is_err());
        assert_eq!(*reported.lock().unwrap(), ["caller_dropped"], "{kind:?}");
    }
}
