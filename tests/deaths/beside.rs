//! A process that is killed at each message of a call in a transaction, with steps beside that
//! transaction and in it: before the message arrives, or after it was carried out and before its
//! answer is known. In a first attempt, and in one that goes on after a rollback.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::future::{pending, ready};
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use idem::{Error, Idempotency, Operation, RecordState, sqlx};
use idem_testkit::{Gate, Mishap, Passing, Proxy};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::matrix::PLACES;
use crate::owner::end_with_parent;
use crate::server::{Kind, Server};
use crate::support::LONG;
use crate::wire::Leg;

const PAY: &str = "deaths.beside";
/// Those beside the transaction, between which the money moves.
const STEPS: [&str; 2] = ["charge", "mail"];
/// The lease of a step of the process that dies.
const LEASE: Duration = Duration::from_secs(3);
/// The process is connected, and its call comes next.
const BEGINS: &str = "SELECT 'the call begins'";

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error("rolled back")]
    RolledBack,
}

fn order(idempotency: &Idempotency, key: &str) -> Operation<'static> {
    idempotency.operation(PAY).key(key).lease(LEASE).wait(LONG)
}

async fn step(name: &str, effects: &Path) -> Result<(), Error> {
    idem::step(name, async || {
        let mut file = OpenOptions::new().append(true).open(effects).unwrap();
        file.write_all(format!("{name}\n").as_bytes()).unwrap();
        Ok(())
    })
    .await
}

/// How often each step ran.
fn runs(effects: &Path) -> [usize; 2] {
    let lines = std::fs::read_to_string(effects).unwrap();
    STEPS.map(|step| lines.lines().filter(|line| *line == step).count())
}

/// Whether each step needs to run no more.
async fn recorded(idempotency: &Idempotency, key: &str) -> [bool; 2] {
    let is_committed = |state| state == RecordState::Committed;
    let call = order(idempotency, key).inspect().await.unwrap();
    if call.is_some_and(|call| is_committed(call.state)) {
        return [true; 2];
    }
    let mut recorded = [false; 2];
    for (step, recorded) in STEPS.into_iter().zip(&mut recorded) {
        // There may be no run yet.
        let found = order(idempotency, key).of_step(step).inspect().await;
        *recorded = matches!(found, Ok(Some(found)) if is_committed(found.state));
    }
    recorded
}

fn holds(words: &[&[u8]], text: &str) -> bool {
    let has = |word: &&[u8]| word.windows(text.len()).any(|part| part == text.as_bytes());
    words.iter().any(has)
}

/// The messages of the call of a process behind this proxy.
fn messages(proxy: &Proxy) -> Passing {
    let begun = AtomicBool::new(false);
    proxy.passing(move |words| {
        let counts = begun.load(Ordering::SeqCst);
        begun.fetch_or(holds(words, BEGINS), Ordering::SeqCst);
        counts
    })
}

