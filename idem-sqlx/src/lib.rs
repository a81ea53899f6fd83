#![doc = include_str!("docs.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The stores are written once, and compiled for each version of sqlx.
#![allow(clippy::duplicate_mod)]

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod row;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod table;
#[cfg(feature = "sqlx-08")]
pub mod v08;
#[cfg(feature = "sqlx-09")]
mod v09;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod waiters;

#[cfg(feature = "sqlx-09")]
pub use crate::v09::*;

#[cfg(not(any(feature = "sqlx-08", feature = "sqlx-09")))]
compile_error!(
    "idem-sqlx: enable the feature `sqlx-09` or `sqlx-08`, the version of sqlx that your \
     application uses"
);
