//! An operator, who settles what no call goes on with, and replaces what was settled.

use idem_core::record::{Record, RecordState};
use idem_core::store::admin::{Intervention, OnIntervention};

use crate::caller::Id;
use crate::mutant::Mutant;
use crate::promise::Onlooker;
use crate::slot::{Entry, Slot, encoded};
use crate::store::Store;
use crate::ticks::{duration, ticks};

/// An operator's decision about the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// To settle it.
    Settle,
    /// To replace what was settled.
    Replace,
}

impl Store {
    /// Carries out a decision about the record that is there, in one step. `None`: it is refused.
    pub(crate) fn intervene(
        &self,
        slot: &mut Option<Slot>,
        seen: &mut Onlooker,
        decision: Decision,
    ) -> Option<()> {
        let found = (*slot)?;
        let record = found.entry.record();
        let mut intervention = self.intervention(&record, decision)?.by("operator", "");
        if self.is(Mutant::SettlesAlive) {
            intervention = intervention.force(true);
        }
        let (written, left, then_done) =
            match record.on_intervention(&intervention, duration(found.left)) {
                OnIntervention::Put {
                    if_ran_out: true, ..
                } if found.is_alive() => return None,
                OnIntervention::Put {
                    record, expires_in, ..
                } => (record, ticks(expires_in), 0),
                OnIntervention::Replace { record } => (record, found.left, found.then_done),
                OnIntervention::Answer(_) | OnIntervention::Remove { .. } => return None,
            };
        let entry = Entry::from(&written);
        *slot = Some(Slot {
            entry,
            left,
            then_done,
        });
        match decision {
            Decision::Settle => seen.sees_recorded(Id::SETTLED, left, left),
            Decision::Replace => seen.sees_replaced(Id::SETTLED, Id::REPLACED),
        }
        Some(())
    }

    fn intervention(&self, record: &Record, decision: Decision) -> Option<Intervention> {
        let id = self.id.clone();
        match (decision, record) {
            (Decision::Settle, Record::Released { .. }) => {
                let settle = Intervention::settle(id, encoded(Id::SETTLED))
                    .only_state(RecordState::Released);
                Some(settle.keep_for(duration(self.bounds.ttl)))
            }
            (Decision::Settle, _) => Some(
                Intervention::settle(id, encoded(Id::SETTLED)).keep_for(duration(self.bounds.ttl)),
            ),
            (Decision::Replace, Record::Committed { outcome, .. }) => {
                let seen = if self.is(Mutant::ReplacesAnything) {
                    outcome.clone()
                } else {
                    encoded(Id::SETTLED)
                };
                Some(Intervention::replace(id, seen, encoded(Id::REPLACED)))
            }
            (Decision::Replace, _) => None,
        }
    }
}
