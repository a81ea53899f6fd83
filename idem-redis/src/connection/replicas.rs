//! Acknowledgements of replicas: one `WAIT` for all callers who ask at the same time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::connection::command::millis;

/// The time beyond its own timeout within which a `WAIT` must be answered.
const GRACE: Duration = Duration::from_secs(1);

/// How many replicas must acknowledge a write, and in what time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// The `WAIT`s on one connection.
///
/// The server runs nothing else on a connection that waits. So one `WAIT` is sent at a time, and it
/// serves all callers who wrote before it was sent.
pub(crate) struct Acknowledgements {
    /// The runtime of the connection. A caller's may end or be blocked while other callers wait.
    runtime: Handle,
    /// The `WAIT` that has not been sent yet.
    next: Mutex<Option<Receiver>>,
    turn: tokio::sync::Mutex<()>,
}

type Receiver = watch::Receiver<Option<RedisResult<u32>>>;

impl Acknowledgements {
    /// For a connection that lives in the current tokio runtime.
    pub(crate) fn new() -> Self {
        Self {
            runtime: Handle::current(),
            next: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Returns how many replicas have what was written on the connection before this call.
    pub(crate) async fn count(
        self: &Arc<Self>,
        connection: &MultiplexedConnection,
        replicas: Replicas,
    ) -> RedisResult<u32> {
        let mut answer = self.join(connection, replicas);
        match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(|| Err(no_answer())),
            Err(_) => Err(no_answer()),
        }
    }

    fn join(self: &Arc<Self>, connection: &MultiplexedConnection, replicas: Replicas) -> Receiver {
        let (sender, receiver) = watch::channel(None);
        {
            let mut next = self.lock();
            // A closed channel has no answer: its task ended with its runtime.
            if let Some(next) = &*next
                && next.has_changed().is_ok()
            {
                return next.clone();
            }
            *next = Some(receiver.clone());
        }
        // Runs in a task, so that it continues if the first caller is dropped. The task starts
        // without the lock, because a runtime that has ended drops it here.
        self.runtime
            .spawn(wait(Arc::clone(self), connection.clone(), replicas, sender));
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Option<Receiver>> {
        // Nothing that could panic runs under the lock.
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn wait(
    all: Arc<Acknowledgements>,
    mut connection: MultiplexedConnection,
    replicas: Replicas,
    answer: watch::Sender<Option<RedisResult<u32>>>,
) {
    let _turn = all.turn.lock().await;
    // Callers from here on may have written after this `WAIT` was sent: they share the next one.
    *all.lock() = None;
    let mut command = redis::cmd("WAIT");
    command.arg(replicas.count).arg(millis(replicas.timeout));
    let outcome = timeout(
        replicas.timeout + GRACE,
        command.query_async(&mut connection),
    )
    .await;
    answer.send_replace(Some(outcome.unwrap_or_else(|_| Err(no_answer()))));
}

fn no_answer() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Checks the number of acknowledgements. With too few, the write is at the master and may be lost.
pub(crate) fn check_count(
    server: &str,
    answer: RedisResult<u32>,
    wanted: Replicas,
) -> Result<(), StoreError> {
    let Replicas { count, timeout } = wanted;
    match answer {
        Ok(acknowledged) if acknowledged >= count => Ok(()),
        Ok(acknowledged) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({server}): {acknowledged} of {count} replicas acknowledged the record \
                 within {timeout:?}, so a fail-over might lose it; see that the replicas run and \
                 keep up (INFO replication)"
            ),
        )),
        // Whatever the error is, the record was written before.
        Err(error) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({server}): whether replicas have the record could not be found out: {error}"
            ),
        )
        .with_source(error)),
    }
}
