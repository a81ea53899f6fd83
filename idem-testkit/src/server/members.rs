//! What is asked of several servers that belong together.

use std::io;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{RedisServer, Reply};

/// A server that is stopped is passed over after this time.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked whether something has come true, and the pause between two looks:
/// Sentinels that did not agree on one of them try again after twice their time limit, on a loaded
/// machine more than once.
const LOOKS: u32 = 1600;
const PAUSE: Duration = Duration::from_millis(25);

/// Returns the answer of a server, if it answers.
pub(super) async fn ask(server: &RedisServer, command: &[&str]) -> io::Result<Reply> {
    match timeout(ANSWERS_WITHIN, server.cli(command)).await?? {
        Reply::Error(error) => Err(io::Error::other(error)),
        reply => Ok(reply),
    }
}

/// Has a server carry out a command.
pub(super) async fn tell(server: &RedisServer, command: &[&str]) -> io::Result<()> {
    match server.cli(command).await? {
        Reply::Error(error) => Err(io::Error::other(format!("{}: {error}", command.join(" ")))),
        _ => Ok(()),
    }
}

/// Returns the majority's answer.
pub(super) async fn majority_answer<T: PartialEq>(
    servers: &[RedisServer],
    command: &[&str],
    read: impl Fn(&Reply) -> Option<T>,
) -> io::Result<T> {
    let mut said: Vec<(T, usize)> = Vec::new();
    for server in servers {
        let Some(answer) = ask(server, command).await.ok().as_ref().and_then(&read) else {
            continue;
        };
        match said.iter_mut().find(|(other, _)| *other == answer) {
            Some((_, times)) => *times += 1,
            None => said.push((answer, 1)),
        }
    }
    let most = said.into_iter().max_by_key(|(_, times)| *times);
    most.map(|(answer, _)| answer)
        .ok_or_else(|| io::Error::other(format!("no server knows: {}", command.join(" "))))
}

/// Which of the servers listens at a port.
pub(super) fn index_of(servers: &[RedisServer], port: u16) -> io::Result<usize> {
    servers
        .iter()
        .position(|server| server.port() == port)
        .ok_or_else(|| io::Error::other(format!("none of the servers listens at port {port}")))
}

/// Whether INFO has each of these lines.
pub(super) async fn says(server: &RedisServer, section: &str, lines: &[&str]) -> bool {
    ask(server, &["INFO", section]).await.is_ok_and(|info| {
        let info = info.to_string();
        lines
            .iter()
            .all(|wanted| info.lines().any(|line| line == *wanted))
    })
}

/// How many replicas a server serves, as a master; one that has just come is counted when it has
/// acknowledged its data.
pub(super) async fn replicas(server: &RedisServer) -> usize {
    let info = ask(server, &["INFO", "replication"])
        .await
        .map(|info| info.to_string())
        .unwrap_or_default();
    let is_served = |line: &str| line.contains(",state=online,") && !line.contains(",offset=0,");
    info.lines()
        .filter(|line| line.starts_with("slave") && is_served(line))
        .count()
}

/// Patience for something that comes true.
///
/// No function that takes an async closure: its future could not be sent to another thread.
pub(super) struct Looks {
    what: &'static str,
    left: u32,
}

impl Looks {
    pub(super) fn at(what: &'static str) -> Self {
        Self { what, left: LOOKS }
    }

    /// Waits a little, unless it has been long enough.
    pub(super) async fn again(&mut self) -> io::Result<()> {
        let late = || {
            io::Error::new(
                io::ErrorKind::TimedOut,
                format!("not within {:?}: {}", PAUSE * LOOKS, self.what),
            )
        };
        self.left = self.left.checked_sub(1).ok_or_else(late)?;
        sleep(PAUSE).await;
        Ok(())
    }
}

/// `scheme://host:port,host:port`.
pub(super) fn url(scheme: &str, servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    format!("{scheme}://{}", hosts.join(","))
}
