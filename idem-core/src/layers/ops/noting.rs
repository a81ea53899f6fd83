//! The trail of a change by hand.

use super::trail::{Decision, Ended, Noted, Trail};
use crate::adapter::engine::Runtime;
use crate::record::{By, MAX_WHO, MAX_WHY, RecordId, RecordInfo};
use crate::store::StoreHandle;
use crate::{ConfigError, Error};

/// Refuses texts that are too long for a record.
pub(super) fn by(who: &str, why: &str) -> Result<By, ConfigError> {
    if who.is_empty() || who.len() > MAX_WHO || why.len() > MAX_WHY {
        return Err(ConfigError::new(format!(
            "`audit` takes who, 1 to {MAX_WHO} bytes, and why, up to {MAX_WHY} bytes; they \
             have {} and {}",
            who.len(),
            why.len()
        )));
    }
    Ok(By {
        who: who.to_owned(),
        why: why.to_owned(),
    })
}

/// A change by hand, and its entry in the trail if the caller named who makes it.
pub(super) struct Noting(Option<(StoreHandle, Noted)>);

impl Noting {
    /// Writes the entry, before anything is changed.
    pub(super) async fn begin(
        runtime: &Runtime,
        id: &RecordId,
        name: &str,
        found: Option<&RecordInfo>,
        by: Option<&By>,
    ) -> Result<Self, Error> {
        let Some(By { who, why }) = by else {
            return Ok(Self(None));
        };
        let store = StoreHandle(runtime.store.clone());
        let decision = Decision::about(id, name, found);
        let noted = Trail::new(&store)
            .note(&decision, who, why)
            .await
            .map_err(|error| runtime.failed(id, error))?;
        Ok(Self(Some((store, noted))))
    }

    /// Notes the result: whether there was a record, or why it was not changed. If an error leaves
    /// that open, notes nothing.
    pub(super) async fn end(self, result: Result<bool, &Error>) {
        let Some((store, noted)) = self.0 else { return };
        let ended = match result {
            Ok(true) => Ended::Done { records: 1 },
            Ok(false) => Ended::refused("there was nothing to change"),
            Err(Error::Store { .. } | Error::LeaseLost { .. } | Error::Codec { .. }) => return,
            Err(error) => Ended::refused(error.code()),
        };
        Trail::new(&store).end_logged(noted, &ended).await;
    }
}
