//! Finds the master by asking the Sentinels, and by listening to them.
//!
//! redis-rs has a module `sentinel` (1.8), which the store does not use. It asks three Sentinels at
//! a time and believes the first, in the configured order, that names a master. So a silent
//! Sentinel delays the connection, and one that is cut off names an old master. It does not listen
//! to them.

use std::sync::Arc;
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{interval_at, sleep, timeout};

use crate::connection::error::{failed, refused, unconnected_in_time, unexpected};
use crate::connection::location::Watched;
use crate::connection::target::{Address, Target};
use crate::connection::{clock, dial};

/// How long a Sentinel may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// How much longer the other Sentinels are waited for when more than half have answered.
const GRACE: Duration = Duration::from_millis(200);
/// How often the Sentinel that is listened to is asked as well: it may have become silent, and an
/// announcement may have been lost.
const ASKED_EVERY: Duration = Duration::from_secs(3);
/// The pause before the next Sentinel is listened to.
const PAUSE: Duration = Duration::from_millis(250);

/// A Sentinel's answer about the master.
pub(crate) enum Statement {
    /// The announcement of a failover. It is newer than all that was said before.
    Switched(Address),
    /// The answer to a question. A Sentinel that is cut off from the others misses a failover.
    Believes(Address),
}

/// Asks all Sentinels at once, and returns the master that the majority names, within `limit`.
///
/// One Sentinel is not trusted while others answer. After a failover, a Sentinel that was cut off
/// still names the old master, which may be cut off with it and still act as master. If fewer than
/// half of them answer, the majority of those counts. If two addresses have as many votes, `now`
/// wins, or else the first to come.
pub(crate) async fn majority_master(
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
    let mut votes = Votes::new(watched.sentinels.len());
    let mut failure: Option<StoreError> = None;
    let counting = async {
        while !votes.are_enough() {
            match asked.join_next().await {
                Some(Ok(Ok(address))) => votes.add(address),
                // A passing failure outweighs one that an operator must fix at a single Sentinel.
                Some(Ok(Err(error)))
                    if failure
                        .as_ref()
                        .is_none_or(|other| other.kind() == StoreErrorKind::Refused) =>
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
    votes
        .most(now)
        .ok_or_else(|| failure.unwrap_or_else(|| unconnected_in_time(&watched.name, limit)))
}

/// The votes for each address.
struct Votes {
    asked: usize,
    given: Vec<(Address, usize)>,
}

impl Votes {
    fn new(asked: usize) -> Self {
        Self {
            asked,
            given: Vec::new(),
        }
    }

    fn add(&mut self, address: Address) {
        match self.given.iter_mut().find(|(other, _)| *other == address) {
            Some((_, times)) => *times += 1,
            None => self.given.push((address, 1)),
        }
    }

    /// Returns whether more than half of the Sentinels have answered.
    fn are_enough(&self) -> bool {
        self.given.iter().map(|(_, times)| times).sum::<usize>() * 2 > self.asked
    }

    /// Returns whether the missing answers cannot change the result.
    fn are_decided(&self) -> bool {
        self.given.iter().any(|(_, times)| times * 2 > self.asked)
    }

    /// Returns the address with most votes. If two have as many: `now`, or else the first to come.
    fn most(self, now: Option<&Address>) -> Option<Address> {
        let weight = |(address, times): &(Address, usize)| (*times, Some(address) == now);
        self.given
            .into_iter()
            .rev()
            .max_by_key(weight)
            .map(|(address, _)| address)
    }
}

/// Asks one Sentinel.
async fn ask(sentinel: &Target, master: &str) -> Result<Address, StoreError> {
    let asking = async {
        let mut connection = dial::plain(sentinel, AsyncConnectionConfig::new()).await?;
        address(&mut connection, sentinel, master).await
    };
    timeout(ANSWERS_WITHIN, asking)
        .await
        .map_err(|_| unconnected_in_time(&sentinel.name, ANSWERS_WITHIN))?
}

async fn address(
    connection: &mut MultiplexedConnection,
    sentinel: &Target,
    master: &str,
) -> Result<Address, StoreError> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let answer: Value = question
        .query_async(connection)
        .await
        .map_err(|error| failed(&sentinel.name, error))?;
    if matches!(answer, Value::Nil) {
        return Err(refused(format!(
            "the Sentinel {} knows no master named `{master}`; write the name of `sentinel \
             monitor` in sentinel.conf at the end of the URL",
            sentinel.name
        )));
    }
    match redis::from_redis_value::<(String, u16)>(answer) {
        Ok(address) => Ok(address),
        Err(_) => Err(unexpected(&sentinel.name, &Value::Nil)),
    }
}

/// Listens to one Sentinel, and to the next when that one is lost. Reports each failover, and every
/// few seconds what a Sentinel answers.
pub(crate) async fn listen(watched: Arc<Watched>, report: impl Fn(Statement)) {
    for index in (0..watched.sentinels.len()).cycle() {
        // Whatever the error is, the next Sentinel is listened to.
        let _ = listen_to(&watched, index, &report).await;
        sleep(PAUSE).await;
    }
}

async fn listen_to(
    watched: &Watched,
    index: usize,
    report: &impl Fn(Statement),
) -> Result<(), StoreError> {
    let sentinel = &watched.sentinels[index];
    let master = watched.master.as_str();
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let begin = async {
        let mut connection = dial::plain(
            sentinel,
            AsyncConnectionConfig::new().set_push_sender(sender),
        )
        .await?;
        connection
            .subscribe("+switch-master")
            .await
            .map_err(|error| failed(&sentinel.name, error))?;
        Ok(connection)
    };
    let late = |_| unconnected_in_time(&sentinel.name, ANSWERS_WITHIN);
    let mut connection = timeout(ANSWERS_WITHIN, begin).await.map_err(late)??;
    // The first question goes at once: a failover before the subscription was not announced here.
    let mut questions = interval_at(clock::now(), ASKED_EVERY);
    // The others are asked in turn, because the one that is listened to may be cut off from them.
    let mut others = (1..watched.sentinels.len())
        .map(|other| (index + other) % watched.sentinels.len())
        .cycle();
    loop {
        tokio::select! {
            biased;
            push = pushes.recv() => match push {
                Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return Ok(()),
                Some(push) => if let Some(address) = switched(&push, master) {
                    report(Statement::Switched(address));
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
                    report(Statement::Believes(address));
                }
                report(Statement::Believes(answer.map_err(late)??));
            }
        }
    }
}

/// Reads the master's new address from a push: `name old-ip old-port new-ip new-port`.
fn switched(push: &PushInfo, master: &str) -> Option<Address> {
    let (PushKind::Message, [_, Value::BulkString(text)]) = (&push.kind, push.data.as_slice())
    else {
        return None;
    };
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words.as_slice() {
        [name, _, _, host, port] if *name == master => {
            Some(((*host).to_owned(), port.parse().ok()?))
        }
        _ => None,
    }
}

/// Refuses a server that says itself that it is not a master. A Sentinel may know of a failover
/// before or after the server does.
pub(crate) async fn check_is_master(
    connection: &mut MultiplexedConnection,
    server: &str,
) -> Result<(), StoreError> {
    let role: Value = redis::cmd("ROLE")
        .query_async(connection)
        .await
        .map_err(|error| failed(server, error))?;
    match &role {
        Value::Array(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "Redis ({server}) is not a master: the Sentinels are making another server the \
                     master, or have just done so"
                ),
            )
            .with_source(NoMaster)),
        },
        other => Err(unexpected(server, other)),
    }
}

