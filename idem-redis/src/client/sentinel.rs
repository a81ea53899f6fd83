//! Finds the master by asking the Sentinels.
//!
//! This is not redis-rs's `sentinel` (1.8). That asks three Sentinels at a time and believes the
//! first, in the configured order, that names a master: a silent one delays the reconnection, and
//! one that is cut off names an old master. It also does not listen to them.

use std::sync::Arc;
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{interval_at, sleep, timeout};

use crate::client::error::{failed, refused, unconnected_in_time, unexpected};
use crate::client::location::Watched;
use crate::client::target::{Address, Target};
use crate::client::{clock, dial};

/// A Sentinel that has not answered by then is left alone.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Sentinels that have not answered so long after most have are left out.
const GRACE: Duration = Duration::from_millis(200);
/// A Sentinel that is listened to is asked so often: it may have become silent, and its news may
/// have been lost.
const ASKED_EVERY: Duration = Duration::from_secs(3);
/// Between two Sentinels that are listened to.
const PAUSE: Duration = Duration::from_millis(250);

/// A statement about the master by a Sentinel that is listened to.
pub(crate) enum Statement {
    /// The news of a failover: nothing that was said before is newer.
    Switched(Address),
    /// Its current view. It may be cut off from the others, and miss a failover.
    Believes(Address),
}

/// Asks all Sentinels at once where the master is, and gives what most of them say, in less than
/// `limit`.
///
/// One alone is not trusted while others answer. After a failover, a Sentinel that was cut off
/// still names the old master, which may be cut off with it and still act as master. If fewer than
/// half of them answer, their majority counts. If two are named equally often, `now` wins, or else
/// the first.
pub(crate) async fn most_say(
    watched: &Arc<Watched>,
    now: Option<&Address>,
    limit: Duration,
) -> Result<Address, StoreError> {
    let limit = ANSWERS_WITHIN.min(limit / 2);
    let mut asked = JoinSet::new();
    for index in 0..watched.sentinels.len() {
        let watched = Arc::clone(watched);
        asked.spawn(async move { ask(&watched.sentinels[index], &watched.master).await });
    }
    let mut votes = Votes::of(watched.sentinels.len());
    let mut failure: Option<StoreError> = None;
    let counting = async {
        while !votes.are_enough() {
            match asked.join_next().await {
                Some(Ok(Ok(address))) => votes.add(address),
                // A passing failure outweighs one that an operator must fix at a single Sentinel.
                Some(Ok(Err(error)))
                    if failure.as_ref().is_none_or(|other| other.kind() == StoreErrorKind::Refused) =>
                {
                    failure = Some(error);
                }
                Some(_) => {}
                None => return,
            }
        }
        let late = async {
            while !votes.are_decided()
                && let Some(answer) = asked.join_next().await
            {
                if let Ok(Ok(address)) = answer {
                    votes.add(address);
                }
            }
        };
        let _ = timeout(GRACE, late).await;
    };
    let _ = timeout(limit, counting).await;
    votes.most(now).ok_or_else(|| failure.unwrap_or_else(|| unconnected_in_time(&watched.name, limit)))
}

/// The votes for each address.
struct Votes {
    asked: usize,
    given: Vec<(Address, usize)>,
}

impl Votes {
    fn of(asked: usize) -> Self {
        Self { asked, given: Vec::new() }
    }

    fn add(&mut self, address: Address) {
        match self.given.iter_mut().find(|(other, _)| *other == address) {
            Some((_, times)) => *times += 1,
            None => self.given.push((address, 1)),
        }
    }

    /// Whether more than half of those that were asked have answered.
    fn are_enough(&self) -> bool {
        self.given.iter().map(|(_, times)| times).sum::<usize>() * 2 > self.asked
    }

    /// Whether the others can change nothing any more.
    fn are_decided(&self) -> bool {
        self.given.iter().any(|(_, times)| times * 2 > self.asked)
    }

    /// Of two that are named as often: `now`, or else the first.
    fn most(self, now: Option<&Address>) -> Option<Address> {
        let weight = |(address, times): &(Address, usize)| (*times, Some(address) == now);
        self.given.into_iter().rev().max_by_key(weight).map(|(address, _)| address)
    }
}

/// Asks one Sentinel.
async fn ask(sentinel: &Target, master: &str) -> Result<Address, StoreError> {
    let asking = async {
        let mut connection = dial::plain(sentinel, AsyncConnectionConfig::new()).await?;
        address(&mut connection, sentinel, master).await
    };
    timeout(ANSWERS_WITHIN, asking).await.map_err(|_| unconnected_in_time(&sentinel.name, ANSWERS_WITHIN))?
}

async fn address(
    connection: &mut MultiplexedConnection,
    sentinel: &Target,
    master: &str,
) -> Result<Address, StoreError> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer: Value = question.query_async(connection).await.map_err(|error| failed(&sentinel.name, error))?;
    if matches!(answer, Value::Nil) {
        return Err(refused(format!(
            "the Sentinel {} knows no master named `{master}`; write the name of `sentinel monitor` in sentinel.conf at the end of the URL",
            sentinel.name
        )));
    }
    match redis::from_redis_value::<(String, u16)>(answer) {
        Ok(address) => Ok(address),
        Err(_) => Err(unexpected(&sentinel.name, &Value::Nil)),
    }
}

