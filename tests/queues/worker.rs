//! A consumer in a process of its own, which the tests start and kill.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use idem::amqp::lapin::{Connection, ConnectionProperties};
use idem::amqp::{Delivery, MessageKey};
use idem::nats::async_nats;
use idem::{Dispose, Error, ErrorPolicy, Idempotency, RedisStore, idempotent};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedSender;

/// A message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) number: u32,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Plain,
    /// Its first body never ends.
    Hangs,
    /// Its handler never returns once the outcome is recorded.
    Stalls,
    /// Its bodies fail, each for a reason that may pass.
    Fails,
    /// No redelivery helps it.
    Unreadable,
    /// Its first body waits until the test has made a file with its number.
    Waits,
    /// Its bodies end their process.
    Crashes,
}

#[derive(Debug, thiserror::Error, ErrorPolicy)]
pub(crate) enum HandleError {
    #[error("cannot be read")]
    #[idem(dead_letter)]
    Unreadable,
    #[error("failed")]
    Failed,
    #[error(transparent)]
    Idempotency(#[from] Error),
}

/// What the test tells its consumers.
fn variable(name: &str) -> String {
    std::env::var(format!("QUEUES_{name}")).unwrap()
}

/// One line on standard output, at once, and in the journal of all consumers.
fn say(line: &str) {
    let mut journal = OpenOptions::new();
    let journal = journal
        .create(true)
        .append(true)
        .open(journal_in(&folder()));
    let _ = journal.unwrap().write_all(format!("{line}\n").as_bytes());
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn folder() -> PathBuf {
    PathBuf::from(variable("FOLDER"))
}

fn journal_in(folder: &Path) -> PathBuf {
    folder.join("journal")
}

/// The bodies that began out of order, by the journal of the consumers in this folder: before an
/// earlier message of their lane was done, or after a later one had begun. `succeeds` says of which
/// messages a body is done in the end.
pub(crate) fn out_of_order(
    folder: &Path,
    lane: impl Fn(u32) -> u32,
    succeeds: impl Fn(u32) -> bool,
) -> Vec<String> {
    let journal = std::fs::read_to_string(journal_in(folder)).unwrap();
    let (mut last, mut done, mut wrong) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for line in journal.lines() {
        let mut words = line.split(' ');
        let (what, number) = (words.next(), words.next().map(str::parse));
        let (Some(what), Some(Ok(number))) = (what, number) else {
            continue;
        };
        if what == "done" {
            done.insert(number);
        }
        if what == "begun"
            && let Some(before) = last.insert(lane(number), number)
            && (before > number || before < number && succeeds(before) && !done.contains(&before))
        {
            wrong.push(format!("{line} after {before}"));
        }
    }
    wrong
}

#[idempotent(name = "mails.on_order", key = key, ttl = "10m", max_attempts = 2)]
pub(crate) async fn on_order(key: MessageKey, mail: Mail) -> Result<(), HandleError> {
    let attempt = idem::current().expect("a body").attempt();
    say(&format!("begun {} {attempt}", mail.number));
    match mail.kind {
        Kind::Hangs if attempt == 1 => std::future::pending().await,
        Kind::Fails => return Err(HandleError::Failed),
        Kind::Unreadable => return Err(HandleError::Unreadable),
        Kind::Waits if attempt == 1 => {
            let open = folder().join(mail.number.to_string());
            while !open.exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // A poll in which the process was stopped goes on with it. The next one is refused.
            tokio::task::yield_now().await;
        }
        Kind::Crashes => std::process::abort(),
        _ => tokio::time::sleep(Duration::from_millis(2)).await,
    }
    say(&format!("done {} {attempt}", mail.number));
    Ok(())
}

async fn handle(delivery: Delivery) -> Result<(), HandleError> {
    let mail: Mail = delivery.json()?;
    // A broker that was killed may have forgotten that it delivered the message before.
    let (handled, report) = idem::watch(on_order(delivery.key()?, mail.clone())).await;
    if mail.kind == Kind::Stalls && report.executed() == 1 {
        say(&format!("committed {}", mail.number));
        std::future::pending::<()>().await;
    }
    if let Err(error) = &handled {
        say(&format!(
            "refused {} {:?}",
            mail.number,
            error.disposition()
        ));
    }
    handled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is the consumer process of the tests beside it, which start it"]
async fn consumer() {
    let url = variable("BROKER");
    let concurrency = variable("CONCURRENCY").parse().unwrap();
    // A machine that does much else takes its time.
    let limit = Duration::from_secs(15);
    let store = RedisStore::builder().url(variable("REDIS"));
    let store = store.time_limit(limit).connect_time_limit(limit).connect();
    let idempotency = Idempotency::builder(store.await.unwrap()).lease(&*variable("LEASE"));
    idem::install(idempotency.build()).unwrap();
    // The test closes standard input.
    let shutdown = async {
        let mut line = String::new();
        let _ = BufReader::new(tokio::io::stdin())
            .read_line(&mut line)
            .await;
    };
    #[cfg(feature = "kafka")]
    if url.starts_with("kafka") {
        let consumer = idem::kafka::Consumer::new(&crate::kafka::config(&url), "orders");
        let consumer = consumer.concurrency(concurrency).dead_letter("orders.dead");
        let mut shutdown = std::pin::pin!(shutdown);
        say("\nready");
        // The broker may be away at the start: then a service is started again.
        loop {
            match consumer.clone().run(handle, shutdown.as_mut()).await {
                Err(idem::kafka::Error::Broker { .. }) => {}
                ended => break ended.unwrap(),
            }
        }
        say("ended");
        return;
    }
    if url.starts_with("amqp") {
        let connect = || Connection::connect(&url, ConnectionProperties::default());
        let connection = connect().await.unwrap();
        let consumer = idem::amqp::Consumer::new(&connection, "orders")
            .reconnect(connect)
            .concurrency(concurrency);
        say("\nready");
        consumer.run(handle, shutdown).await.unwrap();
    } else {
        let context = async_nats::jetstream::new(async_nats::connect(&url).await.unwrap());
        let consumer =
            idem::nats::Consumer::new(&context, "ORDERS", "workers").concurrency(concurrency);
        say("\nready");
        consumer
            .dead_letter("dead.orders")
            .run(handle, shutdown)
            .await
            .unwrap();
    }
    say("ended");
}

/// A started consumer. Killed when dropped.
pub(crate) struct Worker {
    child: Child,
}

impl Worker {
    /// Starts one, with this lease of its calls; what it says goes to `lines`. In the folder are its
    /// journal, and the files that bodies wait for.
    pub(crate) fn start(
        broker: &str,
        redis: &str,
        concurrency: usize,
        lines: &UnboundedSender<String>,
        lease: &str,
        folder: &Path,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::consumer", "--ignored", "--nocapture"])
            .env("QUEUES_BROKER", broker)
            .env("QUEUES_REDIS", redis)
            .env("QUEUES_CONCURRENCY", concurrency.to_string())
            .env("QUEUES_LEASE", lease)
            .env("QUEUES_FOLDER", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines = lines.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child }
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) {
        // `wait` would close its standard input.
        while self.child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Stops it (SIGSTOP), and returns when all its threads stand still: a signal reaches one after
    /// the other.
    pub(crate) async fn stop(&self) {
        self.signal("-STOP").await;
        let threads = format!("/proc/{}/task", self.child.id().unwrap());
        let stands_still = || {
            std::fs::read_dir(&threads).unwrap().all(|thread| {
                // One that has ended has no state.
                let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
                let stat = stat.unwrap_or_default();
                let state = stat.rsplit(')').next().unwrap().trim_start();
                state.is_empty() || state.starts_with('T')
            })
        };
        while !stands_still() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets it go on.
    pub(crate) async fn go_on(&self) {
        self.signal("-CONT").await;
    }

    async fn signal(&self, signal: &str) {
        let process = self.child.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &process]).status().await;
        assert!(sent.unwrap().success());
    }

    /// Has it end as a service is ended, and waits for that.
    pub(crate) async fn shut_down(mut self) {
        drop(self.child.stdin.take());
        let ended = self.child.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "the consumer failed: {said}");
    }
}

/// A summary of numbers for messages of failed assertions.
pub(crate) fn first_of(numbers: impl IntoIterator<Item = u32>) -> String {
    numbers
        .into_iter()
        .take(10)
        .fold(String::new(), |mut text, number| {
            let _ = write!(text, "{number} ");
            text
        })
}
