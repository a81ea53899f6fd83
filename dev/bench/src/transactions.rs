//! Records in the caller's own transaction: beside the bare transaction, and beside tables of
//! answers that are written by hand. The slim floor is the least for the same guarantee: its
//! answers expire, and a replay is one SELECT.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem::sqlx::mysql::MySqlPoolOptions;
use idem::sqlx::postgres::PgPoolOptions;
use idem::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use idem::sqlx::{
    self, AssertSqlSafe, MySqlPool, MySqlTransaction, PgPool, PgTransaction, Row as _, SqlitePool,
    SqliteTransaction,
};
use idem::{Idempotency, MySqlStore, PostgresStore, SqliteStore, idempotent};
use idem_bench::result;
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer, Proxy};
use tokio::task::JoinSet;

use crate::report::{Figure, Group, Kind, Unit};
use crate::sql::floor::{FILE, OUTCOME, OWNER, POSTGRES, Texts, create};
use crate::stats::median;

/// How many connections call at once.
const CONNECTIONS: u32 = 16;
const HOUR: Duration = Duration::from_secs(3600);
const ORDERS: &str = "CREATE TABLE orders (id BIGINT NOT NULL, receipt TEXT NOT NULL)";
const ANSWERS: &str = "CREATE TABLE answers (id VARCHAR(64) PRIMARY KEY, answer TEXT)";
/// How many calls before messages are counted, so that statements are prepared, and guesses made.
const HABIT: i64 = 20;

/// Statements by hand.
struct ByHand {
    order: &'static str,
    claim: &'static str,
    answer: &'static str,
    update: &'static str,
    slim_table: &'static str,
    slim_claim: &'static str,
    slim_update: &'static str,
    slim_answer: &'static str,
}

const POSTGRES_BY_HAND: ByHand = ByHand {
    order: "INSERT INTO orders (id, receipt) VALUES ($1, $2)",
    claim: "INSERT INTO answers (id) VALUES ($1) ON CONFLICT DO NOTHING",
    answer: "SELECT answer FROM answers WHERE id = $1",
    update: "UPDATE answers SET answer = $1 WHERE id = $2",
    slim_table: "CREATE TABLE slim (id text PRIMARY KEY, expires_at timestamptz NOT NULL, \
                 answer text); CREATE INDEX slim_expires_at ON slim (expires_at)",
    slim_claim: "INSERT INTO slim (id, expires_at) VALUES ($1, now() + interval '1 hour') \
                 ON CONFLICT DO NOTHING",
    slim_update: "UPDATE slim SET answer = $1 WHERE id = $2",
    slim_answer: "SELECT answer FROM slim WHERE id = $1",
};
const MYSQL_BY_HAND: ByHand = ByHand {
    order: "INSERT INTO orders (id, receipt) VALUES (?, ?)",
    claim: "INSERT IGNORE INTO answers (id) VALUES (?)",
    answer: "SELECT answer FROM answers WHERE id = ?",
    update: "UPDATE answers SET answer = ? WHERE id = ?",
    slim_table: "CREATE TABLE slim (id VARCHAR(64) PRIMARY KEY, expires_at DATETIME(6) NOT NULL, \
                 answer TEXT, KEY slim_expires_at (expires_at))",
    slim_claim: "INSERT IGNORE INTO slim (id, expires_at) \
                 VALUES (?, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)",
    slim_update: "UPDATE slim SET answer = ? WHERE id = ?",
    slim_answer: "SELECT answer FROM slim WHERE id = ?",
};
const SQLITE_BY_HAND: ByHand = ByHand {
    slim_table: "CREATE TABLE slim (id TEXT PRIMARY KEY, expires_at INTEGER NOT NULL, \
                 answer TEXT); CREATE INDEX slim_expires_at ON slim (expires_at)",
    slim_claim: "INSERT INTO slim (id, expires_at) VALUES ($1, unixepoch() + 3600) \
                 ON CONFLICT DO NOTHING",
    ..POSTGRES_BY_HAND
};

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
    Slim,
    /// The store's own statements, in a table like its own.
    Statements,
    /// An annotated function, in a transaction that its caller begins and commits.
    Annotated,
    /// `.transaction(&pool, ..)`, which begins and commits.
    Whole,
}

impl Subject {
    const ALL: [Self; 6] = [
        Self::Bare,
        Self::ByHand,
        Self::Slim,
        Self::Statements,
        Self::Annotated,
        Self::Whole,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "the bare transaction",
            Self::ByHand => "the table by hand",
            Self::Slim => "the slim floor",
            Self::Statements => "the store's statements by hand",
            Self::Annotated => "#[idempotent(transaction = tx)]",
            Self::Whole => ".transaction(&pool, ..)",
        }
    }

    fn has(self, kind: Kind) -> bool {
        self != Self::Bare || kind == Kind::First
    }

    /// Those of a database: not each has the store's statements by hand.
    fn of(has_texts: bool) -> impl Iterator<Item = Self> {
        Self::ALL
            .into_iter()
            .filter(move |subject| has_texts || *subject != Self::Statements)
    }
}

