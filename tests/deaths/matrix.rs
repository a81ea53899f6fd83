//! The driver of the tables: one call that dies at a step, and what comes after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem::{Begin, Idempotency, RecordState, UnkeptAction};
use idem_testkit::{Gate, Mishap, Passing, Proxy, RedisServer};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::log::{Lines, Log};
use crate::owner::{Call, Does, Failure, Process, describe};
use crate::server::{Kind, Server, impatient, patient};
use crate::support::{LEASE, LONG, eventually};
use crate::wire::{Leg, Step};

/// The step of a call at its death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// A step is on its way to the server, or its reply is on the way back.
    On(Step, Leg),
    /// The same of the claim of a waiter that was woken by a release.
    Woken(Leg),
    /// Its body runs.
    Body,
    /// Between two tries of its body.
    Pause,
    /// It asks what became of the attempt before.
    Question,
}

/// How it dies, or what is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Death {
    /// Its process is killed. Its messages arrive after its death.
    Killed,
    /// Its process is killed, and what it has sent never arrives.
    KilledUnheard,
    /// Its process is stopped, goes on when the next caller has its answer, and only then does its
    /// last message arrive.
    Stopped,
    /// Its future is dropped. Its messages arrive.
    Dropped,
    /// Its future is dropped. The connection ends, and with it what it has sent.
    DroppedUnheard,
    /// It lives on. The connection ends, and with it the request or the reply.
    Lost,
    /// It lives on. The connection stays, and from here on lets nothing more through in this
    /// direction.
    Silent,
}

/// The record that is there before the next caller comes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Leaves {
    Nothing,
    /// Or abandoned, if the machine was slow.
    InFlight(u64),
    Abandoned(u64),
    Released(u64),
    Committed(u64),
}

/// The result of the next caller.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    /// It runs its body as this attempt.
    Runs(u64),
    /// It gets the value, which is the attempt that gave it.
    Replays(u64),
    /// It asks, and gets the answer.
    Reconciles,
}

/// The time of the next caller's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Soon {
    /// Before the lease ends. The lease outlives the caller's wait, or is renewed.
    Sooner,
    /// At the end of the lease, which is short.
    AfterLease,
}

