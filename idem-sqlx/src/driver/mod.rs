//! The stores, written once for every version of sqlx that is supported.

pub(crate) mod dialect;
pub(crate) mod executor;
pub mod guard;
pub(crate) mod store;
pub(crate) mod transaction;

#[cfg(feature = "mysql")]
pub use self::store::{MySqlStore, MySqlStoreBuilder};
#[cfg(feature = "postgres")]
pub use self::store::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "sqlite")]
pub use self::store::{SqliteStore, SqliteStoreBuilder};
