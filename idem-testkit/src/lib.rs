#![doc = include_str!("docs.md")]

mod bench;
mod cases;
mod check;
mod clock;
mod fault;
mod handle;
mod proxy;
mod script;
mod server;
mod subject;
pub mod suite;
mod trial;

pub use libtest_mimic;

pub use crate::check::{BoxError, Failure};
pub use crate::clock::ManualClock;
pub use crate::fault::{Fault, FaultStore, Faults, Gate, Step};
pub use crate::proxy::{Mishap, Passing, Proxy};
pub use crate::server::{
    HeldPort, MariaDbServer, MySqlServer, NatsServer, PgBouncerServer, PostgresServer,
    RabbitMqServer, RedisCluster, RedisClusterBuilder, RedisSentinels, RedisSentinelsBuilder,
    RedisServer, RedisServerBuilder, Reply,
};
pub use crate::subject::{Clones, Connections, Subject, Time};
