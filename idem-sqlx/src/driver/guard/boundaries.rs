//! The beginning and the end of a transaction.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use idem_core::StoreError;
use idem_core::StoreErrorKind::Unavailable;

use self::sqlx::{Error, Pool, Transaction};
use super::super::super::sqlx;
use super::super::dialect::{Dialect, ErrorClass};
use super::super::executor::errors::breaks_connection;
use super::super::transaction::{self, begin_with, of_database, sources};

/// The isolation level of a transaction.
///
/// SQLite has one level, which is serializable: there, each of these is that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// `READ COMMITTED`.
    ReadCommitted,
    /// `REPEATABLE READ`.
    RepeatableRead,
    /// `SERIALIZABLE`.
    Serializable,
}

/// Begins a transaction with this statement, or with the database's own.
pub(super) async fn begin<D: Dialect>(
    pool: &Pool<D::Db>,
    statement: Option<&'static str>,
) -> Result<Transaction<'static, D::Db>, Error> {
    begin_with::<D>(pool, statement).await.map_err(unbegun)
}

/// Says why there is no transaction. The sources of the store's error are kept.
fn unbegun(error: StoreError) -> Error {
    Error::Io(io::Error::new(io::ErrorKind::NotConnected, error))
}

/// Passes the error of a step on. The sources of the store's error are kept.
pub(super) fn failed(error: StoreError) -> Error {
    Error::Io(io::Error::other(error))
}

/// Whether an error says that the connection of its transaction leads to a server that has become
/// read-only, or never takes its statements again.
pub(super) fn is_stale<D: Dialect>(error: &(dyn StdError + 'static)) -> bool {
    let is_one = |error| matches!(D::classify(error), ErrorClass::Stale(Unavailable, _));
    sources(error).any(|error| of_database(error).is_some_and(is_one))
}

pub(super) async fn roll_back<D: Dialect>(mut tx: Transaction<'static, D::Db>) {
    let _ = transaction::roll_back::<D>(&mut tx).await;
}

pub(super) async fn commit<D: Dialect>(tx: Transaction<'static, D::Db>) -> Result<(), Error> {
    match tx.commit().await {
        Err(error) if breaks_connection::<D>(&error) => Err(Error::Io(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            UnknownCommit(error),
        ))),
        ended => ended,
    }
}

/// The connection was lost during `COMMIT`.
#[derive(Debug)]
struct UnknownCommit(Error);

impl fmt::Display for UnknownCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the connection was lost during COMMIT ({}), so the transaction may be committed; call \
             again with the same key if it has a guarded call, else read its rows",
            self.0
        )
    }
}

impl StdError for UnknownCommit {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}
