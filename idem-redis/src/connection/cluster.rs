//! The nodes of a cluster: which of them has a slot, and a [`Link`] to each.
//!
//! redis-rs has a `ClusterConnection` (1.8), which the store does not use for three reasons:
//!
//! - When it refreshes the slots (after `MOVED` and `READONLY`), it holds back all commands, also
//!   those to healthy nodes, until every node has answered or timed out.
//! - It does not say on which connection a command went, which `WAIT` needs.
//! - If a server ends a sharded subscription (`SSUBSCRIBE`, when a slot moves), the replies on that
//!   connection no longer match their commands.
//!
//! Here a silent node delays only the calls on its own slots.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::adapter::catch_user_panic;
use idem_core::{StoreError, StoreErrorKind};
use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::connection::error::unconnected_in_time;
use crate::connection::hash_slot;
use crate::connection::link::{Link, LinkOptions};
use crate::connection::location::Seeds;
use crate::connection::session::Session;
use crate::connection::slot_map::{self, SlotMap};
use crate::connection::target::{Address, Target};

/// The pause between two refreshes of the slot map.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// A call that waits for a node has the slot map refreshed after this time: another node may have
/// the slot by now.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How much longer the other nodes are waited for when more than half have answered.
const GRACE: Duration = Duration::from_millis(200);

/// A cluster. Cheap to clone; its connections are closed with the last clone.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    seeds: Seeds,
    options: LinkOptions,
    slots: watch::Sender<Arc<SlotMap>>,
    links: Mutex<HashMap<Address, Link>>,
    /// Signals that the slot map may be out of date.
    refresh_needed: Arc<Notify>,
    refresher: Mutex<Option<Refresher>>,
}

/// The task that refreshes the slot map.
struct Refresher {
    task: AbortHandle,
    /// The number of the runtime in which it runs.
    runtime: u64,
}

impl Cluster {
    /// Asks the nodes that the URL names for the others, within the limit.
    pub(crate) async fn connect(seeds: Seeds, options: LinkOptions) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner {
            seeds,
            options,
            slots: watch::Sender::default(),
            links: Mutex::default(),
            refresh_needed: Arc::default(),
            refresher: Mutex::default(),
        });
        inner.refresh().await?;
        inner.start_tasks();
        Ok(Self(inner))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.seeds.name
    }

    /// Waits for a session with the node that has a slot.
    pub(crate) async fn session(&self, slot: u16) -> Result<(Link, Session), StoreError> {
        let mut slots = self.0.slots.subscribe();
        loop {
            let master = slots.borrow_and_update().master(slot).cloned();
            let connecting = async {
                let Some(master) = master else {
                    return std::future::pending().await;
                };
                let link = self.0.link(&master)?;
                if !link.is_up() {
                    self.schedule_refresh();
                }
                link.session().await.map(|session| (link, session))
            };
            tokio::select! {
                biased;
                connected = connecting => return connected,
                _ = slots.changed() => {}
                // The node is lost, or the slot has no node.
                () = sleep(LOOK_AGAIN) => self.schedule_refresh(),
            }
        }
    }

    /// Waits for a session with a node that the cluster named (`ASK`).
    pub(crate) async fn session_at(&self, node: &Address) -> Result<(Link, Session), StoreError> {
        let link = self.0.link(node)?;
        let session = link.session().await?;
        Ok((link, session))
    }

    /// Takes note that a slot has moved to another node (`MOVED`).
    pub(crate) fn moved(&self, slot: u16, to: Address) {
        self.0
            .slots
            .send_modify(|slots| *slots = Arc::new(slots.moved(slot, to)));
        self.schedule_refresh();
    }

    /// Has the slot map refreshed soon.
    pub(crate) fn schedule_refresh(&self) {
        self.0.start_tasks();
        self.0.refresh_needed.notify_one();
    }

    /// Refreshes the slot map now.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        self.0.refresh().await
    }

    /// Returns one slot of each master.
    pub(crate) fn slots(&self) -> Vec<u16> {
        self.0.slots.borrow().one_of_each()
    }

    /// Returns the node that has a slot.
    pub(crate) fn node(&self, slot: u16) -> Option<Address> {
        self.0.slots.borrow().master(slot).cloned()
    }

    /// Returns all slots of the node that has this one.
    pub(crate) fn slots_beside(&self, slot: u16) -> BTreeSet<u16> {
        let slots = self.0.slots.borrow();
        let node = slots.master(slot);
        let beside =
            |other: &u16| *other == slot || node.is_some_and(|_| slots.master(*other) == node);
        (0..hash_slot::SLOTS).filter(beside).collect()
    }

    /// Returns the first slot that no node has.
    pub(crate) fn first_uncovered(&self) -> Option<u16> {
        let slots = self.0.slots.borrow();
        (0..hash_slot::SLOTS).find(|slot| slots.master(*slot).is_none())
    }

    /// Returns the error of a call on a slot that no node has.
    pub(crate) fn uncovered(&self, slot: u16) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({}): no node of the cluster has slot {slot}, so nothing was sent; give it \
                 to a node (CLUSTER INFO, CLUSTER SLOTS, redis-cli --cluster fix)",
                self.name()
            ),
        )
        .unsent()
    }

    /// Returns the link to the node that has a slot.
    pub(crate) fn link(&self, slot: u16) -> Option<Link> {
        self.0.link(&self.node(slot)?).ok()
    }
}

