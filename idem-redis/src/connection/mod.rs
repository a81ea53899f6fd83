//! Connections to Redis over redis-rs: making and replacing them, routing, Sentinel, the slots of a
//! cluster, pipelines and subscriptions. This room knows nothing of records; the store imports it,
//! never the reverse.
//!
//! Each level of a connection has its own word:
//!
//! | word | type | what it is |
//! | --- | --- | --- |
//! | session | `Session` | one connection, from its making to its loss |
//! | link | `Link` | the connection to one server: a session, replaced by the next when it is lost |
//! | managed connection | `ManagedConnection` | what the store made from a URL or a list: a link, or the links to the nodes of a cluster |
//! | given connection | [`Connection`](given::Connection) | what the application made with redis-rs |
//! | transport | `Transport` | one of these two |
//! | step connection | `StepConnection` | what one step of the store sends its commands on |
//! | fast path | `FastPath` | a session that is ready, for a step that needs one command |

pub(crate) mod batch;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod fast_path;
pub(crate) mod given;
pub(crate) mod handshake;
pub(crate) mod hash_slot;
pub(crate) mod link;
pub(crate) mod lists;
pub(crate) mod location;
pub(crate) mod managed;
pub(crate) mod pipeline;
pub(crate) mod replicas;
pub(crate) mod runtime;
pub(crate) mod sentinel;
pub(crate) mod server_info;
pub(crate) mod session;
pub(crate) mod slot_map;
pub(crate) mod step_connection;
pub(crate) mod step_runner;
pub(crate) mod subscriptions;
pub(crate) mod target;
