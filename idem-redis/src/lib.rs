//! The Redis store of `idem`; use it through the facade, the package `idem-rs`, with its feature `redis`.
//!
//! # What it needs
//!
//! Redis 7.0 or newer, or Valkey; one server, not a cluster's node. It must not evict keys (`maxmemory-policy noeviction`): an evicted
//! record lets a body run twice. A restart without persistence, and a fail-over to a replica that had not yet received the last
//! writes, lose records likewise.
//!
//! A user with these rights, for the prefix `idem`:
//!
//! ```text
//! ACL SETUSER app on >password ~idem:* &idem:* +set +get +del +append +pttl +pexpire +evalsha +script|load
//!                              +subscribe +unsubscribe +publish +ping +info
//! ```
//!
//! `+select` too where the URL names a database. Without `&idem:*`, `SUBSCRIBE` and `PUBLISH` all promises hold, but waiters ask again
//! and again instead of being woken.
//!
//! # What it sends
//!
//! | step | commands |
//! | --- | --- |
//! | claim of a new key, replay | one `SET key record NX GET PX hold` |
//! | commit, release | one `EVALSHA` |
//! | replay where `remember` is longer than `ttl` | the same `SET`, and one `GET` |
//! | claim of what was released, in flight or abandoned | the same `SET`, and one `EVALSHA` |
//! | renewal | one `EVALSHA` for each lease, up to 500 sent at once |
//! | wait | one `SUBSCRIBE` for each key and process, one `EVALSHA` for each waiter |
//!
//! # Why it is so
//!
//! - **The claim is one command** because the floor is one round trip, and `SET` with `NX` and `GET` either writes the record or
//!   gives the one that is there. Whatever that makes of the claim is decided by
//!   [`Record::on_claim`](idem_core::record::Record::on_claim), as in every store, and written by a compare-and-set on the very text
//!   that was read: if it has changed, the new text is decided upon.
//! - **Time is the server's.** A record in flight holds the expiry that it was written with, so the age of its lease is that less what
//!   is left (`PTTL`), and no clock of a client is asked. A record whose expiry somebody took away is an error, never abandoned.
//! - **The owner is compared as a prefix** of the record, so that commit, release and renewal are short scripts.
//! - **An outcome that is forgotten before the fact is** (`remember` longer than `ttl`) has a key of its own, `prefix:{record's key}`:
//!   its memory is freed in time, and the mark stays. The braces put both keys into one slot of a cluster.
//! - **A commit that nobody waits for publishes nothing.** A waiter leaves a mark, one byte behind the record, after its subscription
//!   was confirmed; a commit or release that finds the mark publishes on the channel that is named as the record's key.
//! - **What a body has done is recorded even where the server's memory is full**: commits, releases and renewals are allowed there,
//!   while no new body begins. Duplicates get their outcome.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
mod cluster;
mod config;
mod connect;
mod connection;
mod error;
mod keys;
mod lane;
mod link;
mod own;
mod place;
mod renew;
mod replicas;
mod script;
mod sentinel;
mod server;
mod slot;
mod slots;
mod store;
mod target;
mod wait;
mod wake;

pub use redis;

pub use crate::config::RedisStoreBuilder;
pub use crate::connection::Connection;
pub use crate::store::RedisStore;
