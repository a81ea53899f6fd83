//! Where the master is, by what the Sentinels say.
//!
//! Not redis-rs's `sentinel` (1.8): it asks one Sentinel after the other, each for as long as the network takes, so that one that is
//! silent keeps a reconnection from the others; and it does not listen to them.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::error::{failed, refused, unconnected_in_time, unexpected};
use crate::link;
use crate::place::Watched;
use crate::target::Target;

/// A Sentinel that has not answered by then is left alone.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A Sentinel that is listened to is asked whether it is still there after so long a silence.
const SILENCE: Duration = Duration::from_secs(5);
/// Between two Sentinels that are listened to.
const PAUSE: Duration = Duration::from_millis(250);

/// Where a server listens.
pub(crate) type Address = (String, u16);

/// Asks all Sentinels at once, and tries each server that one of them names as the master, until one can be used.
pub(crate) async fn master<T, F>(watched: &Arc<Watched>, open: impl Fn(Target, Address) -> F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let mut asked = JoinSet::new();
    for index in 0..watched.sentinels.len() {
        let watched = Arc::clone(watched);
        asked.spawn(async move { ask(&watched.sentinels[index], &watched.master).await });
    }
    let (mut opened, mut tried, mut failure) = (JoinSet::new(), HashSet::new(), None);
    let note = |failure: &mut Option<StoreError>, error: StoreError| {
        // What passes by itself says more than what a person has to mend at one of them.
        if failure.as_ref().is_none_or(|other| other.kind() == StoreErrorKind::Refused) {
            *failure = Some(error);
        }
    };
    loop {
        tokio::select! {
            Some(answer) = asked.join_next() => match answer {
                Ok(Ok(address)) => if tried.insert(address.clone()) {
                    opened.spawn(open(watched.data.at(&address.0, address.1), address));
                },
                Ok(Err(error)) => note(&mut failure, error),
                Err(_) => {}
            },
            Some(outcome) = opened.join_next() => match outcome {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => note(&mut failure, error),
                Err(_) => {}
            },
            else => break,
        }
    }
    Err(failure.unwrap_or_else(|| unconnected_in_time(&watched.name, ANSWERS_WITHIN)))
}

/// What one Sentinel says.
async fn ask(sentinel: &Target, master: &str) -> Result<Address, StoreError> {
    let asking = async {
        let mut connection = link::plain(sentinel, AsyncConnectionConfig::new()).await?;
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
            "the Sentinel {} knows no master of the name `{master}`; it stands at the end of the URL, and behind `sentinel monitor` in sentinel.conf",
            sentinel.name
        )));
    }
    match redis::from_redis_value::<(String, u16)>(answer) {
        Ok(address) => Ok(address),
        Err(_) => Err(unexpected(&sentinel.name, &Value::Nil)),
    }
}

/// Listens to one Sentinel after the other, for as long as there is one, and says where the master is: after each fail-over, and when it
/// begins to listen to another.
pub(crate) async fn listen(watched: Arc<Watched>, is_at: impl Fn(&Address)) {
    for sentinel in watched.sentinels.iter().cycle() {
        // Why it ended is of no interest: the next one is listened to.
        let _ = listen_to(sentinel, &watched.master, &is_at).await;
        sleep(PAUSE).await;
    }
}

async fn listen_to(sentinel: &Target, master: &str, is_at: &impl Fn(&Address)) -> Result<(), StoreError> {
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let begin = async {
        let mut connection = link::plain(sentinel, AsyncConnectionConfig::new().set_push_sender(sender)).await?;
        connection.subscribe("+switch-master").await.map_err(|error| failed(&sentinel.name, error))?;
        // Only now, or a fail-over in between would be missed.
        let address = address(&mut connection, sentinel, master).await?;
        Ok((connection, address))
    };
    let late = |_| unconnected_in_time(&sentinel.name, ANSWERS_WITHIN);
    let (mut connection, address) = timeout(ANSWERS_WITHIN, begin).await.map_err(late)??;
    is_at(&address);
    loop {
        match timeout(SILENCE, pushes.recv()).await {
            Ok(Some(PushInfo { kind: PushKind::Disconnection, .. }) | None) => return Ok(()),
            Ok(Some(push)) => {
                if let Some(address) = switched(&push, master) {
                    is_at(&address);
                }
            }
            Err(_) => {
                let ping = redis::cmd("PING");
                let ping = ping.query_async::<Value>(&mut connection);
                timeout(ANSWERS_WITHIN, ping).await.map_err(late)?.map_err(|error| failed(&sentinel.name, error))?;
            }
        }
    }
}

/// Where the master went, if that is what was pushed: `name old-ip old-port new-ip new-port`.
fn switched(push: &PushInfo, master: &str) -> Option<Address> {
    let (PushKind::Message, [_, Value::BulkString(text)]) = (&push.kind, push.data.as_slice()) else { return None };
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words.as_slice() {
        [name, _, _, host, port] if *name == master => Some(((*host).to_owned(), port.parse().ok()?)),
        _ => None,
    }
}

/// Refuses a server that is no master by its own word. A Sentinel may be behind, or ahead of the server.
pub(crate) async fn must_be_master(connection: &mut MultiplexedConnection, server: &str) -> Result<(), StoreError> {
    let role: Value = redis::cmd("ROLE").query_async(connection).await.map_err(|error| failed(server, error))?;
    match &role {
        Value::Array(role) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "Redis ({server}) is no master: the Sentinels are making another server the master, or have just done so"
                ),
            )),
        },
        other => Err(unexpected(server, other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
