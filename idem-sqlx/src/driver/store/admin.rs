//! The operators' steps: listings in about the order in which records expire, and interventions in
//! one record.

use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::admin::{Intervened, Intervention, Listing, OnIntervention, Page};
use idem_core::store::record::{Record, RecordState};

use super::super::dialect::{Conn, Dialect, Guard, ListScope, ListedRow, Position, Window};
use super::super::executor::clock::{DatabaseClock, Lapsed};
use super::super::executor::errors::{StepError, contended};
use super::super::executor::{Executor, Resend};
use super::list_keys::list_keys;
use super::page::{Found, WIDEST, WINDOW, WINDOWS, count};
use crate::row::{Columns, FoundRow};

/// How many ids one statement reads, which takes as long.
const IDS: usize = 10_000;
/// An operation with at most this many rows is read by the primary key.
const FEW: usize = 2000;
/// How often a row may change under a decision.
const ROUNDS: usize = 16;

pub(crate) async fn list<D: Dialect>(
    executor: &Arc<Executor<D>>,
    listing: &Listing,
) -> Result<Page, StoreError> {
    let mut position = listing
        .cursor
        .as_ref()
        .map_or_else(|| Ok(Position::default()), Position::read)?;
    if listing.digest.is_some() || listing.steps_of.is_some() {
        return list_ids(executor, listing, position).await;
    }
    if let Some(filter) = listing.key.as_ref().filter(|filter| !filter.is_all()) {
        return list_keys(executor, listing, filter, position).await;
    }
    let limit = listing.limit.max(1);
    let scope = list_scope(executor, listing).await?;
    let is_narrow =
        listing.operation.is_some() || listing.state.is_some() || listing.older_than.is_some();
    let mut window = if is_narrow { WINDOW } else { limit.min(WINDOW) };
    let mut found = Found::default();
    for _ in 0..WINDOWS {
        let read = read_window(executor, &scope, &position, window).await?;
        if read.rows.is_empty() && matches!(scope, Scope::InStates(_)) {
            window = WIDEST.min(4 * window);
        }
        for ListedRow {
            position: here,
            row,
        } in read.rows
        {
            position = here;
            found.looked_at += 1;
            if let Some(id) = position.id().filter(|id| listing.may_match(id)) {
                found.add(listing, id, row);
            }
            if found.records.len() == limit {
                return Ok(found.page(Some(position)));
            }
        }
        found.looked_at += read.left_out;
        match read.end {
            Some(end) => position = end,
            None => return Ok(found.page(None)),
        }
        if !found.is_empty() {
            break;
        }
    }
    Ok(found.page(Some(position)))
}

