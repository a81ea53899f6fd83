//! Steps of annotated functions, in every kind of call, over every store, and in transactions.

#![allow(clippy::needless_pass_by_value, reason = "tests")]

#[cfg(feature = "sqlite")]
mod again;
mod apart;
mod bad_input;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod beside;
mod kinds;
mod runs;
mod stores;
#[cfg(feature = "sqlite")]
mod transactions;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod unseen;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::{Error, Idempotency, Operation};

use crate::support::LONG;

const DAY: Duration = Duration::from_secs(86_400);

/// The shop that bodies work for.
#[derive(Default)]
pub(crate) struct Shop {
    effects: Mutex<Vec<String>>,
    /// How many runs of a body are to fail after the steps `charge` and `reserve`.
    failures: AtomicU32,
}

/// The effects of a body, in their order.
pub(crate) const EFFECTS: [&str; 4] = ["charge", "reserve pen", "reserve ink", "mail"];

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub(crate) enum Failure {
    #[error("the gateway is down")]
    Down,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// The error of a body that has a transaction.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
enum OrderError {
    #[error(transparent)]
    #[serde(skip)]
    Database(#[from] idem::sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
    #[error("declined")]
    Declined,
}

/// Whether a next attempt would see steps.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
async fn has_run(order: Operation<'_>) -> bool {
    match order.of_step("charge").inspect().await {
        Ok(_) => true,
        Err(Error::Config { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// An order that may be forgotten after a second.
fn order(idempotency: &Idempotency, name: &'static str) -> Operation<'static> {
    let order = idempotency.operation(name).key("o-1");
    order.ttl("1s").hold("1s").lease(LONG).wait(LONG)
}

/// Places an order with a body that runs, once the outcome before it is no longer valid.
async fn place_anew(order: impl Fn() -> Operation<'static>, shop: &Shop) -> bool {
    loop {
        match order().run(|| shop.place()).await {
            Ok(placed) if placed.is_replayed() => {}
            Err(Failure::Idempotency(Error::AlreadyDone { .. })) => {}
            placed => return placed.is_ok(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Shop {
    pub(crate) fn failing(times: u32) -> Self {
        let shop = Self::default();
        shop.failures.store(times, Ordering::SeqCst);
        shop
    }

    /// So many runs of a body from now on fail.
    pub(crate) fn fail(&self, times: u32) {
        self.failures.store(times, Ordering::SeqCst);
    }

    pub(crate) fn has(&self, effect: &str) {
        self.effects.lock().unwrap().push(effect.to_owned());
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.effects.lock().unwrap().clone()
    }

    /// The body: four effects, and failures between them.
    pub(crate) async fn place(&self) -> Result<u32, Failure> {
        let charge: u32 = idem::step("charge", async || {
            self.has("charge");
            tokio::task::yield_now().await;
            Ok::<_, Failure>(7)
        })
        .await?;
        for sku in ["pen", "ink"] {
            idem::step(("reserve", sku), async || {
                self.has(&format!("reserve {sku}"));
                Ok::<_, Failure>(())
            })
            .await?;
        }
        let left = self.failures.load(Ordering::SeqCst);
        if left > 0 {
            self.failures.store(left - 1, Ordering::SeqCst);
            return Err(Failure::Down);
        }
        idem::step("mail", async || {
            self.has("mail");
            Ok::<_, Failure>(())
        })
        .await?;
        Ok(charge)
    }
}
