//! The caller that dies: the same call in this process, and in one of its own.

use std::future::pending;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use idem::{Error, ErrorAction, Idempotency, Outcome, Retry};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Notify;

use crate::log::Log;
use crate::server;
use crate::support::{LONG, eventually};

/// The error of the bodies here.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Failure {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// The behaviour of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// Its body gives its attempt at once.
    Ends,
    /// Its body goes on for longer than its lease, and gives its attempt.
    GoesOn,
    /// Its body never ends.
    NeverEnds,
    /// Its body fails.
    Fails,
    /// Its body fails, and is to be tried again after a long pause.
    Pauses,
    /// It asks what became of the attempt before, and gets no answer.
    Asks,
    /// It drops the call before there is an answer to its claim.
    GivesUp,
    /// Its body never ends in a separate task, and the call is dropped.
    Detaches,
}

impl Does {
    const ALL: [Self; 8] = [
        Self::Ends,
        Self::GoesOn,
        Self::NeverEnds,
        Self::Fails,
        Self::Pauses,
        Self::Asks,
        Self::GivesUp,
        Self::Detaches,
    ];
}

/// A call that may die.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The store, behind the proxy.
    pub(crate) url: String,
    /// The same without the proxy.
    pub(crate) direct: String,
    /// The Redis that keeps the log.
    pub(crate) port: u16,
    pub(crate) operation: String,
    pub(crate) does: Does,
    pub(crate) lease: Duration,
}

impl Call {
    pub(crate) async fn runtime(&self) -> Idempotency {
        server::patient(&self.url).await
    }

    /// Makes the call, and says how it ended.
    pub(crate) async fn carry_out(self, idempotency: Idempotency) -> String {
        let Self {
            direct,
            port,
            operation,
            does,
            lease,
            ..
        } = self;
        let log = Arc::new(Log::open(port, &operation));
        let call = idempotency
            .operation(operation.clone())
            .key("k")
            .lease(lease)
            .wait(LONG);
        let body = || body(log.clone(), does, lease);
        let ended = match does {
            Does::Asks => {
                let asking = call.reconcile(async || {
                    log.asks(idem::current().unwrap().attempt());
                    pending().await
                });
                asking.run(body).await
            }
            Does::Pauses => {
                let policy =
                    |_: &Failure| ErrorAction::Retry(Retry::new(1).backoff(LONG).max_backoff(LONG));
                call.errors(policy).run(body).await
            }
            Does::GivesUp => {
                // The answer does not come, so another connection says when it has claimed.
                let other = server::patient(&direct).await;
                let claimed = eventually("it has claimed", async || {
                    let claimed = other.operation(&operation).key("k").inspect().await;
                    claimed.unwrap().is_some()
                });
                tokio::select! {
                    ended = call.run(body) => ended,
                    // The undoing goes on.
                    () = claimed => pending().await,
                }
            }
            Does::Detaches => {
                let begun = Arc::new(Notify::new());
                let (log, begins) = (log.clone(), begun.clone());
                let detached = call.run_detached(move || async move {
                    begins.notify_one();
                    self::body(log, does, lease).await
                });
                tokio::select! {
                    ended = detached => ended,
                    () = begun.notified() => pending().await,
                }
            }
            _ => call.run(body).await,
        };
        describe(ended)
    }
}

async fn body(log: Arc<Log>, does: Does, lease: Duration) -> Result<u64, Failure> {
    const TICK: Duration = Duration::from_millis(50);
    let attempt = idem::current().unwrap().attempt();
    log.begins(attempt);
    let length = match does {
        Does::Fails | Does::Pauses => return Err(Failure::Declined),
        Does::GoesOn => lease * 3 / 2,
        Does::NeverEnds | Does::Detaches => LONG * 3,
        _ => Duration::ZERO,
    };
    let begun = Instant::now();
    while begun.elapsed() < length {
        tokio::time::sleep(TICK).await;
        log.goes_on(attempt);
    }
    Ok(attempt)
}

