//! What a server must be to keep promises: looked at once, when the store is made.

use idem_core::StoreError;
use redis::Value;

use crate::error::{failed, refused, unexpected};
use crate::server::Server;

/// `SET .. NX GET`, the claim, came with this one.
const OLDEST_MAJOR: u32 = 7;

/// Looks at the server. Warns of what endangers records, fails where it cannot be used.
pub(crate) async fn check(server: &Server) -> Result<(), StoreError> {
    // All of it: naming several sections at once came with Redis 7.
    let info = redis::cmd("INFO");
    let answer = server.step(|mut lane| async move {
        match lane.try_send(&info).await {
            Err(error) if error.code() == Some("NOPERM") => Ok(None),
            outcome => outcome.map(Some).map_err(|error| failed(lane.server(), error)),
        }
    });
    let Some(answer) = answer.await? else {
        tracing::warn!(
            target: "idem",
            server = server.name(),
            "this user may not ask Redis for INFO, so idem cannot tell whether the server is new enough, a master, and keeps its records when its memory is full (ACL SETUSER .. +info)"
        );
        return Ok(());
    };
    let text = match &answer {
        Value::VerbatimString { text, .. } => text.as_str(),
        Value::BulkString(text) => std::str::from_utf8(text).unwrap_or_default(),
        other => return Err(unexpected(server.name(), other)),
    };
    let facts = Facts::read(text);
    facts.judge(server.name())?;
    if let Some(policy) = facts.evicts() {
        tracing::warn!(
            target: "idem",
            server = server.name(),
            maxmemory_policy = policy,
            "Redis evicts keys when its memory is full: an evicted record lets a body run twice. Set `CONFIG SET maxmemory-policy noeviction` (and `maxmemory-policy noeviction` in redis.conf), or give idem a Redis of its own"
        );
    }
    Ok(())
}

/// What INFO says about a server.
#[derive(Debug, Default)]
struct Facts<'a> {
    redis_version: Option<&'a str>,
    valkey: bool,
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
                "valkey_version" => facts.valkey = true,
                "redis_mode" | "server_mode" => facts.mode = Some(value),
                "role" => facts.role = Some(value),
                "maxmemory_policy" => facts.policy = Some(value),
                _ => {}
            }
        }
        facts
    }

    fn judge(&self, server: &str) -> Result<(), StoreError> {
        let version = self.redis_version.unwrap_or("of an unknown version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if !self.valkey && major.is_some_and(|major| major < OLDEST_MAJOR) {
            return Err(refused(format!(
                "Redis ({server}) is version {version}; idem needs Redis 7.0 or newer, or Valkey: a claim is one SET with NX and GET, which older servers refuse"
            )));
        }
        match self.mode {
            Some("sentinel") => {
                return Err(refused(format!(
                    "Redis ({server}) is a Sentinel, which keeps no data; name the server that it watches"
                )));
            }
            Some("cluster") => {
                return Err(refused(format!(
                    "Redis ({server}) is a node of a cluster, which this version of idem cannot use; name a server that is none"
                )));
            }
            _ => {}
        }
        match self.role {
            None | Some("master") => Ok(()),
            Some(_) => Err(refused(format!(
                "Redis ({server}) is a replica: it takes no records, or loses them; connect to its master (INFO replication says where that is)"
            ))),
        }
    }

    fn evicts(&self) -> Option<&'a str> {
        self.policy.filter(|policy| *policy != "noeviction")
    }
}

#[cfg(test)]
mod tests {
    use idem_core::StoreErrorKind;

    use super::*;

    fn judge(info: &str) -> Result<(), String> {
        Facts::read(info).judge("redis://host").map_err(|error| {
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
    fn replicas_sentinels_and_cluster_nodes_are_refused() {
        for (info, word) in [
            ("redis_version:7.0.15\r\nrole:slave\r\nslave_read_only:1", "replica"),
            ("redis_version:7.0.15\r\nredis_mode:sentinel", "Sentinel"),
            ("redis_version:7.0.15\r\nredis_mode:cluster\r\nrole:master", "cluster"),
        ] {
            assert!(judge(info).is_err_and(|error| error.contains(word)), "{info}");
        }
    }

    #[test]
    fn every_policy_that_evicts_is_found() {
        assert_eq!(Facts::read("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n").evicts(), None);
        for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"] {
            assert_eq!(Facts::read(&format!("maxmemory_policy:{policy}\r\n")).evicts(), Some(policy));
        }
    }
}
