//! The databases.

use clap::ValueEnum;

use crate::report::{Goal, Kind};

/// The place of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Database {
    Postgres,
    Mariadb,
    /// The real one.
    Mysql,
    Sqlite,
}

impl Database {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Mariadb => "MariaDB",
            Self::Mysql => "MySQL",
            Self::Sqlite => "SQLite",
        }
    }

    /// What a commit waits for, as the servers of the tests run.
    pub(crate) fn durability(self) -> &'static str {
        match self {
            Self::Postgres => "fsync = off",
            Self::Mariadb | Self::Mysql => "innodb_flush_log_at_trx_commit = 2",
            Self::Sqlite => "synchronous = FULL",
        }
    }

    /// The most that a call may take, over the slim floor.
    pub(crate) fn time(self, kind: Kind) -> Goal {
        Goal::AtMost(match (self, kind) {
            (Self::Postgres | Self::Sqlite, Kind::First) => 1.10,
            (Self::Postgres | Self::Sqlite, Kind::Replay) => 1.30,
            (Self::Mariadb | Self::Mysql, Kind::First) => 1.15,
            (Self::Mariadb | Self::Mysql, Kind::Replay) => 1.40,
        })
    }

    /// The least share of the slim floor's rate. A file has one writer.
    pub(crate) fn rate(self, kind: Kind) -> Option<Goal> {
        let least = match (self, kind) {
            (Self::Postgres, Kind::First) => 0.95,
            (Self::Postgres, Kind::Replay) => 0.85,
            (Self::Mariadb | Self::Mysql, Kind::First) => 0.90,
            (Self::Mariadb | Self::Mysql, Kind::Replay) => 0.80,
            (Self::Sqlite, _) => return None,
        };
        Some(Goal::AtLeast(least))
    }
}
