//! A process that is killed at each message of a body with three steps: before the message is sent,
//! or after it was carried out and before its answer is known. In a first attempt, in a second one,
//! and in a fifth, whose record no longer has the first.

use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use idem::store::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem::store::{Store, StoreHandle};
use idem::{Error, Idempotency, Operation, StoreError, UnkeptAction};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::matrix::PLACES;
use crate::owner::end_with_parent;
use crate::support::{LONG, World, patient_store};
use crate::wire::Leg;

const PLACE: &str = "deaths.steps";
const STEPS: [&str; 3] = ["charge", "parcel", "mail"];
/// The lease of the process that dies.
const LEASE: Duration = Duration::from_secs(3);

/// The attempts in which a process is killed.
const ATTEMPTS: [u64; 3] = [1, 2, 5];

/// The messages of the call, in their order: its claim, the renewal by which the record stays as
/// long as the steps, or the look at its run in a later attempt, those of each step, the end, and
/// the removals of the steps. They are named, so that one that is sent again is still the same.
fn messages(attempt: u64) -> Vec<String> {
    let step = |kind: &str, step: &str| format!("{kind} {PLACE}/{step}");
    let mut messages = vec![format!("claim {PLACE}")];
    let before_steps = if attempt == 1 { "renew" } else { "inspect" };
    messages.push(format!("{before_steps} {PLACE}"));
    for name in STEPS {
        messages.push(step("claim", name));
        // A later attempt replays the first step.
        if attempt == 1 || name != STEPS[0] {
            messages.push(step("commit", name));
        }
    }
    messages.extend([last_commit(), RELEASE.to_owned()]);
    messages.extend(STEPS.map(|name| step("remove", name)));
    messages
}

/// The release of the call, which fails then after its last step.
const RELEASE: &str = "release deaths.steps";

/// The commit of the call.
fn last_commit() -> String {
    format!("commit {PLACE}")
}

/// A store whose process is to be killed at one of its messages.
struct Dying {
    store: StoreHandle,
    message: String,
    leg: Leg,
}

impl Dying {
    /// Sends a message, unless the process dies before it, or before its answer is known.
    async fn send<T>(
        &self,
        kind: &str,
        id: &RecordId,
        step: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let is_last = self.message == format!("{kind} {}", id.name());
        if is_last && self.leg == Leg::Request {
            Self::die().await;
        }
        let answer = step.await;
        // Nobody knows whether a message without an answer was carried out. It is sent again.
        if is_last && answer.is_ok() {
            Self::die().await;
        }
        answer
    }

    async fn die() {
        println!("\ndies");
        pending::<()>().await;
    }
}

impl Store for Dying {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.send("claim", &claim.id, self.store.claim(claim)).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.send("commit", &commit.id, self.store.commit(commit))
            .await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.send("remove", id, self.store.remove(id)).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.send("release", &release.id, self.store.release(release))
            .await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.store.issue(issues).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let renewing = async { Ok(self.store.renew(renewals).await) };
        match renewals.first() {
            Some(first) => self.send("renew", &first.id, renewing).await.unwrap(),
            None => Vec::new(),
        }
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.store.wait(id, attempt, limit).await
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.send("inspect", id, self.store.inspect(id)).await
    }
}

fn order(idempotency: &Idempotency, key: &str) -> Operation<'static> {
    idempotency.operation(PLACE).key(key).wait(LONG)
}

/// The body, whose effects are lines of a file.
async fn place(effects: &Path) -> Result<u64, Error> {
    let attempt = idem::current().unwrap().attempt();
    for name in STEPS {
        step(name, attempt, effects).await?;
    }
    Ok(attempt)
}