/// The cause of the error for a server that is not a master.
#[derive(Debug)]
struct NoMaster;

impl std::fmt::Display for NoMaster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its ROLE is not that of a master")
    }
}

impl std::error::Error for NoMaster {}

/// Returns whether an attempt to connect failed because the server is not a master.
pub(crate) fn is_no_master(error: &StoreError) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<NoMaster>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_those_that_were_asked_decide() {
        let at = |host: &str| (host.to_owned(), 1);
        let mut votes = Votes::new(3);
        assert!(!votes.are_enough());
        votes.add(at("old"));
        assert!(!votes.are_enough() && !votes.are_decided());
        votes.add(at("new"));
        assert!(votes.are_enough() && !votes.are_decided());
        votes.add(at("new"));
        assert!(votes.are_decided());
        assert_eq!(votes.most(Some(&at("old"))), Some(at("new")));
        for (now, most) in [
            (None, "first"),
            (Some(at("second")), "second"),
            (Some(at("third")), "first"),
        ] {
            let mut votes = Votes::new(4);
            votes.add(at("first"));
            votes.add(at("second"));
            assert_eq!(votes.most(now.as_ref()), Some(at(most)));
        }
        assert_eq!(Votes::new(3).most(None), None);
    }

    #[test]
    fn only_a_fail_over_of_ones_own_master_is_heard() {
        let said = |text: &str| {
            let data = vec![
                Value::BulkString(b"+switch-master".into()),
                Value::BulkString(text.into()),
            ];
            switched(
                &PushInfo {
                    kind: PushKind::Message,
                    data,
                },
                "main",
            )
        };
        assert_eq!(
            said("main 10.0.0.1 6379 10.0.0.2 6380"),
            Some(("10.0.0.2".to_owned(), 6380))
        );
        assert_eq!(said("other 10.0.0.1 6379 10.0.0.2 6380"), None);
        assert_eq!(said("main 10.0.0.1 6379 10.0.0.2"), None);
        assert_eq!(said("main 10.0.0.1 6379 10.0.0.2 port"), None);
    }
}
