//! Many bodies at once in one process, over a Redis of their own.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use idem::{Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::{FaultStore, Faults, RedisServer};
use tokio::task::JoinSet;

use crate::support::{Bodies, connected, eventually};

pub(crate) type Res = Result<u64, Error>;

pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) idempotency: Idempotency,
    pub(crate) faults: Faults,
    pub(crate) bodies: Arc<Bodies>,
    running: Arc<AtomicU32>,
    over: tokio::sync::watch::Sender<bool>,
}

impl World {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start().await.unwrap();
        let store = connected(async || RedisStore::connect(server.url()).await).await;
        let store = FaultStore::new(store);
        let faults = store.faults();
        let idempotency = Idempotency::new(store);
        Self {
            server,
            idempotency,
            faults,
            bodies: Arc::default(),
            running: Arc::default(),
            over: tokio::sync::watch::Sender::new(false),
        }
    }

    /// Begins so many bodies, which end when it is over, and waits until all run.
    pub(crate) async fn begin(&self, bodies: u32, lease: Duration) -> JoinSet<Res> {
        let mut calls = JoinSet::new();
        for key in 0..bodies {
            let idempotency = self.idempotency.clone();
            let bodies = self.bodies.clone();
            let mut over = self.over.subscribe();
            let running = self.running.clone();
            calls.spawn(async move {
                let call = idempotency.operation("load").key(&key).lease(lease);
                let body = bodies.run(async move {
                    let _running = Running::new(running);
                    over.wait_for(|over| *over).await.unwrap();
                    Res::Ok(idem::current().unwrap().attempt())
                });
                call.run(|| body).await.map(idem::Outcome::into_inner)
            });
            if key % 50 == 49 {
                eventually("they run", async || self.bodies.begun() == key + 1).await;
            }
        }
        eventually("all run", async || self.bodies.begun() == bodies).await;
        calls
    }

    /// How many bodies run now.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(SeqCst)
    }

    /// Lets the bodies end.
    pub(crate) fn finish(&self) {
        self.over.send_replace(true);
    }
}

/// A body that runs, until it ends or is stopped.
struct Running(Arc<AtomicU32>);

impl Running {
    fn new(count: Arc<AtomicU32>) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// How many answers there are of each kind.
pub(crate) fn counted(answers: Vec<Res>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        let kind = match answer {
            Ok(1) => "first attempt",
            Ok(_) => "later attempt",
            Err(Error::LeaseLost { .. }) => "lost",
            Err(_) => "failed",
        };
        *counts.entry(kind).or_default() += 1;
    }
    counts
}
