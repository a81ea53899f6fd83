//! The transfers, and the clients who call for them.

#[path = "../dice/mod.rs"]
mod dice;

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use idem::sqlx::{self, AssertSqlSafe, Connection as _};
use idem::{Idempotency, guard, idempotent};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use self::dice::Dice;
use super::{BEGIN, NUMBER, Pool, Store, Tx};
use crate::Arguments;
use crate::summary::{Counts, Fate, Summary};

const ACCOUNTS: i64 = 20;
const OPENING_CENTS: i64 = 50_000;
/// How many processes are killed.
const BRANCHES: u64 = 6;
/// How many clients there are at once.
const CLIENTS: usize = 16;

/// An order to move money. Each has its number before the first call.
#[derive(Debug, Clone, Copy, Serialize)]
struct Order {
    /// In which run: the records of earlier runs are still there.
    run: u64,
    number: u64,
    from: i64,
    to: i64,
    cents: i64,
}

/// The answer to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    /// The row of the transfer.
    transfer: i64,
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum TransferError {
    #[error("not enough money")]
    Declined,
    #[error(transparent)]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] idem::Error),
}

/// The lines that matter. Without the attribute, each duplicate moves the money again: try it.
#[idempotent(
    name = "ledger.transfer",
    key = (order.run, order.number),
    fingerprint = order,
    ttl = "10m",
    transaction = tx,
    errors(TransferError::Declined => keep, _ => release),
)]
async fn transfer(tx: &mut Tx<'_>, order: &Order) -> Result<Receipt, TransferError> {
    // In the order of the accounts, so that two transfers never wait for each other.
    let mut changes = [(order.from, -order.cents), (order.to, order.cents)];
    changes.sort_unstable();
    for (account, cents) in changes {
        let update = sqlx::query(
            "UPDATE ledger_accounts SET cents = cents + $1 WHERE id = $2 AND cents + $1 >= 0",
        );
        if update
            .bind(cents)
            .bind(account)
            .execute(&mut **tx)
            .await?
            .rows_affected()
            == 0
        {
            // Whatever was written is rolled back, and the answer is kept.
            return Err(TransferError::Declined);
        }
    }
    let insert = "INSERT INTO ledger_transfers (number, source, target, cents) VALUES ($1, $2, \
                  $3, $4) RETURNING id";
    let number = i64::try_from(order.number).unwrap_or(i64::MAX);
    let insert = sqlx::query_scalar(insert)
        .bind(number)
        .bind(order.from)
        .bind(order.to)
        .bind(order.cents);
    Ok(Receipt {
        transfer: insert.fetch_one(&mut **tx).await?,
    })
}

/// The answer that a client has at the end.
type Answer = Option<Receipt>;

/// A client with an order: it calls again until it has an answer, and has its accidents before.
async fn client(
    pool: Pool,
    order: Order,
    fates: Vec<Fate>,
) -> Result<(Order, Answer, Counts), TransferError> {
    let mut counts = Counts::default();
    for fate in fates {
        counts.add(fate);
        match fate {
            Fate::Dropped { after, commits } => {
                let mut tx = pool.begin_with(BEGIN).await?;
                let cut = CutOff {
                    future: pin!(transfer(&mut tx, &order)),
                    polls: after,
                }
                .await;
                // It commits all the same, which must change nothing, unless the call had ended.
                // The database may refuse: then nothing is written either.
                if commits
                    && !matches!(
                        cut,
                        Some(Err(
                            TransferError::Database(_) | TransferError::Idempotency(_)
                        ))
                    )
                {
                    let _ = tx.commit().await;
                }
            }
            Fate::RolledBack => {
                let mut tx = pool.begin_with(BEGIN).await?;
                let _ = transfer(&mut tx, &order).await;
                tx.rollback().await?;
            }
            Fate::Closed => {
                let mut connection = pool.acquire().await?.detach();
                let mut tx = connection.begin_with(BEGIN).await?;
                let _ = transfer(&mut tx, &order).await;
                drop(tx);
                connection.close_hard().await?;
            }
        }
    }
    loop {
        counts.calls += 1;
        // It begins and commits. That a transfer is declined is recorded, without any row.
        let call = guard::transaction(&pool, async |tx| transfer(tx, &order).await);
        let answer = match call.await {
            Ok(receipt) => Some(receipt),
            Err(TransferError::Declined) => None,
            Err(TransferError::Idempotency(error)) if error.is_retryable() => {
                counts.retried += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        return Ok((order, answer, counts));
    }
}

/// Polls a future so many times, and gives it up then.
struct CutOff<'a, F> {
    future: Pin<&'a mut F>,
    polls: u64,
}

impl<F: Future> Future for CutOff<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        self.future.as_mut().poll(context).map(Some)
    }
}

