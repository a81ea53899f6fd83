//! Two builds at once over one Redis: this one, and the one before it, in a process of its own.
//!
//! No tag has an earlier build, and a shallow checkout has no earlier commit. So the earlier build
//! is here as far as Redis sees it: its scripts in `earlier/`, and the commands and texts below. It
//! shares no code with the crates, whose changes must not change it. The next change of the format
//! adds another and keeps this one.

use std::process::Stdio;

use idem_core::{Error, Idempotency, Store as _};
use idem_redis::RedisStore;
use redis::aio::MultiplexedConnection;
use redis::{Client, Value};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::server::Server;
use crate::{SECOND, claim_for};

const COMMIT: &str = include_str!("earlier/commit.lua");
const RELEASE: &str = include_str!("earlier/release.lua");
const TAKEOVER: &str = include_str!("earlier/takeover.lua");

/// The keys, the first half of which the earlier build comes to first, and the other half this one.
const KEYS: usize = 24;
/// Calls at once for each key, in each process.
const CALLS: usize = 3;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

/// The history of a key before both processes come to it.
const CRASHED: usize = 0;
const RELEASED: usize = 1;
const COMMITTED: usize = 2;
const WAYS: usize = 4;

/// A call of the earlier build.
struct Earlier {
    connection: MultiplexedConnection,
    /// The beginning of each record that it owns.
    owner: String,
    key: String,
}

enum Saw {
    Owned(u64),
    Outcome(String),
    /// In flight, or a record that only this build can read: left as it is.
    Busy,
}

impl Earlier {
    fn new(connection: &MultiplexedConnection, key: usize) -> Self {
        // 16 random bytes: 21 characters of 6 bits, and one of 2.
        let characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let owner: String = (0..21).filter_map(|_| characters.chars().nth(fastrand::usize(..64))).collect();
        Self { connection: connection.clone(), owner: format!("i1f{owner}A"), key: format!("idem:orders:k{key}") }
    }

    async fn eval(&mut self, script: &str, args: &[&str]) -> Value {
        redis::cmd("EVAL").arg(script).arg(1).arg(&self.key).arg(args).query_async(&mut self.connection).await.unwrap()
    }

    /// Writes its record in place of what was found.
    async fn takes(&mut self, found: &str, origin: &str, attempt: u64, lease: u64, if_abandoned: &str) -> Saw {
        let next = format!("{}{origin} {attempt} {lease} 300000 -.", self.owner);
        let found = found.strip_suffix('w').unwrap_or(found);
        match self.eval(TAKEOVER, &[found, &next, "300000", if_abandoned, ""]).await {
            Value::Array(answer) if answer == [Value::Int(5)] => Saw::Owned(attempt),
            _ => Saw::Busy,
        }
    }

    async fn claim(&mut self, lease: u64) -> Saw {
        let record = format!("{}n 1 {lease} 300000 -.", self.owner);
        let mut first = redis::cmd("SET");
        first.arg(&self.key).arg(record).arg("NX").arg("GET").arg("PX").arg(300_000);
        let found: Option<String> = first.query_async(&mut self.connection).await.unwrap();
        let Some(found) = found else { return Saw::Owned(1) };
        let fields: Vec<&str> = found.splitn(6, ' ').collect();
        match (found.get(..3), &fields[..]) {
            (Some("i1c"), [_, attempt, "j", "-", check, payload]) => {
                assert_eq!(*check, checksum(&format!("i1c {attempt} j - "), payload), "{found}");
                Saw::Outcome((*payload).to_owned())
            }
            (Some("i1r"), [_, attempt]) => {
                let attempt: u64 = attempt.strip_suffix('.').unwrap().parse().unwrap();
                self.takes(&found, "r", attempt + 1, lease, "").await
            }
            (Some("i1f"), [_, attempt, ..]) => {
                self.takes(&found, "a", attempt.parse::<u64>().unwrap() + 1, lease, "1").await
            }
            (Some(later), _) if later.starts_with("i2") => Saw::Busy,
            _ => panic!("the earlier build cannot read {found}"),
        }
    }

