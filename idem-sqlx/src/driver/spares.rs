//! Connections that a store keeps between its steps.
//!
//! sqlx tests each connection that is returned to its pool: one more message to the server for each
//! step, in one more task. If the pool is the store's own, a step leaves its connection to the next
//! one instead.

use std::sync::{Mutex, MutexGuard, PoisonError};

use self::sqlx::Database;
use self::sqlx::pool::PoolConnection;
use super::super::sqlx;

/// The connections that no step uses now.
pub(crate) struct Spares<Db: Database> {
    /// `None`: the pool is the application's, and no connection is kept from it.
    stock: Option<Mutex<Stock<Db>>>,
}

struct Stock<Db: Database> {
    /// The one that was used last comes last, and is taken first.
    idle: Vec<PoolConnection<Db>>,
    /// How many steps wait for the pool.
    wanted: usize,
}

/// A step that asks the pool. While it lives, connections are returned there.
pub(crate) struct Wanted<'s, Db: Database>(&'s Spares<Db>);

impl<Db: Database> Spares<Db> {
    pub(crate) fn new(pool_is_own: bool) -> Self {
        let stock = || Mutex::new(Stock { idle: Vec::new(), wanted: 0 });
        Self { stock: pool_is_own.then(stock) }
    }

    /// Takes a connection, or says that one is wanted from the pool.
    pub(crate) fn take(&self) -> Result<PoolConnection<Db>, Wanted<'_, Db>> {
        if let Some(mut stock) = self.lock() {
            if let Some(connection) = stock.idle.pop() {
                return Ok(connection);
            }
            // Under the lock: a step that ends from here on returns its connection to the pool.
            stock.wanted += 1;
        }
        Err(Wanted(self))
    }

    /// Keeps a connection, unless it must go to the pool.
    pub(crate) fn keep(&self, connection: PoolConnection<Db>) -> Option<PoolConnection<Db>> {
        match self.lock() {
            Some(mut stock) if stock.wanted == 0 => {
                stock.idle.push(connection);
                None
            }
            _ => Some(connection),
        }
    }

    /// Takes all of them.
    pub(crate) fn take_all(&self) -> Vec<PoolConnection<Db>> {
        self.lock().map(|mut stock| std::mem::take(&mut stock.idle)).unwrap_or_default()
    }

    fn lock(&self) -> Option<MutexGuard<'_, Stock<Db>>> {
        // Nothing that could panic runs under the lock.
        self.stock.as_ref().map(|stock| stock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<Db: Database> Drop for Spares<Db> {
    fn drop(&mut self) {
        for connection in self.take_all() {
            // Closed: returned to the pool, it would be tested first, in a runtime that may be gone.
            drop(connection.detach());
        }
    }
}

impl<Db: Database> Drop for Wanted<'_, Db> {
    fn drop(&mut self) {
        if let Some(mut stock) = self.0.lock() {
            stock.wanted -= 1;
        }
    }
}