pub(crate) async fn run(
    pool: &Pool,
    arguments: &Arguments,
    url: &str,
    place: &str,
) -> Result<bool, Box<dyn Error>> {
    if arguments.branch_of.is_none() {
        open_accounts(pool).await?;
    }
    // The store is on the pool of the application: a call takes no connection but the
    // transaction's.
    let store = Store::new(pool.clone());
    store.migrate().await?;
    idem::install(Idempotency::new(store))?;

    let begun = Instant::now();
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let run = arguments
        .branch_of
        .unwrap_or(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    let mut waiting = deliveries(run, arguments.orders, &mut Dice(arguments.seed)).into_iter();
    let branches = arguments
        .branch_of
        .is_none()
        .then(|| tokio::spawn(branches(url.to_owned(), arguments.orders, run)));
    let mut clients = JoinSet::new();
    let mut counts = Counts::default();
    let mut answers = BTreeMap::<u64, Vec<Answer>>::new();
    loop {
        while clients.len() < CLIENTS
            && let Some((order, fates)) = waiting.next()
        {
            clients.spawn(client(pool.clone(), order, fates));
        }
        let Some(ended) = clients.join_next().await else {
            break;
        };
        let (order, answer, one) = ended??;
        counts = counts.and(one);
        answers.entry(order.number).or_default().push(answer);
    }
    let Some(branches) = branches else {
        return Ok(true);
    };
    counts.killed = branches.await??;
    let summary = examine(pool, &answers, counts).await?;
    println!("{}", summary.render(place, begun.elapsed()));
    Ok(summary.holds())
}

/// Branches send the same orders, and each is killed in the midst of it. Returns how many were.
async fn branches(url: String, orders: u64, run: u64) -> std::io::Result<u64> {
    let mut killed = 0;
    for seed in 2..2 + BRANCHES {
        let arguments = [
            ("--store", url.clone()),
            ("--orders", orders.to_string()),
            ("--seed", seed.to_string()),
        ];
        let mut branch = tokio::process::Command::new(std::env::current_exe()?)
            .args(arguments.iter().flat_map(|(name, value)| [*name, value]))
            .args(["--branch-of", &run.to_string()])
            // The output of a worker that is being killed is of no use.
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        tokio::time::sleep(std::time::Duration::from_millis(
            Dice(seed).below(400) + 100,
        ))
        .await;
        // One that has done everything by then was no victim.
        killed += u64::from(branch.try_wait()?.is_none());
        branch.kill().await?;
    }
    Ok(killed)
}

async fn open_accounts(pool: &Pool) -> Result<(), sqlx::Error> {
    let ddl = format!(
        "DROP TABLE IF EXISTS ledger_accounts; DROP TABLE IF EXISTS ledger_transfers; \
         CREATE TABLE ledger_accounts (id BIGINT PRIMARY KEY, cents BIGINT NOT NULL); \
         CREATE TABLE ledger_transfers (id {NUMBER}, number BIGINT NOT NULL, source BIGINT NOT \
         NULL, \
         target BIGINT NOT NULL, cents BIGINT NOT NULL)"
    );
    // No unique index on the number: nothing but the records keeps a transfer from happening twice.
    sqlx::raw_sql(AssertSqlSafe(ddl)).execute(pool).await?;
    for account in 0..ACCOUNTS {
        let open = sqlx::query("INSERT INTO ledger_accounts VALUES ($1, $2)")
            .bind(account)
            .bind(OPENING_CENTS);
        open.execute(pool).await?;
    }
    Ok(())
}

/// All calls: each order between one and five times, near to each other, with their accidents.
fn deliveries(run: u64, orders: u64, dice: &mut Dice) -> Vec<(Order, Vec<Fate>)> {
    let mut calls = Vec::new();
    // The orders are the same in all processes of a run.
    let mut drawn = Dice(run);
    for number in 0..orders {
        let from = drawn.account();
        let to = drawn.account();
        let to = if from == to { (to + 1) % ACCOUNTS } else { to };
        // Some are for more than the account can have.
        let cents = if drawn.one_in(25) {
            100 * OPENING_CENTS
        } else {
            1 + drawn.account() * 137
        };
        let order = Order {
            run,
            number,
            from,
            to,
            cents,
        };
        for _ in 0..=dice.below(5) {
            let fates = (0..dice.below(3)).map(|_| dice.fate()).collect();
            calls.push((number * 4 + dice.below(24), order, fates));
        }
    }
    calls.sort_by_key(|(at, ..)| *at);
    calls
        .into_iter()
        .map(|(_, order, fates)| (order, fates))
        .collect()
}

/// Compares what the clients were told with the rows.
async fn examine(
    pool: &Pool,
    answers: &BTreeMap<u64, Vec<Answer>>,
    counts: Counts,
) -> Result<Summary, Box<dyn Error>> {
    let rows = sqlx::query_as("SELECT id, number, source, target, cents FROM ledger_transfers")
        .fetch_all(pool)
        .await?;
    let rows: Vec<(i64, i64, i64, i64, i64)> = rows;
    let balances: Vec<(i64, i64)> = sqlx::query_as("SELECT id, cents FROM ledger_accounts")
        .fetch_all(pool)
        .await?;

    let mut made = BTreeMap::<u64, Vec<i64>>::new();
    let mut expected: BTreeMap<i64, i64> = (0..ACCOUNTS)
        .map(|account| (account, OPENING_CENTS))
        .collect();
    for (id, number, source, target, cents) in &rows {
        made.entry(u64::try_from(*number)?).or_default().push(*id);
        *expected.entry(*source).or_default() -= cents;
        *expected.entry(*target).or_default() += cents;
    }
    let mut summary = Summary {
        orders: answers.len() as u64,
        counts,
        opening_cents: ACCOUNTS * OPENING_CENTS,
        closing_cents: balances.iter().map(|(_, cents)| cents).sum(),
        wrong_balances: balances
            .iter()
            .filter(|(id, cents)| *cents < 0 || expected.get(id) != Some(cents))
            .count(),
        transfers: rows.len() as u64,
        ..Summary::default()
    };
    for (number, answers) in answers {
        let rows = made.remove(number).unwrap_or_default();
        summary.answers += answers.len() as u64;
        summary.moved += u64::from(!rows.is_empty());
        summary.declined += u64::from(answers.iter().all(Option::is_none) && rows.is_empty());
        summary.made_again += rows.len().saturating_sub(1) as u64;
        // All clients of an order have the same answer, and it is the row.
        let told = rows.first().map(|id| Receipt { transfer: *id });
        summary.wrong_answers += answers.iter().filter(|answer| **answer != told).count();
    }
    // Rows of transfers that no client ordered.
    summary.made_again += made.len() as u64;
    Ok(summary)
}

impl Dice {
    fn account(&mut self) -> i64 {
        i64::try_from(self.below(ACCOUNTS.unsigned_abs())).unwrap_or_default()
    }

    fn fate(&mut self) -> Fate {
        match self.below(6) {
            0..=2 => Fate::Dropped {
                after: self.below(12),
                commits: self.one_in(2),
            },
            3 | 4 => Fate::RolledBack,
            _ => Fate::Closed,
        }
    }
}