    /// Returns when a waiter has marked the record. Its lease is longer than this may take.
    async fn is_waited_for(&mut self) {
        let marked = async {
            loop {
                let found: String = redis::cmd("GET").arg(&self.key).query_async(&mut self.connection).await.unwrap();
                if found.ends_with('w') {
                    return;
                }
                sleep(PAUSE).await;
            }
        };
        timeout(25 * SECOND, marked).await.expect("a waiter of the other build");
    }

    async fn commit(&mut self, attempt: u64, payload: &str) -> bool {
        let header = format!("i1c {attempt} j - ");
        let record = format!("{header}{} {payload}", checksum(&header, payload));
        let owner = self.owner.clone();
        self.eval(COMMIT, &[&owner, &record, "300000"]).await == Value::Int(1)
    }

    async fn release(&mut self) -> bool {
        let owner = self.owner.clone();
        self.eval(RELEASE, &[&owner, "300000", ""]).await == Value::Int(1)
    }
}

/// A CRC-32 as six characters of base64url.
fn checksum(header: &str, payload: &str) -> String {
    let crc = header.bytes().chain(payload.bytes()).fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    });
    let characters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = u64::from(!crc) << 4;
    (0..6).rev().map(|place| char::from(characters[usize::try_from(bits >> (6 * place) & 63).unwrap()])).collect()
}

/// Counts the bodies of a key that run, in both processes, and those that have succeeded.
async fn body(connection: &mut MultiplexedConnection, key: usize, succeeds: bool) {
    let counts = |name: &str| format!("{name}:{key}");
    let add = async |connection: &mut MultiplexedConnection, name: &str, by: i64| -> i64 {
        redis::cmd("INCRBY").arg(counts(name)).arg(by).query_async(connection).await.unwrap()
    };
    if add(connection, "running", 1).await > 1 {
        add(connection, "violations", 1).await;
    }
    tokio::task::yield_now().await;
    add(connection, "running", -1).await;
    if succeeds {
        add(connection, "succeeded", 1).await;
    }
}