/// Listens to one Sentinel after the other, for as long as there is one, and tells what it says: at
/// each failover, and every few seconds.
pub(crate) async fn listen(watched: Arc<Watched>, said: impl Fn(Statement)) {
    for index in (0..watched.sentinels.len()).cycle() {
        // Why it ended is of no interest: the next one is listened to.
        let _ = listen_to(&watched, index, &said).await;
        sleep(PAUSE).await;
    }
}

async fn listen_to(watched: &Watched, index: usize, said: &impl Fn(Statement)) -> Result<(), StoreError> {
    let (sentinel, master) = (&watched.sentinels[index], watched.master.as_str());
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let begin = async {
        let mut connection = dial::plain(sentinel, AsyncConnectionConfig::new().set_push_sender(sender)).await?;
        connection.subscribe("+switch-master").await.map_err(|error| failed(&sentinel.name, error))?;
        Ok(connection)
    };
    let late = |_| unconnected_in_time(&sentinel.name, ANSWERS_WITHIN);
    let mut connection = timeout(ANSWERS_WITHIN, begin).await.map_err(late)??;
    // At once too, or a failover in between would be missed.
    let mut questions = interval_at(clock::now(), ASKED_EVERY);
    // The one that is listened to may be cut off from the others, which therefore have their turn.
    let mut others = (1..watched.sentinels.len()).map(|other| (index + other) % watched.sentinels.len()).cycle();
    loop {
        tokio::select! {
            biased;
            push = pushes.recv() => match push {
                Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return Ok(()),
                Some(push) => if let Some(address) = switched(&push, master) {
                    said(Statement::Switched(address));
                },
            },
            _ = questions.tick() => {
                let answer = timeout(ANSWERS_WITHIN, address(&mut connection, sentinel, master));
                let other = async {
                    match others.next() {
                        Some(other) => ask(&watched.sentinels[other], master).await.ok(),
                        None => None,
                    }
                };
                let (answer, other) = tokio::join!(answer, other);
                if let Some(address) = other {
                    said(Statement::Believes(address));
                }
                said(Statement::Believes(answer.map_err(late)??));
            }
        }
    }
}

/// Reads the master's new address from a push: `name old-ip old-port new-ip new-port`.
fn switched(push: &PushInfo, master: &str) -> Option<Address> {
    let (PushKind::Message, [_, Value::BulkString(text)]) = (&push.kind, push.data.as_slice()) else { return None };
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words.as_slice() {
        [name, _, _, host, port] if *name == master => Some(((*host).to_owned(), port.parse().ok()?)),
        _ => None,
    }
}

/// Refuses a server that itself denies being a master. A Sentinel may be behind, or ahead of the
/// server.
pub(crate) async fn must_be_master(connection: &mut MultiplexedConnection, server: &str) -> Result<(), StoreError> {
    let role: Value = redis::cmd("ROLE").query_async(connection).await.map_err(|error| failed(server, error))?;
    match &role {
        Value::Array(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "Redis ({server}) is not a master: the Sentinels are making another server the master, or have just done so"
                ),
            )
            .with_source(NoMaster)),
        },
        other => Err(unexpected(server, other)),
    }
}

/// A server said that it is not a master.
#[derive(Debug)]
struct NoMaster;

impl std::fmt::Display for NoMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its ROLE is not that of a master")
    }
}

impl std::error::Error for NoMaster {}

/// Whether that is what an attempt to connect failed with.
pub(crate) fn is_no_master(error: &StoreError) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<NoMaster>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_those_that_were_asked_decide() {
        let at = |host: &str| (host.to_owned(), 1);
        let mut votes = Votes::of(3);
        assert!(!votes.are_enough());
        votes.add(at("old"));
        assert!(!votes.are_enough() && !votes.are_decided());
        votes.add(at("new"));
        assert!(votes.are_enough() && !votes.are_decided());
        votes.add(at("new"));
        assert!(votes.are_decided());
        assert_eq!(votes.most(Some(&at("old"))), Some(at("new")));
        for (now, most) in [(None, "first"), (Some(at("second")), "second"), (Some(at("third")), "first")] {
            let mut votes = Votes::of(4);
            votes.add(at("first"));
            votes.add(at("second"));
            assert_eq!(votes.most(now.as_ref()), Some(at(most)));
        }
        assert_eq!(Votes::of(3).most(None), None);
    }

    #[test]
    fn only_a_fail_over_of_ones_own_master_is_heard() {
        let said = |text: &str| {
            let data = vec![Value::BulkString(b"+switch-master".into()), Value::BulkString(text.into())];
            switched(&PushInfo { kind: PushKind::Message, data }, "main")
        };
        assert_eq!(said("main 10.0.0.1 6379 10.0.0.2 6380"), Some(("10.0.0.2".to_owned(), 6380)));
        assert_eq!(said("other 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(said("main 10.0.0.1 6379 10.0.0.2"), None);
        assert_eq!(said("main 10.0.0.1 6379 10.0.0.2 port"), None);
    }
}
