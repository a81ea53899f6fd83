//! Our connections beside those of redis-rs while servers are lost: how long calls are held up, how
//! many fail, and whether a body runs twice. Decision 0052 has the figures.
//!
//! It measures, takes a quarter of an hour, and is run by hand:
//!
//! ```sh
//! cargo test -p idem-redis --all-features --test topologies -- --ignored --nocapture redis_rs
//! ```

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem_core::{Error, Idempotency, Outcome, Store, StoreError};
use idem_redis::RedisStore;
use idem_redis::redis::cluster::ClusterClient;
use idem_redis::redis::sentinel::{SentinelClient, SentinelServerType};
use idem_testkit::{RedisCluster, RedisSentinels, RedisServer};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::{SECOND, redis_key, until};

/// How often each case is measured with each client.
const ROUNDS: usize = 3;
/// How many callers there are: at each of the two kinds of keys.
const CALLERS: [usize; 2] = [1, 32];
/// A key that has had no success for so long is given up.
const GIVEN_UP: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Ours,
    RedisRs,
}

/// The fault of the servers.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    MasterKilled,
    /// Stopped for five seconds, in which its replica takes over.
    MasterStopped,
    SlotsMove,
    /// Slots move while a replica of another master is stopped.
    SlotsMoveBesideStoppedReplica,
    SentinelMasterKilled,
    SentinelMasterStopped,
}

const TROUBLES: [Trouble; 6] = [
    Trouble::MasterKilled,
    Trouble::MasterStopped,
    Trouble::SlotsMove,
    Trouble::SlotsMoveBesideStoppedReplica,
    Trouble::SentinelMasterKilled,
    Trouble::SentinelMasterStopped,
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures for a quarter of an hour; decision 0052 has the figures"]
async fn calls_are_measured_beside_redis_rs_while_servers_are_lost() {
    let wanted = std::env::var("IDEM_TROUBLE").unwrap_or_default();
    for trouble in TROUBLES {
        if !format!("{trouble:?}").starts_with(&wanted) {
            continue;
        }
        for callers in CALLERS {
            for round in 0..ROUNDS {
                let mut clients = [Client::Ours, Client::RedisRs];
                clients.rotate_left(round % 2);
                for client in clients {
                    measure(trouble, callers, client).await;
                }
            }
        }
    }
}

/// One run, on servers of its own.
async fn measure(trouble: Trouble, callers: usize, client: Client) {
    let run = Arc::new(Run::default());
    let servers = Servers::start(trouble).await;
    let idempotency = servers.idempotency(client).await;
    let mut streams = JoinSet::new();
    for caller in 0..callers {
        for kind in [Kind::Struck, Kind::Other] {
            if let (Servers::Sentinels(_), Kind::Other) = (&servers, kind) {
                continue;
            }
            let keys = Keys {
                kind: matches!(servers, Servers::Cluster(_)).then_some(kind),
                prefix: format!("{kind:?}{caller}-"),
                number: 0,
            };
            let stream = stream(idempotency.clone(), keys, run.clone());
            streams.spawn(async move { (kind, stream.await) });
        }
    }
    sleep(SECOND).await;
    let took = servers.strike(trouble).await;
    sleep(3 * SECOND).await;
    run.is_over.store(true, Ordering::SeqCst);
    let mut struck = Seen::default();
    let mut other = Seen::default();
    while let Some(seen) = streams.join_next().await {
        match seen.unwrap() {
            (Kind::Struck, seen) => struck.add(&seen),
            (Kind::Other, seen) => other.add(&seen),
        }
    }
    let ran_twice = run.ran_twice();
    servers.settled().await;
    let changed = replay_all(&servers.idempotency(Client::Ours).await, &run).await;
    println!(
        "{trouble:?} {callers:>2} {client:?} | servers {:.2} s | struck: {struck} | other: {other} | bodies run twice: {ran_twice}, records forgotten: {changed}",
        took.as_secs_f64(),
    );
}

/// The state that all callers of a run share.
#[derive(Default)]
struct Run {
    is_over: AtomicBool,
    /// How often the body of each key ran.
    bodies: Mutex<HashMap<String, u32>>,
}

impl Run {
    fn count(&self, key: &str) -> u32 {
        let mut bodies = self.bodies.lock().unwrap();
        let count = bodies.entry(key.to_owned()).or_default();
        *count += 1;
        *count
    }

    fn ran_twice(&self) -> usize {
        let bodies = self.bodies.lock().unwrap();
        bodies.values().filter(|count| **count > 1).count()
    }

    async fn call(self: &Arc<Self>, idempotency: &Idempotency, key: &str) -> Result<u32, Error> {
        let run = self.clone();
        let name = key.to_owned();
        let body = || async move { Ok::<_, Error>(run.count(&name)) };
        let operation = idempotency.operation("orders").key(key);
        operation.run(body).await.map(Outcome::into_inner)
    }
}

/// The results of a stream of calls.
#[derive(Default)]
struct Seen {
    calls: u64,
    failed: u64,
    longest_call: Duration,
    /// From the first try of a key to its success.
    longest_stall: Duration,
    given_up: u64,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.given_up += other.given_up;
        self.longest_call = self.longest_call.max(other.longest_call);
        self.longest_stall = self.longest_stall.max(other.longest_stall);
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "stall {:.2} s, call {:.2} s, {} failed of {}, {} given up",
            self.longest_stall.as_secs_f64(),
            self.longest_call.as_secs_f64(),
            self.failed,
            self.calls,
            self.given_up
        )
    }
}