/// The rows that a listing reads.
#[derive(Debug, Clone)]
enum Scope {
    Of(ListScope),
    /// Those in one of two states, or in none that is known. A row costs far more to hand over than
    /// to pass by, so the end of a window is looked for first.
    InStates([&'static str; 2]),
}

async fn read_window<D: Dialect>(
    executor: &Arc<Executor<D>>,
    scope: &Scope,
    from: &Position,
    rows: usize,
) -> Result<Window, StoreError> {
    let scope = scope.clone();
    let from = from.clone();
    let limit = count(rows);
    let read = executor.step(Resend::Reads, move |dialect, on| {
        let scope = scope.clone();
        let from = from.clone();
        Box::pin(async move {
            let states = match scope {
                Scope::Of(scope) => return Ok(dialect.window(on, &scope, &from, limit).await?),
                Scope::InStates(states) => states,
            };
            let end = dialect.window_end(on, &from, limit).await?;
            let last = end.clone().unwrap_or_else(Position::far);
            let found = dialect.window_in_states(on, states, &from, &last).await?;
            let left_out = match &end {
                Some(_) => rows.saturating_sub(found.len()),
                None => 0,
            };
            Ok(Window {
                rows: found,
                left_out,
                end,
            })
        })
    });
    read.await
}

/// Returns the smallest scope that covers a listing. The order is the same in each.
async fn list_scope<D: Dialect>(
    executor: &Arc<Executor<D>>,
    listing: &Listing,
) -> Result<Scope, StoreError> {
    // Only leases have an age.
    let lease = listing.older_than.map(|_| RecordState::InFlight);
    let all = lease
        .or(listing.state)
        .and_then(in_rows)
        .map_or(Scope::Of(ListScope::All), Scope::InStates);
    let Some(operation) = listing.operation.clone() else {
        return Ok(all);
    };
    // The rows of an operation are sorted for each page. For many rows, the index of all is faster.
    let name = operation.clone();
    let has_more = executor.step(Resend::Reads, move |dialect, on| {
        let name = name.clone();
        Box::pin(async move { Ok(dialect.has_more(on, &name, count(FEW)).await?) })
    });
    Ok(if has_more.await? {
        all
    } else {
        Scope::Of(ListScope::OfOperation(operation))
    })
}

/// Returns the states of rows whose records may be in this state now. `None`: any.
fn in_rows(state: RecordState) -> Option<[&'static str; 2]> {
    match state {
        RecordState::Issued | RecordState::Expired => Some(["issued"; 2]),
        RecordState::InFlight | RecordState::Abandoned => Some(["in_flight"; 2]),
        RecordState::Released => Some(["released"; 2]),
        RecordState::Committed => Some(["committed"; 2]),
        // An outcome that has expired stays in its row until the next sweep.
        RecordState::Done => Some(["committed", "done"]),
        _ => None,
    }
}

/// Lists by id. No statement can compute a digest, so this reads all ids, and the rows that match.
/// The steps of a call are neighbours in the order of ids: only those are read.
async fn list_ids<D: Dialect>(
    executor: &Arc<Executor<D>>,
    listing: &Listing,
    mut position: Position,
) -> Result<Page, StoreError> {
    let mut found = Found::default();
    let prefix = listing
        .steps_of
        .as_ref()
        .map(|(call, _)| call.steps_prefix());
    if let Some(prefix) = prefix.as_ref().filter(|_| position.operation.is_empty()) {
        position.operation.clone_from(prefix);
    }
    for _ in 0..WINDOWS {
        let from = position.clone();
        let ids = executor.step(Resend::Reads, move |dialect, on| {
            let from = from.clone();
            Box::pin(async move { Ok(dialect.ids(on, &from, count(IDS)).await?) })
        });
        let ids = ids.await?;
        let is_last = ids.len() < IDS;
        for (operation, key) in ids {
            if prefix
                .as_ref()
                .is_some_and(|prefix| !operation.starts_with(&**prefix))
            {
                return Ok(found.page(None));
            }
            position = Position {
                sweep_at: 0,
                operation,
                key,
            };
            found.looked_at += 1;
            let Some(id) = position.id().filter(|id| listing.may_match(id)) else {
                continue;
            };
            let to_read = id.clone();
            let row = executor.step(Resend::Reads, move |dialect, on| {
                let id = to_read.clone();
                Box::pin(async move { Ok(dialect.read(on, &id).await?) })
            });
            if let Some(row) = row.await? {
                found.add(listing, id, row);
            }
            if found.records.len() == listing.limit.max(1) {
                return Ok(found.page(Some(position)));
            }
        }
        if is_last {
            return Ok(found.page(None));
        }
    }
    Ok(found.page(Some(position)))
}

pub(crate) async fn intervene<D: Dialect>(
    executor: &Arc<Executor<D>>,
    intervention: &Intervention,
) -> Result<Intervened, StoreError> {
    let id = intervention.id.clone();
    let intervention = Arc::new(intervention.clone());
    let clock = executor.clock.clone();
    // A second time, it would find nothing to do.
    let done = executor
        .step(Resend::Never, move |dialect, on| {
            let intervention = intervention.clone();
            let clock = clock.clone();
            Box::pin(async move { intervene_on(dialect, on, &clock, &intervention).await })
        })
        .await?;
    if let Intervened::Done { .. } = done {
        executor.waiters.wake(id.as_str());
    }
    Ok(done)
}

async fn intervene_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    intervention: &Intervention,
) -> Result<Intervened, StepError> {
    let id = &intervention.id;
    for _ in 0..ROUNDS {
        let Some(row) = dialect.read(on, id).await.map_err(StepError::Unsent)? else {
            return Ok(Intervened::Nothing);
        };
        let FoundRow {
            record,
            left,
            then_done,
            revision,
        } = row.read()?;
        let Some(record) = record else {
            return Ok(Intervened::Nothing);
        };
        let attempt = record.attempt();
        let on_intervention = record.on_intervention(intervention, left);
        if needs_expired_lease(&on_intervention)
            && let Some(lease_left) = lease_left(dialect, on, clock, &record, left).await?
        {
            return Ok(Intervened::Alive {
                attempt,
                lease_left,
            });
        }
        let done = match on_intervention {
            OnIntervention::Answer(answer) => return Ok(answer),
            OnIntervention::Put {
                record,
                expires_in,
                if_ran_out,
            } => {
                let guard = if if_ran_out {
                    Guard::RanOut(revision)
                } else {
                    Guard::Revision(revision)
                };
                let columns = Columns::new(&record, Some(expires_in), Duration::ZERO);
                dialect.put(on, id, guard, &columns).await?
            }
            OnIntervention::Replace { record } => {
                let columns = Columns::new(&record, None, then_done);
                dialect
                    .put(on, id, Guard::Revision(revision), &columns)
                    .await?
            }
            // A renewal changes the revision.
            OnIntervention::Remove { .. } => dialect.remove(on, id, revision).await?,
        };
        if done {
            return Ok(Intervened::Done { attempt });
        }
    }
    Err(contended(ROUNDS).into())
}

fn needs_expired_lease(on_intervention: &OnIntervention) -> bool {
    matches!(
        on_intervention,
        OnIntervention::Put {
            if_ran_out: true,
            ..
        } | OnIntervention::Remove { if_ran_out: true }
    )
}

/// Returns how long the lease may still be alive, by the database's clock or by the store's own.
async fn lease_left<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    record: &Record,
    left: Duration,
) -> Result<Option<Duration>, StepError> {
    match Lapsed::find(record, left) {
        Some(lapsed) => clock
            .doubt(dialect, on, lapsed)
            .await
            .map_err(StepError::Unsent),
        None => Ok(record.lease_left(left)),
    }
}
