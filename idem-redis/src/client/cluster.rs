//! The nodes of a cluster: which of them has a slot, and a [`Link`] to each.
//!
//! A URL does not use redis-rs's `ClusterConnection` (1.8), for three reasons. When it refreshes the
//! slots (after `MOVED` and `READONLY`), it holds back all commands until every node has answered
//! or timed out, those to healthy nodes too. It does not say on which connection
//! a command went, which `WAIT` needs. If a server ends a sharded subscription unasked
//! (`SSUBSCRIBE`, when a slot moves), the replies on that connection get out of step. Here a silent
//! node costs only the calls on its own slots. Each node has a connection like a single server's,
//! with its wake-ups, its scripts and its upkeep.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_core::__private::outward;
use idem_core::{StoreError, StoreErrorKind};
use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::client::error::unconnected_in_time;
use crate::client::hash_slot;
use crate::client::link::{Link, Terms};
use crate::client::location::Seeds;
use crate::client::session::Session;
use crate::client::slot_map::{self, SlotMap};
use crate::client::target::{Address, Target};

/// Between two times that the cluster is asked who has which slot.
const PAUSE: Duration = Duration::from_millis(100);
/// Whoever waits for a node asks again after so long whether another has its slots.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Nodes that have not answered so long after most have are left out.
const GRACE: Duration = Duration::from_millis(200);

/// A cluster. Cheap to clone; its connections are closed with the last clone.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    seeds: Seeds,
    terms: Terms,
    slots: watch::Sender<Arc<SlotMap>>,
    links: Mutex<HashMap<Address, Link>>,
    /// There is a reason to ask who has which slot.
    doubt: Arc<Notify>,
    refresher: Mutex<Option<Refresher>>,
}

/// The task that asks, and the number of the runtime in which it runs.
struct Refresher(AbortHandle, u64);

impl Cluster {
    /// Asks the nodes that the URL names for the others. For at most the limit.
    pub(crate) async fn connect(seeds: Seeds, terms: Terms) -> Result<Self, StoreError> {
        let inner = Arc::new(Inner {
            seeds,
            terms,
            slots: watch::Sender::default(),
            links: Mutex::default(),
            doubt: Arc::default(),
            refresher: Mutex::default(),
        });
        inner.refresh().await?;
        inner.tend();
        Ok(Self(inner))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.seeds.name
    }

    /// The connection to the node that has a slot, as soon as there is one.
    pub(crate) async fn session(&self, slot: u16) -> Result<(Link, Session), StoreError> {
        let mut slots = self.0.slots.subscribe();
        loop {
            let master = slots.borrow_and_update().master(slot).cloned();
            let connecting = async {
                let Some(master) = master else { return std::future::pending().await };
                let link = self.0.link(&master)?;
                if !link.is_up() {
                    self.doubt();
                }
                link.session().await.map(|session| (link, session))
            };
            tokio::select! {
                biased;
                connected = connecting => return connected,
                _ = slots.changed() => {}
                // The node is lost, or the slot has no node.
                () = sleep(LOOK_AGAIN) => self.doubt(),
            }
        }
    }

    /// The connection to a node that the cluster itself named, for one command.
    pub(crate) async fn session_at(&self, node: &Address) -> Result<(Link, Session), StoreError> {
        let link = self.0.link(node)?;
        let session = link.session().await?;
        Ok((link, session))
    }

    /// Takes note that another node has a slot, as one that had it said.
    pub(crate) fn moved(&self, slot: u16, to: Address) {
        self.0.slots.send_modify(|slots| *slots = Arc::new(slots.moved(slot, to)));
        self.doubt();
    }

    /// Has the cluster asked soon who has which slot.
    pub(crate) fn doubt(&self) {
        self.0.tend();
        self.0.doubt.notify_one();
    }

    /// One slot of each master.
    pub(crate) fn slots(&self) -> Vec<u16> {
        self.0.slots.borrow().one_of_each()
    }

    /// The node that has a slot.
    pub(crate) fn node(&self, slot: u16) -> Option<Address> {
        self.0.slots.borrow().master(slot).cloned()
    }

    /// A slot that no node has, if there is one.
    pub(crate) fn first_uncovered(&self) -> Option<u16> {
        let slots = self.0.slots.borrow();
        (0..hash_slot::SLOTS).find(|slot| slots.master(*slot).is_none())
    }

