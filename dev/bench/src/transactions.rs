//! Records in the caller's own transaction: beside the bare transaction, and beside a table of
//! answers that is written by hand.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem::sqlx::postgres::PgPoolOptions;
use idem::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use idem::sqlx::{
    self, AssertSqlSafe, PgPool, PgTransaction, Row as _, SqlitePool, SqliteTransaction,
};
use idem::{Idempotency, PostgresStore, SqliteStore, idempotent};
use idem_bench::result;
use idem_testkit::PostgresServer;
use tokio::task::JoinSet;

use crate::report::{Figure, Group, Kind, Unit};
use crate::sql::floor::{FILE, OUTCOME, OWNER, POSTGRES, create};
use crate::stats::median;

/// How many connections call at once.
const CONNECTIONS: u32 = 16;
const HOUR: Duration = Duration::from_secs(3600);
const ORDERS: &str = "CREATE TABLE orders (id BIGINT NOT NULL, receipt TEXT NOT NULL)";
const ANSWERS: &str = "CREATE TABLE answers (key VARCHAR(64) PRIMARY KEY, answer TEXT)";

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// The transaction that writes an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Bare,
    ByHand,
    /// The store's own statements, in a table like its own.
    Statements,
    /// An annotated function, in a transaction that its caller begins and commits.
    Annotated,
    /// `.transaction(&pool, ..)`, which begins and commits.
    Whole,
}

impl Subject {
    const ALL: [Self; 5] = [
        Self::Bare,
        Self::ByHand,
        Self::Statements,
        Self::Annotated,
        Self::Whole,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "the bare transaction",
            Self::ByHand => "the table by hand",
            Self::Statements => "the store's statements by hand",
            Self::Annotated => "#[idempotent(transaction = tx)]",
            Self::Whole => ".transaction(&pool, ..)",
        }
    }

    fn has(self, kind: Kind) -> bool {
        self != Self::Bare || kind == Kind::First
    }
}

