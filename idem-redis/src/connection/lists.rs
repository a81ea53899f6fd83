//! Sentinels and nodes of a cluster as lists, in place of a URL.

use std::collections::HashSet;
use std::fmt;

use idem_core::StoreError;

use crate::connection::error::refused;
use crate::connection::location::{
    Location, NODE_PORT, SENTINEL_PORT, Seeds, Watched, is_master_name, with_port,
};
use crate::connection::target::{Target, disguised};

/// A Sentinel or a node of a cluster, for [`sentinels`](crate::RedisStoreBuilder::sentinels) and
/// [`cluster_nodes`](crate::RedisStoreBuilder::cluster_nodes).
///
/// A `&str` or a `String` is a node without a user, password and TLS of its own.
///
/// # Examples
///
/// ```
/// use idem_redis::RedisNode;
///
/// let node = RedisNode::new("sentinel-1.internal:26379")
///     .user("watch")
///     .password("p@ss/word")
///     .tls(true);
/// ```
#[derive(Clone)]
#[must_use = "a node does nothing until a builder has it"]
pub struct RedisNode {
    address: String,
    login: Login,
    tls: Option<bool>,
}

/// A user and its password, as they are: nothing is percent-encoded.
#[derive(Clone, Default)]
struct Login {
    user: Option<String>,
    password: Option<String>,
}

impl RedisNode {
    /// Names a node: `host` or `host:port`, an IPv6 address in brackets. The default port is 26379
    /// for a Sentinel and 6379 for a node of a cluster. A wrong address is an error of
    /// [`connect`](crate::RedisStoreBuilder::connect).
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            login: Login::default(),
            tls: None,
        }
    }

    /// Sets the user. It needs a [`password`](Self::password). Default: Redis' own user `default`.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.login.user = Some(user.into());
        self
    }

    /// Sets the password, as it is. Default: none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// Sets whether the connection uses TLS (feature `tls`). Default: a Sentinel's does not, and
    /// that of a cluster's node does if the builder says so.
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = Some(tls);
        self
    }
}

impl From<&str> for RedisNode {
    fn from(address: &str) -> Self {
        Self::new(address)
    }
}