/// Calls with ever new keys, each until it succeeds.
async fn stream(idempotency: Idempotency, mut keys: Keys, run: Arc<Run>) -> Seen {
    let mut seen = Seen::default();
    while !run.is_over.load(Ordering::SeqCst) {
        let key = keys.next();
        let first = Instant::now();
        loop {
            let start = Instant::now();
            let outcome = run.call(&idempotency, &key).await;
            seen.calls += 1;
            seen.longest_call = seen.longest_call.max(start.elapsed());
            seen.longest_stall = seen.longest_stall.max(first.elapsed());
            let Err(error) = outcome else { break };
            assert!(error.is_retryable(), "{error}");
            seen.failed += 1;
            if first.elapsed() > GIVEN_UP {
                seen.given_up += 1;
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        // Not to fill the servers.
        sleep(Duration::from_millis(10)).await;
    }
    seen
}

/// Calls every key once more. Returns how many bodies ran again, because a fail-over had lost their
/// records.
async fn replay_all(idempotency: &Idempotency, run: &Arc<Run>) -> usize {
    let before = run.bodies.lock().unwrap().clone();
    let keys: Vec<String> = before.keys().cloned().collect();
    for keys in keys.chunks(64) {
        let mut calls = JoinSet::new();
        for key in keys {
            let run = run.clone();
            let idempotency = idempotency.clone();
            let key = key.clone();
            calls.spawn(async move { run.call(&idempotency, &key).await.unwrap() });
        }
        calls.join_all().await;
    }
    let after = run.bodies.lock().unwrap();
    after
        .iter()
        .filter(|(key, count)| before[*key] != **count)
        .count()
}

/// Which keys of a cluster: those of the node that is struck, or those of one that is not.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Struck,
    Other,
}

struct Keys {
    /// `None`: any key.
    kind: Option<Kind>,
    prefix: String,
    number: u64,
}

impl Keys {
    fn next(&mut self) -> String {
        loop {
            self.number += 1;
            let key = format!("{}{}", self.prefix, self.number);
            let third = usize::from(hash_slot(&redis_key(&key))) * 3 / 16_384;
            match (self.kind, third) {
                (None, _) | (Some(Kind::Struck), 0) | (Some(Kind::Other), 2) => return key,
                _ => {}
            }
        }
    }
}

/// The slot of a key without braces.
fn hash_slot(key: &str) -> u16 {
    let crc = key.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % 16_384
}

enum Servers {
    Cluster(RedisCluster),
    Sentinels(RedisSentinels),
}

impl Servers {
    async fn start(trouble: Trouble) -> Self {
        match trouble {
            Trouble::SentinelMasterKilled | Trouble::SentinelMasterStopped => {
                Self::Sentinels(RedisSentinels::start().await.unwrap())
            }
            _ => {
                // So that the other masters serve their keys while one is lost.
                let cluster = RedisCluster::builder()
                    .arg("--cluster-require-full-coverage")
                    .arg("no");
                Self::Cluster(cluster.start().await.unwrap())
            }
        }
    }

    async fn idempotency(&self, client: Client) -> Idempotency {
        match (self, client) {
            (Self::Cluster(cluster), Client::Ours) => crate::idempotency(cluster.url()).await,
            (Self::Sentinels(redis), Client::Ours) => crate::idempotency(redis.url()).await,
            (Self::Cluster(cluster), Client::RedisRs) => {
                let nodes = cluster.nodes()[..3].iter().map(RedisServer::url);
                let client = ClusterClient::new(nodes).unwrap();
                let connection = client.get_async_connection().await.unwrap();
                Idempotency::new(RedisStore::from_connection(connection))
            }
            (Self::Sentinels(redis), Client::RedisRs) => {
                Idempotency::new(ByRedisRs::connect(redis).await)
            }
        }
    }

    /// Lets it happen. Returns how long the servers themselves took to serve all keys again.
    async fn strike(&self, trouble: Trouble) -> Duration {
        let start = Instant::now();
        match trouble {
            Trouble::MasterKilled | Trouble::SentinelMasterKilled => {
                self.first().kill().unwrap();
                self.failed_over().await;
                let took = start.elapsed();
                self.first().restart().await.unwrap();
                took
            }
            Trouble::MasterStopped | Trouble::SentinelMasterStopped => {
                self.first().pause().unwrap();
                self.failed_over().await;
                let took = start.elapsed();
                sleep((5 * SECOND).saturating_sub(took)).await;
                self.first().resume().unwrap();
                took
            }
            Trouble::SlotsMove => {
                self.move_slots().await;
                start.elapsed()
            }
            Trouble::SlotsMoveBesideStoppedReplica => {
                let replica = &self.servers()[5];
                let slots = async || {
                    let slots = self.first().cli(&["CLUSTER", "SLOTS"]).await;
                    slots.unwrap().to_string()
                };
                let before = slots().await;
                let stop = async {
                    // `redis-cli` looks at all nodes before it begins.
                    until("the first slot moves", || async { slots().await != before }).await;
                    replica.pause().unwrap();
                };
                tokio::join!(self.move_slots(), stop);
                let took = start.elapsed();
                sleep(3 * SECOND).await;
                replica.resume().unwrap();
                took
            }
        }
    }

    fn servers(&self) -> &[RedisServer] {
        match self {
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Sentinels(redis) => redis.servers(),
        }
    }

    /// The master that is struck.
    fn first(&self) -> &RedisServer {
        &self.servers()[0]
    }

    async fn failed_over(&self) {
        match self {
            Self::Cluster(cluster) => {
                let mut keys = Keys {
                    kind: Some(Kind::Struck),
                    prefix: String::new(),
                    number: 0,
                };
                let key = redis_key(&keys.next());
                cluster.failed_over(&key, 0).await.unwrap();
            }
            Self::Sentinels(redis) => {
                redis.failed_over(0).await.unwrap();
            }
        }
    }

    /// Moves slots with their keys from the first master of a cluster to the second.
    async fn move_slots(&self) {
        let address = format!("127.0.0.1:{}", self.first().port());
        let mut ids = Vec::new();
        for node in &self.servers()[..2] {
            ids.push(node.cli(&["CLUSTER", "MYID"]).await.unwrap().to_string());
        }
        let moved = tokio::task::spawn_blocking(move || {
            Command::new("redis-cli")
                .args(["--cluster", "reshard", &address])
                .args(["--cluster-from", &ids[0], "--cluster-to", &ids[1]])
                .args(["--cluster-slots", "400", "--cluster-yes"])
                .output()
                .unwrap()
        });
        let moved = moved.await.unwrap();
        assert!(moved.status.success(), "{moved:?}");
    }

    async fn settled(&self) {
        match self {
            Self::Cluster(cluster) => cluster.settled().await.unwrap(),
            Self::Sentinels(redis) => redis.settled().await.unwrap(),
        }
    }
}

/// A store over the Sentinel client of redis-rs, whose connections do not follow a fail-over: after
/// an error, a task asks the Sentinels for the next connection until they have one.
struct ByRedisRs(Arc<Mutex<RedisStore>>, Arc<tokio::sync::Notify>);

impl ByRedisRs {
    async fn connect(redis: &RedisSentinels) -> Self {
        let sentinels = redis.sentinels().iter().map(RedisServer::url).collect();
        let master = SentinelServerType::Master;
        let mut client = SentinelClient::build(sentinels, "main", None, master).unwrap();
        let connection = client.get_async_connection().await.unwrap();
        let store = RedisStore::from_connection(connection);
        let store = Arc::new(Mutex::new(store));
        let lost = Arc::new(tokio::sync::Notify::new());
        tokio::spawn({
            let store = Arc::downgrade(&store);
            let lost = lost.clone();
            async move {
                loop {
                    lost.notified().await;
                    let next = loop {
                        match client.get_async_connection().await {
                            Ok(next) => break RedisStore::from_connection(next),
                            Err(_) => sleep(Duration::from_millis(100)).await,
                        }
                    };
                    let Some(store) = store.upgrade() else { return };
                    *store.lock().unwrap() = next;
                }
            }
        });
        Self(store, lost)
    }

    fn store(&self) -> RedisStore {
        self.0.lock().unwrap().clone()
    }

    fn looked_at<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        answer.inspect_err(|_| self.1.notify_one())
    }
}

impl Store for ByRedisRs {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.looked_at(self.store().claim(claim).await)
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.store().issue(issues).await
    }
    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.looked_at(self.store().commit(commit).await)
    }
    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.looked_at(self.store().release(release).await)
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.store().renew(renewals).await
    }
    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.looked_at(self.store().wait(id, attempt, limit).await)
    }
    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.looked_at(self.store().inspect(id).await)
    }
    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.looked_at(self.store().remove(id).await)
    }
}
