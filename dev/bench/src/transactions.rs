//! Records in the caller's own transaction, beside tables of answers that are written by hand. The slim floor is the least for the same guarantee: its
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

use crate::at_once::at_once;
use crate::extent::Extent;
use crate::report::{Figure, Goal, Group, Kind, Report, Unit};
use crate::sql::Database;
use crate::sql::floor::{FILE, OUTCOME, OWNER, POSTGRES, Texts, create};
use crate::stats::median;

/// How many connections there are, and how many callers.
const CONNECTIONS: u32 = 16;
const CALLERS: [u64; 2] = [16, 64];
/// The subjects of many callers.
const AT_ONCE: [Subject; 3] = [Subject::ByHand, Subject::Annotated, Subject::Whole];
/// The least share of the rate of the table by hand.
const SHARE: f64 = 0.90;
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
    const ALL: [Self; 5] = [
        Self::ByHand,
        Self::Slim,
        Self::Statements,
        Self::Annotated,
        Self::Whole,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::ByHand => "the table by hand",
            Self::Slim => "the slim floor",
            Self::Statements => "the store's statements by hand",
            Self::Annotated => "#[idempotent(transaction = tx)]",
            Self::Whole => ".transaction(&pool, ..)",
        }
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
                    calls: u64,
                    from: i64,
                    figures: &mut Measured,
                ) -> Result<()> {
                    let mut times = Times::default();
                    let mut order: Vec<_> = Subject::of(TEXTS.is_some()).collect();
                    for call in 0..i64::try_from(calls)? {
                        order.rotate_left(1);
                        for kind in Kind::ALL {
                            for subject in order.iter().copied() {
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

                /// First executions of many callers, in slices that take turns.
                async fn many(
                    &self,
                    extent: &Extent,
                    from: i64,
                    figures: &mut Measured,
                ) -> Result<()> {
                    let mut next = from;
                    for (callers, all) in CALLERS.into_iter().zip(&mut figures.rates) {
                        let mut rates = [0.0; AT_ONCE.len()];
                        for turn in 0..extent.turns {
                            for place in 0..AT_ONCE.len() {
                                // In an order that turns round.
                                let last = AT_ONCE.len() - 1;
                                let place = if turn % 2 == 0 { place } else { last - place };
                                let shop = self.clone();
                                let call = move |task: u64, calls: u64| {
                                    let shop = shop.clone();
                                    async move {
                                        let number = next + i64::try_from(calls * callers + task)?;
                                        let call = shop.call(AT_ONCE[place], Kind::First, number);
                                        idem::scope(shop.idempotency.clone(), call).await
                                    }
                                };
                                let (made, rate) = at_once(callers, extent.slice, call).await?;
                                next += i64::try_from(made)?;
                                rates[place] += rate / f64::from(extent.turns);
                            }
                        }
                        for (all, rate) in all.iter_mut().zip(rates) {
                            all.push(rate);
                        }
                    }
                    Ok(())
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
                            for kind in Kind::ALL {
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
                    database: Database,
                    extent: &Extent,
                ) -> Result<Measured> {
                    for table in [ORDERS, ANSWERS, BY_HAND.slim_table] {
                        sqlx::raw_sql(table).execute(&self.pool).await?;
                    }
                    sqlx::raw_sql(create(<$Store>::SCHEMA))
                        .execute(&self.pool)
                        .await?;
                    let mut figures = Measured::default();
                    for round in 0..=extent.rounds {
                        let name = database.name();
                        eprintln!("transactions on {name}, round {}", extent.round(round));
                        if round == 1 {
                            figures = Measured::default();
                        }
                        let from = i64::try_from(round)? * 1_000_000_000;
                        let calls = extent.sql_calls / 2;
                        let sequential = self.sequential(calls, from, &mut figures);
                        idem::scope(self.idempotency.clone(), sequential).await?;
                        self.many(extent, from + 500_000_000, &mut figures).await?;
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

fn of_messages(messages: &Messages) -> Vec<Figure> {
    let mut figures = Vec::new();
    for kind in Kind::ALL {
        for subject in Subject::ALL {
            let count = messages[subject as usize][kind as usize];
            if count > 0 {
                let what = format!("{kind}: messages of {}", subject.name());
                #[allow(clippy::cast_precision_loss)]
                figures.push(Figure::new(what, Unit::Count, vec![count as f64]));
            }
        }
    }
    figures
}

type Times = [[Vec<f64>; 2]; Subject::ALL.len()];

/// The microseconds of one transaction, and the transactions a second of many callers, of each
/// round.
#[derive(Default)]
struct Measured {
    times: Times,
    rates: [[Vec<f64>; AT_ONCE.len()]; CALLERS.len()],
}

impl Measured {
    fn figures(&self, database: Database) -> Vec<Figure> {
        let mut figures = Vec::new();
        for subject in [Subject::Whole, Subject::Annotated] {
            let own = subject.name();
            for kind in Kind::ALL {
                for other in [Subject::ByHand, Subject::Slim, Subject::Statements] {
                    let of = |subject: Subject| &*self.times[subject as usize][kind as usize];
                    if of(other).is_empty() {
                        continue;
                    }
                    let what = format!("{kind}: {own} over {}", other.name());
                    let goal = Goal::AtMost(time(database, kind, subject));
                    let goal = (other == Subject::ByHand).then_some(goal);
                    let other = (other.name(), of(other));
                    let figure = Figure::ratio(what, Unit::Microseconds, of(subject), other);
                    figures.push(figure.with(goal));
                }
            }
            for (callers, rates) in CALLERS.into_iter().zip(&self.rates) {
                let [by_hand, annotated, whole] = rates;
                let is_whole = subject == Subject::Whole;
                let rates = if is_whole { whole } else { annotated };
                let what = format!("{callers} callers: {own}, share of the table by hand");
                let by_hand = (Subject::ByHand.name(), &**by_hand);
                let figure = Figure::ratio(what, Unit::PerSecond, rates, by_hand);
                figures.push(figure.with(is_whole.then_some(Goal::AtLeast(SHARE))));
            }
        }
        figures
    }
}

/// The most over the table by hand.
fn time(database: Database, kind: Kind, subject: Subject) -> f64 {
    let is_mysql = matches!(database, Database::Mariadb | Database::Mysql);
    if is_mysql && kind == Kind::First && subject == Subject::Whole {
        1.20
    } else {
        1.10
    }
}

fn group(database: Database, durability: &str, figures: Vec<Figure>) -> Group {
    Group {
        title: format!("Transactions on {} ({durability})", database.name()),
        figures,
    }
}

/// Measures on servers of its own, and in a file of SQLite.
pub(crate) async fn measure(extent: &Extent, report: &mut Report) -> Result<()> {
    let server = PostgresServer::start().await;
    if let Some(server) = report.started("PostgreSQL", server) {
        report.groups.push(on_postgres(&server, extent).await?);
    }
    let server = MariaDbServer::start().await;
    if let Some(server) = report.started("MariaDB", server) {
        let through = |proxy: &Proxy| server.url_through(proxy.address().port());
        let group = on_mysql(Database::Mariadb, &server.url(), through, extent).await?;
        report.groups.push(group);
    }
    // A real one is not everywhere.
    let server = MySqlServer::start().await;
    if let Some(server) = report.started("MySQL", server) {
        let through = |proxy: &Proxy| server.url_through(proxy.address().port());
        let group = on_mysql(Database::Mysql, &server.url(), through, extent).await?;
        report.groups.push(group);
    }
    report.groups.push(on_sqlite(extent).await?);
    Ok(())
}

async fn on_mysql(
    database: Database,
    url: &str,
    through: impl Fn(&Proxy) -> String,
    extent: &Extent,
) -> Result<Group> {
    let shop = mysql_shop(url, CONNECTIONS).await?;
    let mut figures = shop.measure(database, extent).await?.figures(database);
    let proxy = Proxy::start(url).await?;
    let shop = mysql_shop(&through(&proxy), 1).await?;
    let counted = idem::scope(shop.idempotency.clone(), shop.count(&proxy)).await?;
    figures.extend(of_messages(&counted));
    Ok(group(database, database.durability(), figures))
}

async fn mysql_shop(url: &str, connections: u32) -> Result<mysql::Shop> {
    let options = MySqlPoolOptions::new().max_connections(connections);
    let pool = options.connect(url).await?;
    let store = MySqlStore::new(pool.clone());
    store.migrate().await?;
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

async fn on_postgres(server: &PostgresServer, extent: &Extent) -> Result<Group> {
    let database = Database::Postgres;
    let shop = postgres_shop(&server.url(), CONNECTIONS).await?;
    let mut figures = shop.measure(database, extent).await?.figures(database);
    let proxy = Proxy::start(&server.url()).await?;
    let through = postgres_shop(&server.url_through(proxy.address().port()), 1).await?;
    let counted = idem::scope(through.idempotency.clone(), through.count(&proxy)).await?;
    figures.extend(of_messages(&counted));
    Ok(group(database, database.durability(), figures))
}

async fn on_sqlite(extent: &Extent) -> Result<Group> {
    let dir = tempfile::Builder::new().prefix("idem-bench-").tempdir()?;
    let options = SqliteConnectOptions::new()
        .filename(dir.path().join("shop.db"))
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
    let measured = shop.measure(Database::Sqlite, extent).await?;
    pool.close().await;
    let figures = measured.figures(Database::Sqlite);
    Ok(group(Database::Sqlite, "synchronous = NORMAL", figures))
}
