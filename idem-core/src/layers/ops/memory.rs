//! The operators' steps of the store inside the process.

use std::time::Duration;

use super::admin::{
    AdminStore, Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page,
};
use crate::StoreError;
use crate::layers::memory::shard::Slot;
use crate::layers::memory::step::LockedStep;
use crate::layers::memory::{MemoryStore, lock};
use crate::record::RecordInfo;

/// A page looks at about this many records: it ends with the shard in which it reaches the number.
const MOST_LOOKED_AT: usize = 4096;

impl AdminStore for MemoryStore {
    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let (mut shard, mut after) = match &listing.cursor {
            None => (0, String::new()),
            Some(cursor) => {
                let [shard, after] = cursor.fields()?;
                (
                    shard.parse::<usize>().map_err(|_| Cursor::foreign())?,
                    after,
                )
            }
        };
        let limit = listing.limit.max(1);
        let mut records = Vec::new();
        let mut looked_at = 0;
        let mut has_digests = false;
        while let Some(locked) = self.0.shards.get(shard) {
            let now = self.0.clock.elapsed();
            let locked = lock(locked);
            looked_at += locked.records.count();
            let slots = locked.records.slots(now, |id| id.as_str() > &*after);
            drop(locked);
            let describe =
                |slot: Slot| RecordInfo::new(&slot.record, slot.expires.saturating_sub(now));
            has_digests |= slots.iter().any(|(id, _)| listing.cannot_tell(id));
            let mut here: Vec<Listed> = slots
                .into_iter()
                .filter(|(id, _)| listing.may_match(id))
                .map(|(id, slot)| Listed::new(id, describe(slot)))
                .filter(|listed| listing.matches(&listed.info))
                .collect();
            here.sort_by(|one, other| one.id.as_str().cmp(other.id.as_str()));
            let left = limit - records.len();
            if here.len() > left {
                here.truncate(left);
                after = here
                    .last()
                    .map_or(after, |last| last.id.as_str().to_owned());
                records.extend(here);
                let page = Page::new(records, Vec::new(), Some(at(shard, &after)));
                return Ok(page.with_digests(has_digests));
            }
            records.extend(here);
            (shard, after) = (shard + 1, String::new());
            if records.len() == limit || looked_at >= MOST_LOOKED_AT {
                break;
            }
        }
        let next = (shard < self.0.shards.len()).then(|| at(shard, ""));
        Ok(Page::new(records, Vec::new(), next).with_digests(has_digests))
    }

    async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        Ok(self.step(&intervention.id, |step| intervene(step, intervention)))
    }
}

fn at(shard: usize, after: &str) -> Cursor {
    Cursor::of_fields(&[&shard.to_string(), after])
}

fn intervene(step: &mut LockedStep<'_>, intervention: &Intervention) -> Intervened {
    let Some((record, left)) = step.find() else {
        return Intervened::Nothing;
    };
    let attempt = record.attempt();
    let lease_left = record.lease_left(left);
    let on_intervention = record.on_intervention(intervention, left);
    match (on_intervention, lease_left) {
        (OnIntervention::Answer(answer), _) => return answer,
        (
            OnIntervention::Put {
                if_ran_out: true, ..
            }
            | OnIntervention::Remove { if_ran_out: true },
            Some(lease_left),
        ) => {
            return Intervened::Alive {
                attempt,
                lease_left,
            };
        }
        (
            OnIntervention::Put {
                record, expires_in, ..
            },
            _,
        ) => step.put(record, expires_in, Duration::ZERO),
        (OnIntervention::Replace { record }, _) => {
            let replaced = step.place.and_then(|place| step.locked.records.slot(place));
            let then_done = replaced.map_or(Duration::ZERO, |slot| slot.then_done);
            step.put(record, left, then_done);
        }
        (OnIntervention::Remove { .. }, _) => step.remove(),
    }
    step.locked.waiters.wake(step.target);
    Intervened::Done { attempt }
}
