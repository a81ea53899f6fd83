//! Steps of annotated functions, in every kind of call, over every store, and in transactions.

#![allow(clippy::needless_pass_by_value, reason = "tests")]

#[cfg(feature = "sqlite")]
mod again;
mod kinds;
mod runs;
mod stores;
#[cfg(feature = "sqlite")]
mod transactions;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The shop that bodies work for.
#[derive(Default)]
pub(crate) struct Shop {
    effects: Mutex<Vec<String>>,
    /// How many runs of a body are to fail after the steps `charge` and `reserve`.
    failures: AtomicU32,
}

/// The next action of a body.
pub(crate) const EFFECTS: [&str; 4] = ["charge", "reserve pen", "reserve ink", "mail"];

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub(crate) enum Failure {
    #[error("the gateway is down")]
    Down,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] idem::Error),
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
