//! A rolling deployment that changes the type of an outcome: processes of the build before it and
//! of the one after it call the same keys, over one Redis or one table.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use idem::{Error, Idempotency};
use idem_testkit::RedisServer;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use super::{V1, V2, from_v1};
use crate::support::{LONG, connected, patient_store};

/// Calls at once for each key, in each process.
const CALLS: usize = 3;
/// Keys to which both builds come at once, of each kind.
const RACES: usize = 8;

/// The build that a process is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Build {
    Before,
    After,
}

/// An outcome before a field was added.
#[derive(Serialize, Deserialize)]
struct Paid {
    cents: u32,
}

/// The same type afterwards.
#[derive(Serialize, Deserialize)]
struct PaidWithNote {
    cents: u32,
    #[serde(default)]
    note: String,
}

/// The call of one process. The kind of a key says which type changes, and how.
async fn call(idempotency: Idempotency, build: Build, key: String) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let cents = || {
        println!("said {key} ran");
        // No two bodies of any process have one number.
        std::process::id() * 500 + RUNS.fetch_add(1, Ordering::SeqCst)
    };
    let operation = idempotency.operation("deployment").key(&key).wait(LONG);
    let ended = match (build, key.starts_with("version")) {
        (Build::Before, true) => {
            let outcome = operation
                .run(async || Ok::<_, Error>(V1 { cents: cents() }))
                .await;
            outcome.map(|outcome| format!("{} cents", outcome.into_inner().cents))
        }
        (Build::After, true) => {
            let operation = operation.outcome_version(2).upgrade(1, from_v1);
            let outcome = operation
                .run(async || {
                    Ok::<_, Error>(V2 {
                        amount: format!("{} cents", cents()),
                    })
                })
                .await;
            outcome.map(|outcome| outcome.into_inner().amount)
        }
        (Build::Before, false) => {
            let outcome = operation
                .run(async || Ok::<_, Error>(Paid { cents: cents() }))
                .await;
            outcome.map(|outcome| format!("{} cents", outcome.into_inner().cents))
        }
        (Build::After, false) => {
            let paid = async || {
                Ok::<_, Error>(PaidWithNote {
                    cents: cents(),
                    note: "new".into(),
                })
            };
            operation
                .run(paid)
                .await
                .map(|outcome| format!("{} cents", outcome.into_inner().cents))
        }
    };
    match ended {
        Ok(value) => println!("said {key} got {value}"),
        Err(Error::Codec { .. }) => println!("said {key} refused"),
        Err(error) => println!("said {key} failed: {error}"),
    }
}

/// A process: reads keys, and says what became of its calls. Without a store it is a test that has
/// nothing to do.
#[tokio::test]
async fn process() {
    let (Ok(build), Ok(url)) = (
        std::env::var("IDEM_TEST_BUILD"),
        std::env::var("IDEM_TEST_STORE"),
    ) else {
        return;
    };
    let build = if build == "After" {
        Build::After
    } else {
        Build::Before
    };
    let idempotency = Idempotency::new(patient_store(&url).await);
    let mut calls = JoinSet::new();
    let mut keys = BufReader::new(tokio::io::stdin()).lines();
    while let Some(key) = keys.next_line().await.unwrap() {
        for _ in 0..CALLS {
            calls.spawn(call(idempotency.clone(), build, key.clone()));
        }
    }
    calls.join_all().await;
}

/// The fate of a key, in all processes.
#[derive(Debug, Default)]
struct Seen {
    ran: Vec<Build>,
    got: Vec<(Build, String)>,
    refused: Vec<Build>,
}

/// A process of a build, as its parent sees it.
struct Process {
    build: Build,
    keys: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Process {
    fn start(build: Build, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["codec::deployment::process", "--exact", "--nocapture"])
            .env("IDEM_TEST_BUILD", format!("{build:?}"))
            .env("IDEM_TEST_STORE", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            build,
            keys: child.stdin.take().unwrap(),
            says,
            _child: child,
        }
    }

