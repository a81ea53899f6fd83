//! The servers that a URL names: one server, a master under Sentinel, or a cluster.

use std::sync::Arc;

use idem_core::StoreError;
use url::Url;

use crate::connection::error::refused;
use crate::connection::target::{Target, disguised};

/// The default port of Sentinels.
pub(crate) const SENTINEL_PORT: u16 = 26379;
pub(crate) const NODE_PORT: u16 = 6379;

/// The servers that a URL names.
pub(crate) enum Location {
    Server(Target),
    Sentinel(Watched),
    Cluster(Seeds),
}

/// A master that Sentinels know by its name.
pub(crate) struct Watched {
    pub(crate) sentinels: Vec<Target>,
    pub(crate) master: String,
    /// How to connect to the master, wherever it is.
    pub(crate) data: Target,
    /// The URL without secrets.
    pub(crate) name: Arc<str>,
}

/// The nodes of a cluster that the URL names. They are asked for the others.
pub(crate) struct Seeds {
    /// At least one.
    pub(crate) nodes: Vec<Target>,
    /// How to connect to each node.
    pub(crate) data: Target,
    /// The URL without secrets.
    pub(crate) name: Arc<str>,
}

impl Seeds {
    /// Returns how to connect to a node that the cluster named.
    pub(crate) fn target(&self, host: &str, port: u16) -> Target {
        // A node that was named by the application may have a login of its own.
        let named = self.nodes.iter().find(|node| node.is_at(host, port));
        named.map_or_else(|| self.data.at(host, port), Target::clone)
    }
}

impl Location {
    /// Reads a URL. Whatever is wrong with it, the error shows neither user nor password.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        match scheme.rsplit_once('+') {
            Some((base, "sentinel")) => Self::sentinel(&MultiHostUrl::read(text, base)?),
            Some((base, "cluster")) => Self::cluster(&MultiHostUrl::read(text, base)?),
            _ => Target::parse(text).map(Self::Server),
        }
    }

    fn sentinel(parts: &MultiHostUrl<'_>) -> Result<Self, StoreError> {
        let mut db = None;
        let mut user = None;
        let mut password = None;
        for (parameter, value) in
            parts.parameters(&["db", "protocol", "sentinel_user", "sentinel_password"])?
        {
            match parameter.as_str() {
                "db" => db = Some(value),
                "sentinel_user" => user = Some(value),
                "sentinel_password" => password = Some(value),
                _ => {}
            }
        }
        let (master, path_db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
        if !is_master_name(master) {
            return Err(refused(format!(
                "the Redis URL `{}` must end with the name under which the Sentinels know the \
                 master: `redis+sentinel://user:password@host:26379,host:26379/main`",
                disguised(parts.text)
            )));
        }
        let db = db.unwrap_or_else(|| path_db.trim_end_matches('/').to_owned());
        if !db.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused(format!(
                "the Redis URL `{}` has a database that is not a number",
                disguised(parts.text)
            )));
        }
        let hosts = parts.hosts(SENTINEL_PORT)?;
        let data = Target::parse(&format!("{}://{}localhost/{db}", parts.base, parts.user))?;
        let sentinel = |host: &String| {
            let target = Target::parse(&format!("{}://{host}", parts.base))?;
            Ok(target.by(user.as_deref(), password.as_deref()))
        };
        let sentinels = hosts
            .iter()
            .map(sentinel)
            .collect::<Result<_, StoreError>>()?;
        let name = format!("{}+sentinel://{}/{master}", parts.base, hosts.join(",")).into();
        Ok(Self::Sentinel(Watched {
            sentinels,
            master: master.to_owned(),
            data,
            name,
        }))
    }

    fn cluster(parts: &MultiHostUrl<'_>) -> Result<Self, StoreError> {
        parts.parameters(&["protocol"])?;
        if !matches!(parts.path, "" | "0" | "0/") {
            return Err(refused(format!(
                "the Redis URL `{}` has a path; a cluster has one database, number 0: leave the \
                 path out",
                disguised(parts.text)
            )));
        }
        let hosts = parts.hosts(NODE_PORT)?;
        let node = |host: &String| Target::parse(&format!("{}://{}{host}", parts.base, parts.user));
        let nodes = hosts.iter().map(node).collect::<Result<_, StoreError>>()?;
        let data = Target::parse(&format!("{}://{}localhost", parts.base, parts.user))?;
        let name = format!("{}+cluster://{}", parts.base, hosts.join(",")).into();
        Ok(Self::Cluster(Seeds { nodes, data, name }))
    }
}

/// Whether Sentinels may know a master by this name.
pub(crate) fn is_master_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.chars().all(is_allowed)
}

/// Adds a port to a host that has none.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    // An IPv6 address stands in brackets.
    if host.ends_with(']') || !host.contains(':') {
        format!("{host}:{port}")
    } else {
        host.to_owned()
    }
}

/// A URL with several hosts, which the crate `url` does not read.
struct MultiHostUrl<'a> {
    text: &'a str,
    /// `redis` or `rediss`.
    base: &'a str,
    /// User and password, with the `@`.
    user: &'a str,
    hosts: &'a str,
    /// Without the first `/`.
    path: &'a str,
    query: &'a str,
}

