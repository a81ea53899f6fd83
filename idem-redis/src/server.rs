//! What the store sends its commands through, and the one time limit around each step.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use idem_core::StoreError;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Script, ServerErrorKind, Value};
use tokio::time::timeout;

use crate::connection::Connection;
use crate::error::{failed, timed_out};
use crate::link::{Link, Session};
use crate::script::evalsha;

/// A server, by our own connection or by one of the application's.
pub(crate) struct Server {
    way: Way,
    pub(crate) limit: Duration,
}

enum Way {
    Own(Link),
    Given(Connection),
}

/// What one step of the store uses.
pub(crate) struct Lane {
    connection: Connection,
    /// Where the connection is our own.
    own: Option<(Link, Session)>,
}

impl Server {
    pub(crate) fn own(link: Link, limit: Duration) -> Self {
        Self { way: Way::Own(link), limit }
    }

    pub(crate) fn given(connection: Connection, limit: Duration) -> Self {
        Self { way: Way::Given(connection), limit }
    }

    pub(crate) fn name(&self) -> &str {
        match &self.way {
            Way::Own(link) => link.server(),
            Way::Given(_) => GIVEN,
        }
    }

    /// Carries a step out, whatever it sends, within the limit.
    pub(crate) async fn step<T, F>(&self, step: impl FnOnce(Lane) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let step = async { step(self.lane().await?).await };
        match timeout(self.limit, step).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.timed_out()),
        }
    }

    /// The error of a step that had no answer in time.
    pub(crate) fn timed_out(&self) -> StoreError {
        if let Way::Own(link) = &self.way {
            if let Some(failure) = link.failure() {
                return failure;
            }
            link.probe();
        }
        timed_out(self.name(), self.limit)
    }

    pub(crate) async fn lane(&self) -> Result<Lane, StoreError> {
        Ok(match &self.way {
            Way::Own(link) => {
                let session = link.session().await?;
                Lane { connection: session.connection.clone().into(), own: Some((link.clone(), session)) }
            }
            Way::Given(connection) => Lane { connection: connection.clone(), own: None },
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Lane {
    pub(crate) fn server(&self) -> &str {
        self.own.as_ref().map_or(GIVEN, |(link, _)| link.server())
    }

    /// The connection's own session, for subscriptions.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.own.as_ref().map(|(_, session)| session)
    }

    /// Sends one command.
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.try_send(command).await.map_err(|error| failed(self.server(), error))
    }

    /// Sends one command, for callers who look at the error's code.
    pub(crate) async fn try_send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let outcome = command.query_async(&mut self.connection).await;
        self.judged(outcome)
    }

    /// Runs a script: one command, unless the server does not know it yet.
    pub(crate) async fn script(&mut self, script: &Script, keys: &[&str], args: &[&[u8]]) -> Result<Value, StoreError> {
        let command = evalsha(script, keys, args);
        match self.try_send(&command).await {
            Err(error) if is_unknown_script(&error) => {
                self.load(script).await?;
                self.send(&command).await
            }
            outcome => outcome.map_err(|error| failed(self.server(), error)),
        }
    }

    /// Makes a script known to the server.
    pub(crate) async fn load(&mut self, script: &Script) -> Result<(), StoreError> {
        let outcome = script.load_async(&mut self.connection).await;
        self.judged(outcome).map(drop).map_err(|error| failed(self.server(), error))
    }

    /// Sends several commands at once. An answer for each, or one error for all.
    pub(crate) async fn send_all(&mut self, pipeline: &mut Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        let outcome = pipeline.ignore_errors().query_async(&mut self.connection).await;
        let answers: Vec<RedisResult<Value>> = self.judged(outcome)?;
        if let (Some(Err(error)), Some((link, session))) = (answers.iter().find(|answer| answer.is_err()), &self.own) {
            link.judge(session, error);
        }
        Ok(answers)
    }

    fn judged<T>(&self, outcome: RedisResult<T>) -> RedisResult<T> {
        if let (Err(error), Some((link, session))) = (&outcome, &self.own) {
            link.judge(session, error);
        }
        outcome
    }
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The name of a server that only the application knows.
const GIVEN: &str = "the application's own connection";