impl From<String> for RedisNode {
    fn from(address: String) -> Self {
        Self::new(address)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No address: a URL in its place has a password.
        f.debug_struct("RedisNode")
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// The servers of a builder in place of a URL.
#[derive(Clone, Default)]
pub(crate) struct ServerLists {
    sentinels: Option<SentinelList>,
    cluster: Option<Vec<RedisNode>>,
    login: Login,
    tls: Option<bool>,
    database: Option<u32>,
}

#[derive(Clone)]
struct SentinelList {
    master: String,
    nodes: Vec<RedisNode>,
}

impl ServerLists {
    pub(crate) fn set_sentinels(&mut self, master: String, nodes: Vec<RedisNode>) {
        self.sentinels = Some(SentinelList { master, nodes });
    }

    pub(crate) fn set_cluster(&mut self, nodes: Vec<RedisNode>) {
        self.cluster = Some(nodes);
    }

    pub(crate) fn set_user(&mut self, user: String) {
        self.login.user = Some(user);
    }

    pub(crate) fn set_password(&mut self, password: String) {
        self.login.password = Some(password);
    }

    pub(crate) fn set_tls(&mut self, tls: bool) {
        self.tls = Some(tls);
    }

    pub(crate) fn set_database(&mut self, database: u32) {
        self.database = Some(database);
    }

    /// Whether the list is missing.
    pub(crate) fn are_empty(&self) -> bool {
        self.sentinels.is_none() && self.cluster.is_none()
    }

    /// Returns the servers; `None` if there is no list. No error shows a password.
    pub(crate) fn location(&self) -> Result<Option<Location>, StoreError> {
        self.login.check("the builder")?;
        match (&self.sentinels, &self.cluster) {
            (Some(_), Some(_)) => Err(refused(
                "the builder has `sentinels` and `cluster_nodes`; give it one of them",
            )),
            (Some(list), None) => self.watched(list).map(Some),
            (None, Some(nodes)) => self.seeds(nodes).map(Some),
            (None, None) if self.has_details() => Err(refused(
                "the builder has a `user`, `password`, `tls` or `database`, which are for `sentinels` and `cluster_nodes`; write them into the `url`: `rediss://user:password@host:6379/0`",
            )),
            (None, None) => Ok(None),
        }
    }

    fn has_details(&self) -> bool {
        let has_login = self.login.user.is_some() || self.login.password.is_some();
        has_login || self.tls.is_some() || self.database.is_some()
    }

    fn watched(&self, list: &SentinelList) -> Result<Location, StoreError> {
        if !is_master_name(&list.master) {
            return Err(refused(
                "the first argument of `sentinels` must be the name under which the Sentinels know the master: letters, digits and `- _ .`, such as `main`",
            ));
        }
        let addresses = addresses("sentinels", &list.nodes, SENTINEL_PORT)?;
        let sentinel = |(node, address): (&RedisNode, &String)| {
            node.login.check("a node of `sentinels`")?;
            node.login.target(address, node.tls.unwrap_or_default())
        };
        let sentinels = list
            .nodes
            .iter()
            .zip(&addresses)
            .map(sentinel)
            .collect::<Result<_, StoreError>>()?;
        let tls = self.tls.unwrap_or_default();
        let database = self.database.unwrap_or_default();
        let data = self.login.target(&format!("localhost/{database}"), tls)?;
        let name = format!(
            "{}+sentinel://{}/{}",
            scheme(tls),
            addresses.join(","),
            list.master
        );
        Ok(Location::Sentinel(Watched {
            sentinels,
            master: list.master.clone(),
            data,
            name: name.into(),
        }))
    }

    fn seeds(&self, nodes: &[RedisNode]) -> Result<Location, StoreError> {
        if self.database.is_some_and(|database| database != 0) {
            return Err(refused(
                "the builder has a `database` and `cluster_nodes`; a cluster has one database, number 0: leave it out",
            ));
        }
        let addresses = addresses("cluster_nodes", nodes, NODE_PORT)?;
        let tls = self.tls.unwrap_or_default();
        let node = |(node, address): (&RedisNode, &String)| {
            node.login.check("a node of `cluster_nodes`")?;
            let login = match node.login.password {
                Some(_) => &node.login,
                None => &self.login,
            };
            login.target(address, node.tls.unwrap_or(tls))
        };
        let seeds = nodes
            .iter()
            .zip(&addresses)
            .map(node)
            .collect::<Result<_, StoreError>>()?;
        let data = self.login.target("localhost", tls)?;
        let name = format!("{}+cluster://{}", scheme(tls), addresses.join(","));
        Ok(Location::Cluster(Seeds {
            nodes: seeds,
            data,
            name: name.into(),
        }))
    }
}

impl Login {
    /// Refuses a user without a password, which would not log in.
    fn check(&self, whose: &str) -> Result<(), StoreError> {
        if self.user.is_some() && self.password.is_none() {
            return Err(refused(format!(
                "{whose} has a `user` without a `password`; set both, or leave the user out"
            )));
        }
        Ok(())
    }

    fn target(&self, address: &str, tls: bool) -> Result<Target, StoreError> {
        let target = Target::parse(&format!("{}://{address}", scheme(tls)))?;
        Ok(target.by(self.user.as_deref(), self.password.as_deref()))
    }
}

fn scheme(tls: bool) -> &'static str {
    if tls { "rediss" } else { "redis" }
}

/// Returns the addresses of a list, each with its port.
fn addresses(list: &str, nodes: &[RedisNode], port: u16) -> Result<Vec<String>, StoreError> {
    if nodes.is_empty() {
        return Err(refused(format!(
            "`{list}` is an empty list; give it at least one `host:port`, better all"
        )));
    }
    let mut seen = HashSet::new();
    let address = |node: &RedisNode| {
        let text = node.address.trim();
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-_.:[]%".contains(c);
        if text.is_empty() || !text.chars().all(is_host) {
            return Err(refused(format!(
                "`{list}` has `{}`, which is no `host:port`; user, password and TLS of a node are set by `RedisNode`",
                disguised(text)
            )));
        }
        let address = with_port(text, port);
        // Twice in the list, a Sentinel would have two votes.
        if !seen.insert(address.to_ascii_lowercase()) {
            return Err(refused(format!(
                "`{list}` has `{address}` twice; give each node once"
            )));
        }
        Ok(address)
    };
    nodes.iter().map(address).collect()
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::*;

    fn lists(set: impl FnOnce(&mut ServerLists)) -> ServerLists {
        let mut lists = ServerLists::default();
        set(&mut lists);
        lists
    }

    fn nodes<const N: usize>(nodes: [&str; N]) -> Vec<RedisNode> {
        nodes.map(RedisNode::from).to_vec()
    }

    fn address(target: &Target) -> String {
        match target.info.addr() {
            ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
            ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port} by TLS"),
            other => panic!("{other:?}"),
        }
    }

    fn login(target: &Target) -> (Option<&str>, Option<&str>) {
        let settings = target.info.redis_settings();
        (settings.username(), settings.password())
    }

