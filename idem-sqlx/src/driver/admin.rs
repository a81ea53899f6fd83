//! The operators' steps: listings in the order in which records expire, and decisions about one
//! record.

use std::sync::Arc;
use std::time::Duration;

use idem_core::store::admin::{Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable};
use idem_core::store::record::{RecordId, RecordInfo, RecordState};
use idem_core::{Key, StoreError};

use super::clock::{DatabaseClock, Lapsed};
use super::core::Core;
use super::dialect::{Among, Conn, Dialect, Guard, Position, Seen};
use super::fault::{Stopped, contended};
use crate::columns::{Columns, FoundRow, Row};

/// How many rows one statement looks at: milliseconds of the server's time.
const WINDOW: usize = 1000;
/// How many such statements a page may take that find nothing.
const WINDOWS: usize = 10;
/// How many ids one statement reads, which takes as long.
const IDS: usize = 10_000;
/// So many rows of an operation are few.
const FEW: usize = 2000;
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

/// A page that is being filled.
#[derive(Default)]
struct Found {
    records: Vec<Listed>,
    unreadable: Vec<Unreadable>,
    looked_at: usize,
}

impl Found {
    fn add(&mut self, listing: &Listing, id: RecordId, row: Row) {
        match row.found() {
            Ok(FoundRow { record: Some(record), left, .. }) => {
                let info = RecordInfo::new(&record, left);
                if listing.matches(&info) {
                    self.records.push(Listed::new(id, info));
                }
            }
            Ok(_) => {}
            Err(error) => self.unreadable.push(Unreadable::new(id, error)),
        }
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.unreadable.is_empty()
    }

    fn page(self, next: Option<Position>) -> Page {
        let next = next.map(|place| place.cursor());
        Page::new(self.records, self.unreadable, next).with_looked_at(self.looked_at)
    }
}

pub(crate) async fn list<D: Dialect>(core: &Arc<Core<D>>, listing: &Listing) -> Result<Page, StoreError> {
    let mut place = listing.cursor.as_ref().map_or_else(|| Ok(Position::default()), Position::read)?;
    if listing.digest.is_some() {
        return list_digest(core, listing, place).await;
    }
    let limit = listing.limit.max(1);
    let among = among(core, listing).await?;
    let is_narrow = listing.operation.is_some() || listing.state.is_some() || listing.older_than.is_some();
    let window = if is_narrow { WINDOW } else { limit.min(WINDOW) };
    let mut found = Found::default();
    for _ in 0..WINDOWS {
        let (among, from) = (among.clone(), place.clone());
        let rows = core.step(true, move |dialect, on| {
            let (among, from) = (among.clone(), from.clone());
            Box::pin(async move { Ok(dialect.window(on, &among, &from, count(window)).await?) })
        });
        let rows = rows.await?;
        let is_last = rows.len() < window;
        for Seen { place: here, row } in rows {
            place = here;
            found.looked_at += 1;
            if let Some(id) = place.id().filter(|id| listing.may_match(id)) {
                found.add(listing, id, row);
            }
            if found.records.len() == limit {
                return Ok(found.page(Some(place)));
            }
        }
        if is_last {
            return Ok(found.page(None));
        }
        if !found.is_empty() {
            break;
        }
    }
    Ok(found.page(Some(place)))
}

/// The fewest rows that have all that a listing is about. The order is the same in each.
async fn among<D: Dialect>(core: &Arc<Core<D>>, listing: &Listing) -> Result<Among, StoreError> {
    let is_of_leases = matches!(listing.state, Some(RecordState::InFlight | RecordState::Abandoned));
    if is_of_leases || listing.older_than.is_some() {
        return Ok(Among::InFlight);
    }
    let Some(operation) = listing.operation.clone() else { return Ok(Among::All) };
    // They are sorted anew for each page. Where there are many, the index of all is faster.
    let name = operation.clone();
    let has_more = core.step(true, move |dialect, on| {
        let name = name.clone();
        Box::pin(async move { Ok(dialect.has_more(on, &name, count(FEW)).await?) })
    });
    Ok(if has_more.await? { Among::All } else { Among::Few(operation) })
}

/// Lists by digest, which no statement can compute: looks at the ids of all, and reads those rows
/// that match.
async fn list_digest<D: Dialect>(
    core: &Arc<Core<D>>,
    listing: &Listing,
    mut place: Position,
) -> Result<Page, StoreError> {
    let mut found = Found::default();
    for _ in 0..WINDOWS {
        let from = place.clone();
        let ids = core.step(true, move |dialect, on| {
            let from = from.clone();
            Box::pin(async move { Ok(dialect.ids(on, &from, count(IDS)).await?) })
        });
        let ids = ids.await?;
        let is_last = ids.len() < IDS;
        for (operation, key) in ids {
            place = Position { expires_at: 0, operation, key };
            found.looked_at += 1;
            let Some(id) = place.id().filter(|id| listing.may_match(id)) else { continue };
            let to_read = id.clone();
            let row = core.step(true, move |dialect, on| {
                let id = to_read.clone();
                Box::pin(async move { Ok(dialect.read(on, &id).await?) })
            });
            if let Some(row) = row.await? {
                found.add(listing, id, row);
            }
            if found.records.len() == listing.limit.max(1) {
                return Ok(found.page(Some(place)));
            }
        }
        if is_last {
            return Ok(found.page(None));
        }
    }
    Ok(found.page(Some(place)))
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
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
        let FoundRow { record, left, then_done, revision } = row.found()?;
        let Some(record) = record else { return Ok(Intervened::Nothing) };
        let (attempt, lapsed) = (record.attempt(), Lapsed::of(&record, left));
        let mut lease_left = record.lease_left(left);
        let on_intervention = record.on_intervention(intervention, left);
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
            OnIntervention::Replace { record } => {
                let columns = Columns::new(&record, None, then_done);
                dialect.put(on, id, Guard::Revision(revision), &columns).await?
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
