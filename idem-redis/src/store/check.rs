//! The requirements on a server for keeping the promises, checked once, when the store is made.

use futures_util::future::join_all;
use idem_core::__private::outward;
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::client::command::millis;
use crate::client::error::{failed, unexpected};
use crate::client::facts::{self, Facts};
use crate::client::greeting::judge_rights;
use crate::client::replicas::Replicas;
use crate::client::server::Server;
use crate::store::keys::Keys;
use crate::store::script::RIGHTS;

/// Looks at the server, or at each master of a cluster. Warns of what endangers records, fails
/// where it cannot be used.
pub(crate) async fn check(server: &Server, keys: &Keys) -> Result<(), StoreError> {
    let checks = server.slots().into_iter().map(|slot| check_at(server, slot, keys));
    join_all(checks).await.into_iter().collect::<Result<(), _>>()?;
    server.must_cover()
}

async fn check_at(server: &Server, slot: u16, keys: &Keys) -> Result<(), StoreError> {
    // All of it: naming several sections at once came with Redis 7.
    let info = redis::cmd("INFO");
    let answer = server.step_at(slot, |mut lane| async move {
        match lane.try_send(&info).await {
            Err(error) if error.code() == Some("NOPERM") => Ok((lane, None)),
            Err(error) => Err(failed(lane.server(), error)),
            Ok(answer) => Ok((lane, Some(answer))),
        }
    });
    let (lane, answer) = answer.await?;
    let name = lane.server();
    match &answer {
        None => outward(|| {
            tracing::warn!(
                target: "idem",
                server = name,
                "this user may not ask Redis for INFO, so idem cannot tell whether the server is new enough, a master, and keeps its records when its memory is full (ACL SETUSER .. +info)"
            );
        }),
        // Of all nodes, by an application's connection to a cluster.
        Some(Value::Map(nodes)) => {
            for (_, info) in nodes {
                look(name, info, server.is_cluster())?;
            }
        }
        Some(info) => look(name, info, server.is_cluster())?,
    }
    if server.is_given() {
        // Our own connections were greeted so.
        let sample = keys.sample();
        let asking = server.step_at(slot, |mut lane| async move {
            let missing = lane.script(&RIGHTS, &[], &[sample.as_bytes()]).await?;
            judge_rights(lane.server(), &sample, &missing)
        });
        asking.await?;
    }
    match server.replicas() {
        Some(wanted) => has_replicas(server, slot, wanted).await,
        None => Ok(()),
    }
}

fn look(server: &str, info: &Value, is_cluster: bool) -> Result<(), StoreError> {
    let text = facts::text(info).ok_or_else(|| unexpected(server, info))?;
    let facts = Facts::read(text);
    facts.judge(server, is_cluster)?;
    if let Some(policy) = facts.evicts() {
        outward(|| {
            tracing::warn!(
                target: "idem",
                server,
                maxmemory_policy = policy,
                "Redis evicts keys when its memory is full: an evicted record lets a body run twice. Set `CONFIG SET maxmemory-policy noeviction` (and `maxmemory-policy noeviction` in redis.conf), or give idem a Redis of its own"
            );
        });
    }
    Ok(())
}

/// Refuses a master that has too few replicas to begin with, or a user who may not ask.
async fn has_replicas(server: &Server, slot: u16, wanted: Replicas) -> Result<(), StoreError> {
    let answer = server.step_at(slot, |mut lane| async move {
        let answer = lane.send(redis::cmd("WAIT").arg(wanted.count).arg(millis(wanted.timeout))).await?;
        Ok((lane, answer))
    });
    match answer.await? {
        (_, Value::Int(count)) if count >= i64::from(wanted.count) => Ok(()),
        (lane, Value::Int(count)) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({}): {count} replicas answered within {:?}, and {} are to acknowledge each record; see that they run and keep up (INFO replication), or ask for fewer with `replicas`",
                lane.server(),
                wanted.timeout,
                wanted.count
            ),
        )),
        (lane, other) => Err(unexpected(lane.server(), &other)),
    }
}
