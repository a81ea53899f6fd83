//! The stores, written once for every version of sqlx that is supported.

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod admin;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod clock;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod core;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod dialect;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod fault;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub mod guard;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod limited;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod opening;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod spares;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod steps;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod store;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sweep;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod transaction;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod turn;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod wait;

tests_of_one! {
    #[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
    mod jumps;
    #[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
    mod woken;
    #[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
    mod wrong;
}

#[cfg(feature = "mysql")]
pub use self::mysql::{MySqlStore, MySqlStoreBuilder};
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteStore, SqliteStoreBuilder};

/// Reads a row whose columns are in the order of `columns::Row`.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
macro_rules! read_row {
    ($row:expr) => {{
        use super::super::sqlx::Row as _;
        let row = $row;
        Ok::<_, super::super::sqlx::Error>($crate::columns::Row {
            state: row.try_get(0)?,
            attempt: row.try_get(1)?,
            owner: row.try_get(2)?,
            origin: row.try_get(3)?,
            lease: row.try_get(4)?,
            hold: row.try_get(5)?,
            left: row.try_get(6)?,
            fade: row.try_get(7)?,
            fingerprint: row.try_get(8)?,
            is_error: row.try_get(9)?,
            codec: row.try_get(10)?,
            outcome: row.try_get(11)?,
            questions: row.try_get(12)?,
            took_over: row.try_get(13)?,
            revision: row.try_get(14)?,
        })
    }};
}
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use read_row;

/// Reads the rows of a listing: after those columns, the operation, the key and the expiry.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
macro_rules! read_window {
    ($rows:expr) => {
        $rows
            .into_iter()
            .map(|row| {
                use super::super::sqlx::Row as _;
                let place = super::dialect::Position {
                    operation: row.try_get(15)?,
                    key: row.try_get(16)?,
                    expires_at: row.try_get(17)?,
                };
                Ok(super::dialect::Seen { place, row: super::read_row!(row)? })
            })
            .collect()
    };
}
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use read_window;
