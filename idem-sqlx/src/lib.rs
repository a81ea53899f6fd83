#![doc = include_str!("docs.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The stores are written once, and compiled for each version of sqlx.
#![allow(clippy::duplicate_mod)]

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod columns;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod table;
#[cfg(feature = "sqlx-08")]
pub mod v08;
mod v09;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod waiters;

pub use crate::v09::*;
