//! The steps that a purge removes: those of runs that no call goes on with.
//!
//! The order decides: first the runs that have steps are listed, then calls are removed, then those
//! that stay are listed. A run that begins meanwhile is in no list, so its steps stay.

use std::collections::{BTreeSet, HashSet};

use idem_core::record::{Owner, RecordId};
use idem_core::store::admin::{KeyFilter, Listed, Listing};
use idem_core::{Key, StoreError};

use super::keys_of;
use super::steps::{MOST_FLAT, PREFIX, runs_in};
use crate::args::Purge;
use crate::store::AnyStore;

/// How many records are listed before they are removed.
pub(super) const BATCH: usize = 1000;

/// Which records of steps a purge removes.
pub(super) struct PurgedSteps {
    /// Lists calls whose steps these may be, in every state.
    calls: Vec<Listing>,
    /// Lists at least these steps.
    steps: Vec<Listing>,
    /// Only those of calls with one of these keys.
    keys: Option<Vec<Key>>,
    /// The runs that have steps.
    seen: HashSet<Owner>,
    /// The runs inside of steps, behind those that the steps belong to.
    inside: Vec<(Vec<Owner>, Owner)>,
    /// The runs that calls go on with.
    kept: HashSet<Owner>,
    /// Calls of which nobody knows the run.
    unreadable: Vec<RecordId>,
}

/// Returns whether this is the record of a step, or says that the run of steps has ended.
pub(super) fn is_in_run(id: &RecordId) -> bool {
    runs_in(id).next().is_some()
}

impl PurgedSteps {
    /// Looks which runs have steps, before the calls are looked at.
    pub(super) async fn look(store: &AnyStore, args: &Purge) -> Result<Self, StoreError> {
        let operations = match &args.operation {
            Some(operation) => Some(related(store, operation).await?),
            None => None,
        };
        let key = args.keys.key.as_deref().filter(|key| !key.ends_with('*'));
        let keys = key.map(keys_of);
        // The key of a step has more parts than that of its call, or begins with a digest.
        let filters: Vec<_> = match &keys {
            Some(keys) => keys.iter().map(first_part).collect(),
            None => vec![args.keys.filter()],
        };
        let mut found = Self {
            calls: listings(operations.as_ref(), &[args.keys.filter()]),
            steps: listings(operations.as_ref(), &filters),
            keys,
            seen: HashSet::new(),
            inside: Vec::new(),
            kept: HashSet::new(),
            unreadable: Vec::new(),
        };
        for listing in &found.steps {
            let (seen, inside) = (&mut found.seen, &mut found.inside);
            let look = |Listed { id, info, .. }: Listed| {
                seen.extend(runs_in(&id));
                inside.extend(info.run.map(|run| (runs_in(&id).collect(), run)));
            };
            each(store, listing, look, |_| {}).await?;
        }
        Ok(found)
    }

    /// Looks which calls have stayed, once the others are removed.
    pub(super) async fn look_again(&mut self, store: &AnyStore) -> Result<(), StoreError> {
        for listing in &self.calls {
            let (kept, unreadable) = (&mut self.kept, &mut self.unreadable);
            let look = |Listed { id, info, .. }: Listed| {
                kept.extend(info.run.filter(|_| !is_in_run(&id)));
            };
            each(store, listing, look, |id| unreadable.push(id)).await?;
        }
        // A step that stays keeps those inside of it, which may have a digest in place of its key.
        let mut known = 0;
        while known < self.kept.len() {
            known = self.kept.len();
            for (outer, run) in &self.inside {
                if outer.iter().any(|outer| self.kept.contains(outer)) {
                    self.kept.insert(*run);
                }
            }
        }
        Ok(())
    }

    pub(super) fn listings(&self) -> &[Listing] {
        &self.steps
    }

    /// Whether the listings say of too many keys that they are digests.
    pub(super) fn knows_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns whether a listed record is one of these.
    pub(super) fn has(&self, id: &RecordId) -> bool {
        let is_of_key = |keys: &Vec<Key>| keys.iter().any(|key| is_of_key(id, key));
        let is_over = |run| {
            let may_go_on = |call: &RecordId| id.is_step_of(call, run);
            self.seen.contains(&run)
                && !self.kept.contains(&run)
                && !self.unreadable.iter().any(may_go_on)
        };
        is_in_run(id) && self.keys.as_ref().is_none_or(is_of_key) && runs_in(id).all(is_over)
    }
}

/// Finds the operations of calls and steps whose names are this one, or begin with it and `/`, or
/// the other way round: each may be a call of the other's steps.
async fn related(store: &AnyStore, operation: &str) -> Result<BTreeSet<String>, StoreError> {
    let name = |operation: &str| {
        operation
            .strip_prefix(PREFIX)
            .unwrap_or(operation)
            .to_owned()
    };
    let is_below = |below: &str, above: &str| {
        let rest = below.strip_prefix(above);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let own = name(operation);
    let mut found = BTreeSet::new();
    let mut after = None;
    while let Some(part) = store.count(after.as_ref()).await? {
        for count in part.counts {
            let other = name(&count.operation);
            if is_below(&own, &other) || is_below(&other, &own) {
                found.insert(String::from(count.operation));
            }
        }
        after = match part.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    Ok(found)
}

fn listings(operations: Option<&BTreeSet<String>>, keys: &[Option<KeyFilter>]) -> Vec<Listing> {
    let of_key = |key: &Option<KeyFilter>| {
        let mut listing = Listing::all().limit(BATCH);
        listing.key.clone_from(key);
        listing
    };
    let all = keys.iter().map(of_key);
    let Some(operations) = operations else {
        return all.collect();
    };
    all.flat_map(|listing| {
        operations
            .iter()
            .map(move |name| listing.clone().operation(name.as_str()))
    })
    .collect()
}

fn first_part(key: &Key) -> Option<KeyFilter> {
    let is_flat = key.as_str().len() <= MOST_FLAT;
    let part = key.first_part().filter(|_| is_flat)?;
    Some(KeyFilter::first_part(&part))
}

/// Looks at each record of a listing.
async fn each(
    store: &AnyStore,
    listing: &Listing,
    mut look: impl FnMut(Listed),
    mut fail: impl FnMut(RecordId),
) -> Result<(), StoreError> {
    let mut listing = listing.clone();
    loop {
        let page = store.list(&listing).await?;
        page.records.into_iter().for_each(&mut look);
        page.unreadable.into_iter().for_each(|found| fail(found.id));
        match page.next {
            Some(next) => listing = listing.after(next),
            None => return Ok(()),
        }
    }
}

/// Returns whether this is a step of a call with that key, of whichever operation and run.
fn is_of_key(step: &RecordId, key: &Key) -> bool {
    let name = step.name();
    let is_of = |operation: &str| {
        let call = RecordId::new(operation, key);
        call.is_some_and(|call| runs_in(step).any(|run| step.is_step_of(&call, run)))
    };
    let end = |run| step.key() == format!("{}:{run}", key.as_str());
    let mut outer = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
    outer.any(is_of) || runs_in(step).any(end)
}
