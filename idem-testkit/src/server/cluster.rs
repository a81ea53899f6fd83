//! The nodes of a Redis Cluster.

use std::ffi::OsString;
use std::io;

use tokio::sync::OnceCell;

use super::members::{Looks, ask, index_of, majority_answer, replicas, says, tell, url};
use super::{HeldPort, RedisServer, RedisServerBuilder, Reply};

/// How many slots a cluster has.
const SLOTS: usize = 16_384;
/// The reply of a node that knows a master for each slot.
const SERVES: &str = "cluster_state:ok";
/// The settings of every node. A dead master is found within 1.5 s or so, and a replica takes its
/// place.
const SETTINGS: &[&str] = &[
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-node-timeout",
    "1500",
    "--cluster-replica-validity-factor",
    "0",
    // A replica stays with its master, even where another has lost its own.
    "--cluster-migration-barrier",
    "10",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

/// A Redis Cluster: three masters, each with one replica unless the [builder](Self::builder) says
/// otherwise.
///
/// It is quick: two to three seconds after a master is gone, its replica takes its place. A node
/// that comes back is a replica of the one that did.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::RedisCluster;
///
/// # async fn example() -> std::io::Result<()> {
/// let cluster = RedisCluster::start().await?;
/// let old = cluster.master_of("idem:orders:o-1").await?;
/// cluster.nodes()[old].kill()?;
/// let new = cluster.failed_over("idem:orders:o-1", old).await?;
/// cluster.nodes()[old].restart().await?;
/// cluster.settled().await?; // the old master is a replica of the new one
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// A [`RedisCluster`] with other settings.
#[derive(Debug, Clone)]
pub struct RedisClusterBuilder {
    node: RedisServerBuilder,
    masters: usize,
    replicas: usize,
}

impl RedisCluster {
    /// Starts one, and waits until it serves all slots.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`], and if the nodes do not find each other.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// For one with other settings.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            node: RedisServer::builder(),
            masters: 3,
            replicas: 1,
        }
    }

    /// One for all tests of this process, as [`RedisServer::shared`].
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// `redis+cluster://` and the nodes that are masters at the start.
    pub fn url(&self) -> String {
        url("redis+cluster", self.nodes.get(..3).unwrap_or(&self.nodes))
    }

    /// The nodes: at the start first the masters, then the replicas.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Which of the [nodes](Self::nodes) is the master of a key's slot, by what most of them say.
    ///
    /// # Errors
    ///
    /// If no node answers.
    pub async fn master_of(&self, key: &str) -> io::Result<usize> {
        let slot =
            majority_answer(&self.nodes, &["CLUSTER", "KEYSLOT", key], Reply::number).await?;
        let port = majority_answer(&self.nodes, &["CLUSTER", "SLOTS"], |reply| {
            let Reply::List(ranges) = reply else {
                return None;
            };
            ranges.iter().find_map(|range| match range {
                Reply::List(range) => match range.as_slice() {
                    [first, last, Reply::List(master), ..]
                        if (first.number()?..=last.number()?).contains(&slot) =>
                    {
                        master.get(1)?.number()
                    }
                    _ => None,
                },
                _ => None,
            })
        });
        index_of(&self.nodes, u16::try_from(port.await?).unwrap_or_default())
    }

    /// Waits until another node than this one is the master of a key's slot, and the cluster serves
    /// all slots again; gives that node.
    ///
    /// # Errors
    ///
    /// If that takes longer than 40 seconds.
    pub async fn failed_over(&self, key: &str, from: usize) -> io::Result<usize> {
        let mut looks = Looks::at("another node is the master of the slot");
        loop {
            if let Ok(master) = self.master_of(key).await
                && master != from
                && says(&self.nodes[master], "replication", &["role:master"]).await
                && informed(&self.nodes[master], &[SERVES]).await
            {
                return Ok(master);
            }
            looks.again().await?;
        }
    }

    /// Waits until all nodes are there, each says that all slots are served, and all replicas have
    /// their master's data.
    ///
    /// # Errors
    ///
    /// If that takes longer than 40 seconds, as it does while a node is stopped.
    pub async fn settled(&self) -> io::Result<()> {
        let mut looks =
            Looks::at("the cluster serves all slots, and its replicas have their masters' data");
        while !self.is_settled().await {
            looks.again().await?;
        }
        Ok(())
    }

    async fn is_settled(&self) -> bool {
        let replica = ["role:slave", "master_link_status:up"];
        let mut masters = 0;
        let mut served = 0;
        for node in &self.nodes {
            if says(node, "replication", &["role:master"]).await {
                masters += 1;
                served += replicas(node).await;
            } else if !says(node, "replication", &replica).await {
                return false;
            }
        }
        // A node that has just come back may take itself for a master, and is none to the others.
        let size = format!("cluster_size:{masters}");
        for node in &self.nodes {
            if !informed(node, &[SERVES, &size]).await {
                return false;
            }
        }
        masters + served == self.nodes.len()
    }

    /// Has the nodes meet, gives the masters their slots, and the replicas their masters.
    async fn join(&self, masters: usize) -> io::Result<()> {
        let (first, others) = self
            .nodes
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        for (index, master) in self.nodes[..masters].iter().enumerate() {
            let range = [index * SLOTS / masters, (index + 1) * SLOTS / masters - 1]
                .map(|slot| slot.to_string());
            tell(master, &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await?;
            tell(
                master,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()],
            )
            .await?;
        }
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let mut looks = Looks::at("the nodes know each other");
        for node in &self.nodes {
            while !informed(node, &[SERVES, &known]).await {
                meet(first, others).await?;
                looks.again().await?;
            }
        }
        for (index, replica) in self.nodes[masters..].iter().enumerate() {
            let id = ask(&self.nodes[index % masters], &["CLUSTER", "MYID"])
                .await?
                .to_string();
            tell(replica, &["CLUSTER", "REPLICATE", &id]).await?;
        }
        self.settled().await
    }
}

