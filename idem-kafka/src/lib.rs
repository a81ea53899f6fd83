//! Consumers and publishers for Apache Kafka. Use it through the facade, the package `idem-rs`, as
//! `idem::kafka`.
//!
//! - [`Consumer`] runs an idempotent handler for each message of a topic, as a member of a group.
//! - [`Publisher`] publishes from inside a guarded body, with the same message id in each attempt.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod consumer;
mod dead_letter;
mod feed;
mod message_id;
mod producer;
mod publisher;
mod record;
mod session;
mod shared;
#[cfg(test)]
mod tests;
mod ticket;

pub use idem_queue::{Delivery, Error, MessageKey, PublishError, Published, REASON};
#[doc(no_inline)]
pub use rdkafka;
#[doc(no_inline)]
pub use rdkafka::ClientConfig;

pub use crate::consumer::Consumer;
pub use crate::publisher::Publisher;
