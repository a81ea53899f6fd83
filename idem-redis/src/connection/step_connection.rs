//! The connection of one step, and which of its commands are sent again.

use std::time::Duration;

use futures_util::future::join_all;
use idem_core::StoreError;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Script, ServerErrorKind, Value};
use tokio::time::sleep;

use crate::connection::cluster::{Cluster, redirected};
use crate::connection::command::evalsha;
use crate::connection::error::failed;
use crate::connection::given::Connection;
use crate::connection::link::Link;
use crate::connection::managed::ManagedConnection;
use crate::connection::replicas::{self, Replicas};
use crate::connection::session::Session;
use crate::connection::target::Address;

/// The name of a server that only the application knows.
pub(crate) const GIVEN: &str = "the application's own connection";

/// The pauses before a command is sent again that a server refused for the moment. After the last
/// one the refusal is the answer, and the caller decides whether to repeat the step.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(160),
];

/// If a lease may be alive for no longer than this, the step waits for its end. A slow answer to a
/// look at the server's clock leaves this much open.
const CLOCK_SLACK: Duration = Duration::from_millis(50);

/// The connection on which one step of the store sends its commands.
pub(crate) struct StepConnection {
    connection: Connection,
    /// `None` for an application's connection, which finds its server by itself.
    route: Option<Route>,
}

struct Route {
    managed: ManagedConnection,
    slot: u16,
    link: Link,
    session: Session,
    /// The last command went to a node that is about to get the slot (`ASK`).
    is_asked_node: bool,
    replicas: Option<Replicas>,
}

/// The server to which a command that was not carried out is sent again.
enum Retry {
    /// At the master that has the slot now.
    AtMaster,
    /// At this node, for one command (`ASK`).
    AskingAt(Cluster, Address),
}

impl StepConnection {
    pub(crate) async fn managed(
        managed: ManagedConnection,
        slot: u16,
        replicas: Option<Replicas>,
    ) -> Result<Self, StoreError> {
        let (link, session) = managed.session(slot).await?;
        let connection = session.connection.clone().into();
        Ok(Self {
            connection,
            route: Some(Route {
                managed,
                slot,
                link,
                session,
                is_asked_node: false,
                replicas,
            }),
        })
    }

    pub(crate) fn given(connection: Connection) -> Self {
        Self {
            connection,
            route: None,
        }
    }

    pub(crate) fn server(&self) -> &str {
        self.route
            .as_ref()
            .map_or(GIVEN, |route| route.link.server())
    }

