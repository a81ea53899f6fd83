//! The path of one step's commands, and which of them are sent again.

use std::time::Duration;

use futures_util::future::join_all;
use idem_core::StoreError;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Script, ServerErrorKind, Value};
use tokio::time::sleep;

use crate::client::cluster::{Cluster, redirected};
use crate::client::command::evalsha;
use crate::client::connection::Connection;
use crate::client::error::failed;
use crate::client::link::Link;
use crate::client::own::Own;
use crate::client::replicas::{self, Replicas};
use crate::client::session::Session;
use crate::client::target::Address;

/// The name of a server that only the application knows.
pub(crate) const GIVEN: &str = "the application's own connection";

/// Before a command is sent again that a server refused for the moment. Then the refusal is the
/// answer: the step has a limit, and who asked may ask again.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(160),
];

/// A lease that is over so soon is waited for. It is what a slow answer to a look at the clock
/// leaves open.
const SOON: Duration = Duration::from_millis(50);

/// The connection, limits and state of one step of the store.
pub(crate) struct Lane {
    connection: Connection,
    /// Set if the connection is our own.
    bound: Option<OwnLink>,
}

struct OwnLink {
    own: Own,
    slot: u16,
    link: Link,
    session: Session,
    /// At a node that has not the slot yet, where the last command was sent for this once.
    is_away: bool,
    replicas: Option<Replicas>,
}

/// The reaction to a command that was not carried out.
enum Reaction {
    /// The same, where the slot is by now.
    Here,
    /// At this node, for this once.
    At(Cluster, Address),
}

impl Lane {
    pub(crate) async fn own(own: Own, slot: u16, replicas: Option<Replicas>) -> Result<Self, StoreError> {
        let (link, session) = own.session(slot).await?;
        let connection = session.connection.clone().into();
        Ok(Self { connection, bound: Some(OwnLink { own, slot, link, session, is_away: false, replicas }) })
    }

    pub(crate) fn given(connection: Connection) -> Self {
        Self { connection, bound: None }
    }

    pub(crate) fn server(&self) -> &str {
        self.bound.as_ref().map_or(GIVEN, |bound| bound.link.server())
    }

