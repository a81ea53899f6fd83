//! Which node of a cluster has which slots.

use std::collections::{HashMap, HashSet};

use idem_core::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, Value};

use crate::connection::dial;
use crate::connection::error::{failed, refused, unexpected};
use crate::connection::target::{Address, Target};

/// The map from slots to nodes.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct SlotMap {
    /// Sorted by slot.
    ranges: Vec<Range>,
    /// Slots that moved since the map was read, by the replies of nodes (`MOVED`).
    moved: HashMap<u16, Address>,
}

#[derive(Debug, Clone, PartialEq)]
struct Range {
    first: u16,
    last: u16,
    /// The master, then its replicas.
    nodes: Vec<Address>,
}

impl SlotMap {
    pub(crate) fn master(&self, slot: u16) -> Option<&Address> {
        self.moved.get(&slot).or_else(|| {
            let range = self
                .ranges
                .get(self.ranges.partition_point(|range| range.last < slot))?;
            if range.first <= slot {
                range.nodes.first()
            } else {
                None
            }
        })
    }

    /// Returns a copy in which one slot is at another node.
    pub(crate) fn moved(&self, slot: u16, to: Address) -> Self {
        let mut slots = self.clone();
        slots.moved.insert(slot, to);
        slots
    }

    /// Returns whether a node is the master of a slot.
    pub(crate) fn has(&self, node: &Address) -> bool {
        self.ranges
            .iter()
            .any(|range| range.nodes.first() == Some(node))
            || self.moved.values().any(|to| to == node)
    }

    /// Returns whether both maps have the same masters. Replicas do not count: one node may know
    /// more of them than another.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        fn masters(slots: &SlotMap) -> impl Iterator<Item = (u16, u16, Option<&Address>)> {
            slots
                .ranges
                .iter()
                .map(|range| (range.first, range.last, range.nodes.first()))
        }
        self.moved == other.moved && masters(self).eq(masters(other))
    }

    /// Returns all nodes, also the replicas.
    pub(crate) fn nodes(&self) -> HashSet<Address> {
        self.ranges
            .iter()
            .flat_map(|range| &range.nodes)
            .chain(self.moved.values())
            .cloned()
            .collect()
    }

    /// Returns one slot of each master.
    pub(crate) fn one_of_each(&self) -> Vec<u16> {
        let mut masters = HashSet::new();
        self.ranges
            .iter()
            .filter(|range| masters.insert(range.nodes.first()))
            .map(|range| range.first)
            .collect()
    }

    /// Reads the answer to `CLUSTER SLOTS`. A node without a host name has that of the node which
    /// was asked.
    fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(ranges) = answer else {
            return None;
        };
        let address = |node: &Value| {
            let Value::Array(fields) = node else {
                return None;
            };
            let [host, Value::Int(port), ..] = fields.as_slice() else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                _ => "",
            };
            let host = if matches!(host, "" | "?") {
                asked
            } else {
                host
            };
            Some((host.to_owned(), u16::try_from(*port).ok()?))
        };
        let range = |range: &Value| {
            let Value::Array(fields) = range else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = fields.as_slice() else {
                return None;
            };
            let mut nodes: Vec<Address> = nodes.iter().map(address).collect::<Option<_>>()?;
            // Each node lists the replicas in an order of its own.
            nodes.get_mut(1..)?.sort();
            Some(Range {
                first: u16::try_from(*first).ok()?,
                last: u16::try_from(*last).ok()?,
                nodes,
            })
        };
        let mut ranges: Vec<Range> = ranges.iter().map(range).collect::<Option<_>>()?;
        ranges.sort_by_key(|range| range.first);
        Some(Self {
            ranges,
            moved: HashMap::new(),
        })
    }
}

