//! `&mut self` of a retried body in a task of its own.

use std::sync::Arc;

use async_trait::async_trait;
use idem::{Error, idempotent};

struct Shop {
    orders: Vec<u64>,
    total: Arc<u64>,
}

impl Shop {
    #[idempotent(key = id, name = "shop.spawned", errors(_ => retry(max = 3)))]
    async fn in_a_spawned_task(&mut self, id: u64) -> Result<u64, Error> {
        tokio::spawn(async move { self.orders.push(id) });
        Ok(id)
    }

    #[idempotent(key = id, name = "shop.nested", errors(_ => retry(max = 3)))]
    async fn deep_inside(&mut self, id: u64) -> Result<u64, Error> {
        if id > 1 {
            let length = tokio::task::spawn_blocking(|| format!("{}", self.orders.len()).len());
            return Ok(length.await.unwrap_or_default() as u64);
        }
        Ok(id)
    }

    #[idempotent(key = id, name = "shop.by_value", errors(_ => retry(max = 3)))]
    async fn by_value(&mut self, id: u64) -> Result<u64, Error> {
        let total = self.total.clone();
        tokio::spawn(async move { *total + id });
        tokio::spawn(std::future::ready(self.orders.len()));
        Ok(id)
    }
}

#[async_trait]
trait Orders {
    async fn place(&mut self, id: u64) -> Result<u64, Error>;
}

#[async_trait]
impl Orders for Shop {
    #[idempotent(key = id, name = "shop.place", errors(_ => retry(max = 3)))]
    async fn place(&mut self, id: u64) -> Result<u64, Error> {
        tokio::spawn(async move { self.orders.push(id) });
        Ok(id)
    }
}

fn main() {}