    /// Has the process call these keys, and waits for all of its calls.
    async fn calls(&mut self, keys: &[String]) -> Vec<(String, Build, String)> {
        let lines = keys.join("\n") + "\n";
        self.keys.write_all(lines.as_bytes()).await.unwrap();
        self.keys.flush().await.unwrap();
        let mut all = Vec::new();
        let mut ended = 0;
        while ended < keys.len() * CALLS {
            let line = self
                .says
                .next_line()
                .await
                .unwrap()
                .expect("a process of the deployment has failed");
            // The test runner's own words may stand before it.
            let Some((_, said)) = line.split_once("said ") else {
                continue;
            };
            let (key, what) = said.split_once(' ').unwrap();
            assert!(!what.starts_with("failed"), "{said}");
            ended += usize::from(what != "ran");
            all.push((key.to_owned(), self.build, what.to_owned()));
        }
        all
    }
}

fn note(seen: &mut BTreeMap<String, Seen>, said: Vec<(String, Build, String)>) {
    for (key, build, what) in said {
        let seen = seen.entry(key).or_default();
        match what.split_once(' ') {
            Some((_, value)) => seen.got.push((build, value.to_owned())),
            None if what == "ran" => seen.ran.push(build),
            None => seen.refused.push(build),
        }
    }
}

#[tokio::test]
async fn two_builds_share_the_outcomes_of_changed_types_in_both_directions_and_no_body_runs_twice()
{
    share_outcomes(&RedisServer::start().await.unwrap().url()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn two_builds_share_the_outcomes_of_changed_types_in_a_table_of_postgres() {
    let server = idem_testkit::PostgresServer::start().await.unwrap();
    let url = server.url();
    connected(async || idem::PostgresStore::connect(&url).await?.migrate().await).await;
    share_outcomes(&url).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn two_builds_share_the_outcomes_of_changed_types_in_a_table_of_mariadb() {
    let server = idem_testkit::MariaDbServer::start().await.unwrap();
    let url = server.url();
    connected(async || idem::MySqlStore::connect(&url).await?.migrate().await).await;
    share_outcomes(&url).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn two_builds_share_the_outcomes_of_changed_types_in_a_file_of_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    connected(async || idem::SqliteStore::connect(&url).await).await;
    share_outcomes(&url).await;
}

async fn share_outcomes(url: &str) {
    let process = |build| Process::start(build, url);
    let mut seen = BTreeMap::new();
    let keys = |which: &str| {
        ["version", "field"]
            .map(|kind| format!("{kind}-{which}"))
            .to_vec()
    };
    let mut before = process(Build::Before);
    let mut after = process(Build::After);
    note(&mut seen, before.calls(&keys("before")).await);
    note(&mut seen, after.calls(&keys("after")).await);
    // Both builds at once; some keys in the opposite order.
    let mut raced: Vec<String> = (0..RACES)
        .flat_map(|race| keys(&format!("race-{race}")))
        .collect();
    let forwards = raced.clone();
    raced.reverse();
    let (one, two) = tokio::join!(before.calls(&forwards), after.calls(&raced));
    note(&mut seen, one);
    note(&mut seen, two);
    // The deployment goes on, and is rolled back.
    let all: Vec<String> = seen.keys().cloned().collect();
    for mut process in [process(Build::After), process(Build::Before)] {
        note(&mut seen, process.calls(&all).await);
    }

    assert_eq!(seen.len(), 2 * (RACES + 2));
    for (key, seen) in &seen {
        let [ran] = seen.ran[..] else {
            panic!("{key} did not run once: {seen:?}")
        };
        let value = &seen.got[0].1;
        assert!(
            seen.got.iter().all(|(_, other)| other == value),
            "{key}: {seen:?}"
        );
        let got = |build| seen.got.iter().filter(|(by, _)| *by == build).count();
        let calls = |build| got(build) + seen.refused.iter().filter(|by| **by == build).count();
        assert_eq!(
            got(Build::After),
            calls(Build::After),
            "the later build reads all: {key}: {seen:?}"
        );
        if ran == Build::After && key.starts_with("version") {
            assert_eq!(
                got(Build::Before),
                0,
                "the earlier build refuses a later version: {key}: {seen:?}"
            );
        } else {
            assert_eq!(
                got(Build::Before),
                calls(Build::Before),
                "the earlier build reads it: {key}: {seen:?}"
            );
        }
        assert!(
            calls(Build::Before) > 0 && calls(Build::After) > 0,
            "{key}: {seen:?}"
        );
    }
}