/// The transactions on one database.
macro_rules! on {
    ($module:ident, $Pool:ty, $Store:ty, $Tx:ident, $begin:literal, $texts:expr) => {
        mod $module {
            use super::*;

            #[derive(Clone)]
            pub(super) struct Shop {
                pub(super) pool: $Pool,
                pub(super) idempotency: Idempotency,
            }

            async fn insert(tx: &mut $Tx<'_>, number: i64) -> Result<String, sqlx::Error> {
                let receipt = result();
                let insert = sqlx::query("INSERT INTO orders (id, receipt) VALUES ($1, $2)");
                insert
                    .bind(number)
                    .bind(&receipt)
                    .execute(&mut **tx)
                    .await?;
                Ok(receipt)
            }

            #[idempotent(name = "bench.order", key = number, ttl = "1h", transaction = tx)]
            async fn guarded(tx: &mut $Tx<'_>, number: i64) -> Result<String, OrderError> {
                Ok(insert(tx, number).await?)
            }

            async fn by_hand(tx: &mut $Tx<'_>, number: i64) -> Result<String, sqlx::Error> {
                let key = format!("bench.order:{number}");
                let claim =
                    sqlx::query("INSERT INTO answers (key) VALUES ($1) ON CONFLICT DO NOTHING");
                if claim.bind(&key).execute(&mut **tx).await?.rows_affected() == 0 {
                    let select = sqlx::query_scalar("SELECT answer FROM answers WHERE key = $1");
                    return select.bind(&key).fetch_one(&mut **tx).await;
                }
                let receipt = insert(tx, number).await?;
                let update = sqlx::query("UPDATE answers SET answer = $2 WHERE key = $1");
                update.bind(&key).bind(&receipt).execute(&mut **tx).await?;
                Ok(receipt)
            }

            async fn statements(tx: &mut $Tx<'_>, number: i64) -> Result<String, sqlx::Error> {
                let texts = &*$texts;
                let key = format!("i{number}");
                let owner = fastrand::u128(..).to_be_bytes().to_vec();
                let claim = sqlx::query(AssertSqlSafe(texts.claim.clone()));
                let claim = claim.bind(&key).bind(&owner).bind(fastrand::i64(..));
                let row = claim.fetch_one(&mut **tx).await?;
                if row.try_get::<Option<Vec<u8>>, _>(OWNER)?.as_ref() != Some(&owner) {
                    let outcome: Vec<u8> = row.try_get(OUTCOME)?;
                    return String::from_utf8(outcome)
                        .map_err(|error| sqlx::Error::Decode(error.into()));
                }
                let receipt = insert(tx, number).await?;
                let commit = sqlx::query(AssertSqlSafe(texts.commit.clone()));
                let commit = commit
                    .bind(&key)
                    .bind(owner)
                    .bind(fastrand::i64(..))
                    .bind(receipt.as_bytes());
                commit.execute(&mut **tx).await?;
                Ok(receipt)
            }

            impl Shop {
                /// One transaction, from its beginning to its commit.
                pub(super) async fn order(&self, subject: Subject, number: i64) -> Result<()> {
                    if subject == Subject::Whole {
                        let operation = self
                            .idempotency
                            .operation("bench.whole")
                            .key(&number)
                            .ttl(HOUR);
                        let body =
                            async |tx: &mut $Tx<'_>| Ok::<_, OrderError>(insert(tx, number).await?);
                        let receipt = operation.transaction(&self.pool, body).await?.into_inner();
                        ensure!(receipt == result(), "another receipt");
                        return Ok(());
                    }
                    let mut tx = self.pool.begin_with($begin).await?;
                    let receipt = match subject {
                        Subject::Bare => insert(&mut tx, number).await?,
                        Subject::ByHand => by_hand(&mut tx, number).await?,
                        Subject::Statements => statements(&mut tx, number).await?,
                        Subject::Annotated | Subject::Whole => guarded(&mut tx, number).await?,
                    };
                    tx.commit().await?;
                    ensure!(receipt == result(), "another receipt");
                    Ok(())
                }

                /// Transactions one at a time, in turns.
                async fn sequential(
                    &self,
                    calls: u32,
                    from: i64,
                    figures: &mut Measured,
                ) -> Result<()> {
                    let mut times = Times::default();
                    let mut order = Subject::ALL;
                    for call in 0..i64::from(calls) {
                        order.rotate_left(1);
                        for kind in Kind::ALL {
                            for subject in order.into_iter().filter(|subject| subject.has(kind)) {
                                let begun = Instant::now();
                                self.order(subject, from + call).await?;
                                times[subject as usize][kind as usize]
                                    .push(begun.elapsed().as_secs_f64() * 1e6);
                            }
                        }
                    }
                    for (all, times) in figures.times.iter_mut().zip(&times) {
                        for (all, times) in all
                            .iter_mut()
                            .zip(times)
                            .filter(|(_, times)| !times.is_empty())
                        {
                            all.push(median(times));
                        }
                    }
                    Ok(())
                }

                /// Transactions of many connections: how many a second.
                async fn at_once(
                    &self,
                    subject: Subject,
                    length: Duration,
                    from: i64,
                ) -> Result<f64> {
                    let mut running = JoinSet::new();
                    let begun = Instant::now();
                    for task in 0..i64::from(CONNECTIONS) {
                        let shop = self.clone();
                        running.spawn(idem::scope(self.idempotency.clone(), async move {
                            let mut calls = 0;
                            while begun.elapsed() < length {
                                shop.order(subject, from + calls * i64::from(CONNECTIONS) + task)
                                    .await?;
                                calls += 1;
                            }
                            anyhow::Ok(calls)
                        }));
                    }
                    let mut all = 0;
                    while let Some(calls) = running.join_next().await {
                        all += calls??;
                    }
                    #[allow(clippy::cast_precision_loss)]
                    let rate = all as f64 / begun.elapsed().as_secs_f64();
                    Ok(rate)
                }

                pub(super) async fn measure(
                    &self,
                    rounds: usize,
                    calls: u32,
                    length: Duration,
                ) -> Result<Measured> {
                    for table in [ORDERS, ANSWERS] {
                        sqlx::raw_sql(table).execute(&self.pool).await?;
                    }
                    sqlx::raw_sql(create(<$Store>::SCHEMA))
                        .execute(&self.pool)
                        .await?;
                    let mut figures = Measured::default();
                    for round in 0..=rounds {
                        if round == 1 {
                            figures = Measured::default();
                        }
                        let from = i64::try_from(round)? * 1_000_000_000;
                        let sequential = self.sequential(calls, from, &mut figures);
                        idem::scope(self.idempotency.clone(), sequential).await?;
                        let mut order = Subject::ALL;
                        order.rotate_left(round % Subject::ALL.len());
                        for subject in order {
                            let rate = self.at_once(subject, length, from + 500_000_000).await?;
                            figures.rates[subject as usize].push(rate);
                        }
                    }
                    Ok(figures)
                }
            }
        }
    };
}