/// The transactions on one database.
macro_rules! on {
    ($module:ident, $Pool:ty, $Store:ty, $Tx:ident, $begin:literal, $texts:expr, $by_hand:expr) => {
        mod $module {
            use super::*;

            const BY_HAND: ByHand = $by_hand;

            #[derive(Clone)]
            pub(super) struct Shop {
                pub(super) pool: $Pool,
                pub(super) idempotency: Idempotency,
            }

            async fn insert(tx: &mut $Tx<'_>, number: i64) -> Result<String, sqlx::Error> {
                let receipt = result();
                sqlx::query(BY_HAND.order)
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
                let claim = sqlx::query(BY_HAND.claim).bind(&key);
                if claim.execute(&mut **tx).await?.rows_affected() == 0 {
                    let select = sqlx::query_scalar(BY_HAND.answer).bind(&key);
                    return select.fetch_one(&mut **tx).await;
                }
                let receipt = insert(tx, number).await?;
                let update = sqlx::query(BY_HAND.update).bind(&receipt).bind(&key);
                update.execute(&mut **tx).await?;
                Ok(receipt)
            }

            const TEXTS: Option<&LazyLock<Texts>> = $texts;

            async fn statements(tx: &mut $Tx<'_>, number: i64) -> Result<String, sqlx::Error> {
                let texts = TEXTS.ok_or(sqlx::Error::RowNotFound)?;
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
                /// The first execution of a call, in a transaction.
                async fn slim_first(&self, number: i64) -> Result<()> {
                    let key = format!("bench.slim:{number}");
                    let mut tx = self.pool.begin_with($begin).await?;
                    let claim = sqlx::query(BY_HAND.slim_claim).bind(&key);
                    let claimed = claim.execute(&mut *tx).await?.rows_affected();
                    ensure!(claimed == 1, "the key was used before");
                    let receipt = insert(&mut tx, number).await?;
                    let update = sqlx::query(BY_HAND.slim_update).bind(&receipt).bind(&key);
                    update.execute(&mut *tx).await?;
                    tx.commit().await?;
                    Ok(())
                }

                async fn slim_replay(&self, number: i64) -> Result<()> {
                    let key = format!("bench.slim:{number}");
                    let select = sqlx::query_scalar(BY_HAND.slim_answer).bind(key);
                    let receipt: String = select.fetch_one(&self.pool).await?;
                    ensure!(receipt == result(), "another receipt");
                    Ok(())
                }

                async fn call(&self, subject: Subject, kind: Kind, number: i64) -> Result<()> {
                    match (subject, kind) {
                        (Subject::Slim, Kind::First) => self.slim_first(number).await,
                        (Subject::Slim, Kind::Replay) => self.slim_replay(number).await,
                        _ => self.order(subject, number).await,
                    }
                }

                /// One transaction, from its beginning to its commit.
                async fn order(&self, subject: Subject, number: i64) -> Result<()> {
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
                        Subject::Slim | Subject::Annotated | Subject::Whole => {
                            guarded(&mut tx, number).await?
                        }
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
                    let mut order: Vec<_> = Subject::of(TEXTS.is_some()).collect();
                    for call in 0..i64::from(calls) {
                        order.rotate_left(1);
                        for kind in Kind::ALL {
                            for subject in order.iter().copied().filter(|one| one.has(kind)) {
                                let begun = Instant::now();
                                self.call(subject, kind, from + call).await?;
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
                                let number = from + calls * i64::from(CONNECTIONS) + task;
                                shop.call(subject, Kind::First, number).await?;
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

                /// How many messages a call sends, once statements are prepared. The pool of this
                /// shop leads through the proxy.
                #[allow(dead_code, reason = "a file takes no messages")]
                pub(super) async fn count(&self, proxy: &Proxy) -> Result<Messages> {
                    let all = proxy.passing(|_| true);
                    let mut messages = Messages::default();
                    for subject in Subject::of(TEXTS.is_some()) {
                        let counts = &mut messages[subject as usize];
                        for number in 0..HABIT {
                            for kind in Kind::ALL.into_iter().filter(|kind| subject.has(*kind)) {
                                let before = all.calls();
                                self.call(subject, kind, 400_000_000 + number).await?;
                                counts[kind as usize] = all.calls() - before;
                            }
                        }
                    }
                    Ok(messages)
                }

                pub(super) async fn measure(
                    &self,
                    rounds: usize,
                    calls: u32,
                    length: Duration,
                ) -> Result<Measured> {
                    for table in [ORDERS, ANSWERS, BY_HAND.slim_table] {
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
                        let mut order: Vec<_> = Subject::of(TEXTS.is_some()).collect();
                        let first = round % order.len();
                        order.rotate_left(first);
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
    Some(&POSTGRES),
    POSTGRES_BY_HAND
);
on!(
    mysql,
    MySqlPool,
    MySqlStore,
    MySqlTransaction,
    "BEGIN",
    None,
    MYSQL_BY_HAND
);
on!(
    sqlite,
    SqlitePool,
    SqliteStore,
    SqliteTransaction,
    "BEGIN IMMEDIATE",
    Some(&FILE),
    SQLITE_BY_HAND
);

/// How many messages a first execution and a replay of each subject send.
type Messages = [[u64; 2]; Subject::ALL.len()];

fn of_messages(database: &str, messages: &Messages) -> Vec<Figure> {
    let mut figures = Vec::new();
    for kind in Kind::ALL {
        for subject in Subject::ALL {
            let count = messages[subject as usize][kind as usize];
            if count > 0 {
                let what = format!("{database}, {kind}: messages of {}", subject.name());
                #[allow(clippy::cast_precision_loss)]
                figures.push(Figure::new(what, Unit::Count, vec![count as f64]));
            }
        }
    }
    figures
}

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
            for other in [
                Subject::ByHand,
                Subject::Slim,
                Subject::Statements,
                Subject::Bare,
            ] {
                let is_measured =
                    |kind: Kind| !self.times[other as usize][kind as usize].is_empty();
                for kind in Kind::ALL.into_iter().filter(|kind| is_measured(*kind)) {
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
            for other in [Subject::ByHand, Subject::Slim, Subject::Statements] {
                if self.rates[other as usize].is_empty() {
                    continue;
                }
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

/// Measures on servers of its own, and in a file of SQLite.
pub(crate) async fn group(rounds: usize, calls: u32, length: Duration) -> Result<Group> {
    let mut figures = on_postgres(rounds, calls, length).await?;
    let mariadb = MariaDbServer::start().await?;
    let pool = mysql_pool(&mariadb.url(), CONNECTIONS).await?;
    let shop = mysql_shop(pool, true).await?;
    eprintln!("transactions on MariaDB");
    let measured = shop.measure(rounds, calls, length).await?;
    figures.extend(measured.figures("MariaDB"));
    let proxy = Proxy::start(&mariadb.url()).await?;
    let through = mysql_pool(&mariadb.url_through(proxy.address().port()), 1).await?;
    let counted = count_messages(through, &proxy).await?;
    figures.extend(of_messages("MariaDB", &counted));
    // A real one is not everywhere.
    if let Ok(server) = MySqlServer::start().await {
        let pool = mysql_pool(&server.url(), CONNECTIONS).await?;
        let shop = mysql_shop(pool, true).await?;
        eprintln!("transactions on MySQL");
        let measured = shop.measure(rounds, calls, length).await?;
        figures.extend(measured.figures("MySQL"));
        let proxy = Proxy::start(&server.url()).await?;
        let through = mysql_pool(&server.url_through(proxy.address().port()), 1).await?;
        let counted = count_messages(through, &proxy).await?;
        figures.extend(of_messages("MySQL", &counted));
    }
    figures.extend(on_sqlite(rounds, calls, length).await?);
    Ok(Group {
        title: "In the caller's own transaction".to_owned(),
        figures,
    })
}

async fn count_messages(pool: MySqlPool, proxy: &Proxy) -> Result<Messages> {
    let shop = mysql_shop(pool, false).await?;
    idem::scope(shop.idempotency.clone(), shop.count(proxy)).await
}

async fn mysql_pool(url: &str, connections: u32) -> Result<MySqlPool> {
    let options = MySqlPoolOptions::new().max_connections(connections);
    Ok(options.connect(url).await?)
}

async fn mysql_shop(pool: MySqlPool, migrates: bool) -> Result<mysql::Shop> {
    let store = MySqlStore::new(pool.clone());
    if migrates {
        store.migrate().await?;
    }
    Ok(mysql::Shop {
        pool,
        idempotency: Idempotency::new(store),
    })
}

async fn postgres_shop(url: &str, connections: u32) -> Result<postgres::Shop> {
    let options = PgPoolOptions::new().max_connections(connections);
    let pool = options.connect(url).await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await?;
    Ok(postgres::Shop {
        pool,
        idempotency: Idempotency::new(store),
    })
}

async fn on_postgres(rounds: usize, calls: u32, length: Duration) -> Result<Vec<Figure>> {
    eprintln!("transactions on PostgreSQL");
    let server = PostgresServer::start().await?;
    let shop = postgres_shop(&server.url(), CONNECTIONS).await?;
    let mut figures = shop
        .measure(rounds, calls, length)
        .await?
        .figures("PostgreSQL");
    let proxy = Proxy::start(&server.url()).await?;
    let through = postgres_shop(&server.url_through(proxy.address().port()), 1).await?;
    let counted = idem::scope(through.idempotency.clone(), through.count(&proxy)).await?;
    figures.extend(of_messages("PostgreSQL", &counted));
    Ok(figures)
}

async fn on_sqlite(rounds: usize, calls: u32, length: Duration) -> Result<Vec<Figure>> {
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
    let figures = shop.measure(rounds, calls, length).await?.figures("SQLite");
    pool.close().await;
    std::fs::remove_dir_all(&dir)?;
    Ok(figures)
}