/// Asks a node for the slots.
pub(crate) async fn ask(
    mut connection: MultiplexedConnection,
    host: &str,
    server: &str,
) -> Result<SlotMap, StoreError> {
    let answer = redis::cmd("CLUSTER")
        .arg("SLOTS")
        .query_async::<Value>(&mut connection)
        .await;
    let answer = answer.map_err(|error| match error.detail() {
        Some(detail) if detail.contains("cluster support disabled") => refused(format!(
            "Redis ({server}) is not a node of a cluster; write `redis://` (or `rediss://`) in \
             place of `redis+cluster://`"
        )),
        _ => failed(server, error),
    })?;
    match SlotMap::read(&answer, host) {
        Some(slots) if slots.ranges.is_empty() => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({server}) knows of no node that has slots; the cluster is not made yet, or \
                 this node was taken out of it"
            ),
        )),
        Some(slots) => Ok(slots),
        None => Err(unexpected(server, &answer)),
    }
}

/// Asks a node on a connection that is made for the question. The caller sets a limit around it.
pub(crate) async fn ask_on_new_connection(target: Target) -> Result<SlotMap, StoreError> {
    let name = target.name.clone();
    let host = match target.info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    ask(
        dial::plain(&target, AsyncConnectionConfig::new()).await?,
        &host,
        &name,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        let host = if host == "nil" {
            Value::Nil
        } else {
            Value::BulkString(host.into())
        };
        Value::Array(vec![
            host,
            Value::Int(port),
            Value::BulkString(b"id".into()),
        ])
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        Value::Array(
            [Value::Int(first), Value::Int(last)]
                .into_iter()
                .chain(nodes)
                .collect(),
        )
    }

    #[test]
    fn each_slot_has_its_master() {
        let answer = Value::Array(vec![
            range(9000, 16383, vec![node("b", 2), node("d", 4), node("c", 3)]),
            range(0, 4000, vec![node("nil", 1)]),
            range(5000, 5000, vec![node("", 7), node("?", 8)]),
        ]);
        let slots = SlotMap::read(&answer, "asked").unwrap();
        let at = |slot| {
            slots
                .master(slot)
                .map(|(host, port)| format!("{host}:{port}"))
        };
        for (slot, wanted) in [
            (0, "asked:1"),
            (4000, "asked:1"),
            (5000, "asked:7"),
            (9000, "b:2"),
            (16383, "b:2"),
        ] {
            assert_eq!(at(slot).as_deref(), Some(wanted), "{slot}");
        }
        for slot in [4001, 4999, 5001, 8999] {
            assert_eq!(at(slot), None, "{slot}");
        }
        assert_eq!(slots.one_of_each(), [0, 5000, 9000]);
        assert_eq!(slots.nodes().len(), 6);
        let moved = slots.moved(4000, ("e".into(), 5));
        assert_eq!(moved.master(4000), Some(&("e".to_owned(), 5)));
        assert!(!moved.agrees_with(&slots) && slots.agrees_with(&slots.clone()));
        assert!(
            moved.has(&("e".into(), 5))
                && !moved.has(&("d".into(), 4))
                && moved.has(&("b".into(), 2))
        );
    }

    #[test]
    fn nodes_agree_that_name_the_same_masters() {
        let read = |master, replicas: &[&str]| {
            let nodes = [node(master, 1)]
                .into_iter()
                .chain(replicas.iter().map(|host| node(host, 1)));
            SlotMap::read(
                &Value::Array(vec![range(0, 16383, nodes.collect())]),
                "asked",
            )
            .unwrap()
        };
        assert!(read("a", &["b", "c"]).agrees_with(&read("a", &["c"])));
        assert!(!read("a", &["b"]).agrees_with(&read("b", &["a"])));
        assert!(!read("a", &[]).agrees_with(&SlotMap::default()));
    }

    #[test]
    fn answers_that_no_node_gives_are_none() {
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![range(0, 70_000, vec![])]),
        ] {
            assert!(SlotMap::read(&answer, "x").is_none(), "{answer:?}");
        }
    }
}
