//! A table that grows: what calls cost then, what it takes on the disk, and how it is swept.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use idem::sqlx::{self, AssertSqlSafe};
use idem::{MySqlStore, PostgresStore, SqliteStore};

use super::database::Database;
use super::floor::Floor;
use super::place::{Place, Subject};
use crate::report::{Figure, Group, Kind, Unit};
use crate::stats::quantile;

/// The rows of the table before it grows.
const FEW: u64 = 10_000;
/// Rows of one statement that fills.
const BATCH: u64 = 250_000;
/// Calls that are timed.
const CALLS: u64 = 2_000;
/// One row in so many expires.
const EXPIRES: u64 = 10;

pub(crate) async fn group(place: &Place, records: u64) -> Result<Group> {
    let mut figures = Vec::new();
    fill(place, 0, FEW).await?;
    let few = times(place, "few").await?;
    grow(place, records).await?;
    let many = times(place, "many")
        .await
        .context("calls on the grown table")?;
    for (kind, (few, many)) in Kind::ALL.into_iter().zip(few.iter().zip(&many)) {
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let few = quantile(few, share);
            let many = quantile(many, share);
            let what = format!("{kind}, {name}: with {records} records over with {FEW}");
            figures.push(
                Figure::new(what, Unit::Ratio, vec![many / few])
                    .remark(format!("{many:.0} µs; {few:.0} µs")),
            );
        }
    }
    figures.push(size(
        place,
        &format!("bytes a record, indexes included, of {records}"),
        records,
    )?);

    let expired = expire(place).await.context("having records expire")?;
    let Swept {
        deleted,
        took,
        during,
        failed,
    } = calls_during_sweep(place).await?;
    // The store of the calls sweeps too, in the background.
    #[allow(clippy::cast_precision_loss)]
    let rate = expired as f64 / took;
    figures.push(
        Figure::new(
            "expired records deleted a second",
            Unit::PerSecond,
            vec![rate],
        )
        .remark(format!(
            "{expired} in {took:.0} s by two stores, {deleted} of them by one"
        )),
    );
    figures.push(Figure::new(
        "calls that failed during the sweep",
        Unit::Count,
        vec![f64::from(failed)],
    ));
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let what = format!("first execution during the sweep, {name}");
        figures.push(Figure::new(
            what,
            Unit::Microseconds,
            vec![quantile(&during, share)],
        ));
    }
    let before = bytes(place.dir())?;
    fill(place, records, records + expired).await?;
    let grown = bytes(place.dir())?.saturating_sub(before);
    #[allow(clippy::cast_precision_loss)]
    figures.push(
        Figure::new(
            "bytes that the files grow by for each new record after the sweep",
            Unit::Bytes,
            vec![grown as f64 / expired as f64],
        )
        .remark("the room of deleted rows is used again"),
    );
    Ok(Group {
        title: format!("{}, {records} records", place.database.name()),
        figures,
    })
}

/// Fills the table, and says how far it is.
async fn grow(place: &Place, records: u64) -> Result<()> {
    let begun = Instant::now();
    let mut from = FEW;
    while from < records {
        let to = (from + BATCH).min(records);
        fill(place, from, to).await?;
        eprintln!(
            "{}: {to} records after {:.0} s",
            place.database.name(),
            begun.elapsed().as_secs_f64()
        );
        from = to;
    }
    Ok(())
}

/// A sweep, and the calls meanwhile.
struct Swept {
    /// The records that the sweep deleted.
    deleted: u64,
    /// Seconds.
    took: f64,
    /// Microseconds of each call.
    during: Vec<f64>,
    failed: u32,
}

