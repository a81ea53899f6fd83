//! Which version of its outcome's type an operation has, and how earlier versions are read.

use std::fmt;
use std::sync::Arc;

use crate::outcome::codec::{AnyCodec, CodecFailure};
use crate::record::{Encoded, RecordId};

/// Reads an outcome of an earlier version, and writes it as one of the current version.
pub(crate) type Upgrade =
    Arc<dyn Fn(&AnyCodec, &RecordId, u64, &Encoded) -> Result<Encoded, CodecFailure> + Send + Sync>;

/// The versions of an operation's outcome. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Versions {
    pub(crate) current: u32,
    upgrades: Arc<[(u32, Upgrade)]>,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            current: 1,
            upgrades: Arc::from([]),
        }
    }
}

impl Versions {
    /// Sets how outcomes of an earlier version are read.
    pub(crate) fn upgrade(&mut self, from: u32, upgrade: Upgrade) {
        self.upgrades = self
            .upgrades
            .iter()
            .cloned()
            .chain([(from, upgrade)])
            .collect();
    }

    /// Refuses versions that no outcome can have.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.current == 0 {
            return Err(
                "`outcome_version` is zero; versions count from 1, which is that of an operation \
                 that states none"
                    .into(),
            );
        }
        match self
            .upgrades
            .iter()
            .find(|(from, _)| *from == 0 || *from >= self.current)
        {
            None => Ok(()),
            Some((from, _)) => Err(format!(
                "it upgrades outcomes of version {from}, and the current version is {}; only an \
                 earlier one, from 1 on, can be upgraded: raise `outcome_version`",
                self.current
            )),
        }
    }

    /// Upgrades an outcome to the current version. `None` if it is current.
    pub(crate) fn upgraded(
        &self,
        codec: &AnyCodec,
        id: &RecordId,
        attempt: u64,
        outcome: &Encoded,
    ) -> Result<Option<Encoded>, CodecFailure> {
        let found = outcome.version();
        let current = self.current;
        if found == current || outcome.is_error {
            return Ok(None);
        }
        if found > current {
            return Err(format!(
                "it was written as version {found} of its type, and this process knows versions up \
                 to {current}; deploy the newer version to all processes"
            )
            .into());
        }
        match self.upgrades.iter().find(|(from, _)| *from == found) {
            Some((_, upgrade)) => upgrade(codec, id, attempt, outcome)
                .map(Some)
                .map_err(|error| {
                    format!(
                        "it was written as version {found} of its type, and cannot be read as the \
                    upgrade takes it: {error}"
                    )
                    .into()
                }),
            None => Err(format!(
                "it was written as version {found} of its type, and this operation has version \
                 {current} without an upgrade from there; write `upgrade({found} => ..)`"
            )
            .into()),
        }
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from: Vec<_> = self.upgrades.iter().map(|(from, _)| from).collect();
        f.debug_struct("Versions")
            .field("current", &self.current)
            .field("upgrades", &from)
            .finish()
    }
}