/// The step of the death; the record then; the next caller's result, and when; how many bodies
/// have begun in all; the first caller's result. The last is empty if that caller is gone, and `|`
/// separates alternatives.
pub(crate) type Row = (At, Leaves, Next, Soon, usize, &'static str);

/// Longer than a caller waits: a key that somebody gets was not freed by the end of such a lease.
const LONG_LEASE: Duration = Duration::from_secs(3 * LONG.as_secs());
/// Long enough to be renewed on a busy machine. It ends before a store has another connection in
/// place of one that is silent.
const SHORT_LEASE: Duration = Duration::from_secs(3 * LEASE.as_secs());
const TOLD: u64 = 70;

/// Limits the cases that run at once in this process.
pub(crate) static PLACES: Semaphore = Semaphore::const_new(6);

/// Goes through a table, several cases at once, and reports all that fail.
pub(crate) async fn all(kind: Kind, death: Death, rows: &'static [Row]) {
    let stage = Arc::new(Stage::set(kind).await);
    let mut cases = JoinSet::new();
    for (number, row) in rows.iter().enumerate().filter(|(_, row)| kind.has(row.0)) {
        let stage = stage.clone();
        cases.spawn(async move {
            let _place = PLACES.acquire().await.unwrap();
            let name = format!("{kind:?}.{death:?}.{number}");
            let ended =
                tokio::spawn(
                    async move { Case::prepare(stage, name, death, row).await.run().await },
                )
                .await;
            ended.err().map(|panic| {
                format!(
                    "{death:?} at {row:?}: {}",
                    said(panic.into_panic().as_ref())
                )
            })
        });
    }
    let failed: Vec<String> = cases.join_all().await.into_iter().flatten().collect();
    assert!(
        failed.is_empty(),
        "{} of {} cases:\n{}",
        failed.len(),
        rows.len(),
        failed.join("\n")
    );
}

/// Goes through rows one after the other, and asserts how soon the next caller has its answer: at
/// once, or at the end of the lease, and in either case within a second.
pub(crate) async fn soon(kind: Kind, death: Death, rows: &'static [Row]) {
    let stage = Arc::new(Stage::set(kind).await);
    for (number, row) in rows.iter().enumerate() {
        let name = format!("soon.{kind:?}.{death:?}.{number}");
        let took = Case::prepare(stage.clone(), name, death, row)
            .await
            .run()
            .await;
        let waits = match row.3 {
            Soon::AfterLease => SHORT_LEASE,
            Soon::Sooner => Duration::ZERO,
        };
        assert!(
            took < waits + Duration::from_secs(1),
            "{death:?} at {row:?}: after {took:?}"
        );
    }
}

/// The server, and the Redis that keeps the log.
struct Stage {
    kind: Kind,
    server: &'static Server,
    log: &'static RedisServer,
}

impl Stage {
    async fn set(kind: Kind) -> Self {
        let (server, log) = tokio::join!(Server::shared(kind), RedisServer::shared());
        Self {
            kind,
            server,
            log: log.unwrap(),
        }
    }
}

impl Kind {
    /// Whether a call on it comes to this step.
    pub(crate) fn has(self, at: At) -> bool {
        match self {
            #[cfg(feature = "mysql")]
            Self::MariaDb | Self::MySql => !matches!(at, At::On(Step::Subscribe, _)),
            _ => {
                let _ = at;
                true
            }
        }
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_default()
}

/// The caller that dies, or loses something.
struct First {
    caller: Caller,
    /// Kept, so that it lives on although its call is dropped.
    _runtime: Option<Idempotency>,
    /// How its call ended, once that is known.
    got: Option<String>,
}

enum Caller {
    Here(JoinHandle<String>),
    There(Box<Process>),
}

impl First {
    async fn begin(call: Call, death: Death) -> Self {
        let (caller, runtime) = match death {
            Death::Killed | Death::KilledUnheard | Death::Stopped => {
                (Caller::There(Box::new(Process::start(&call))), None)
            }
            Death::Dropped | Death::DroppedUnheard | Death::Lost | Death::Silent => {
                let runtime = match death {
                    Death::Silent => impatient(&call.url).await,
                    _ => call.runtime().await,
                };
                let call = tokio::spawn(call.carry_out(runtime.clone()));
                (Caller::Here(call), Some(runtime))
            }
        };
        Self {
            caller,
            _runtime: runtime,
            got: None,
        }
    }

    /// How its call ended.
    async fn ended(&mut self) -> &str {
        if self.got.is_none() {
            self.got = Some(match &mut self.caller {
                Caller::Here(call) => call.await.unwrap(),
                Caller::There(process) => process.ended().await,
            });
        }
        self.got.as_deref().unwrap()
    }
}

struct Case {
    stage: Arc<Stage>,
    name: String,
    death: Death,
    row: &'static Row,
    proxy: Proxy,
    gate: Gate,
    /// Another process, which fails in nothing.
    other: Idempotency,
    /// That of the next caller. It is connected before the death, so that the caller comes at once.
    next: Idempotency,
}

impl Case {
    async fn prepare(stage: Arc<Stage>, name: String, death: Death, row: &'static Row) -> Self {
        let proxy = Proxy::start(&stage.server.url()).await.unwrap();
        let other = patient(&stage.server.url()).await;
        let next = patient(&stage.server.url()).await;
        Self {
            stage,
            name,
            death,
            row,
            proxy,
            gate: Gate::new(),
            other,
            next,
        }
    }

    /// Gives how long the next caller waited for its answer.
    async fn run(&self) -> Duration {
        let (at, leaves, _, soon, bodies, first_gets) = *self.row;
        let holder = self.set_up().await;
        let moment = self.script();
        let began = Instant::now();
        let mut first = First::begin(self.call(), self.death).await;
        let reached = async {
            if let (At::Woken(leg), Some(holder)) = (at, &holder) {
                moment.watched.reached(1).await;
                // Not sooner: a claim of a key in flight looks at its lease by the same script.
                self.befalls(&moment.step, leg);
                holder.release().await.unwrap();
            }
            self.reached(&moment).await;
        };
        tokio::select! {
            biased;
            reached = tokio::time::timeout(LONG, reached) => {
                reached.expect("the first call comes to where it is to die");
            }
            got = first.ended() => panic!("the first call ended before its death: {got}"),
        }
        self.die(&mut first).await;
        let since = Instant::now();
        eventually(&format!("{leaves:?} is left"), async || {
            self.is_left(leaves).await
        })
        .await;
        if let (At::On(..), Some(holder)) = (at, &holder) {
            holder.commit(&1u64).await.unwrap();
        }

        let next_got = self.next().await;
        let took = since.elapsed();
        assert!(
            soon == Soon::Sooner || began.elapsed() >= SHORT_LEASE,
            "the next caller came before the end of the lease"
        );

        if let (Death::Stopped, Caller::There(process)) = (self.death, &first.caller) {
            process.go_on();
            self.gate.open();
        }
        if !first_gets.is_empty() {
            let got = tokio::time::timeout(LONG, first.ended())
                .await
                .expect("the first call ends");
            assert!(
                first_gets.split('|').any(|gets| gets == got),
                "the first caller got: {got}"
            );
        }
        let seen = self.expected(&next_got);
        let later = self
            .other
            .operation(&self.name)
            .key("k")
            .run(async || panic!("a body ran for a later call"))
            .await;
        assert_eq!(describe(later), format!("replay {seen}"), "a later call");
        let lines = Lines::read(self.stage.log, &self.name).await;
        assert!(
            lines.one_at_a_time() && lines.bodies() == bodies,
            "what bodies did: {lines:?}"
        );
        took
    }

    /// What is there before the first call comes.
    async fn set_up(&self) -> Option<idem::Lease> {
        match self.row.0 {
            At::On(Step::Subscribe | Step::Watch, _) | At::Woken(_) => {
                let holder = patient(&self.stage.server.url()).await;
                let call = holder.operation(&self.name).key("k").lease(LONG_LEASE);
                match call.begin().await {
                    Ok(Begin::Execute(lease)) => Some(lease),
                    other => panic!("{other:?}"),
                }
            }
            At::On(Step::TakeOver, _) | At::Question => {
                let call = self.other.operation(&self.name).key("k").lease(LONG_LEASE);
                let abandons = call.errors(|_: &Failure| UnkeptAction::Abandon);
                let failed = abandons
                    .run(async || Err::<u64, _>(Failure::Declined))
                    .await;
                assert!(matches!(failed, Err(Failure::Declined)), "{failed:?}");
                eventually("it is abandoned", async || {
                    self.is_left(Leaves::Abandoned(1)).await
                })
                .await;
                None
            }
            _ => None,
        }
    }

    fn call(&self) -> Call {
        let (at, _, _, soon, ..) = *self.row;
        let does = match at {
            At::On(Step::Renew, _) => Does::GoesOn,
            At::On(Step::Release, _) => Does::Fails,
            At::On(Step::Undo, _) => Does::GivesUp,
            At::On(..) | At::Woken(_) => Does::Ends,
            At::Body => Does::NeverEnds,
            At::Pause => Does::Pauses,
            At::Question => Does::Asks,
        };
        let lease = match (at, soon) {
            (_, Soon::AfterLease) => SHORT_LEASE,
            // It is kept, although a renewal is lost.
            (At::On(Step::Renew, _), Soon::Sooner) => LEASE * 6,
            (_, Soon::Sooner) => LONG_LEASE,
        };
        let url = self.stage.server.url_through(&self.proxy);
        let direct = self.stage.server.url();
        let port = self.stage.log.port();
        Call {
            url,
            direct,
            port,
            operation: self.name.clone(),
            does,
            lease,
        }
    }

    fn script(&self) -> Moment {
        let (step, leg) = match self.row.0 {
            At::On(step, leg) => (step, Some(leg)),
            _ => (Step::TakeOver, None),
        };
        if step == Step::Undo {
            // For there to be something to undo.
            Step::Claim
                .passing(self.stage.kind, &self.proxy)
                .always(Mishap::HangReply(Gate::new()));
        }
        let step = step.passing(self.stage.kind, &self.proxy);
        if let Some(leg) = leg {
            self.befalls(&step, leg);
        }
        Moment {
            step,
            watched: Step::Watch.passing(self.stage.kind, &self.proxy),
        }
    }

    /// Scripts what goes wrong with a step.
    fn befalls(&self, step: &Passing, leg: Leg) {
        match self.death {
            // A process may send the step again before it dies.
            Death::Killed | Death::KilledUnheard | Death::Stopped => step.always(self.mishap(leg)),
            _ => step.next(self.mishap(leg)),
        }
    }

    fn mishap(&self, leg: Leg) -> Mishap {
        match (self.death, leg) {
            (Death::Lost, Leg::Request) => Mishap::LoseRequest,
            (Death::Lost, Leg::Reply) => Mishap::LoseReply,
            (_, Leg::Request) => Mishap::Hang(self.gate.clone()),
            (_, Leg::Reply) => Mishap::HangReply(self.gate.clone()),
        }
    }

    async fn reached(&self, moment: &Moment) {
        match self.row.0 {
            // The claim's reply holds up the undoing's.
            At::On(Step::Undo, Leg::Reply) => moment.step.reached(1).await,
            At::On(..) if self.death == Death::Lost => moment.step.reached(1).await,
            // On Redis the first was the look at the holder's lease.
            At::Woken(_) if self.death == Death::Lost => {
                moment
                    .step
                    .reached(if self.stage.kind == Kind::Redis { 2 } else { 1 })
                    .await;
            }
            At::On(..) | At::Woken(_) => self.gate.reached().await,
            At::Body => self.has_logged("goes-on").await,
            At::Question => self.has_logged("asks").await,
            At::Pause => self.has_logged("begins").await,
        }
    }

    async fn has_logged(&self, what: &str) {
        eventually(what, async || {
            Lines::read(self.stage.log, &self.name).await.has(what)
        })
        .await;
    }

    async fn die(&self, first: &mut First) {
        match (self.death, &mut first.caller) {
            (Death::Killed, Caller::There(process)) => {
                process.kill().await;
                self.gate.open();
            }
            (Death::KilledUnheard, Caller::There(process)) => process.kill().await,
            (Death::Stopped, Caller::There(process)) => {
                process.stop().await;
            }
            (Death::Dropped | Death::DroppedUnheard, Caller::Here(call)) => {
                call.abort();
                assert!(call.await.unwrap_err().is_cancelled());
                if self.death == Death::Dropped {
                    self.gate.open();
                } else {
                    self.proxy.cut();
                    // Until the connection has ended; were it longer or shorter, the case would be
                    // another one of the same kind.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    self.proxy.restore();
                }
            }
            _ => {}
        }
    }

    async fn is_left(&self, leaves: Leaves) -> bool {
        let info = self
            .other
            .operation(&self.name)
            .key("k")
            .inspect()
            .await
            .unwrap();
        let found = info.map(|info| (info.state, info.attempt));
        match leaves {
            Leaves::Nothing => found.is_none(),
            Leaves::InFlight(attempt) => {
                found == Some((RecordState::InFlight, attempt))
                    || found == Some((RecordState::Abandoned, attempt))
            }
            Leaves::Abandoned(attempt) => found == Some((RecordState::Abandoned, attempt)),
            Leaves::Released(attempt) => found == Some((RecordState::Released, attempt)),
            Leaves::Committed(attempt) => found == Some((RecordState::Committed, attempt)),
        }
    }

    /// What the next caller gets.
    async fn next(&self) -> String {
        let log = Log::open(self.stage.log.port(), &self.name);
        let call = self.next.operation(&self.name).key("k").wait(LONG);
        let body = async || {
            let attempt = idem::current().unwrap().attempt();
            log.begins(attempt);
            Ok::<_, Failure>(attempt)
        };
        let got = match self.row.0 {
            At::Question => call.reconcile(async || Ok(Some(TOLD))).run(body).await,
            _ => call.run(body).await,
        };
        describe(got)
    }

    /// The value that the next caller should have got, and has.
    fn expected(&self, got: &str) -> u64 {
        let (expected, value) = match self.row.2 {
            Next::Runs(attempt) => (format!("value {attempt}"), attempt),
            Next::Replays(attempt) => (format!("replay {attempt}"), attempt),
            Next::Reconciles => (format!("value {TOLD}"), TOLD),
        };
        assert_eq!(got, expected, "the next caller");
        value
    }
}

/// The sign that the first call has reached the step of its death.
struct Moment {
    step: Passing,
    watched: Passing,
}

/// Goes through a table on each server, in a test of its own: the first one on Redis, the second
/// one on databases.
macro_rules! on_each_server {
    ($($name:ident: $death:expr, $rows:expr, $of_databases:expr;)*) => {
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::matrix::all(crate::server::Kind::Redis, $death, $rows).await;
            })*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::matrix::all(crate::server::Kind::Postgres, $death, $of_databases).await;
            })*
        }

        #[cfg(feature = "mysql")]
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::matrix::all(crate::server::Kind::MariaDb, $death, $of_databases).await;
            })*
        }

        #[cfg(feature = "mysql")]
        mod real_mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::matrix::all(crate::server::Kind::MySql, $death, $of_databases).await;
            })*
        }
    };
}
pub(crate) use on_each_server;