async fn calls_during_sweep(place: &Place) -> Result<Swept> {
    let begun = Instant::now();
    let sweep = sweep(place);
    tokio::pin!(sweep);
    let mut during = Vec::new();
    let mut failed = 0_u32;
    let mut number = 0;
    // Calls while it is swept: not more than are needed for a quantile.
    let swept = loop {
        let key = format!("during-{number}");
        let call = async {
            let begun = Instant::now();
            let called = place.call(Subject::Ours, Kind::First, &key).await;
            called.map(|()| begun.elapsed().as_secs_f64() * 1e6)
        };
        tokio::pin!(call);
        let called = tokio::select! {
            swept = &mut sweep => break swept?,
            called = &mut call => called,
        };
        match called {
            Ok(time) => during.push(time),
            Err(error) => {
                eprintln!("{}: during the sweep: {error:#}", place.database.name());
                failed += 1;
            }
        }
        number += 1;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    Ok(Swept {
        deleted: swept,
        took: begun.elapsed().as_secs_f64(),
        during,
        failed,
    })
}

/// Microseconds of first executions and replays, one at a time.
async fn times(place: &Place, name: &str) -> Result<[Vec<f64>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for call in 0..CALLS + CALLS / 10 {
        for kind in Kind::ALL {
            let begun = Instant::now();
            place
                .call(Subject::Ours, kind, &format!("{name}-{call}"))
                .await?;
            // The first ones warm up.
            if call >= CALLS / 10 {
                times[kind as usize].push(begun.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

/// Writes committed records, as calls would have. Their keys are spread, as those of clients are.
async fn fill(place: &Place, from: u64, to: u64) -> Result<()> {
    let numbers = |last: u64| match place.database {
        Database::Postgres => format!("SELECT i FROM generate_series({from}, {last}) AS n (i)"),
        Database::Mariadb | Database::Mysql => format!("SELECT seq AS i FROM seq_{from}_to_{last}"),
        Database::Sqlite => {
            format!(
                "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n \
                 WHERE i < {last}) SELECT i FROM n"
            )
        }
    };
    let numbers = numbers(to - 1);
    let columns = "state, attempt, expires_at, sweep_at, codec, outcome, revision";
    let outcome = format!("'\"{}\"'", "x".repeat(200));
    let text = match place.database {
        Database::Postgres => format!(
            "INSERT INTO idem_records (operation, key, {columns}) SELECT 'bench', md5(i::text), \
             'committed', 1, \
             now() + interval '1 day', now() + interval '25 hours', 'j', {outcome}::bytea, i FROM ({numbers}) AS n"
        ),
        Database::Mariadb | Database::Mysql => format!(
            "INSERT INTO idem_records (operation, `key`, {columns}) SELECT 'bench', md5(i), \
             'committed', 1, \
             UTC_TIMESTAMP(6) + INTERVAL 1 DAY, UTC_TIMESTAMP(6) + INTERVAL 25 HOUR, 'j', \
             {outcome}, i FROM ({numbers}) AS n"
        ),
        Database::Sqlite => format!(
            "INSERT INTO idem_records (operation, key, {columns}) SELECT 'bench', \
             hex(randomblob(16)), 'committed', 1, \
             (unixepoch() + 86400) * 1000, (unixepoch() + 90000) * 1000, 'j', CAST({outcome} AS BLOB), i FROM ({numbers})"
        ),
    };
    execute(place, text).await.map(drop)
}

/// Has one in ten expire, as far as the store knows.
async fn expire(place: &Place) -> Result<u64> {
    let text = match place.database {
        Database::Postgres => format!(
            "UPDATE idem_records SET (expires_at, sweep_at) = (now() - interval '1 second', now()) \
             WHERE revision % {EXPIRES} = 0 AND state = 'committed'"
        ),
        Database::Mariadb | Database::Mysql => format!(
            "UPDATE idem_records SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, \
             sweep_at = UTC_TIMESTAMP(6) \
             WHERE revision % {EXPIRES} = 0 AND state = 'committed'"
        ),
        Database::Sqlite => format!(
            "UPDATE idem_records SET expires_at = (unixepoch() - 1) * 1000, sweep_at = 0 \
             WHERE revision % {EXPIRES} = 0 AND state = 'committed'"
        ),
    };
    execute(place, text).await
}

async fn execute(place: &Place, text: String) -> Result<u64> {
    let text = AssertSqlSafe(text);
    Ok(match &place.table {
        Floor::Postgres(pool) => sqlx::raw_sql(text).execute(pool).await?.rows_affected(),
        Floor::Mysql(pool) => sqlx::raw_sql(text).execute(pool).await?.rows_affected(),
        Floor::Sqlite(pool) => sqlx::raw_sql(text).execute(pool).await?.rows_affected(),
    })
}

/// Sweeps until nothing is left, as a store does in the background: after an error, again.
async fn sweep(place: &Place) -> Result<u64> {
    for _ in 0..100 {
        let swept = match &place.table {
            Floor::Postgres(pool) => PostgresStore::new(pool.clone()).sweep().await,
            Floor::Mysql(pool) => MySqlStore::new(pool.clone()).sweep().await,
            Floor::Sqlite(pool) => SqliteStore::new(pool.clone()).sweep().await,
        };
        match swept {
            Ok(swept) => return Ok(swept),
            Err(error) => eprintln!("{}: the sweep itself: {error}", place.database.name()),
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    bail!("the sweep fails all the time")
}

fn size(place: &Place, what: &str, records: u64) -> Result<Figure> {
    let bytes = bytes(place.dir())?;
    #[allow(clippy::cast_precision_loss)]
    let figure = Figure::new(what, Unit::Bytes, vec![bytes as f64 / records as f64]);
    Ok(figure.remark("all files of the database, its log too"))
}

/// All that is in a directory.
fn bytes(dir: &Path) -> Result<u64> {
    let mut all = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        // A file may go while this looks.
        let Ok(about) = entry.metadata() else {
            continue;
        };
        all += if about.is_dir() {
            bytes(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(all)
}
