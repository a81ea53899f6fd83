//! Commands of many callers in one message.
//!
//! Each message to a connection's task costs a place in its line, a wake-up, often a separate write
//! to the socket, and a way back for the answer. So concurrent callers put their commands together,
//! and one message carries them all. A command never waits for others to come. If no command is
//! under way, a caller sends at once; otherwise the collected commands go as soon as the callers
//! that are ready to run have run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The most in one message. The server answers a message as a whole, so a longer one would only
/// keep its first answers back.
const MOST: usize = 256;

/// The commands of one connection that are not sent yet. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Batches(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The connection's own: a caller's runtime may be blocked or not driven, while other callers
    /// wait.
    runtime: Handle,
}

/// The sender to a waiting caller.
type Caller = oneshot::Sender<RedisResult<Value>>;

#[derive(Default)]
struct State {
    waiting: Vec<(Cmd, Caller)>,
    /// A task is about to send what waits.
    is_scheduled: bool,
    /// How many were sent and not answered.
    under_way: usize,
}

/// The task that is about to send what waits. It may be dropped with its tokio runtime before it
/// does.
struct Scheduled {
    batches: Batches,
    is_due: bool,
}

/// Commands that were sent, until they are answered or their callers have gone.
struct UnderWay(Batches, usize);

/// How a command goes.
enum Sending {
    Together(oneshot::Receiver<RedisResult<Value>>),
    Alone(Cmd, MultiplexedConnection, #[allow(dead_code, reason = "counts")] UnderWay),
}

impl Batches {
    /// For a connection that lives in the tokio runtime in which this is called.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), runtime: Handle::current() }))
    }

    /// Sends a command, with others or by itself. Dropped, it may be sent all the same.
    ///
    /// No `async fn`: the command would be in its future twice, and every step has one.
    pub(crate) fn send(
        &self,
        connection: &MultiplexedConnection,
        command: Cmd,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        let mut sending = self.enqueue(connection, command);
        async move {
            match &mut sending {
                Sending::Together(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
                // In a box, which is what this future would have to hold else.
                Sending::Alone(command, connection, _) => {
                    connection.req_packed_command(command).await.and_then(answered)
                }
            }
        }
    }

    fn enqueue(&self, connection: &MultiplexedConnection, command: Cmd) -> Sending {
        let mut state = self.lock();
        if state.under_way == 0 && state.waiting.is_empty() {
            state.under_way = 1;
            drop(state);
            return Sending::Alone(command, connection.clone(), UnderWay(self.clone(), 1));
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push((command, sender));
        let is_first = !std::mem::replace(&mut state.is_scheduled, true);
        drop(state);
        if is_first {
            // Not under the lock: a runtime that shuts down drops it at once.
            self.schedule(connection.clone());
        }
        Sending::Together(answer)
    }

    /// Sends what waits in a task, so that it goes on when a caller is dropped.
    fn schedule(&self, connection: MultiplexedConnection) {
        let sending = Scheduled { batches: self.clone(), is_due: true };
        self.0.runtime.spawn(sending.send_waiting(connection));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduled {
    async fn send_waiting(mut self, mut connection: MultiplexedConnection) {
        // Behind all callers that can run now.
        tokio::task::yield_now().await;
        let (commands, callers, is_more) = self.take();
        let _under_way = UnderWay(self.batches.clone(), callers.len());
        if is_more {
            self.batches.schedule(connection.clone());
        }
        if callers.is_empty() {
            return;
        }
        match connection.req_packed_commands(&commands, 0, callers.len()).await {
            // A caller that has gone needs no answer. A missing answer is an error for its caller.
            Ok(answers) => {
                callers.into_iter().zip(answers).for_each(|(caller, answer)| drop(caller.send(answered(answer))));
            }
            Err(error) => callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone())))),
        }
    }

    /// The commands of the next message, and who waits for their answers. Says whether there are
    /// more, which another task is to send.
    fn take(&mut self) -> (Pipeline, Vec<Caller>, bool) {
        let mut state = self.batches.lock();
        // Whose time limit has passed meanwhile has gone.
        state.waiting.retain(|(_, caller)| !caller.is_closed());
        let length = state.waiting.len().min(MOST);
        let (mut commands, mut callers) = (Pipeline::with_capacity(length), Vec::with_capacity(length));
        for (command, caller) in state.waiting.drain(..length) {
            commands.add_command(command);
            callers.push(caller);
        }
        state.under_way += length;
        (state.is_scheduled, self.is_due) = (!state.waiting.is_empty(), false);
        (commands, callers, state.is_scheduled)
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        if self.is_due {
            let mut state = self.batches.lock();
            state.is_scheduled = false;
            let unsent = std::mem::take(&mut state.waiting);
            drop(state);
            // Dropping the senders tells the waiting callers, on other tokio runtimes.
            drop(unsent);
        }
    }
}

/// Turns the server's reply to a command into an answer or an error.
fn answered(answer: Value) -> RedisResult<Value> {
    match answer {
        Value::ServerError(error) => Err(RedisError::from(error)),
        answer => Ok(answer),
    }
}

impl Drop for UnderWay {
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
    use std::time::Duration;

    use idem_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn of_two_callers_both_are_answered_and_the_next_one_sends_at_once() {
        let server = RedisServer::start().await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let batches = Batches::new();
        let echo = |word: &str| batches.send(&connection, redis::cmd("ECHO").arg(word).to_owned());
        let both = async { tokio::join!(echo("1"), echo("2")) };
        let answers = tokio::time::timeout(Duration::from_secs(30), both).await.expect("the second command is sent");
        let answer = |word: &str| Ok(Value::BulkString(word.into()));
        assert_eq!(answers, (answer("1"), answer("2")));
        drop(echo("3"));
        let state = batches.lock();
        assert_eq!(state.under_way, 0, "no later command would be sent at once");
        assert!(!state.is_scheduled && state.waiting.is_empty(), "nothing is left to send");
    }

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