/// Describes a caller's result in a word or two.
pub(crate) fn describe(ended: Result<Outcome<u64>, Failure>) -> String {
    match ended {
        Ok(outcome) if outcome.is_replayed() => format!("replay {}", outcome.into_inner()),
        Ok(outcome) => format!("value {}", outcome.into_inner()),
        Err(Failure::Declined) => "declined".into(),
        Err(Failure::Idempotency(Error::LeaseLost { .. })) => "lost".into(),
        Err(Failure::Idempotency(Error::Store { .. })) => "store".into(),
        Err(error) => error.to_string(),
    }
}

/// The call in a process of its own.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Ends this process with its parent, which holds its standard input.
pub(crate) fn end_with_parent() {
    stop_or_end_with_parent(|| {});
}

/// The same, and calls `stop` for each line of the parent.
fn stop_or_end_with_parent(stop: impl Fn() + Send + 'static) {
    std::thread::spawn(move || {
        std::io::stdin()
            .lines()
            .map_while(Result::ok)
            .for_each(|_| stop());
        std::process::exit(1);
    });
}

/// Stops this process when asked to. In the task of a call, that is between two polls of its body:
/// a poll that has begun goes on with the process, and no library can prevent that.
async fn stop_when_asked(asked: Arc<Notify>) -> ! {
    loop {
        asked.notified().await;
        signal("-STOP", std::process::id());
    }
}

fn signal(signal: &str, process: u32) {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args([signal, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is the process that dies in the tests beside it, which start it"]
async fn process() {
    let asked = Arc::new(Notify::new());
    let stop = asked.clone();
    stop_or_end_with_parent(move || stop.notify_one());
    let variable = |name: &str| std::env::var(format!("OWNER_{name}")).unwrap();
    let call = Call {
        url: variable("URL"),
        direct: variable("DIRECT"),
        port: variable("PORT").parse().unwrap(),
        operation: variable("OPERATION"),
        does: Does::ALL
            .into_iter()
            .find(|does| format!("{does:?}") == variable("DOES"))
            .unwrap(),
        lease: Duration::from_millis(variable("LEASE").parse().unwrap()),
    };
    let idempotency = call.runtime().await;
    let ended = tokio::select! {
        biased;
        never = stop_when_asked(asked) => never,
        ended = call.carry_out(idempotency) => ended,
    };
    println!("\nended {ended}");
}

impl Process {
    pub(crate) fn start(call: &Call) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner::process", "--ignored", "--nocapture"])
            .env("OWNER_URL", &call.url)
            .env("OWNER_DIRECT", &call.direct)
            .env("OWNER_PORT", call.port.to_string())
            .env("OWNER_OPERATION", &call.operation)
            .env("OWNER_DOES", format!("{:?}", call.does))
            .env("OWNER_LEASE", call.lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Kills it, and returns when it is gone.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Has it stop itself, and returns when it stands still.
    pub(crate) async fn stop(&mut self) {
        let asks = self.child.stdin.as_mut().unwrap();
        asks.write_all(b"stop\n").await.unwrap();
        eventually("the process is stopped", async || self.stands_still()).await;
    }

    /// Whether all its threads are stopped: a signal reaches one after the other.
    fn stands_still(&self) -> bool {
        let threads = format!("/proc/{}/task", self.child.id().unwrap());
        std::fs::read_dir(threads).unwrap().all(|thread| {
            // One that has ended has no state.
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
            let stat = stat.unwrap_or_default();
            let state = stat.rsplit(')').next().unwrap().trim_start();
            state.is_empty() || state.starts_with('T')
        })
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        signal("-CONT", self.child.id().unwrap());
    }

    /// How its call ended.
    pub(crate) async fn ended(&mut self) -> String {
        loop {
            let line = self.lines.next_line().await.unwrap();
            if let Some(ended) = line
                .expect("it says how its call ended")
                .strip_prefix("ended ")
            {
                return ended.to_owned();
            }
        }
    }
}
