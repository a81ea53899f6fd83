//! Consumers and publishers for NATS JetStream. Use it through the facade, the package `idem-rs`,
//! as `idem::nats`.
//!
//! - [`Consumer`] runs an idempotent handler for each message of a durable pull consumer.
//! - [`Publisher`] publishes from inside a guarded body, with the same message id in each attempt.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod ack_subject;
mod consumer;
mod dead_letter;
mod message_id;
mod publisher;
mod pull;
mod subject;
mod ticket;

#[doc(no_inline)]
pub use async_nats;
pub use idem_queue::{Delivery, Error, MessageKey, PublishError, Published, REASON};

pub use crate::consumer::Consumer;
pub use crate::publisher::Publisher;