    #[test]
    fn each_sentinel_has_its_own_login_and_the_master_another() {
        let lists = lists(|lists| {
            let first = RedisNode::new("a").user("watch").password("p@ss/1");
            let third = RedisNode::new("[::1]:3").password("3");
            lists.set_sentinels("main-1".into(), vec![first, "b:2".into(), third]);
            lists.set_user("app".into());
            lists.set_password("hunter:2%".into());
            lists.set_database(3);
        });
        let Some(Location::Sentinel(watched)) = lists.location().unwrap() else {
            panic!("no Sentinels")
        };
        let found: Vec<_> = watched.sentinels.iter().map(address).collect();
        assert_eq!(found, ["a:26379", "b:2", "::1:3"]);
        let logins: Vec<_> = watched.sentinels.iter().map(login).collect();
        assert_eq!(
            logins,
            [
                (Some("watch"), Some("p@ss/1")),
                (None, None),
                (None, Some("3"))
            ]
        );
        assert_eq!(login(&watched.data), (Some("app"), Some("hunter:2%")));
        assert_eq!(watched.data.info.redis_settings().db(), 3);
        assert_eq!(
            &*watched.name,
            "redis+sentinel://a:26379,b:2,[::1]:3/main-1"
        );
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_to_the_sentinels_and_to_the_master_are_set_apart() {
        let lists = lists(|lists| {
            let first = RedisNode::new("a:1").tls(true);
            lists.set_sentinels("main".into(), vec![first, "b:2".into()]);
        });
        let Some(Location::Sentinel(watched)) = lists.location().unwrap() else {
            panic!("no Sentinels")
        };
        let found: Vec<_> = watched.sentinels.iter().map(address).collect();
        assert_eq!(found, ["a:1 by TLS", "b:2"]);
        assert_eq!(address(&watched.data.at("m", 6)), "m:6");
    }

    #[test]
    fn nodes_of_a_cluster_have_the_builders_login_unless_they_have_their_own() {
        let lists = lists(|lists| {
            let own = RedisNode::new("b:2").user("b").password("two");
            lists.set_cluster(vec!["a".into(), own]);
            lists.set_password("all".into());
        });
        let Some(Location::Cluster(seeds)) = lists.location().unwrap() else {
            panic!("no cluster")
        };
        let found: Vec<_> = seeds.nodes.iter().map(address).collect();
        assert_eq!(found, ["a:6379", "b:2"]);
        let logins: Vec<_> = seeds.nodes.iter().map(login).collect();
        assert_eq!(logins, [(None, Some("all")), (Some("b"), Some("two"))]);
        // A node that the cluster names is one of the list if its address is the same.
        assert_eq!(login(&seeds.target("b", 2)), (Some("b"), Some("two")));
        assert_eq!(login(&seeds.target("c", 3)), (None, Some("all")));
        assert_eq!(&*seeds.name, "redis+cluster://a:6379,b:2");
    }

    #[test]
    fn a_list_that_cannot_be_used_is_refused_with_what_to_do_and_without_secrets() {
        let main = || "main".to_owned();
        let cases: [(&str, ServerLists); 11] = [
            (
                "empty",
                lists(|lists| lists.set_sentinels(main(), Vec::new())),
            ),
            ("empty", lists(|lists| lists.set_cluster(Vec::new()))),
            (
                "one of them",
                lists(|lists| {
                    lists.set_cluster(nodes(["a"]));
                    lists.set_sentinels(main(), nodes(["a"]));
                }),
            ),
            (
                "name under which",
                lists(|lists| lists.set_sentinels("hunter2/".into(), nodes(["a"]))),
            ),
            (
                "no `host:port`",
                lists(|lists| lists.set_cluster(nodes(["redis://app:hunter2@a:1"]))),
            ),
            (
                "no `host:port`",
                lists(|lists| lists.set_cluster(nodes(["a:1,b:2"]))),
            ),
            (
                "cannot be read",
                lists(|lists| lists.set_cluster(nodes(["a:port"]))),
            ),
            (
                "twice",
                lists(|lists| lists.set_sentinels(main(), nodes(["a", "A:26379"]))),
            ),
            (
                "without a `password`",
                lists(|lists| lists.set_cluster(vec![RedisNode::new("a").user("hunter2")])),
            ),
            (
                "one database",
                lists(|lists| {
                    lists.set_cluster(nodes(["a"]));
                    lists.set_database(1);
                }),
            ),
            (
                "into the `url`",
                lists(|lists| lists.set_password("hunter2".into())),
            ),
        ];
        for (expected, lists) in cases {
            let Err(error) = lists.location() else {
                panic!("accepted: {expected}")
            };
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains(expected) && !shown.contains("hunter2"),
                "{expected}: {shown}"
            );
            assert_eq!(error.kind(), idem_core::StoreErrorKind::Refused);
        }
    }
}
