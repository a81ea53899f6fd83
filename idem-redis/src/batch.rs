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
use tokio::sync::oneshot;

/// With fewer commands under way, each is sent by itself.
const FEW: usize = 4;
/// The most in one message. The server answers a message as a whole, so a longer one would only keep its first answers back.
const MOST: usize = 256;

/// The commands of one connection that are not sent yet. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Batches(Arc<Mutex<State>>);

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

/// Commands that were sent, until they are answered, or nobody waits for the answer.
struct UnderWay<'a>(&'a Batches, usize);

impl Batches {
    /// Sends a command, with others or by itself. Dropped, it may be sent all the same.
    pub(crate) async fn send(&self, connection: &mut MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
        let answer = {
            let mut state = self.lock();
            if state.under_way < FEW && state.waiting.is_empty() {
                state.under_way += 1;
                Err(command)
            } else {
                let (sender, answer) = oneshot::channel();
                state.waiting.push((command, sender));
                if !std::mem::replace(&mut state.is_scheduled, true) {
                    // A task, so that it goes on when this caller is dropped.
                    tokio::spawn(self.clone().send_waiting(connection.clone()));
                }
                Ok(answer)
            }
        };
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

    async fn send_waiting(self, connection: MultiplexedConnection) {
        // Behind all callers that can run now.
        tokio::task::yield_now().await;
        let waiting = {
            let mut state = self.lock();
            state.is_scheduled = false;
            state.under_way += state.waiting.len();
            std::mem::take(&mut state.waiting)
        };
        let _under_way = UnderWay(&self, waiting.len());
        let mut waiting = waiting.into_iter();
        let messages: Vec<Vec<_>> = std::iter::from_fn(|| Some(waiting.by_ref().take(MOST).collect()))
            .take_while(|message: &Vec<_>| !message.is_empty())
            .collect();
        join_all(messages.into_iter().map(|message| send_together(connection.clone(), message))).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the connection's tokio runtime was shut down").into()
}
