//! Sends the commands of concurrent callers in one message.
//!
//! redis-rs drives a connection in a task. Each message to that task takes a slot in its queue, a
//! wake-up, a channel for the answer, and often a separate write to the socket. So the commands of
//! concurrent callers go together in one message.
//!
//! No command waits for others to come. If none is in flight, a caller sends its command at once.
//! Otherwise the collected commands are sent when all callers that are ready to run have run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The most commands in one message. redis-rs returns the answers of a message together, so a
/// longer one would only delay its first answers.
const MAX_BATCH: usize = 256;

/// The batches of one connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Batches(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// The runtime of the connection. A caller's may be blocked while other callers wait.
    runtime: Handle,
}

/// Sends the answer to the caller that waits for it.
type Caller = oneshot::Sender<RedisResult<Value>>;

#[derive(Default)]
struct State {
    waiting: Vec<(Cmd, Caller)>,
    /// A task is about to send the waiting commands.
    is_scheduled: bool,
    /// How many commands were sent and are not answered yet.
    in_flight: usize,
}

/// The task that is about to send the waiting commands. It may be dropped with its tokio runtime
/// before it does.
struct Scheduled {
    batches: Batches,
    is_due: bool,
}

/// Counts commands as in flight, until they are answered or their callers are dropped.
struct InFlight {
    batches: Batches,
    count: usize,
}

/// The commands of one message, and the callers that wait for their answers.
struct Message {
    commands: Pipeline,
    callers: Vec<Caller>,
    /// More commands wait, which need another message.
    is_more: bool,
}

/// How a command is sent.
enum Sending {
    Together(oneshot::Receiver<RedisResult<Value>>),
    Alone(
        Cmd,
        MultiplexedConnection,
        #[allow(dead_code, reason = "counts")] InFlight,
    ),
}

impl Batches {
    /// Creates the batches of a connection that lives in the current tokio runtime.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            runtime: Handle::current(),
        }))
    }

    /// Sends a command, alone or with others. If the future is dropped, the command may still be
    /// sent.
    ///
    /// Not an `async fn`: its future would hold the command twice, and every step holds such a
    /// future.
    pub(crate) fn send(
        &self,
        connection: &MultiplexedConnection,
        command: Cmd,
    ) -> impl Future<Output = RedisResult<Value>> + use<> {
        let mut sending = self.enqueue(connection, command);
        async move {
            match &mut sending {
                Sending::Together(answer) => answer.await.unwrap_or_else(|_| Err(gone())),
                // redis-rs returns a box here, so that this future does not hold the request.
                Sending::Alone(command, connection, _) => connection
                    .req_packed_command(command)
                    .await
                    .and_then(answered),
            }
        }
    }

    fn enqueue(&self, connection: &MultiplexedConnection, command: Cmd) -> Sending {
        let mut state = self.lock();
        if state.in_flight == 0 && state.waiting.is_empty() {
            state.in_flight = 1;
            drop(state);
            return Sending::Alone(command, connection.clone(), self.in_flight(1));
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push((command, sender));
        let is_first = !std::mem::replace(&mut state.is_scheduled, true);
        drop(state);
        if is_first {
            // Not under the lock: a runtime that shuts down drops the task here, which takes the
            // lock.
            self.schedule(connection.clone());
        }
        Sending::Together(answer)
    }

    /// Sends the waiting commands in a task, so that they are sent even if their callers are
    /// dropped.
    fn schedule(&self, connection: MultiplexedConnection) {
        let sending = Scheduled {
            batches: self.clone(),
            is_due: true,
        };
        self.0.runtime.spawn(sending.send_waiting(connection));
    }

    fn in_flight(&self, count: usize) -> InFlight {
        InFlight {
            batches: self.clone(),
            count,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic half-way runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scheduled {
    async fn send_waiting(mut self, mut connection: MultiplexedConnection) {
        // First, all callers that are ready to run add their commands.
        tokio::task::yield_now().await;
        let Message {
            commands,
            callers,
            is_more,
        } = self.take();
        let _counted = self.batches.in_flight(callers.len());
        if is_more {
            self.batches.schedule(connection.clone());
        }
        if callers.is_empty() {
            return;
        }
        match connection
            .req_packed_commands(&commands, 0, callers.len())
            .await
        {
            // Sending fails if the caller was dropped. A caller without an answer gets an error.
            Ok(answers) => {
                callers
                    .into_iter()
                    .zip(answers)
                    .for_each(|(caller, answer)| drop(caller.send(answered(answer))));
            }
            Err(error) => callers
                .into_iter()
                .for_each(|caller| drop(caller.send(Err(error.clone())))),
        }
    }

    /// Takes the next message out of the waiting commands.
    fn take(&mut self) -> Message {
        let mut state = self.batches.lock();
        // A caller whose time limit has passed is gone, and its command need not be sent.
        state.waiting.retain(|(_, caller)| !caller.is_closed());
        let length = state.waiting.len().min(MAX_BATCH);
        let mut commands = Pipeline::with_capacity(length);
        let mut callers = Vec::with_capacity(length);
        for (command, caller) in state.waiting.drain(..length) {
            commands.add_command(command);
            callers.push(caller);
        }
        state.in_flight += length;
        let is_more = !state.waiting.is_empty();
        state.is_scheduled = is_more;
        self.is_due = false;
        Message {
            commands,
            callers,
            is_more,
        }
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

impl Drop for InFlight {
    fn drop(&mut self) {
        self.batches.lock().in_flight -= self.count;
    }
}

/// Returns the error for a caller whose command was dropped with the connection's tokio runtime.
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
        let answers = tokio::time::timeout(Duration::from_secs(30), both)
            .await
            .expect("the second command is sent");
        let answer = |word: &str| Ok(Value::BulkString(word.into()));
        assert_eq!(answers, (answer("1"), answer("2")));
        drop(echo("3"));
        let state = batches.lock();
        assert_eq!(state.in_flight, 0, "no later command would be sent at once");
        assert!(
            !state.is_scheduled && state.waiting.is_empty(),
            "nothing is left to send"
        );
    }

    #[tokio::test]
    async fn callers_of_other_runtimes_are_told_when_that_of_the_connection_shuts_down() {
        let batches = Batches::new();
        batches.lock().is_scheduled = true;
        let (sender, answer) = oneshot::channel();
        batches.lock().waiting.push((redis::cmd("PING"), sender));
        drop(Scheduled {
            batches: batches.clone(),
            is_due: true,
        });
        assert!(answer.await.is_err());
        let state = batches.lock();
        assert!(
            !state.is_scheduled && state.waiting.is_empty(),
            "nobody would ever send again"
        );
    }
}