    /// Returns the session, if the store made the connection.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.route.as_ref().map(|route| &route.session)
    }

    /// Sends one command.
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.try_send(command)
            .await
            .map_err(|error| failed(self.server(), error))
    }

    /// Sends one command, for callers that look at the error's code. If a server refuses it
    /// unexecuted (it lacks the slot, lost its master role, or is not ready), it is sent again.
    pub(crate) async fn try_send(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.send_unless(command, |_| false).await
    }

    /// Sends a command as [`try_send`](Self::try_send) does, but not again after an error that
    /// `is_final`.
    async fn send_unless(
        &mut self,
        command: &Cmd,
        is_final: fn(&RedisError) -> bool,
    ) -> RedisResult<Value> {
        self.leave_asked_node().await;
        let mut outcome = command.query_async(&mut self.connection).await;
        let mut met_replica = false;
        for pause in PAUSES {
            let Err(error) = &outcome else { break };
            if is_final(error) {
                break;
            }
            let is_replica = is_read_only(error);
            // A replica for the second time: the new master is not known yet.
            if is_replica && met_replica {
                break;
            }
            met_replica = is_replica;
            match self.prepare_retry(error, pause).await {
                None => break,
                Some(Retry::AtMaster) => outcome = command.query_async(&mut self.connection).await,
                Some(Retry::AskingAt(cluster, node)) => {
                    let Ok((link, session)) = cluster.session_at(&node).await else {
                        break;
                    };
                    self.bind(link, session, true);
                    outcome = self.ask(command).await;
                }
            }
        }
        self.with_errors_handled(outcome)
    }

    /// Sends one command to a node that is about to get its slot.
    async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = redis::pipe();
        pipeline
            .cmd("ASKING")
            .add_command(command.clone())
            .ignore_errors();
        let mut answers: Vec<RedisResult<Value>> =
            pipeline.query_async(&mut self.connection).await?;
        answers.pop().unwrap_or(Ok(Value::Nil))
    }

    /// Runs a script: one command, unless the server does not know it yet.
    pub(crate) async fn script(
        &mut self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Value, StoreError> {
        let outcome = self.script_unless(script, keys, args, |_| false).await;
        outcome.map_err(|error| failed(self.server(), error))
    }

    /// Runs a script on several keys of one slot. Returns `None` if the slot is moving to another
    /// node, so that the keys may be at two nodes. Then the caller sends a command for each key.
    pub(crate) async fn script_on_all(
        &mut self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> Result<Option<Value>, StoreError> {
        match self.script_unless(script, keys, args, are_apart).await {
            Err(error) if are_apart(&error) => Ok(None),
            outcome => outcome
                .map(Some)
                .map_err(|error| failed(self.server(), error)),
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
        self.try_load(script)
            .await
            .map_err(|error| failed(self.server(), error))
    }

    async fn try_load(&mut self, script: &Script) -> RedisResult<()> {
        let outcome = script.load_async(&mut self.connection).await;
        self.with_errors_handled(outcome).map(drop)
    }

    /// Sends several commands at once. An answer for each, or one error for all.
    pub(crate) async fn send_all(
        &mut self,
        commands: Vec<Cmd>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        if self.connection.is_cluster() {
            // redis-rs refuses a pipeline over several slots.
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
        let outcome = pipeline
            .ignore_errors()
            .query_async(&mut self.connection)
            .await;
        let answers: Vec<RedisResult<Value>> = self.with_errors_handled(outcome)?;
        if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
            self.handle_error(error);
        }
        Ok(answers)
    }

    /// Returns whether a command that got this error was not carried out and can be sent again,
    /// later or to another node.
    pub(crate) fn is_passing(error: &RedisError) -> bool {
        use ServerErrorKind::{
            Ask, BusyLoading, ClusterDown, MasterDown, Moved, ReadOnly, TryAgain,
        };

        let kind = error.kind();
        let passing = [
            Moved,
            Ask,
            TryAgain,
            BusyLoading,
            ClusterDown,
            MasterDown,
            ReadOnly,
        ];
        matches!(kind, ErrorKind::Server(kind) if passing.contains(&kind))
    }

    /// Takes note of the node that an error names for a slot.
    pub(crate) fn note_redirect(&self, error: &RedisError) {
        if let Some(Route {
            managed: ManagedConnection::Cluster(cluster),
            session,
            ..
        }) = &self.route
        {
            match redirected(error, session.host()) {
                Some((slot, node)) if error.kind() == ServerErrorKind::Moved.into() => {
                    cluster.moved(slot, node);
                }
                _ => cluster.schedule_refresh(),
            }
        }
    }

    /// Waits until the replicas have what was just written, if the store was told to.
    pub(crate) async fn acknowledged(&self) -> Result<(), StoreError> {
        let Some(Route {
            link,
            session,
            replicas: Some(replicas),
            ..
        }) = &self.route
        else {
            return Ok(());
        };
        let answer = session
            .acknowledgements
            .count(&session.connection, *replicas)
            .await;
        if let Err(error) = &answer {
            link.handle_error(session, error);
        }
        replicas::check_count(link.server(), answer, *replicas)
    }

    /// Returns the latest time by the server's clock, in milliseconds, at which an expired lease
    /// may have been renewed. It is empty before the first look at that clock.
    pub(crate) fn renewed_by(&self, lease: Duration) -> String {
        let latest = self
            .route
            .as_ref()
            .and_then(|route| route.link.clock().renewed_by(lease));
        latest
            .map(|latest| latest.as_millis().to_string())
            .unwrap_or_default()
    }

    /// Settles a lease that has expired by the server's clock, while `left` of it remains by the
    /// clock of this process. Looks at the server's clock once more, and returns how long the lease
    /// counts as alive; `None` if it has expired by now.
    pub(crate) async fn recheck_lease(
        &self,
        left: Duration,
        lease: Duration,
    ) -> Result<Option<Duration>, StoreError> {
        if let Some(Route { link, session, .. }) = &self.route {
            link.look_at_clock(session)
                .await
                .map_err(|error| failed(link.server(), error))?;
        }
        if left > CLOCK_SLACK {
            // Even a lease that was renewed just before the look has at most its whole length left.
            return Ok(Some(left.min(lease)));
        }
        sleep(left).await;
        Ok(None)
    }

    /// Returns whether the store waits for replicas.
    pub(crate) fn is_replicated(&self) -> bool {
        self.route
            .as_ref()
            .is_some_and(|route| route.replicas.is_some())
    }

    /// Decides whether and where a command that got this error is sent again, and waits if that
    /// takes a pause.
    async fn prepare_retry(&mut self, error: &RedisError, pause: Duration) -> Option<Retry> {
        if !Self::is_passing(error) {
            return None;
        }
        self.handle_error(error);
        let kind = error.kind();
        let Some(Route {
            managed,
            slot,
            session,
            ..
        }) = &self.route
        else {
            // The application's connection follows redirections itself.
            if kind != ServerErrorKind::BusyLoading.into() {
                return None;
            }
            sleep(pause).await;
            return Some(Retry::AtMaster);
        };
        let managed = managed.clone();
        let slot = *slot;
        match (&managed, redirected(error, session.host())) {
            (ManagedConnection::Cluster(cluster), Some((_, node)))
                if kind == ServerErrorKind::Ask.into() =>
            {
                return Some(Retry::AskingAt(cluster.clone(), node));
            }
            (ManagedConnection::Cluster(cluster), Some((slot, node))) => {
                let is_news = cluster.node(slot).as_ref() != Some(&node);
                cluster.moved(slot, node);
                if !is_news {
                    // The nodes do not agree yet.
                    sleep(pause).await;
                }
            }
            (ManagedConnection::Cluster(cluster), None) => {
                cluster.schedule_refresh();
                sleep(pause).await;
            }
            // A node of a cluster behind the URL of a single server: the error says so.
            (ManagedConnection::One(_), Some(_)) => return None,
            (ManagedConnection::One(_), None) => sleep(pause).await,
        }
        // It may have been replaced meanwhile.
        let (link, session) = managed.session(slot).await.ok()?;
        self.bind(link, session, false);
        Some(Retry::AtMaster)
    }

    fn bind(&mut self, link: Link, session: Session, is_asked_node: bool) {
        if let Some(route) = &mut self.route {
            self.connection = session.connection.clone().into();
            (route.link, route.session, route.is_asked_node) = (link, session, is_asked_node);
        }
    }

    /// Goes back from a node that was named by `ASK` to the master of the slot. Only the master
    /// knows which keys have moved already.
    async fn leave_asked_node(&mut self) {
        let Some(Route {
            managed,
            slot,
            is_asked_node: true,
            ..
        }) = &self.route
        else {
            return;
        };
        let managed = managed.clone();
        let slot = *slot;
        if let Ok((link, session)) = managed.session(slot).await {
            self.bind(link, session, false);
        }
    }

    /// Takes note of an error, as of one that a command got.
    pub(crate) fn handle_error(&self, error: &RedisError) {
        if let Some(Route { link, session, .. }) = &self.route {
            link.handle_error(session, error);
        }
    }

    fn with_errors_handled<T>(&self, outcome: RedisResult<T>) -> RedisResult<T> {
        outcome.inspect_err(|error| self.handle_error(error))
    }
}

fn is_read_only(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Returns whether the keys of a command may be at two nodes, because their slot is moving.
pub(crate) fn are_apart(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
}

/// Returns whether another node must carry out this one command, because the slot is moving.
pub(crate) fn is_elsewhere(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::Ask)
}

pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