impl<'a> MultiHostUrl<'a> {
    fn read(text: &'a str, base: &'a str) -> Result<Self, StoreError> {
        let Some((_, rest)) = text.split_once("://") else {
            return Err(refused(format!(
                "the Redis URL `{}` cannot be read",
                disguised(text)
            )));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if [rest, query].iter().any(|part| part.contains('#'))
            || [path, query].iter().any(|part| part.contains('@'))
        {
            return Err(refused(format!(
                "the Redis URL `{}` cannot be read: special characters in user, password and \
                 parameters are percent-encoded (`/` as `%2F`, `?` as `%3F`, `@` as `%40`, `#` as \
                 `%23`)",
                disguised(text)
            )));
        }
        let (user, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        Ok(Self {
            text,
            base,
            user,
            hosts,
            path,
            query,
        })
    }

    /// Returns the hosts, each with its port.
    fn hosts(&self, port: u16) -> Result<Vec<String>, StoreError> {
        let with_port = |host: &str| match host {
            "" => Err(refused(format!(
                "the Redis URL `{}` lacks a host",
                disguised(self.text)
            ))),
            host => Ok(with_port(host, port)),
        };
        self.hosts.split(',').map(with_port).collect()
    }

    fn parameters(&self, known: &[&str]) -> Result<Vec<(String, String)>, StoreError> {
        let Ok(url) = Url::parse(&format!("redis://host/?{}", self.query)) else {
            return Err(refused(format!(
                "the parameters of the Redis URL `{}` cannot be read",
                disguised(self.text)
            )));
        };
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        if pairs
            .iter()
            .any(|(parameter, _)| !known.contains(&parameter.as_str()))
        {
            // The error does not name it: it may be the part of a password after a `&`.
            return Err(refused(format!(
                "the Redis URL `{}` has a parameter that idem does not know; known here: {}",
                disguised(self.text),
                known.join(", ")
            )));
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::*;

    fn address(target: &Target) -> String {
        match target.info.addr() {
            ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_master_under_sentinel_has_its_own_user_and_database_and_the_sentinels_theirs() {
        let url = "redis+sentinel://app:hunter%402@a:1,b,[::1]:3/main-1?db=2&sentinel_user=watch&sentinel_password=hunter3";
        let Location::Sentinel(watched) = Location::parse(url).unwrap() else {
            panic!("no Sentinel")
        };
        assert_eq!(watched.master, "main-1");
        assert_eq!(
            watched.sentinels.iter().map(address).collect::<Vec<_>>(),
            ["a:1", "b:26379", "::1:3"]
        );
        let data = watched.data.info.redis_settings();
        assert_eq!(
            (data.username(), data.password(), data.db()),
            (Some("app"), Some("hunter@2"), 2)
        );
        for sentinel in &watched.sentinels {
            let settings = sentinel.info.redis_settings();
            assert_eq!(
                (settings.username(), settings.password(), settings.db()),
                (Some("watch"), Some("hunter3"), 0)
            );
        }
        assert_eq!(
            &*watched.name,
            "redis+sentinel://a:1,b:26379,[::1]:3/main-1"
        );
        let Location::Sentinel(watched) = Location::parse("redis+sentinel://a/main/3").unwrap()
        else {
            panic!()
        };
        assert_eq!(watched.data.info.redis_settings().db(), 3);
        assert_eq!(watched.data.info.redis_settings().password(), None);
    }

    #[test]
    fn the_nodes_of_a_cluster_share_user_and_password() {
        let Location::Cluster(seeds) =
            Location::parse("redis+cluster://app:hunter2@a:1,b").unwrap()
        else {
            panic!()
        };
        assert_eq!(
            seeds.nodes.iter().map(address).collect::<Vec<_>>(),
            ["a:1", "b:6379"]
        );
        for node in seeds.nodes.iter().chain([&seeds.data]) {
            assert_eq!(node.info.redis_settings().password(), Some("hunter2"));
        }
        assert_eq!(&*seeds.name, "redis+cluster://a:1,b:6379");
        assert!(matches!(
            Location::parse("redis://a:1/2"),
            Ok(Location::Server(_))
        ));
    }

    #[test]
    fn errors_about_urls_have_no_secrets() {
        for url in [
            "redis+sentinel://user:hunter2@host:26379",
            "redis+sentinel://user:hunter2@host:26379/",
            "redis+sentinel://user:hunter2@/main",
            "redis+sentinel://user:hunter2@a,,b/main",
            "redis+sentinel://user:hunter2@a:port/main",
            "redis+sentinel://user:hunter2@a/main/x",
            "redis+sentinel://user:1/hunter2@a/main",
            "redis+sentinel://user:1#hunter2@a/main",
            "redis+sentinel://user:1?hunter2@a/main",
            "redis+sentinel://a/main?sentinel_pass=hunter2",
            "redis+sentinel://a/main?sentinel_password=12&hunter2",
            "redis+sentinel://a/main?sentinel_password=12@hunter2",
            "redis+sentinel://a/main?sentinel_password=12#hunter2",
            "Redis+sentinel://a/main?sentinel_password=12@hunter2",
            "redis+sentinel:a/main?sentinel_password=12@hunter2",
            "redis+sentinel://user:12,hunter2@a,b:port/main",
            "redis+sentinel://a/ma%20in?sentinel_password=hunter2",
            "redis+cluster://user:hunter2@host:1/3",
            "redis+cluster://user:hunter2@host:x",
            "redis+cluster://user:hunter2@",
            "redis+cluster://host:1?db=hunter2",
            "http+cluster://user:hunter2@host:1",
            "+sentinel://user:hunter2@host:1/main",
        ] {
            let error = Location::parse(url)
                .err()
                .unwrap_or_else(|| panic!("{url} was read"));
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            assert_eq!(error.kind(), idem_core::StoreErrorKind::Refused);
        }
    }
}
