//! Connections that a store keeps between its steps.
//!
//! sqlx tests each connection that is returned to its pool. That costs one more message to the
//! server, and one more task, for each step. If the pool is the store's own, the next step takes
//! over the connection instead.

use std::sync::{Mutex, MutexGuard, PoisonError};

use self::sqlx::Database;
use self::sqlx::pool::PoolConnection;
use super::super::super::sqlx;

/// The connections that no step uses now.
pub(crate) struct IdleConnections<Db: Database> {
    /// `None`: the pool is the application's, and the store keeps none of its connections.
    state: Option<Mutex<State<Db>>>,
}

struct State<Db: Database> {
    /// The most recently used connection comes last, and is taken first.
    idle: Vec<PoolConnection<Db>>,
    /// How many steps wait for the pool.
    waiters: usize,
}

/// Counts a step that waits for the pool. While it lives, connections are returned there.
pub(crate) struct PoolWaiter<'s, Db: Database>(&'s IdleConnections<Db>);

impl<Db: Database> IdleConnections<Db> {
    pub(crate) fn new(pool_is_own: bool) -> Self {
        let state = || {
            Mutex::new(State {
                idle: Vec::new(),
                waiters: 0,
            })
        };
        Self {
            state: pool_is_own.then(state),
        }
    }

    /// Takes a connection. If there is none, counts the caller as one that waits for the pool.
    pub(crate) fn try_take(&self) -> Result<PoolConnection<Db>, PoolWaiter<'_, Db>> {
        if let Some(mut state) = self.lock() {
            if let Some(connection) = state.idle.pop() {
                return Ok(connection);
            }
            // Under the lock, so that each step that ends from here on returns its connection to
            // the pool.
            state.waiters += 1;
        }
        Err(PoolWaiter(self))
    }

    /// Keeps a connection, or gives it back if a step waits for the pool.
    pub(crate) fn keep(&self, connection: PoolConnection<Db>) -> Option<PoolConnection<Db>> {
        match self.lock() {
            Some(mut state) if state.waiters == 0 => {
                state.idle.push(connection);
                None
            }
            _ => Some(connection),
        }
    }

    /// Takes all connections.
    pub(crate) fn take_all(&self) -> Vec<PoolConnection<Db>> {
        self.lock()
            .map(|mut state| std::mem::take(&mut state.idle))
            .unwrap_or_default()
    }

    fn lock(&self) -> Option<MutexGuard<'_, State<Db>>> {
        // Nothing that could panic runs under the lock.
        self.state
            .as_ref()
            .map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<Db: Database> Drop for IdleConnections<Db> {
    fn drop(&mut self) {
        for connection in self.take_all() {
            // Close it. The pool would test it first, in a runtime that may be gone.
            drop(connection.detach());
        }
    }
}

impl<Db: Database> Drop for PoolWaiter<'_, Db> {
    fn drop(&mut self) {
        if let Some(mut state) = self.0.lock() {
            state.waiters -= 1;
        }
    }
}
