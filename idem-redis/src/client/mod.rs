//! A client of Redis over redis-rs: connections with their upkeep, routing, Sentinel, the slots of a
//! cluster, batches and wake-ups. It knows nothing of records; the store imports it, never the
//! reverse.

pub(crate) mod batch;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod connection;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod facts;
pub(crate) mod greeting;
pub(crate) mod hash_slot;
pub(crate) mod home;
pub(crate) mod lane;
pub(crate) mod link;
pub(crate) mod location;
pub(crate) mod many;
pub(crate) mod own;
pub(crate) mod quick;
pub(crate) mod replicas;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod slot_map;
pub(crate) mod target;
pub(crate) mod wake;
