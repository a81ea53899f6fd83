//! Messages on real brokers: each is handled by one successful body, none is lost, and poison ends
//! where it belongs.

#![allow(
    clippy::similar_names,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs
)]

mod dispositions;
mod inbox;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_group;
#[cfg(feature = "kafka")]
mod kafka_members;
#[cfg(feature = "kafka")]
mod kafka_offsets;
#[cfg(feature = "kafka")]
mod kafka_stopped;
mod nats;
mod nats_dead_letters;
mod nats_faults;
mod rabbitmq;
mod rabbitmq_broker;
mod rabbitmq_dropped;
mod rabbitmq_headers;
mod rabbitmq_lost;
mod rabbitmq_published;
mod rabbitmq_refused;
mod rabbitmq_runtime;
mod rabbitmq_warnings;
#[cfg(feature = "kafka")]
mod s3;
mod storm;
mod worker;
