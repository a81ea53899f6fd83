//! The operator of a change by hand, and the reason.

use std::fmt;

use crate::base::printable::Printable;
use crate::error::{ConfigError, Error};
use crate::record::{MAX_WHO, MAX_WHY, RecordId, RecordInfo};
use crate::runtime::Runtime;
use crate::store::StoreHandle;
use crate::store::trail::{Decision, Ended, Noted, Trail};

/// Who made a change by hand, and why. `Display` escapes what could end or reverse a line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct By {
    pub(crate) who: String,
    pub(crate) why: String,
}

impl By {
    /// Refuses texts that are too long for a record.
    pub(crate) fn new(who: &str, why: &str) -> Result<Self, ConfigError> {
        if who.is_empty() || who.len() > MAX_WHO || why.len() > MAX_WHY {
            return Err(ConfigError::new(format!(
                "`audit` takes who, 1 to {MAX_WHO} bytes, and why, up to {MAX_WHY} bytes; they \
                 have {} and {}",
                who.len(),
                why.len()
            )));
        }
        Ok(Self {
            who: who.to_owned(),
            why: why.to_owned(),
        })
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}: {}", Printable(&self.who), Printable(&self.why))
    }
}

/// A change by hand, and its entry in the trail if the caller named who makes it.
pub(crate) struct Noting(Option<(StoreHandle, Noted)>);

impl Noting {
    /// Writes the entry, before anything is changed.
    pub(crate) async fn begin(
        runtime: &Runtime,
        id: &RecordId,
        name: &str,
        found: Option<&RecordInfo>,
        by: Option<&By>,
    ) -> Result<Self, Error> {
        let Some(By { who, why }) = by else {
            return Ok(Self(None));
        };
        let store = runtime.store.handle();
        let decision = Decision::about(id, name, found);
        let noted = Trail::new(&store)
            .note(&decision, who, why)
            .await
            .map_err(|error| runtime.failed(id, error))?;
        Ok(Self(Some((store, noted))))
    }

    /// Notes the result: whether there was a record, or why it was not changed. If an error leaves
    /// that open, notes nothing.
    pub(crate) async fn end(self, result: Result<bool, &Error>) {
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
