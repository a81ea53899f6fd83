//! Commands of many callers in one message.
//!
//! Each message to a connection's task costs a place in its line, a wake-up, often a write to the socket of its own, and a way back for
//! the answer. Where many callers are busy at the same time, they put their commands together instead, and one message carries
//! them all. A command never waits for others to come: a caller who finds few under way sends at once, and what has come
//! together is sent as soon as the callers that are ready to run have run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// With fewer commands under way, each is sent by itself.
const FEW: usize = 4;
/// The most in one message. The server answers a message as a whole, so a longer one would only keep its first answers back.
const MOST: usize = 256;

/// The commands of one connection that are not sent yet. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Batches(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The connection's own: a caller's may be held up by a blocked thread, or driven by nobody, while callers of others wait.
    runtime: Handle,
}

/// A command, and who waits for its answer.
type Waiting = (Cmd, oneshot::Sender<RedisResult<Value>>);

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// A task is about to send what waits.
    is_scheduled: bool,
    /// How many were sent and not answered.
    under_way: usize,
}

/// The task that is about to send what waits. It may be dropped with its tokio runtime before it does.
struct Scheduled {
    batches: Batches,
    is_due: bool,
}

/// Commands that were sent, until they are answered, or nobody waits for the answer.
struct UnderWay<'a>(&'a Batches, usize);

impl Batches {
    /// For a connection that lives in the tokio runtime in which this is called.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), runtime: Handle::current() }))
    }

    /// Sends a command, with others or by itself. Dropped, it may be sent all the same.
    pub(crate) async fn send(&self, connection: &mut MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
        let (answer, is_first) = {
            let mut state = self.lock();
            if state.under_way < FEW && state.waiting.is_empty() {
                state.under_way += 1;
                (Err(command), false)
            } else {
                let (sender, answer) = oneshot::channel();
                state.waiting.push((command, sender));
                (Ok(answer), !std::mem::replace(&mut state.is_scheduled, true))
            }
        };
        if is_first {
            // A task, so that it goes on when this caller is dropped. Not under the lock: a runtime that shuts down drops it at once.
            let sending = Scheduled { batches: self.clone(), is_due: true };
            self.0.runtime.spawn(sending.send_waiting(connection.clone()));
        }
        match answer {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
            Err(command) => {
                let _under_way = UnderWay(self, 1);
                // In a box, which is what this future would have to hold else.
                match connection.req_packed_command(&command).await {
                    Ok(Value::ServerError(error)) => Err(RedisError::from(error)),
                    outcome => outcome,
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduled {
    async fn send_waiting(mut self, connection: MultiplexedConnection) {
        // Behind all callers that can run now.
        tokio::task::yield_now().await;
        let waiting = {
            let mut state = self.batches.lock();
            (state.is_scheduled, self.is_due) = (false, false);
            // Whose time limit has passed meanwhile has gone.
            state.waiting.retain(|(_, caller)| !caller.is_closed());
            state.under_way += state.waiting.len();
            std::mem::take(&mut state.waiting)
        };
        let _under_way = UnderWay(&self.batches, waiting.len());
        let mut waiting = waiting.into_iter();
        let messages = std::iter::from_fn(|| {
            let message: Vec<_> = waiting.by_ref().take(MOST).collect();
            (!message.is_empty()).then(|| send_together(connection.clone(), message))
        });
        join_all(messages).await;
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        if self.is_due {
            let mut state = self.batches.lock();
            state.is_scheduled = false;
            let unsent = std::mem::take(&mut state.waiting);
            drop(state);
            // Who waits, on another tokio runtime, is told so by the loss of the sender.
            drop(unsent);
        }
    }
}

async fn send_together(mut connection: MultiplexedConnection, message: Vec<Waiting>) {
    let mut pipeline = Pipeline::with_capacity(message.len());
    let mut callers = Vec::with_capacity(message.len());
    for (command, caller) in message {
        pipeline.add_command(command);
        callers.push(caller);
    }
    let answers: RedisResult<Vec<RedisResult<Value>>> = pipeline.ignore_errors().query_async(&mut connection).await;
    match answers {
        // A caller that has gone needs no answer; one that gets none is told so.
        Ok(answers) => callers.into_iter().zip(answers).for_each(|(caller, answer)| drop(caller.send(answer))),
        Err(error) => callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone())))),
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= self.1;
    }
}

/// The task that sends is gone, with its tokio runtime.
fn gone() -> RedisError {
    std::io::Error::other("the connection's tokio runtime was shut down").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_of_other_runtimes_are_told_when_that_of_the_connection_shuts_down() {
        let batches = Batches::new();
        batches.lock().is_scheduled = true;
        let (sender, answer) = oneshot::channel();
        batches.lock().waiting.push((redis::cmd("PING"), sender));
        drop(Scheduled { batches: batches.clone(), is_due: true });
        assert!(answer.await.is_err());
        let state = batches.lock();
        assert!(!state.is_scheduled && state.waiting.is_empty(), "nobody would ever send again");
    }
}