fn start(process: &str, url: &str, key: &str, effects: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", process, "--ignored", "--nocapture"])
        .env("BESIDE_URL", url)
        .env("BESIDE_KEY", key)
        .env("BESIDE_EFFECTS", effects)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn has_ended(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("it lives") != "ended" {}
}

macro_rules! over {
    ($($module:ident $feature:literal $kind:ident $Pool:ident $Store:ident $test:ident;)+) => {$(
        #[cfg(feature = $feature)]
        mod $module {
            use idem::{sqlx::$Pool as Pool, $Store as Store};

            use super::*;

            struct Bank {
                pool: Pool,
                idempotency: Idempotency,
            }

            impl Bank {
                async fn open(url: &str) -> Self {
                    let pool = Pool::connect(url).await.unwrap();
                    let store = Store::builder(pool.clone()).time_limit(LONG).build();
                    Self { pool, idempotency: Idempotency::new(store) }
                }

                async fn execute(&self, statement: &str) {
                    let statement = sqlx::AssertSqlSafe(statement);
                    sqlx::raw_sql(statement).execute(&self.pool).await.unwrap();
                }

                /// Pays in a transaction of the caller's.
                async fn pay(&self, key: &str, effects: &Path, fails: bool) -> Result<(), Failure> {
                    let mut tx = self.pool.begin().await?;
                    let paid = order(&self.idempotency, key).run_in(&mut tx, async |tx| {
                        step(STEPS[0], effects).await?;
                        if fails {
                            return Err(Failure::RolledBack);
                        }
                        let money = idem::step_with("money").run_in(tx, async |tx| {
                            let moves = format!(
                                "UPDATE deaths_beside SET cents = cents + 1 WHERE account = '{key}'"
                            );
                            let moves = sqlx::raw_sql(sqlx::AssertSqlSafe(moves));
                            moves.execute(&mut **tx).await?;
                            Ok::<_, Failure>(())
                        });
                        money.await?;
                        Ok(step(STEPS[1], effects).await?)
                    });
                    paid.await?;
                    Ok(tx.commit().await?)
                }

                /// One row: the attempt, and the message at which its process dies. Says what was
                /// wrong, and whether the process died.
                async fn case(
                    &self,
                    server: &Server,
                    (attempt, at, leg): (u32, u64, Leg),
                ) -> (bool, Option<String>) {
                    let _place = PLACES.acquire().await.unwrap();
                    let row = format!("{attempt}-{at}-{leg:?}");
                    let key = format!("{row}-{}", std::process::id());
                    self.execute(&format!("INSERT INTO deaths_beside VALUES ('{key}', 0)")).await;
                    let effects = NamedTempFile::new().unwrap();
                    let effects = effects.path();
                    for _ in 1..attempt {
                        let failed = self.pay(&key, effects, true).await;
                        assert!(matches!(failed, Err(Failure::RolledBack)), "{failed:?}");
                    }
                    let proxy = Proxy::start(&server.url()).await.unwrap();
                    let gate = Gate::new();
                    let messages = messages(&proxy);
                    (1..at).for_each(|_| messages.next(Mishap::Pass));
                    messages.next(match leg {
                        Leg::Request => Mishap::Hang(gate.clone()),
                        Leg::Reply => Mishap::HangReply(gate.clone()),
                    });
                    let url = server.url_through(&proxy);
                    let name = concat!("beside::", stringify!($module), "::process");
                    let mut child = start(name, &url, &key, effects);
                    let dies = async {
                        tokio::select! {
                            () = gate.reached() => true,
                            () = has_ended(&mut child) => false,
                        }
                    };
                    let dies = tokio::time::timeout(LONG * 3, dies).await.expect("it comes there");
                    child.kill().await.unwrap();
                    // What it has sent never arrives, and its transaction is rolled back.
                    drop(proxy);
                    let recorded = recorded(&self.idempotency, &key).await;
                    let before = runs(effects);
                    let mut paid = self.pay(&key, effects, false).await;
                    // A statement may meet the end of the transaction of the process.
                    while matches!(&paid, Err(Failure::Idempotency(error)) if error.is_retryable()) {
                        paid = self.pay(&key, effects, false).await;
                    }
                    let after = runs(effects);
                    let cents = format!("SELECT cents FROM deaths_beside WHERE account = '{key}'");
                    let cents = sqlx::query_scalar(sqlx::AssertSqlSafe(cents));
                    let cents: i32 = cents.fetch_one(&self.pool).await.unwrap();
                    let expected =
                        [0, 1].map(|step| before[step] + usize::from(!recorded[step]));
                    let is_right = paid.is_ok() && after == expected && cents == 1;
                    let wrong = (!is_right).then(|| {
                        format!("{row}: {paid:?}, {before:?} {recorded:?} {after:?}, {cents} moved")
                    });
                    (dies, wrong)
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "this is the process that dies in the test beside it, which starts it"]
            async fn process() {
                end_with_parent();
                let variable = |name: &str| std::env::var(format!("BESIDE_{name}")).unwrap();
                let bank = Bank::open(&variable("URL")).await;
                bank.execute(BEGINS).await;
                let effects = variable("EFFECTS");
                while bank.pay(&variable("KEY"), Path::new(&effects), false).await.is_err() {}
                println!("\nended");
                pending::<()>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let server = Server::shared(Kind::$kind).await;
                let bank = Bank::open(&server.url()).await;
                bank.execute(
                    "CREATE TABLE IF NOT EXISTS deaths_beside (account varchar(99) PRIMARY KEY, cents int)",
                ).await;
                for attempt in [1, 2] {
                    for leg in [Leg::Request, Leg::Reply] {
                        // Until a process has ended before so many messages. No case is dropped:
                        // sqlx lends a connection out whose BEGIN was cut off, in its transaction.
                        let has_ended = Cell::new(false);
                        let mut cases = stream::iter(1..)
                            .take_while(|_| ready(!has_ended.get()))
                            .map(|at| bank.case(server, (attempt, at, leg)))
                            .buffered(6);
                        let mut deaths = 0;
                        while let Some((dies, wrong)) = cases.next().await {
                            assert_eq!(wrong, None);
                            has_ended.set(has_ended.get() || !dies);
                            deaths += usize::from(dies);
                        }
                        assert!(deaths > 10, "{deaths}");
                    }
                }
            }
        }
    )+};
}

over! {
    postgres "postgres" Postgres PgPool PostgresStore
        p5_postgres_a_kill_at_any_message_of_a_transaction_with_steps_repeats_no_recorded_step;
    mariadb "mysql" MariaDb MySqlPool MySqlStore
        p5_mariadb_a_kill_at_any_message_of_a_transaction_with_steps_repeats_no_recorded_step;
}
