//! The requirements on a server for keeping the promises, checked once, when the store is made.

use futures_util::future::join_all;
use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use crate::error::{failed, refused, unconnected, unexpected};
use crate::keys::Keys;
use crate::replicas::Replicas;
use crate::script::{self, RIGHTS, evalsha, millis};
use crate::server::Server;

/// `SET .. NX GET`, the claim, came with this one.
const OLDEST_MAJOR: u32 = 7;
/// `SET .. IFEQ`, the commit in one plain command, came with these: of Redis, and of Valkey.
const COMPARES: [(u32, u32); 2] = [(8, 4), (8, 1)];

/// Looks at the server, or at each master of a cluster. Warns of what endangers records, fails
/// where it cannot be used.
pub(crate) async fn check(server: &Server, keys: &Keys) -> Result<(), StoreError> {
    let checks = server.slots().into_iter().map(|slot| check_at(server, slot, keys));
    join_all(checks).await.into_iter().collect::<Result<(), _>>()?;
    server.must_cover()
}

/// The first words on a new connection: makes the scripts known, and refuses a server that would
/// carry out a claim and then not its commit. Says whether the server has `SET .. IFEQ`: another
/// one may have been asked before, on another connection.
pub(crate) async fn greet(
    connection: &mut MultiplexedConnection,
    server: &str,
    sample: &str,
    is_node: bool,
) -> Result<bool, StoreError> {
    let mut greeting = script::load_all();
    greeting.add_command(evalsha(&RIGHTS, &[], &[sample.as_bytes()])).cmd("INFO").arg("server");
    let answers: Vec<RedisResult<Value>> =
        greeting.query_async(connection).await.map_err(|error| unconnected(server, error))?;
    let [loaded @ .., missing, info] = answers.as_slice() else { return Err(unexpected(server, &Value::Nil)) };
    // First: a Sentinel has no scripts, and an old server does not know these.
    let facts = info.as_ref().ok().and_then(text).map(Facts::read).unwrap_or_default();
    facts.judge(server, is_node)?;
    for answer in loaded {
        needed(server, "SCRIPT LOAD", "+script|load", answer)?;
    }
    needed(server, "EVALSHA", "+evalsha", missing)?;
    if let Ok(missing) = missing {
        judge_rights(server, sample, missing)?;
    }
    Ok(facts.compares())
}

/// Refuses a server that refuses a command for good. Passing failures (such as loading) are left to
/// the calls.
fn needed(server: &str, command: &str, right: &str, answer: &RedisResult<Value>) -> Result<(), StoreError> {
    let Err(error) = answer else { return Ok(()) };
    let error = failed(server, error.clone());
    if error.kind() != StoreErrorKind::Refused {
        return Ok(());
    }
    Err(refused(format!(
        "{error}; idem needs {command}: without it a body would run and its outcome could not be recorded. Give the user the right to it (ACL SETUSER .. {right}), and see that the server does not rename or disable it (rename-command)"
    ))
    .with_source(error))
}

