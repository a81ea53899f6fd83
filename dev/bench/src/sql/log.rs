//! How many bytes of PostgreSQL's log a first execution takes, over the slim floor's.

use anyhow::Result;
use idem::sqlx::{self, PgPool};

use super::floor::Floor;
use super::place::{Place, Subject};
use crate::extent::Extent;
use crate::report::{Figure, Kind, Unit};

/// The most over the slim floor.
const MOST: f64 = 1.2;

/// Of PostgreSQL alone. Full images of pages are off, because how many there are depends on the
/// time between checkpoints, and autovacuum is, because its log is not a call's.
pub(crate) async fn figure(place: &Place, extent: &Extent) -> Result<Option<Figure>> {
    let Floor::Postgres(pool) = &place.floor else {
        return Ok(None);
    };
    for statement in [
        "ALTER SYSTEM SET full_page_writes = off",
        "ALTER SYSTEM SET autovacuum = off",
        "SELECT pg_reload_conf()",
        "CHECKPOINT",
    ] {
        sqlx::query(statement).execute(pool).await?;
    }
    let mut bytes = [Vec::new(), Vec::new()];
    for round in 0..extent.rounds {
        for (subject, bytes) in [Subject::Ours, Subject::Slim].into_iter().zip(&mut bytes) {
            let before = position(pool).await?;
            for call in 0..extent.sql_calls {
                let key = format!("log-{round:04}-{call:011}");
                place.call(subject, Kind::First, &key).await?;
            }
            #[allow(clippy::cast_precision_loss)]
            bytes.push((position(pool).await? - before) as f64 / extent.sql_calls as f64);
        }
    }
    let [ours, slim] = bytes;
    let what = "bytes of the log of a first execution: idem over the slim floor";
    let figure = Figure::ratio(what, Unit::Bytes, &ours, ("the slim floor", &slim));
    let figure = figure.remark("full_page_writes and autovacuum are off");
    Ok(Some(figure.at_most(MOST)))
}

/// How many bytes were written to the log so far.
async fn position(pool: &PgPool) -> Result<i64> {
    let position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    Ok(sqlx::query_scalar(position).fetch_one(pool).await?)
}