async fn connect(url: &str) -> MultiplexedConnection {
    Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Calls until there is an outcome; some bodies fail, and some owners are gone before they begin
/// one.
async fn earlier_call(mut connection: MultiplexedConnection, key: usize, call: usize) -> String {
    if call == 1 {
        // Gone at once.
        Earlier::new(&connection, key).claim(1).await;
    }
    let mut fails = call == 2;
    loop {
        let mut own = Earlier::new(&connection, key);
        match own.claim(30_000).await {
            Saw::Outcome(outcome) => return outcome,
            Saw::Busy => sleep(PAUSE).await,
            Saw::Owned(attempt) => {
                body(&mut connection, key, !fails).await;
                if std::mem::take(&mut fails) {
                    assert!(own.release().await, "an earlier owner could not release {}", own.key);
                    continue;
                }
                let outcome = format!("\"k{key} by the earlier build\"");
                assert!(own.commit(attempt, &outcome).await, "an earlier owner could not commit {}", own.key);
                return outcome;
            }
        }
    }
}

async fn this_call(url: &str, idempotency: &Idempotency, key: usize, call: usize) -> String {
    if call == 1 {
        let store = RedisStore::connect(url).await.unwrap();
        store.claim(&claim_for(&format!("k{key}"), PAUSE / 5)).await.unwrap();
    }
    let mut fails = call == 2;
    let mut connection = connect(url).await;
    loop {
        let fails = std::mem::take(&mut fails);
        let connection = &mut connection;
        let call = idempotency.operation("orders").key(&format!("k{key}")).wait(60 * SECOND);
        let outcome = call.run(async || {
            body(connection, key, !fails).await;
            if fails { Err(Error::in_flight("elsewhere", "k", SECOND)) } else { Ok(format!("k{key} by this build")) }
        });
        match outcome.await {
            Ok(outcome) => return format!("\"{}\"", outcome.into_inner()),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

#[tokio::test]
#[ignore = "this is the process of the earlier build, which the test beside it starts"]
async fn the_earlier_build() {
    let connection = connect(&std::env::var("IDEM_TEST_URL").unwrap()).await;
    for key in 0..KEYS / 2 {
        let mut own = Earlier::new(&connection, key);
        let Saw::Owned(1) = own.claim(if key % WAYS == CRASHED { 1 } else { 30_000 }).await else { panic!() };
        match key % WAYS {
            RELEASED => assert!(own.release().await),
            COMMITTED => {
                body(&mut own.connection, key, true).await;
                assert!(own.commit(1, "\"early\"").await);
            }
            CRASHED => {}
            // A record in flight, committed while the other build waits for it.
            _ => {
                tokio::spawn(async move {
                    body(&mut own.connection, key, true).await;
                    own.is_waited_for().await;
                    assert!(own.commit(1, "\"late\"").await);
                });
            }
        }
    }
    println!("\nready");
    let mut go = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut go).await.unwrap();
    let calls: Vec<_> = (0..KEYS * CALLS)
        .map(|number| (number / CALLS, tokio::spawn(earlier_call(connection.clone(), number / CALLS, number % CALLS))))
        .collect();
    for (key, call) in calls {
        println!("answer {key} {}", call.await.unwrap());
    }
    println!("done");
}

#[tokio::test]
async fn p1_p2_two_builds_that_run_at_once_share_every_key() {
    let server = Server::start(&[]);
    let url = server.url();
    let store = RedisStore::connect(url.clone()).await.unwrap();
    let idempotency = Idempotency::new(store.clone());
    for key in KEYS / 2..KEYS {
        let operation = || idempotency.operation("orders").key(&format!("k{key}"));
        match key % WAYS {
            CRASHED => drop(store.claim(&claim_for(&format!("k{key}"), PAUSE / 5)).await.unwrap()),
            RELEASED => {
                let failed = operation().run(async || Err::<String, _>(Error::in_flight("elsewhere", "k", SECOND)));
                failed.await.unwrap_err();
            }
            COMMITTED => {
                let mut connection = connect(&url).await;
                let body = async || {
                    body(&mut connection, key, true).await;
                    Ok::<_, Error>("early".to_owned())
                };
                operation().run(body).await.unwrap();
            }
            _ => {}
        }
    }

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "side_by_side::the_earlier_build", "--ignored", "--nocapture"])
        .env("IDEM_TEST_URL", &url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("the earlier build is ready") != "ready" {}
    child.stdin.take().unwrap().write_all(b"go\n").await.unwrap();

    let mut answers = vec![Vec::new(); KEYS];
    let calls: Vec<_> = (0..KEYS * CALLS)
        .map(|number| {
            let (url, idempotency, key) = (url.clone(), idempotency.clone(), number / CALLS);
            (key, tokio::spawn(async move { this_call(&url, &idempotency, key, number % CALLS).await }))
        })
        .collect();
    for (key, call) in calls {
        answers[key].push(call.await.unwrap());
    }
    let mut is_done = false;
    while let Some(line) = lines.next_line().await.unwrap() {
        is_done |= line == "done";
        if let Some((key, outcome)) = line.strip_prefix("answer ").and_then(|answer| answer.split_once(' ')) {
            answers[key.parse::<usize>().unwrap()].push(outcome.to_owned());
        }
    }
    assert!(is_done, "a call of the earlier build failed");
    for (key, answers) in answers.iter().enumerate() {
        assert_eq!(answers.len(), 2 * CALLS);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "k{key}: {answers:?}");
        assert_eq!(
            server.get(&format!("succeeded:{key}")).await.as_deref(),
            Some("1"),
            "bodies of k{key}: {answers:?}"
        );
        assert_eq!(server.get(&format!("violations:{key}")).await, None, "two bodies at once of k{key}");
    }
}