/// Refuses a server that has named commands which this user may not use on the store's keys.
fn judge_rights(server: &str, sample: &str, missing: &Value) -> Result<(), StoreError> {
    let Value::Array(missing) = missing else { return Err(unexpected(server, missing)) };
    let names = missing.iter().filter_map(|name| match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok(),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let rights = names.iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>().join(" +");
    let prefix = sample.strip_suffix("{}").unwrap_or(sample);
    Err(refused(format!(
        "Redis ({server}): NOPERM: this user may not use {} on the keys `{prefix}*`, so a body could run and its outcome not be recorded. Give the user the right to them (ACL SETUSER .. ~{prefix}* +{rights}), and see that the server does not rename or disable them (rename-command)",
        names.join(", ")
    )))
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
        None => tracing::warn!(
            target: "idem",
            server = name,
            "this user may not ask Redis for INFO, so idem cannot tell whether the server is new enough, a master, and keeps its records when its memory is full (ACL SETUSER .. +info)"
        ),
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

fn text(info: &Value) -> Option<&str> {
    match info {
        Value::VerbatimString { text, .. } => Some(text),
        Value::BulkString(text) => Some(std::str::from_utf8(text).unwrap_or_default()),
        _ => None,
    }
}

fn look(server: &str, info: &Value, is_cluster: bool) -> Result<(), StoreError> {
    let text = text(info).ok_or_else(|| unexpected(server, info))?;
    let facts = Facts::read(text);
    facts.judge(server, is_cluster)?;
    if let Some(policy) = facts.evicts() {
        tracing::warn!(
            target: "idem",
            server,
            maxmemory_policy = policy,
            "Redis evicts keys when its memory is full: an evicted record lets a body run twice. Set `CONFIG SET maxmemory-policy noeviction` (and `maxmemory-policy noeviction` in redis.conf), or give idem a Redis of its own"
        );
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

/// The facts about a server from `INFO`.
#[derive(Debug, Default)]
struct Facts<'a> {
    redis_version: Option<&'a str>,
    valkey_version: Option<&'a str>,
    mode: Option<&'a str>,
    role: Option<&'a str>,
    policy: Option<&'a str>,
}

impl<'a> Facts<'a> {
    fn read(info: &'a str) -> Self {
        let mut facts = Self::default();
        for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match field {
                "redis_version" => facts.redis_version = Some(value),
                "valkey_version" => facts.valkey_version = Some(value),
                "redis_mode" | "server_mode" => facts.mode = Some(value),
                "role" => facts.role = Some(value),
                "maxmemory_policy" => facts.policy = Some(value),
                _ => {}
            }
        }
        facts
    }

    fn judge(&self, server: &str, is_cluster: bool) -> Result<(), StoreError> {
        let version = self.redis_version.unwrap_or("of an unknown version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if self.valkey_version.is_none() && major.is_some_and(|major| major < OLDEST_MAJOR) {
            return Err(refused(format!(
                "Redis ({server}) is version {version}; idem needs Redis 7.0 or newer, or Valkey: a claim is one SET with NX and GET, which older servers refuse"
            )));
        }
        match (self.mode, is_cluster) {
            (Some("sentinel"), _) => {
                return Err(refused(format!(
                    "Redis ({server}) is a Sentinel, which keeps no data; write `redis+sentinel://host:port,host:port/master-name` to be led to the master that it watches"
                )));
            }
            (Some("cluster"), false) => {
                return Err(refused(format!(
                    "Redis ({server}) is a node of a cluster, which has only some of the keys; write `redis+cluster://host:port,host:port`, or hand over a `ClusterConnection`"
                )));
            }
            (Some("standalone"), true) => {
                return Err(refused(format!(
                    "Redis ({server}) is not a node of a cluster; write `redis://host:port`, or hand over a connection to a single server"
                )));
            }
            // Its replicas answer too, and take no part.
            (_, true) => return Ok(()),
            (_, false) => {}
        }
        match self.role {
            None | Some("master") => Ok(()),
            Some(_) => Err(refused(format!(
                "Redis ({server}) is a replica: it takes no records, or loses them; connect to its master (INFO replication says where that is), or write `redis+sentinel://..` or `redis+cluster://..` to be led to whichever server is the master"
            ))),
        }
    }

    fn compares(&self) -> bool {
        let [redis, valkey] = COMPARES;
        // Valkey's Redis version is the one with which it is compatible.
        let (version, oldest) = match self.valkey_version {
            Some(version) => (Some(version), valkey),
            None => (self.redis_version, redis),
        };
        version.and_then(major_and_minor).is_some_and(|version| version >= oldest)
    }

    fn evicts(&self) -> Option<&'a str> {
        self.policy.filter(|policy| *policy != "noeviction")
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_end().split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use idem_core::StoreErrorKind;

    use super::*;

    fn judge(info: &str) -> Result<(), String> {
        judge_for(info, false)
    }

    fn judge_for(info: &str, is_cluster: bool) -> Result<(), String> {
        Facts::read(info).judge("redis://host", is_cluster).map_err(|error| {
            assert_eq!(error.kind(), StoreErrorKind::Refused);
            error.to_string()
        })
    }

    #[test]
    fn a_server_that_is_too_old_is_named_with_its_version() {
        for version in ["6.2.14", "5.0.3", "2.8.0"] {
            let error =
                judge(&format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n"));
            assert!(error.as_ref().is_err_and(|error| error.contains(version) && error.contains("7.0")), "{error:?}");
        }
        for version in ["7.0.0", "7.4.1", "8.2.0", "255.255.255"] {
            assert_eq!(
                judge(&format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n")),
                Ok(())
            );
        }
    }

    #[test]
    fn valkey_is_known_by_its_own_version() {
        assert_eq!(
            judge(
                "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:standalone\r\nrole:master"
            ),
            Ok(())
        );
    }

    #[test]
    fn which_servers_compare_is_known_by_their_version() {
        for (info, has) in [
            ("redis_version:8.4.0", true),
            ("redis_version:8.10.2", true),
            ("redis_version:9.0", true),
            ("redis_version:255.255.255", true),
            ("redis_version:8.3", false),
            ("redis_version:8.1.0", false),
            ("redis_version:7.4.9", false),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.0", true),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.1", true),
            ("redis_version:7.2.4\r\nvalkey_version:9.0.0", true),
            ("redis_version:7.2.4\r\nvalkey_version:8.0.9", false),
            // The other way round too: what counts is Valkey's own.
            ("valkey_version:8.0.9\r\nredis_version:8.4.0", false),
            ("valkey_version:\r\nredis_version:8.4.0", false),
            ("redis_version:", false),
            ("redis_version:9", false),
            ("redis_version:9.x", false),
            ("redis_version:-9.1", false),
            ("redis_version:99999999999.1", false),
            ("redis_version:eight.four", false),
            ("", false),
        ] {
            assert_eq!(Facts::read(&format!("# Server\r\n{info}\r\n")).compares(), has, "{info}");
        }
        assert_eq!(text(&Value::Nil), None);
        assert_eq!(text(&Value::BulkString(vec![0xff; 9])), Some(""));
    }

    #[test]
    fn servers_of_another_kind_are_refused_with_the_url_to_write() {
        let cluster = "redis_version:7.0.15\r\nredis_mode:cluster\r\nrole:master";
        let single = "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master";
        for (info, is_cluster, word) in [
            ("redis_version:7.0.15\r\nrole:slave\r\nslave_read_only:1", false, "is a replica"),
            ("redis_version:7.0.15\r\nredis_mode:sentinel", false, "redis+sentinel://"),
            (cluster, false, "redis+cluster://"),
            (single, true, "redis://"),
        ] {
            assert!(judge_for(info, is_cluster).is_err_and(|error| error.contains(word)), "{info}");
        }
        assert_eq!(judge_for(cluster, true), Ok(()));
        assert_eq!(judge_for(&cluster.replace("master", "slave"), true), Ok(()));
    }

    #[test]
    fn every_policy_that_evicts_is_found() {
        assert_eq!(Facts::read("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n").evicts(), None);
        for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"] {
            assert_eq!(Facts::read(&format!("maxmemory_policy:{policy}\r\n")).evicts(), Some(policy));
        }
    }
}
