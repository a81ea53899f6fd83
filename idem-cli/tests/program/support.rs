//! Runs the program, and workers that are killed.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use idem_core::{Abandoned, Error, Idempotency};
use idem_redis::RedisStore;
use idem_sqlx::sqlx::{MySqlPool, PgPool, SqlitePool};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use serde_json::Value;

/// Creates a folder for a file of SQLite: in memory, where that can be. On a disk that others use, a
/// commit may take longer than a lease of these tests.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    folder.unwrap()
}

/// The operation of the workers.
pub(crate) const OPERATION: &str = "payments.charge";
/// So long is a key of a killed worker not free.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);
/// A step waits for a disk that others keep busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// That it ended with this code; what it printed, as JSON where it is that.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs the program without a terminal.
pub(crate) fn idem(store: &str, args: &[&str]) -> Ended {
    idem_answering(store, args, "")
}

/// The same, with something on its standard input.
pub(crate) fn idem_answering(store: &str, args: &[&str], input: &str) -> Ended {
    run(command(store, args), input)
}

/// The same, with its events on its error output.
pub(crate) fn idem_logging(store: &str, args: &[&str]) -> Ended {
    let mut command = command(store, args);
    command.env("IDEM_LOG", "info");
    run(command, "")
}

/// The program, as Ada uses it.
pub(crate) fn command(store: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idem"));
    command
        .args(args)
        .env("IDEM_STORE", store)
        .env("USER", "ada")
        .env_remove("SUDO_USER")
        .env_remove("IDEM_LOG");
    if store.is_empty() {
        command.env_remove("IDEM_STORE");
    }
    command
}

fn run(mut command: Command, input: &str) -> Ended {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The trace of each call of a worker.
pub(crate) const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A runtime over the store of a URL, as a worker has it.
pub(crate) async fn runtime(url: &str) -> Idempotency {
    let builder = if url.starts_with("redis") {
        let store = RedisStore::builder().url(url).time_limit(LIMIT);
        let store = store.connect_time_limit(LIMIT).connect();
        Idempotency::builder(store.await.unwrap())
    } else if url.starts_with("postgres") {
        let pool = PgPool::connect(url).await.unwrap();
        let store = PostgresStore::builder(pool).time_limit(LIMIT).build();
        store.migrate().await.unwrap();
        Idempotency::builder(store)
    } else if url.starts_with("mysql") {
        let pool = MySqlPool::connect(url).await.unwrap();
        let store = MySqlStore::builder(pool).time_limit(LIMIT).build();
        store.migrate().await.unwrap();
        Idempotency::builder(store)
    } else {
        // It creates the file, and on a busy disk not always in its time.
        until("the file is there", async || {
            SqliteStore::connect(url).await.is_ok()
        })
        .await;
        let pool = SqlitePool::connect(url).await.unwrap();
        Idempotency::builder(SqliteStore::builder(pool).time_limit(LIMIT).build())
    };
    builder.trace_context(|| Some(TRACE.to_owned())).build()
}

/// The call of a worker: charges once, and after a crash a person decides.
pub(crate) async fn charge(idempotency: &Idempotency, key: &str) -> Result<Value, Error> {
    let call = idempotency
        .operation(OPERATION)
        .key(key)
        .fingerprint(&1999)
        .abandoned(Abandoned::Reject);
    let outcome = call
        .wait(Duration::ZERO)
        .run(async || Ok::<_, Error>(Value::from("charged by the worker")))
        .await?;
    Ok(outcome.into_inner())
}

/// A process that a test has started, and that ends with it.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    pub(crate) fn assert_runs(&mut self, why: &str) {
        assert!(self.0.try_wait().unwrap().is_none(), "{why}");
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker process is killed while it charges; returns when its lease has run out.
pub(crate) async fn killed_worker(url: &str, key: &str) {
    let worker = Command::new(std::env::current_exe().unwrap())
        .args([
            "support::worker_that_is_killed",
            "--exact",
            "--nocapture",
            "--include-ignored",
        ])
        .env("IDEM_TEST_WORKER", url)
        .env("IDEM_TEST_KEY", key)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut worker = Started(worker);
    let idempotency = runtime(url).await;
    let state = async || {
        idempotency
            .operation(OPERATION)
            .key(key)
            .inspect()
            .await
            .unwrap()
            .map(|info| info.state)
    };
    until("the worker has claimed its key", async || {
        worker.assert_runs("the worker ended by itself");
        state().await.is_some()
    })
    .await;
    drop(worker);
    until("the key of the killed worker is abandoned", async || {
        state().await == Some(idem_core::RecordState::Abandoned)
    })
    .await;
}

/// How long a test waits for what must come. It is long, for machines under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let came = tokio::time::timeout(PATIENCE, asking).await;
    assert!(came.is_ok(), "waited {PATIENCE:?} in vain: {what}");
}

/// The worker, in a process of its own. Without a store it is a test that has nothing to do.
#[tokio::test]
async fn worker_that_is_killed() {
    let Ok(url) = std::env::var("IDEM_TEST_WORKER") else {
        return;
    };
    let Ok(key) = std::env::var("IDEM_TEST_KEY") else {
        return;
    };
    // It ends with its test, which holds its standard input.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    let idempotency = runtime(&url).await;
    let call = idempotency
        .operation(OPERATION)
        .key(&key)
        .fingerprint(&1999)
        .lease(LEASE)
        .abandoned(Abandoned::Reject);
    let never = call
        .run(async || std::future::pending::<Result<Value, Error>>().await)
        .await;
    panic!("the worker was to be killed: {never:?}");
}
