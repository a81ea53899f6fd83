//! The error of bodies.

use idem_core::{Error, ErrorAction};
use idem_sqlx::sqlx;
use serde::{Deserialize, Serialize};

/// With the error of a driver.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) enum FailedBy<E> {
    Declined,
    Down,
    #[serde(skip)]
    Idem(Error),
    #[serde(skip)]
    Sql(E),
}

pub(crate) type Failed = FailedBy<sqlx::Error>;

impl<E: std::fmt::Debug> std::fmt::Display for FailedBy<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl<E: std::error::Error + 'static> std::error::Error for FailedBy<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Idem(error) => Some(error),
            Self::Sql(error) => Some(error),
            Self::Declined | Self::Down => None,
        }
    }
}

impl<E> From<Error> for FailedBy<E> {
    fn from(error: Error) -> Self {
        Self::Idem(error)
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<tokio_postgres::Error> for FailedBy<tokio_postgres::Error> {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// The policy for them.
pub(crate) fn action<E>(error: &FailedBy<E>) -> ErrorAction {
    if matches!(error, FailedBy::Declined) {
        ErrorAction::Keep
    } else {
        ErrorAction::Release
    }
}
