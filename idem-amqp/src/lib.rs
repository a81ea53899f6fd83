//! Consumers and publishers for RabbitMQ. Use it through the facade, the package `idem-rs`, as
//! `idem::amqp`.
//!
//! - [`Consumer`] runs an idempotent handler for each message of a queue.
//! - [`Publisher`] publishes from inside a guarded body, with the same message id in each attempt.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod connection;
mod connector;
mod consumer;
mod consumer_channels;
mod publish_channels;
mod publisher;
mod queue_arguments;
mod request;
mod subscribe;
#[cfg(test)]
mod tests;
mod ticket;

pub use idem_queue::{Delivery, Error, MessageKey, PublishError, Published, REASON};
#[doc(no_inline)]
pub use lapin;

pub use crate::consumer::Consumer;
pub use crate::publisher::Publisher;
