//! The operator of a change by hand, and the reason.

use std::fmt;

use crate::base::printable::Printable;
use crate::error::ConfigError;
use crate::record::{MAX_WHO, MAX_WHY};

/// Who, and why. As a text for logs, without what could end or reverse a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct By {
    pub(crate) who: String,
    pub(crate) why: String,
}

impl By {
    /// Refuses what a record has no room for.
    pub(crate) fn new(who: &str, why: &str) -> Result<Self, ConfigError> {
        if who.is_empty() || who.len() > MAX_WHO || why.len() > MAX_WHY {
            return Err(ConfigError::new(format!(
                "`audit` takes who, 1 to {MAX_WHO} bytes, and why, up to {MAX_WHY} bytes; they have {} and {}",
                who.len(),
                why.len()
            )));
        }
        Ok(Self { who: who.to_owned(), why: why.to_owned() })
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}: {}", Printable(&self.who), Printable(&self.why))
    }
}
