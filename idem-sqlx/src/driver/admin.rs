//! The operators' steps: listings in the order in which records expire, and decisions about one
//! record.

use std::sync::Arc;
use std::time::Duration;

use idem_core::store::admin::{Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable};
use idem_core::store::record::{RecordId, RecordInfo, RecordState};
use idem_core::{Key, StoreError};

use super::clock::{DatabaseClock, Lapsed};
use super::core::Core;
use super::dialect::{Conn, Dialect, Guard, Position, Seen};
use super::fault::{Stopped, contended};
use crate::columns::{Columns, FoundRow};

/// How many rows one statement looks at: milliseconds of the server's time.
const WINDOW: usize = 1000;
/// How many such statements a page may take that find nothing.
const WINDOWS: usize = 10;
/// How often a row may change under a decision.
const ROUNDS: usize = 16;

impl Position {
    fn read(cursor: &Cursor) -> Result<Self, StoreError> {
        let [expires_at, operation, key] = cursor.fields()?;
        let expires_at = expires_at.parse().map_err(|_| Cursor::foreign())?;
        Ok(Self { expires_at, operation, key })
    }

    fn cursor(&self) -> Cursor {
        Cursor::of_fields(&[&self.expires_at.to_string(), &self.operation, &self.key])
    }

    /// The id of the row; `None` if another program wrote it.
    fn id(&self) -> Option<RecordId> {
        RecordId::new(&self.operation, &Key::from_encoded(&self.key)?)
    }
}

pub(crate) async fn list<D: Dialect>(core: &Arc<Core<D>>, listing: &Listing) -> Result<Page, StoreError> {
    let mut place = listing.cursor.as_ref().map_or_else(|| Ok(Position::default()), Position::read)?;
    let limit = listing.limit.max(1);
    let of_leases = matches!(listing.state, Some(RecordState::InFlight | RecordState::Abandoned));
    // There is an index of these alone.
    let in_flight = of_leases || listing.older_than.is_some();
    let is_narrow = listing.operation.is_some() || listing.state.is_some() || listing.digest.is_some() || in_flight;
    let window = if is_narrow { WINDOW } else { limit.min(WINDOW) };
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    for _ in 0..WINDOWS {
        let from = place.clone();
        let rows = core.step(true, move |dialect, on| {
            let (from, rows) = (from.clone(), i64::try_from(window).unwrap_or(i64::MAX));
            Box::pin(async move { Ok(dialect.window(on, &from, in_flight, rows).await?) })
        });
        let rows = rows.await?;
        let is_last = rows.len() < window;
        for Seen { place: here, row } in rows {
            place = here;
            let Some(id) = place.id().filter(|id| listing.may_match(id)) else { continue };
            match row.found() {
                Ok(FoundRow { record: Some(record), left, .. }) => {
                    let info = RecordInfo::new(&record, left);
                    if listing.matches(&info) {
                        records.push(Listed::new(id, info));
                    }
                }
                Ok(_) => {}
                Err(error) => unreadable.push(Unreadable::new(id, error)),
            }
            if records.len() == limit {
                return Ok(Page::new(records, unreadable, Some(place.cursor())));
            }
        }
        if is_last {
            return Ok(Page::new(records, unreadable, None));
        }
        if !(records.is_empty() && unreadable.is_empty()) {
            break;
        }
    }
    Ok(Page::new(records, unreadable, Some(place.cursor())))
}

pub(crate) async fn intervene<D: Dialect>(
    core: &Arc<Core<D>>,
    intervention: &Intervention,
) -> Result<Intervened, StoreError> {
    let id = intervention.id.clone();
    let (intervention, clock) = (Arc::new(intervention.clone()), core.clock.clone());
    // Sent again after it was carried out, it would find nothing to do.
    let done = core
        .step(false, move |dialect, on| {
            let (intervention, clock) = (intervention.clone(), clock.clone());
            Box::pin(async move { intervene_on(dialect, on, &clock, &intervention).await })
        })
        .await?;
    if let Intervened::Done { .. } = done {
        core.waiters.wake(id.as_str());
    }
    Ok(done)
}

async fn intervene_on<D: Dialect>(
    dialect: &D,
    on: &mut Conn<D>,
    clock: &DatabaseClock,
    intervention: &Intervention,
) -> Result<Intervened, Stopped> {
    let id = &intervention.id;
    for _ in 0..ROUNDS {
        let Some(row) = dialect.read(on, id).await.map_err(Stopped::Unsent)? else { return Ok(Intervened::Nothing) };
        let FoundRow { record, left, revision } = row.found()?;
        let Some(record) = record else { return Ok(Intervened::Nothing) };
        let (attempt, lapsed) = (record.attempt(), Lapsed::of(&record, left));
        let mut lease_left = record.lease_left(left);
        let on_intervention = record.on_intervention(intervention);
        if let OnIntervention::Put { if_ran_out: true, .. } | OnIntervention::Remove { if_ran_out: true } =
            &on_intervention
        {
            if let Some(lapsed) = lapsed {
                lease_left = clock.doubt(dialect, on, lapsed).await.map_err(Stopped::Unsent)?;
            }
            if let Some(lease_left) = lease_left {
                return Ok(Intervened::Alive { attempt, lease_left });
            }
        }
        let done = match on_intervention {
            OnIntervention::Answer(answer) => return Ok(answer),
            OnIntervention::Put { record, expires_in, if_ran_out } => {
                let guard = if if_ran_out { Guard::RanOut(revision) } else { Guard::Revision(revision) };
                let columns = Columns::new(&record, Some(expires_in), Duration::ZERO);
                dialect.put(on, id, guard, &columns).await?
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
