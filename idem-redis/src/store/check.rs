//! Checks, when a store is made, whether the server can keep the promises.

use futures_util::future::join_all;
use idem_core::adapter::catch_user_panic;
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::connection::command::millis;
use crate::connection::error::{failed, unexpected};
use crate::connection::handshake::check_rights;
use crate::connection::replicas::Replicas;
use crate::connection::server_info::{self, ServerInfo};
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::script::RIGHTS;

/// Checks the server, or each master of a cluster. Warns of settings that endanger records, and
/// refuses a server that cannot be used.
pub(crate) async fn check(runner: &StepRunner, keys: &Keys) -> Result<(), StoreError> {
    let checks = runner
        .slots()
        .into_iter()
        .map(|slot| check_at(runner, slot, keys));
    join_all(checks)
        .await
        .into_iter()
        .collect::<Result<(), _>>()?;
    runner.check_coverage()
}

async fn check_at(runner: &StepRunner, slot: u16, keys: &Keys) -> Result<(), StoreError> {
    // The whole `INFO`: older servers, which must get a clear error, accept only one section name.
    let info = redis::cmd("INFO");
    let answer = runner.step_at(slot, |mut connection| async move {
        match connection.try_send(&info).await {
            Err(error) if error.code() == Some("NOPERM") => Ok((connection, None)),
            Err(error) => Err(failed(connection.server(), error)),
            Ok(answer) => Ok((connection, Some(answer))),
        }
    });
    let (connection, answer) = answer.await?;
    let name = connection.server();
    match &answer {
        None => catch_user_panic(|| {
            tracing::warn!(
                target: "idem",
                server = name,
                "this user may not ask Redis for INFO, so idem cannot tell whether the server is \
                 new enough, a master, and keeps its records when its memory is full (ACL SETUSER \
                 .. +info)"
            );
        }),
        // An application's connection to a cluster answers for all nodes.
        Some(Value::Map(nodes)) => {
            for (_, info) in nodes {
                look(name, info, runner.is_cluster())?;
            }
        }
        Some(info) => look(name, info, runner.is_cluster())?,
    }
    if runner.is_given() {
        // The handshake did this on the store's own connections.
        let sample = keys.sample();
        let asking = runner.step_at(slot, |mut connection| async move {
            let missing = connection
                .script(&RIGHTS, &[], &[sample.as_bytes()])
                .await?;
            check_rights(connection.server(), &sample, &missing)
        });
        asking.await?;
    }
    match runner.replicas() {
        Some(wanted) => has_replicas(runner, slot, wanted).await,
        None => Ok(()),
    }
}

fn look(server: &str, info: &Value, is_cluster: bool) -> Result<(), StoreError> {
    let text = server_info::text(info).ok_or_else(|| unexpected(server, info))?;
    let info = ServerInfo::read(text);
    info.check(server, is_cluster)?;
    if let Some(policy) = info.evicts() {
        catch_user_panic(|| {
            tracing::warn!(
                target: "idem",
                server,
                maxmemory_policy = policy,
                "Redis evicts keys when its memory is full: an evicted record lets a body run \
                 twice. Set `CONFIG SET maxmemory-policy noeviction` (and `maxmemory-policy \
                 noeviction` in redis.conf), or give idem a Redis of its own"
            );
        });
    }
    Ok(())
}

/// Refuses a master that has too few replicas now, or a user who may not ask.
async fn has_replicas(runner: &StepRunner, slot: u16, wanted: Replicas) -> Result<(), StoreError> {
    let answer = runner.step_at(slot, |mut connection| async move {
        let answer = connection
            .send(
                redis::cmd("WAIT")
                    .arg(wanted.count)
                    .arg(millis(wanted.timeout)),
            )
            .await?;
        Ok((connection, answer))
    });
    match answer.await? {
        (_, Value::Int(count)) if count >= i64::from(wanted.count) => Ok(()),
        (connection, Value::Int(count)) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({}): {count} replicas answered within {:?}, and {} are to acknowledge each \
                 record; see that they run and keep up (INFO replication), or ask for fewer with \
                 `replicas`",
                connection.server(),
                wanted.timeout,
                wanted.count
            ),
        )),
        (connection, other) => Err(unexpected(connection.server(), &other)),
    }
}
