//! Counting records, without handing over a row for each.

use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::admin::{Count, Counts, Cursor};
use idem_core::store::record::RecordState;

use super::super::dialect::{Dialect, Position};
use super::super::executor::{Executor, Resend};
use super::page::count as limit;

/// How many rows a part has, which takes some ten milliseconds of the server's time.
const PART: usize = 50_000;

pub(crate) async fn count<D: Dialect>(
    executor: &Arc<Executor<D>>,
    after: Option<&Cursor>,
) -> Result<Counts, StoreError> {
    let from = after.map_or_else(|| Ok(Position::default()), Position::read)?;
    let read = executor.step(Resend::Reads, move |dialect, on| {
        let from = from.clone();
        Box::pin(async move {
            let end = dialect.window_end(on, &from, limit(PART)).await?;
            let last = end.clone().unwrap_or_else(Position::far);
            Ok((end, dialect.count(on, &from, &last).await?))
        })
    });
    let (end, rows) = read.await?;
    let mut counts = Vec::with_capacity(rows.len());
    let mut unreadable = 0;
    for row in rows {
        let records = u64::try_from(row.rows).unwrap_or_default();
        let Some(state) = RecordState::parse(&row.state) else {
            unreadable += records;
            continue;
        };
        let is_of_leases = matches!(state, RecordState::InFlight | RecordState::Abandoned);
        let silent_for = row.silent_for.filter(|_| is_of_leases);
        let silent_for =
            silent_for.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default()));
        counts.push(Count::new(row.operation, state, records, silent_for));
    }
    let next = end.map(|position| position.cursor());
    Ok(Counts::new(counts, unreadable, next))
}
