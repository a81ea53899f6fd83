//! A server's description of itself, and whether a store can use it.

use idem_core::StoreError;
use redis::Value;

use crate::connection::error::refused;

/// The first version with `SET .. NX GET`, the claim.
const OLDEST_MAJOR: u32 = 7;
/// The first versions with `SET .. IFEQ`, the commit in one plain command.
const REDIS_WITH_IFEQ: (u32, u32) = (8, 4);
const VALKEY_WITH_IFEQ: (u32, u32) = (8, 1);

/// The answer of a server to `INFO`.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo<'a> {
    redis_version: Option<&'a str>,
    valkey_version: Option<&'a str>,
    mode: Option<&'a str>,
    role: Option<&'a str>,
    policy: Option<&'a str>,
    run_id: Option<&'a str>,
    replication_id: Option<&'a str>,
}

impl<'a> ServerInfo<'a> {
    pub(crate) fn read(info: &'a str) -> Self {
        let mut server = Self::default();
        for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
            match field {
                "redis_version" => server.redis_version = Some(value),
                "valkey_version" => server.valkey_version = Some(value),
                "redis_mode" | "server_mode" => server.mode = Some(value),
                "role" => server.role = Some(value),
                "run_id" => server.run_id = Some(value),
                "master_replid" => server.replication_id = Some(value),
                "maxmemory_policy" => server.policy = Some(value),
                _ => {}
            }
        }
        server
    }

    pub(crate) fn check(&self, server: &str, is_cluster: bool) -> Result<(), StoreError> {
        let version = self.redis_version.unwrap_or("of an unknown version");
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse::<u32>().ok());
        if self.valkey_version.is_none() && major.is_some_and(|major| major < OLDEST_MAJOR) {
            return Err(refused(format!(
                "Redis ({server}) is version {version}; idem needs Redis 7.0 or newer, or Valkey: \
                 a claim is one SET with NX and GET, which older servers refuse"
            )));
        }
        match (self.mode, is_cluster) {
            (Some("sentinel"), _) => {
                return Err(refused(format!(
                    "Redis ({server}) is a Sentinel, which keeps no data; write \
                     `redis+sentinel://host:port,host:port/master-name` to be led to the master \
                     that it watches"
                )));
            }
            (Some("cluster"), false) => {
                return Err(refused(format!(
                    "Redis ({server}) is a node of a cluster, which has only some of the keys; \
                     write `redis+cluster://host:port,host:port`, or hand over a \
                     `ClusterConnection`"
                )));
            }
            (Some("standalone"), true) => {
                return Err(refused(format!(
                    "Redis ({server}) is not a node of a cluster; write `redis://host:port`, or \
                     hand over a connection to a single server"
                )));
            }
            // A replica of a cluster is fine here: commands are only sent to masters.
            (_, true) => return Ok(()),
            (_, false) => {}
        }
        match self.role {
            None | Some("master") => Ok(()),
            Some(_) => Err(refused(format!(
                "Redis ({server}) is a replica: it takes no records, or loses them; connect to its \
                 master (INFO replication says where that is), or write `redis+sentinel://..` or \
                 `redis+cluster://..` to be led to whichever server is the master"
            ))),
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.role.is_some_and(|role| role != "master")
    }

    /// Returns a text that is another one after a restart, and after a failover. A `SCAN` cannot go
    /// on then: its cursor is a place in the table of one process. Empty if it is not known.
    pub(crate) fn life(&self) -> String {
        let short = |id: &str| id.chars().take(16).collect::<String>();
        self.run_id
            .into_iter()
            .chain(self.replication_id.filter(|_| self.run_id.is_some()))
            .map(short)
            .collect()
    }

    /// Returns whether the server has `SET .. IFEQ`.
    pub(crate) fn has_ifeq(&self) -> bool {
        // Valkey also names a Redis version, with which it is compatible.
        let (version, oldest) = match self.valkey_version {
            Some(version) => (Some(version), VALKEY_WITH_IFEQ),
            None => (self.redis_version, REDIS_WITH_IFEQ),
        };
        version
            .and_then(major_and_minor)
            .is_some_and(|version| version >= oldest)
    }

    /// Returns the policy by which the server evicts keys, if it does.
    pub(crate) fn evicts(&self) -> Option<&'a str> {
        self.policy.filter(|policy| *policy != "noeviction")
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version
        .trim_end()
        .split('.')
        .map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the text of an answer to `INFO`.
pub(crate) fn text(info: &Value) -> Option<&str> {
    match info {
        Value::VerbatimString { text, .. } => Some(text),
        Value::BulkString(text) => Some(std::str::from_utf8(text).unwrap_or_default()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use idem_core::StoreErrorKind;

    use super::*;

    fn check(info: &str) -> Result<(), String> {
        check_for(info, false)
    }

    fn check_for(info: &str, is_cluster: bool) -> Result<(), String> {
        ServerInfo::read(info)
            .check("redis://host", is_cluster)
            .map_err(|error| {
                assert_eq!(error.kind(), StoreErrorKind::Refused);
                error.to_string()
            })
    }

    #[test]
    fn a_server_that_is_too_old_is_named_with_its_version() {
        for version in ["6.2.14", "5.0.3", "2.8.0"] {
            let error = check(&format!(
                "# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n"
            ));
            assert!(
                error
                    .as_ref()
                    .is_err_and(|error| error.contains(version) && error.contains("7.0")),
                "{error:?}"
            );
        }
        for version in ["7.0.0", "7.4.1", "8.2.0", "255.255.255"] {
            assert_eq!(
                check(&format!(
                    "# \
                     Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrole:master\r\n"
                )),
                Ok(())
            );
        }
    }

    #[test]
    fn valkey_is_known_by_its_own_version() {
        assert_eq!(
            check(
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
            assert_eq!(
                ServerInfo::read(&format!("# Server\r\n{info}\r\n")).has_ifeq(),
                has,
                "{info}"
            );
        }
        assert_eq!(text(&Value::Nil), None);
        assert_eq!(text(&Value::BulkString(vec![0xff; 9])), Some(""));
    }

    #[test]
    fn servers_of_another_kind_are_refused_with_the_url_to_write() {
        let cluster = "redis_version:7.0.15\r\nredis_mode:cluster\r\nrole:master";
        let single = "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:master";
        for (info, is_cluster, word) in [
            (
                "redis_version:7.0.15\r\nrole:slave\r\nslave_read_only:1",
                false,
                "is a replica",
            ),
            (
                "redis_version:7.0.15\r\nredis_mode:sentinel",
                false,
                "redis+sentinel://",
            ),
            (cluster, false, "redis+cluster://"),
            (single, true, "redis://"),
        ] {
            assert!(
                check_for(info, is_cluster).is_err_and(|error| error.contains(word)),
                "{info}"
            );
        }
        assert_eq!(check_for(cluster, true), Ok(()));
        assert_eq!(check_for(&cluster.replace("master", "slave"), true), Ok(()));
    }

    #[test]
    fn every_policy_that_evicts_is_found() {
        assert_eq!(
            ServerInfo::read("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n").evicts(),
            None
        );
        for policy in [
            "allkeys-lru",
            "volatile-lru",
            "volatile-ttl",
            "allkeys-random",
        ] {
            assert_eq!(
                ServerInfo::read(&format!("maxmemory_policy:{policy}\r\n")).evicts(),
                Some(policy)
            );
        }
    }
}
