//! The Redis store of `idem`. Use it through the facade, the package `idem-rs`, with its feature
//! `redis`.
//!
//! It keeps records on one Redis 7.0 (or newer) or Valkey server, on a master under Sentinel, or in
//! a cluster. The server must not evict keys (`maxmemory-policy noeviction`): an evicted record
//! lets a body run twice.
//!
//! ```no_run
//! # async fn example() -> Result<(), idem_core::StoreError> {
//! let store = idem_redis::RedisStore::connect("redis://127.0.0.1/").await?;
//! # let _ = store; Ok(()) }
//! ```
//!
//! [The Redis guide](../idem/guide/redis/index.html) has the access rights, the
//! behaviour on failover and when a clock is set, the commands of each step, and the design.
//! [`RedisStoreBuilder`] has the settings.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connection;
mod store;

#[doc(no_inline)]
pub use redis;

pub use crate::connection::given::Connection;
pub use crate::connection::lists::RedisNode;
pub use crate::store::RedisStore;
pub use crate::store::builder::RedisStoreBuilder;
pub use crate::store::survey::Survey;
