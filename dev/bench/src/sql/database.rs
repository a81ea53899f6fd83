//! The databases.

use clap::ValueEnum;

/// The place of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Database {
    Postgres,
    Mariadb,
    Sqlite,
}

impl Database {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Mariadb => "MariaDB",
            Self::Sqlite => "SQLite",
        }
    }
}