impl Inner {
    fn link(&self, node: &Address) -> Result<Link, StoreError> {
        let mut links = self.links();
        if let Some(link) = links.get(node) {
            return Ok(link.clone());
        }
        let link = Link::start(self.target(node), node.clone(), self.options.clone())?;
        links.insert(node.clone(), link.clone());
        Ok(link)
    }

    fn target(&self, (host, port): &Address) -> Target {
        self.seeds.target(host, *port)
    }

    /// Starts the refreshing task in the runtime of the connections, unless it runs there already.
    fn start_tasks(self: &Arc<Self>) {
        let runtime = self.options.runtime.runtime();
        let mut refresher = self
            .refresher
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if refresher
            .as_ref()
            .is_some_and(|refresher| refresher.runtime == runtime.number())
        {
            return;
        }
        let task = runtime.spawn(keep_slots(
            Arc::downgrade(self),
            Arc::clone(&self.refresh_needed),
        ));
        let before = refresher.replace(Refresher {
            task: task.abort_handle(),
            runtime: runtime.number(),
        });
        if let Some(before) = before {
            before.task.abort();
        }
    }

    /// Refreshes the slot map: asks the masters that are connected. If none answers, asks every
    /// node that the map and the URL name.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut asked = JoinSet::new();
        for (node, link) in self.links().iter().filter(|(_, link)| link.is_up()) {
            let host = node.0.clone();
            let link = link.clone();
            asked.spawn(async move {
                slot_map::ask(
                    link.session().await?.connection.clone(),
                    &host,
                    link.server(),
                )
                .await
            });
        }
        let slots = if let Ok(slots) = self.majority_slots(asked, 2 * GRACE).await {
            slots
        } else {
            let known = self.slots.borrow().nodes();
            let mut targets: Vec<Target> = known.iter().map(|node| self.target(node)).collect();
            targets.extend(self.seeds.nodes.iter().cloned());
            let mut asked = JoinSet::new();
            let mut names = HashSet::new();
            for target in targets {
                if names.insert(target.name.clone()) {
                    asked.spawn(slot_map::ask_on_new_connection(target));
                }
            }
            self.majority_slots(asked, self.options.connect_limit)
                .await?
        };
        self.links().retain(|node, _| slots.has(node));
        self.slots.send_if_modified(|now| {
            let changed = **now != slots;
            if changed {
                *now = Arc::new(slots);
            }
            changed
        });
        Ok(())
    }

    /// Returns the answer of the majority, because a node that was cut off may be out of date. If
    /// fewer than half of the nodes answer within the limit, their majority counts.
    async fn majority_slots(
        &self,
        mut asked: JoinSet<Result<SlotMap, StoreError>>,
        limit: Duration,
    ) -> Result<SlotMap, StoreError> {
        let mut said: Vec<(SlotMap, usize)> = Vec::new();
        let mut failure: Option<StoreError> = None;
        let all = asked.len();
        let mut answers = 0;
        let counting = async {
            loop {
                let patience = match answers {
                    0 => limit,
                    _ if answers * 2 > all => GRACE,
                    _ => limit / 2,
                };
                let Ok(Some(answer)) = timeout(patience, asked.join_next()).await else {
                    return;
                };
                match answer {
                    Ok(Ok(slots)) => {
                        answers += 1;
                        match said.iter_mut().find(|(other, _)| other.agrees_with(&slots)) {
                            Some((_, times)) => *times += 1,
                            None => said.push((slots, 1)),
                        }
                    }
                    // A passing failure outweighs one that an operator must fix at a single node.
                    Ok(Err(error))
                        if failure
                            .as_ref()
                            .is_none_or(|other| other.kind() == StoreErrorKind::Refused) =>
                    {
                        failure = Some(error);
                    }
                    _ => {}
                }
            }
        };
        let _ = timeout(limit, counting).await;
        // Of two maps with as many votes, the first to come.
        let most = said.into_iter().rev().max_by_key(|(_, times)| *times);
        most.map(|(slots, _)| slots)
            .ok_or_else(|| failure.unwrap_or_else(|| unconnected_in_time(&self.seeds.name, limit)))
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Address, Link>> {
        // Nothing that could panic runs under the lock.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(refresher) = self
            .refresher
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
        {
            refresher.task.abort();
        }
    }
}

/// Refreshes the slot map whenever it may be out of date.
async fn keep_slots(inner: Weak<Inner>, refresh_needed: Arc<Notify>) {
    loop {
        refresh_needed.notified().await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.refresh().await {
            catch_user_panic(|| {
                tracing::debug!(target: "idem", %error, "no node of the Redis Cluster says \
                    which slots it has; asking again");
            });
        }
        drop(inner);
        sleep(REFRESH_PAUSE).await;
    }
}

/// Reads the slot and the node of a `MOVED` or `ASK` reply. A node that does not know its own host
/// name leaves it out: then the host is the one that was asked.
pub(crate) fn redirected(error: &RedisError, asked: Option<&str>) -> Option<(u16, Address)> {
    let (address, slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() {
        asked?
    } else {
        host.trim_start_matches('[').trim_end_matches(']')
    };
    Some((slot, (host.to_owned(), port.parse().ok()?)))
}