on!(
    postgres,
    PgPool,
    PostgresStore,
    PgTransaction,
    "BEGIN",
    POSTGRES
);
on!(
    sqlite,
    SqlitePool,
    SqliteStore,
    SqliteTransaction,
    "BEGIN IMMEDIATE",
    FILE
);

type Times = [[Vec<f64>; 2]; Subject::ALL.len()];

/// The microseconds of one transaction, and the transactions a second of many, of each round.
#[derive(Default)]
struct Measured {
    times: Times,
    rates: [Vec<f64>; Subject::ALL.len()],
}

impl Measured {
    fn figures(&self, database: &str) -> Vec<Figure> {
        let ratios = |own: &[f64], other: &[f64]| {
            own.iter()
                .zip(other)
                .map(|(own, other)| own / other)
                .collect()
        };
        let mut figures = Vec::new();
        for subject in [Subject::Annotated, Subject::Whole] {
            for other in [Subject::ByHand, Subject::Statements, Subject::Bare] {
                for kind in Kind::ALL.into_iter().filter(|kind| other.has(*kind)) {
                    let of = |subject: Subject| &self.times[subject as usize][kind as usize];
                    let own = of(subject);
                    let beside = of(other);
                    let remark = format!(
                        "{:.0} µs; {} {:.0} µs",
                        median(own),
                        other.name(),
                        median(beside)
                    );
                    let what = format!(
                        "{database}, {kind}: {} over {}",
                        subject.name(),
                        other.name()
                    );
                    let figure = Figure::new(what, Unit::Ratio, ratios(own, beside)).beside(remark);
                    figures.push(if other == Subject::ByHand {
                        figure.at_most(1.10)
                    } else {
                        figure
                    });
                }
            }
            for other in [Subject::ByHand, Subject::Statements] {
                let own = &self.rates[subject as usize];
                let beside = &self.rates[other as usize];
                let show = |rates: &[f64]| Unit::PerSecond.show(median(rates));
                let name = other.name();
                let remark = format!("{}; by hand {}", show(own), show(beside));
                let what = format!(
                    "{database}, {CONNECTIONS} connections: {}, share of the rate of {name}",
                    subject.name()
                );
                figures.push(Figure::new(what, Unit::Ratio, ratios(own, beside)).beside(remark));
            }
        }
        figures
    }
}

/// Measures on a PostgreSQL of its own, and in a file of SQLite.
pub(crate) async fn group(rounds: usize, calls: u32, length: Duration) -> Result<Group> {
    eprintln!("transactions on PostgreSQL");
    let server = PostgresServer::start().await?;
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect(&server.url())
        .await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await?;
    let shop = postgres::Shop {
        pool,
        idempotency: Idempotency::new(store),
    };
    let mut figures = shop
        .measure(rounds, calls, length)
        .await?
        .figures("PostgreSQL");

    eprintln!("transactions on SQLite");
    let dir = std::env::temp_dir().join(format!("idem-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let options = SqliteConnectOptions::new()
        .filename(dir.join("shop.db"))
        .create_if_missing(true);
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let options = options.busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_with(options)
        .await?;
    let store = SqliteStore::new(pool.clone());
    store.migrate().await?;
    let shop = sqlite::Shop {
        pool: pool.clone(),
        idempotency: Idempotency::new(store),
    };
    figures.extend(shop.measure(rounds, calls, length).await?.figures("SQLite"));
    pool.close().await;
    std::fs::remove_dir_all(&dir)?;
    Ok(Group {
        title: "In the caller's own transaction".to_owned(),
        figures,
    })
}