async fn step(name: &str, attempt: u64, effects: &Path) -> Result<u64, Error> {
    idem::step(name, async || {
        let mut file = OpenOptions::new().append(true).open(effects).unwrap();
        file.write_all(format!("{name} {attempt}\n").as_bytes())
            .unwrap();
        Ok(attempt)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is the process that dies in the tests beside it, which start it"]
async fn process() {
    end_with_parent();
    let variable = |name: &str| std::env::var(format!("STEPS_{name}")).unwrap();
    let leg = if variable("LEG") == "request" {
        Leg::Request
    } else {
        Leg::Reply
    };
    let message = variable("MESSAGE");
    let idempotency = Idempotency::new(Dying {
        // A commit that a busy machine delays would be sent again in the background, and the
        // process would die before that.
        store: patient_store(&variable("URL")).await,
        message: message.clone(),
        leg,
    });
    let effects = PathBuf::from(variable("EFFECTS"));
    let key = variable("KEY");
    // On a busy machine a call may fail. The next one goes on where it stopped.
    while order(&idempotency, &key)
        .lease(LEASE)
        .run(async || {
            let placed = place(&effects).await?;
            if message == RELEASE {
                return Err(cut_off());
            }
            Ok(placed)
        })
        .await
        .is_err()
    {}
    // It dies while the steps are removed.
    pending::<()>().await;
}

/// Starts the process, and kills it where it is to die.
async fn kill_at(url: &str, key: &str, message: &str, leg: Leg, effects: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "steps::process", "--ignored", "--nocapture"])
        .env("STEPS_URL", url)
        .env("STEPS_KEY", key)
        .env("STEPS_MESSAGE", message)
        .env(
            "STEPS_LEG",
            if leg == Leg::Request {
                "request"
            } else {
                "reply"
            },
        )
        .env("STEPS_EFFECTS", effects)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let dies = async {
        loop {
            match lines.next_line().await.unwrap() {
                Some(line) if line == "dies" => return,
                Some(_) => {}
                None => panic!("the process has ended"),
            }
        }
    };
    tokio::time::timeout(LONG * 3, dies)
        .await
        .expect("the process comes to where it is to die");
    child.kill().await.unwrap();
}

fn cut_off() -> Error {
    Error::in_flight("the body", "is cut off", Duration::ZERO)
}

/// Makes attempts before that one, which are abandoned or released after their first step.
async fn cut_before(attempt: u64, url: &str, key: &str, effects: &Path) {
    let idempotency = Idempotency::new(patient_store(url).await);
    for before in 1..attempt {
        let abandoned = order(&idempotency, key)
            .errors(move |_: &Error| match before % 2 {
                0 => UnkeptAction::Release,
                _ => UnkeptAction::Abandon,
            })
            .run(|| async {
                assert_eq!(idem::current().unwrap().attempt(), before);
                step(STEPS[0], before, effects).await?;
                Err::<u64, _>(cut_off())
            });
        assert!(abandoned.await.is_err());
    }
}

/// One row: the attempt that dies, and where. Says what was wrong.
async fn case(url: String, attempt: u64, message: String, leg: Leg) -> Option<String> {
    let _place = PLACES.acquire().await.unwrap();
    let row = message.replace([' ', '/'], "-");
    let key = format!("{row}-{leg:?}-{attempt}-{}", std::process::id());
    let effects = NamedTempFile::new().unwrap();
    let effects = effects.path();
    cut_before(attempt, &url, &key, effects).await;
    kill_at(&url, &key, &message, leg, effects).await;
    let idempotency = Idempotency::new(patient_store(&url).await);
    let placed = order(&idempotency, &key).run(|| place(effects)).await;
    let lines = std::fs::read_to_string(effects).unwrap();
    let runs = STEPS.map(|step| lines.lines().filter(|line| line.starts_with(step)).count());
    // Only a step whose commit was never sent runs once more.
    let expected = STEPS.map(|step| {
        let is_cut = message == format!("commit {PLACE}/{step}") && leg == Leg::Request;
        1 + usize::from(is_cut)
    });
    if placed.is_err() || runs != expected {
        return Some(format!(
            "attempt {attempt}, killed at {message} {leg:?}: {placed:?}, {runs:?}: {lines}"
        ));
    }
    let is_removal = message.starts_with("remove");
    let is_replayed = is_removal || (message == last_commit() && leg == Leg::Reply);
    if placed.is_ok_and(|placed| placed.is_replayed() != is_replayed) {
        return Some(format!(
            "attempt {attempt}, killed at {message} {leg:?}: the call ran again, or not"
        ));
    }
    None
}

async fn all(world: World) {
    let url = Arc::new(world.url());
    let rows = ATTEMPTS.into_iter().flat_map(|attempt| {
        let messages = messages(attempt).into_iter();
        messages.flat_map(move |message| {
            [Leg::Request, Leg::Reply].map(|leg| (attempt, message.clone(), leg))
        })
    });
    let cases = stream::iter(rows)
        .map(|(attempt, message, leg)| case(url.to_string(), attempt, message, leg));
    let failed: Vec<String> = cases
        .buffer_unordered(12)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_redis_after_a_kill_at_any_message_the_next_call_goes_on_at_the_right_step() {
    all(World::redis().await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_postgres_after_a_kill_at_any_message_the_next_call_goes_on_at_the_right_step() {
    all(World::postgres().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_mariadb_after_a_kill_at_any_message_the_next_call_goes_on_at_the_right_step() {
    all(World::mariadb().await).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_sqlite_after_a_kill_at_any_message_the_next_call_goes_on_at_the_right_step() {
    all(World::sqlite().await).await;
}
