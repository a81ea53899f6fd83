//! The common part of `idem`'s message consumers.
//!
//! [`run`] takes deliveries from a [`Broker`], runs the handler for each, and settles each by its
//! [`Disposition`](idem_core::Disposition). Applications use a broker's crate: `idem-amqp`,
//! `idem-nats` or `idem-kafka`. An adapter for another broker implements [`Broker`] and [`Ticket`].
//! If that broker keeps one offset for each partition, [`Inbox`] says which messages may begin, and
//! which offsets may be committed.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod broker;
mod delivery;
mod error;
mod events;
mod inbox;
mod offsets;
mod publish;
mod run;
mod settings;
mod settle;
#[cfg(test)]
mod tests;

pub use crate::broker::{Broker, Deliveries, Fault, Room, Ticket};
pub use crate::delivery::{Delivery, MessageKey};
pub use crate::error::{BoxError, Error};
pub use crate::events::{Decision, Outage, report};
pub use crate::inbox::{After, Fetched, Flow, Inbox, Place, Record};
pub use crate::offsets::{Offsets, Receipt};
pub use crate::publish::{PublishError, Published, child_id};
pub use crate::run::run;
pub use crate::settings::Settings;

/// The header of a dead letter that has its reason: a code such as `attempts_exhausted`, or the
/// reason of the handler.
pub const REASON: &str = "idem-reason";