    /// The connection's own session, for subscriptions.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.bound.as_ref().map(|bound| &bound.session)
    }

    /// Sends one command.
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.try_send(command).await.map_err(|error| failed(self.server(), error))
    }

    /// Sends one command, for callers that look at the error's code. If a server refuses it
    /// unexecuted (it lacks the slot, lost its master role, or is not ready), it is sent again.
    pub(crate) async fn try_send(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.send_unless(command, |_| false).await
    }

    /// The same, but not again after an error that is the answer.
    async fn send_unless(&mut self, command: &Cmd, is_final: fn(&RedisError) -> bool) -> RedisResult<Value> {
        self.come_back().await;
        let mut outcome = command.query_async(&mut self.connection).await;
        let mut was_replica = false;
        for pause in PAUSES {
            let Err(error) = &outcome else { break };
            if is_final(error) {
                break;
            }
            // The second time: another master does not exist yet.
            if std::mem::replace(&mut was_replica, is_read_only(error)) && was_replica {
                break;
            }
            match self.again(error, pause).await {
                None => break,
                Some(Reaction::Here) => outcome = command.query_async(&mut self.connection).await,
                Some(Reaction::At(cluster, node)) => {
                    let Ok((link, session)) = cluster.session_at(&node).await else { break };
                    self.bind(link, session, true);
                    outcome = self.ask(command).await;
                }
            }
        }
        self.judged(outcome)
    }

    /// Sends one command to a node that is about to get its slot.
    async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone()).ignore_errors();
        let mut answers: Vec<RedisResult<Value>> = pipeline.query_async(&mut self.connection).await?;
        answers.pop().unwrap_or(Ok(Value::Nil))
    }

    /// Runs a script: one command, unless the server does not know it yet.
    pub(crate) async fn script(&mut self, script: &Script, keys: &[&str], args: &[&[u8]]) -> Result<Value, StoreError> {
        let outcome = self.script_unless(script, keys, args, |_| false).await;
        outcome.map_err(|error| failed(self.server(), error))
    }

    /// Runs a script on several keys. `None`: their slot is on its way to another node, and they
    /// are perhaps not all at the same one; then each has to be gone to by itself.
    pub(crate) async fn script_on_all(
        &mut self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Option<Value>, StoreError> {
        match self.script_unless(script, keys, args, are_apart).await {
            Err(error) if are_apart(&error) => Ok(None),
            outcome => outcome.map(Some).map_err(|error| failed(self.server(), error)),
        }
    }

    async fn script_unless(
        &mut self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
        is_final: fn(&RedisError) -> bool,
    ) -> RedisResult<Value> {
        let command = evalsha(script, keys, args);
        match self.send_unless(&command, is_final).await {
            Err(error) if is_unknown_script(&error) => {
                self.try_load(script).await?;
                self.send_unless(&command, is_final).await
            }
            outcome => outcome,
        }
    }

    /// Makes a script known to the server.
    pub(crate) async fn load(&mut self, script: &Script) -> Result<(), StoreError> {
        self.try_load(script).await.map_err(|error| failed(self.server(), error))
    }

    async fn try_load(&mut self, script: &Script) -> RedisResult<()> {
        let outcome = script.load_async(&mut self.connection).await;
        self.judged(outcome).map(drop)
    }

    /// Sends several commands at once. An answer for each, or one error for all.
    pub(crate) async fn send_all(&mut self, commands: Vec<Cmd>) -> RedisResult<Vec<RedisResult<Value>>> {
        if self.connection.is_cluster() {
            // A pipeline must be of one slot there.
            let send = |command: Cmd| {
                let mut connection = self.connection.clone();
                async move { command.query_async(&mut connection).await }
            };
            return Ok(join_all(commands.into_iter().map(send)).await);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command);
        }
        let outcome = pipeline.ignore_errors().query_async(&mut self.connection).await;
        let answers: Vec<RedisResult<Value>> = self.judged(outcome)?;
        if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
            self.judge(error);
        }
        Ok(answers)
    }

    /// Whether a command that got this error was not carried out, and may be sent again a little
    /// later, perhaps elsewhere.
    pub(crate) fn is_passing(error: &RedisError) -> bool {
        use ServerErrorKind::{Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain};

        let kind = error.kind();
        let passing = [Moved, Ask, TryAgain, BusyLoading, ClusterDown, MasterDown, ReadOnly];
        matches!(kind, ErrorKind::Server(kind) if passing.contains(&kind))
    }

    /// Takes note of where an answer says that a slot is.
    pub(crate) fn learn(&self, error: &RedisError) {
        if let Some(OwnLink { own: Own::Cluster(cluster), session, .. }) = &self.bound {
            match redirected(error, session.host()) {
                Some((slot, node)) if error.kind() == ServerErrorKind::Moved.into() => cluster.moved(slot, node),
                _ => cluster.doubt(),
            }
        }
    }

    /// Makes sure that what was just written will outlast a failover, as far as that was asked
    /// for.
    pub(crate) async fn acknowledged(&self) -> Result<(), StoreError> {
        let Some(OwnLink { link, session, replicas: Some(replicas), .. }) = &self.bound else { return Ok(()) };
        let answer = session.acknowledgements.count(&session.connection, *replicas).await;
        if let Err(error) = &answer {
            link.judge(session, error);
        }
        replicas::judge(link.server(), answer, *replicas)
    }

    /// The latest time by the server's clock, in milliseconds, at which an expired lease may have
    /// been renewed; empty before the first look at that clock.
    pub(crate) fn renewed_by(&self, lease: Duration) -> String {
        let latest = self.bound.as_ref().and_then(|bound| bound.link.clock().renewed_by(lease));
        latest.map(|latest| latest.as_millis().to_string()).unwrap_or_default()
    }

    /// Looks at the server's clock, by which a lease has run out while by our own `left` remains.
    /// `None`: that was so little that it is over. Else how long the lease counts as alive.
    pub(crate) async fn sure_after(&self, left: Duration, lease: Duration) -> Result<Option<Duration>, StoreError> {
        if let Some(OwnLink { link, session, .. }) = &self.bound {
            link.look_at_clock(session).await.map_err(|error| failed(link.server(), error))?;
        }
        if left > SOON {
            // From the look on, no more than a lease is left.
            return Ok(Some(left.min(lease)));
        }
        sleep(left).await;
        Ok(None)
    }

    /// Whether replicas are asked for.
    pub(crate) fn is_replicated(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.replicas.is_some())
    }

    /// Prepares for sending a command again that got this error, if that is any use.
    async fn again(&mut self, error: &RedisError, pause: Duration) -> Option<Reaction> {
        if !Self::is_passing(error) {
            return None;
        }
        self.judge(error);
        let kind = error.kind();
        let Some(OwnLink { own, slot, session, .. }) = &self.bound else {
            // The application's connection finds the slot and the master itself.
            sleep(pause).await;
            return (kind == ServerErrorKind::BusyLoading.into()).then_some(Reaction::Here);
        };
        let (own, slot) = (own.clone(), *slot);
        match (&own, redirected(error, session.host())) {
            (Own::Cluster(cluster), Some((_, node))) if kind == ServerErrorKind::Ask.into() => {
                return Some(Reaction::At(cluster.clone(), node));
            }
            (Own::Cluster(cluster), Some((slot, node))) => {
                let is_news = cluster.node(slot).as_ref() != Some(&node);
                cluster.moved(slot, node);
                if !is_news {
                    // The nodes do not agree yet.
                    sleep(pause).await;
                }
            }
            (Own::Cluster(cluster), None) => {
                cluster.doubt();
                sleep(pause).await;
            }
            // A node of a cluster, by the URL of a single server.
            (Own::One(_), Some(_)) => return None,
            (Own::One(_), None) => sleep(pause).await,
        }
        // The connection may be another by now.
        let (link, session) = own.session(slot).await.ok()?;
        self.bind(link, session, false);
        Some(Reaction::Here)
    }

    fn bind(&mut self, link: Link, session: Session, is_away: bool) {
        if let Some(bound) = &mut self.bound {
            self.connection = session.connection.clone().into();
            (bound.link, bound.session, bound.is_away) = (link, session, is_away);
        }
    }

    /// Goes back to the node that has the slot: of the next key it alone knows whether it has gone.
    async fn come_back(&mut self) {
        let Some(OwnLink { own, slot, is_away: true, .. }) = &self.bound else { return };
        let (own, slot) = (own.clone(), *slot);
        if let Ok((link, session)) = own.session(slot).await {
            self.bind(link, session, false);
        }
    }

    fn judge(&self, error: &RedisError) {
        if let Some(OwnLink { link, session, .. }) = &self.bound {
            link.judge(session, error);
        }
    }

    fn judged<T>(&self, outcome: RedisResult<T>) -> RedisResult<T> {
        outcome.inspect_err(|error| self.judge(error))
    }
}

fn is_read_only(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Of several keys in a slot that is on its way, some are perhaps at another node.
pub(crate) fn are_apart(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}

/// Whether only another node can carry the command out, for this once.
pub(crate) fn is_elsewhere(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
