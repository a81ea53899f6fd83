//! The steps that a purge removes after their calls.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use idem_core::record::{Owner, RecordId, is_step};
use idem_core::store::admin::{KeyFilter, Listing, Page};
use idem_core::{Key, StoreError};

use super::keys_of;
use super::steps::{PREFIX, runs_in};
use crate::args::Purge;
use crate::store::AnyStore;

/// The runs of the calls that a purge has met.
#[derive(Default)]
pub(super) struct PurgedCalls {
    pub(super) removed: HashMap<Owner, RecordId>,
    pub(super) kept: HashSet<Owner>,
    /// Calls that were kept, of which nobody knows the run.
    pub(super) unknown: Vec<RecordId>,
}

/// Which records of steps a purge removes.
pub(super) struct PurgedSteps {
    calls: PurgedCalls,
    /// The runs that had steps before the calls were looked at. A run that began later is not known
    /// to be over.
    seen: HashSet<Owner>,
    /// All those that no kept call needs, or else those of the removed calls alone.
    is_all: bool,
    /// Only those of calls with one of these keys.
    keys: Option<Vec<Key>>,
    /// How many steps were met that are not removed.
    pub(super) left: Cell<u64>,
}

/// Returns whether this is the record of a step, or says that the run of steps has ended.
pub(super) fn is_in_run(id: &RecordId) -> bool {
    runs_in(id).next().is_some()
}

impl PurgedSteps {
    pub(super) fn from_args(args: &Purge) -> Self {
        let names_steps = args.operation.as_deref().is_some_and(is_step);
        // Others may be steps of calls that were not looked at.
        let is_narrow =
            args.operation.is_some() || args.state.is_some() || args.older_than.is_some();
        let key = args.keys.key.as_deref().filter(|key| !key.ends_with('*'));
        Self {
            calls: PurgedCalls::default(),
            seen: HashSet::new(),
            is_all: names_steps || !is_narrow,
            keys: key.filter(|_| !names_steps).map(keys_of),
            left: Cell::default(),
        }
    }

    /// Looks which runs have steps, before the calls are looked at.
    pub(super) async fn look(
        &mut self,
        store: &AnyStore,
        args: &Purge,
        listings: &[Listing],
    ) -> Result<(), StoreError> {
        if !self.is_all {
            return Ok(());
        }
        for listing in self.listings(store, args, listings).await? {
            let seen = &mut self.seen;
            each(store, listing, |page| {
                seen.extend(page.records.iter().flat_map(|step| runs_in(&step.id)));
            })
            .await?;
        }
        // Steps that are purged by themselves: nobody else looks at their calls.
        let step = args.operation.as_deref().filter(|name| is_step(name));
        let around = step.and_then(|step| step.strip_prefix(PREFIX)?.rsplit_once('/'));
        if let Some((call, _)) = around {
            for operation in [call.to_owned(), [PREFIX, call].concat()] {
                let PurgedCalls { kept, unknown, .. } = &mut self.calls;
                let listing = Listing::all().operation(operation);
                each(store, listing, |page| {
                    kept.extend(page.records.iter().filter_map(|call| call.info.run));
                    unknown.extend(page.unreadable.iter().map(|call| call.id.clone()));
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Notes which calls were removed, and which were not.
    pub(super) fn note(&mut self, calls: PurgedCalls) {
        self.calls.removed.extend(calls.removed);
        self.calls.kept.extend(calls.kept);
        self.calls.unknown.extend(calls.unknown);
    }

    /// Lists at least these steps.
    pub(super) async fn listings(
        &self,
        store: &AnyStore,
        args: &Purge,
        listings: &[Listing],
    ) -> Result<Vec<Listing>, StoreError> {
        let PurgedCalls {
            removed,
            kept,
            unknown,
        } = &self.calls;
        if !self.is_all && removed.is_empty() && kept.is_empty() && unknown.is_empty() {
            return Ok(Vec::new());
        }
        let mut listings = listings.to_vec();
        if !self.is_all {
            listings.truncate(1);
            for listing in &mut listings {
                listing.state = None;
                listing.older_than = None;
            }
            if let Some(operation) = &args.operation {
                let names = step_operations(store, operation).await?;
                let of = |name: String| listings[0].clone().operation(name);
                listings = names.into_iter().map(of).collect();
            }
        }
        let Some(keys) = &self.keys else {
            return Ok(listings);
        };
        // The key of a step has more parts, or begins with a digest.
        let filter = |key: &Key| {
            let is_flat = key.as_str().len() <= RecordId::MAX_KEY_IN_STEPS;
            let part = key.first_part().filter(|_| is_flat)?;
            Some(KeyFilter::first_part(&part))
        };
        let mut of_keys = Vec::new();
        for mut listing in listings {
            for key in keys {
                listing.key = filter(key);
                of_keys.push(listing.clone());
            }
        }
        Ok(of_keys)
    }

    /// Whether the listings say of too many keys that they are digests.
    pub(super) fn knows_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// Returns whether a listed record is one of these, and counts it if it is another step.
    pub(super) fn has(&self, id: &RecordId) -> bool {
        let has = self.is_removed(id);
        self.left
            .set(self.left.get() + u64::from(!has && is_in_run(id)));
        has
    }

    fn is_removed(&self, id: &RecordId) -> bool {
        let PurgedCalls {
            removed,
            kept,
            unknown,
        } = &self.calls;
        if !is_in_run(id) {
            return false;
        }
        let is_of_key = |keys: &Vec<Key>| keys.iter().any(|key| is_of_key(id, key));
        if !self.is_all {
            // A run may also be in the key of another call, if a client has sent that.
            let is_of =
                |call: &RecordId, run| id.is_step_of(call, run) || *id == call.beside().end_of(run);
            return runs_in(id).any(|run| removed.get(&run).is_some_and(|call| is_of(call, run)));
        }
        self.keys.as_ref().is_none_or(is_of_key)
            && runs_in(id).all(|run| {
                self.seen.contains(&run)
                    && !kept.contains(&run)
                    && !unknown.iter().any(|call| id.is_step_of(call, run))
            })
    }
}

/// Looks at each page of a listing.
async fn each(
    store: &AnyStore,
    mut listing: Listing,
    mut look: impl FnMut(&Page),
) -> Result<(), StoreError> {
    loop {
        let page = store.list(&listing).await?;
        look(&page);
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

/// Finds the operations of the steps of an operation's calls, as the store counts them. Those of an
/// operation whose name begins with this one and `/` are among them.
async fn step_operations(store: &AnyStore, operation: &str) -> Result<Vec<String>, StoreError> {
    let own = [PREFIX, operation].concat();
    let is_step = |name: &str| {
        let below = name.strip_prefix(&own);
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    };
    let mut names = HashSet::new();
    let mut after = None;
    while let Some(part) = store.count(after.as_ref()).await? {
        let counted = part.counts.into_iter().map(|count| count.operation);
        names.extend(counted.filter(|name| is_step(name)).map(String::from));
        after = match part.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    Ok(names.into_iter().collect())
}