    /// Why a call on a slot that no node has cannot be sent.
    pub(crate) fn uncovered(&self, slot: u16) -> StoreError {
        StoreError::new(
            StoreErrorKind::Unavailable,
            format!(
                "Redis ({}): no node of the cluster has slot {slot}, so nothing was sent; give it to a node (CLUSTER INFO, CLUSTER SLOTS, redis-cli --cluster fix)",
                self.name()
            ),
        )
        .unsent()
    }

    /// The link to the node that has a slot.
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
        let link = Link::start(self.target(node), node.clone(), self.terms.clone())?;
        links.insert(node.clone(), link.clone());
        Ok(link)
    }

    fn target(&self, (host, port): &Address) -> Target {
        self.seeds.data.at(host, *port)
    }

    /// Has slots asked for where the connections live.
    fn tend(self: &Arc<Self>) {
        let runtime = self.terms.home.runtime();
        let mut refresher = self.refresher.lock().unwrap_or_else(PoisonError::into_inner);
        if refresher.as_ref().is_some_and(|Refresher(_, number)| *number == runtime.number()) {
            return;
        }
        let task = runtime.spawn(keep_slots(Arc::downgrade(self), Arc::clone(&self.doubt)));
        if let Some(Refresher(before, _)) = refresher.replace(Refresher(task.abort_handle(), runtime.number())) {
            before.abort();
        }
    }

    /// Asks who has which slot: the masters as far as they are connected, or else every node that
    /// was ever heard of.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut asked = JoinSet::new();
        for (node, link) in self.links().iter().filter(|(_, link)| link.is_up()) {
            let (host, link) = (node.0.clone(), link.clone());
            asked.spawn(
                async move { slot_map::ask(link.session().await?.connection.clone(), &host, link.server()).await },
            );
        }
        let slots = if let Ok(slots) = self.most_say(asked, 2 * GRACE).await {
            slots
        } else {
            let known = self.slots.borrow().nodes();
            let mut targets: Vec<Target> = known.iter().map(|node| self.target(node)).collect();
            targets.extend(self.seeds.nodes.iter().cloned());
            let (mut asked, mut names) = (JoinSet::new(), HashSet::new());
            for target in targets {
                if names.insert(target.name.clone()) {
                    asked.spawn(slot_map::ask_anew(target));
                }
            }
            self.most_say(asked, self.terms.connect_limit).await?
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
    async fn most_say(
        &self,
        mut asked: JoinSet<Result<SlotMap, StoreError>>,
        limit: Duration,
    ) -> Result<SlotMap, StoreError> {
        let mut said: Vec<(SlotMap, usize)> = Vec::new();
        let mut failure: Option<StoreError> = None;
        let (all, mut answers) = (asked.len(), 0);
        let counting = async {
            loop {
                let patience = match answers {
                    0 => limit,
                    _ if answers * 2 > all => GRACE,
                    _ => limit / 2,
                };
                let Ok(Some(answer)) = timeout(patience, asked.join_next()).await else { return };
                match answer {
                    Ok(Ok(slots)) => {
                        answers += 1;
                        match said.iter_mut().find(|(other, _)| other.agrees_with(&slots)) {
                            Some((_, times)) => *times += 1,
                            None => said.push((slots, 1)),
                        }
                    }
                    // A passing failure outweighs one that an operator must fix at a single node.
                    Ok(Err(error)) if failure.as_ref().is_none_or(|other| other.kind() == StoreErrorKind::Refused) => {
                        failure = Some(error);
                    }
                    _ => {}
                }
            }
        };
        let _ = timeout(limit, counting).await;
        // Of two that are given as often, the first.
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
        if let Some(Refresher(task, _)) = self.refresher.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Asks who has which slot whenever there is doubt.
async fn keep_slots(inner: Weak<Inner>, doubt: Arc<Notify>) {
    loop {
        doubt.notified().await;
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = inner.refresh().await {
            outward(
                || tracing::debug!(target: "idem", %error, "no node of the Redis Cluster says which slots it has; asking again"),
            );
        }
        drop(inner);
        sleep(PAUSE).await;
    }
}

/// Reads the target of a `MOVED` or `ASK` reply. A node that does not know its own name leaves the
/// host out.
pub(crate) fn redirected(error: &RedisError, asked: Option<&str>) -> Option<(u16, Address)> {
    let (address, slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() { asked? } else { host.trim_start_matches('[').trim_end_matches(']') };
    Some((slot, (host.to_owned(), port.parse().ok()?)))
}