/// Has a node meet those of the others that it does not know. A server forgets one whose answer takes
/// longer than the nodes' time-out, as on a busy machine.
async fn meet(node: &RedisServer, others: &[RedisServer]) -> io::Result<()> {
    let Ok(known) = ask(node, &["CLUSTER", "NODES"]).await else {
        return Ok(());
    };
    let known = known.to_string();
    for other in others {
        let port = other.port().to_string();
        if !known.contains(&format!(":{port}@")) {
            let bus = other.bus.as_ref().map_or(0, HeldPort::port).to_string();
            tell(node, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await?;
        }
    }
    Ok(())
}

/// Whether `CLUSTER INFO` has each of these lines.
async fn informed(node: &RedisServer, lines: &[&str]) -> bool {
    let info = ask(node, &["CLUSTER", "INFO"])
        .await
        .map(|info| info.to_string())
        .unwrap_or_default();
    lines
        .iter()
        .all(|wanted| info.lines().any(|line| line == *wanted))
}

impl RedisClusterBuilder {
    /// Adds an argument to those of every node, as [`RedisServerBuilder::arg`].
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.node = self.node.arg(arg);
        self
    }

    /// How many replicas each master has.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Starts it, and waits until it serves all slots.
    ///
    /// # Errors
    ///
    /// As for [`RedisCluster::start`].
    pub async fn start(self) -> io::Result<RedisCluster> {
        let settings = SETTINGS.iter().map(OsString::from).chain(self.node.args);
        let node = settings.fold(RedisServer::builder().bus(), RedisServerBuilder::arg);
        let mut nodes = Vec::new();
        for _ in 0..self.masters * (1 + self.replicas) {
            nodes.push(node.clone().start().await?);
        }
        let cluster = RedisCluster { nodes };
        cluster.join(self.masters).await?;
        Ok(cluster)
    }
}
