//! The orders that were placed.

use std::sync::{Arc, Mutex, PoisonError};

use redis::AsyncCommands as _;

use super::order::{Order, Wanted};

/// The orders; an order's number is its place.
#[derive(Clone)]
pub(crate) enum Book {
    Memory(Arc<Mutex<Vec<Wanted>>>),
    Redis(redis::aio::MultiplexedConnection),
}

const LIST: &str = "form:orders";

/// It could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BookError {
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error("not an order: {0}")]
    Json(#[from] serde_json::Error),
}

impl Book {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(Arc::default())
    }

    pub(crate) async fn in_redis(url: &str) -> Result<Self, BookError> {
        Ok(Self::Redis(
            redis::Client::open(url)?
                .get_multiplexed_async_connection()
                .await?,
        ))
    }

    pub(crate) async fn enter(&self, wanted: Wanted) -> Result<Order, BookError> {
        let number = match self {
            Self::Memory(book) => {
                let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
                book.push(wanted.clone());
                book.len()
            }
            Self::Redis(redis) => {
                redis
                    .clone()
                    .rpush(LIST, serde_json::to_string(&wanted)?)
                    .await?
            }
        };
        Ok(Order { number, wanted })
    }

    pub(crate) async fn find(&self, number: usize) -> Result<Option<Order>, BookError> {
        let Some(place) = number.checked_sub(1) else {
            return Ok(None);
        };
        let wanted = match self {
            Self::Memory(book) => book
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(place)
                .cloned(),
            Self::Redis(redis) => {
                let place = isize::try_from(place).unwrap_or(isize::MAX);
                let entry: Option<String> = redis.clone().lindex(LIST, place).await?;
                entry
                    .map(|entry| serde_json::from_str(&entry))
                    .transpose()?
            }
        };
        Ok(wanted.map(|wanted| Order { number, wanted }))
    }

    /// All of them, the newest first.
    pub(crate) async fn all(&self) -> Result<Vec<Order>, BookError> {
        let all = match self {
            Self::Memory(book) => book.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Self::Redis(redis) => {
                let entries: Vec<String> = redis.clone().lrange(LIST, 0, -1).await?;
                entries
                    .iter()
                    .map(|entry| serde_json::from_str(entry))
                    .collect::<Result<_, _>>()?
            }
        };
        let mut orders: Vec<_> = (1..)
            .zip(all)
            .map(|(number, wanted)| Order { number, wanted })
            .collect();
        orders.reverse();
        Ok(orders)
    }
}
