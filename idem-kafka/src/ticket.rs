//! The ticket, which settles one delivery.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use idem_queue::{After, BoxError, Delivery};

use crate::dead_letter::DeadLetters;
use crate::record::Record;
use crate::shared::Shared;

/// A message that a handler has.
///
/// Nothing here prevents a second run of the body: if the partition is revoked meanwhile, another
/// consumer gets the message. The lease of the record prevents it.
#[derive(Debug)]
pub(crate) struct Ticket {
    record: Arc<Record>,
    after: OnceLock<(After, Duration)>,
    shared: Arc<Shared>,
    dead_letters: Arc<DeadLetters>,
}

impl Ticket {
    pub(crate) fn new(
        record: Arc<Record>,
        shared: Arc<Shared>,
        dead_letters: Arc<DeadLetters>,
    ) -> (Delivery, Self) {
        let delivery = record
            .message()
            .delivery(&shared.topic, &dead_letters.id_header)
            .with_redelivered(record.is_again());
        let ticket = Self {
            record,
            after: OnceLock::new(),
            shared,
            dead_letters,
        };
        (delivery, ticket)
    }
}

impl idem_queue::Ticket for Ticket {
    // The message stays here in any case, and a dead letter must not be lost.
    const KEEPS: bool = true;

    /// Never: a thread polls while handlers run.
    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        Ok(())
    }

    async fn ack(&self) -> Result<(), BoxError> {
        self.shared.settle(&self.record)?;
        let _ = self.after.set((After::Settled, Duration::ZERO));
        Ok(())
    }

    /// The message begins its pause when the handler's place is free.
    async fn retry(&self, _: &Delivery, after: Duration) -> Result<(), BoxError> {
        let _ = self.after.set((After::Again, after));
        Ok(())
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<(), BoxError> {
        let original = self.record.message();
        self.dead_letters
            .publish(original, delivery, reason)
            .await?;
        self.ack().await
    }

    /// Nothing is to be done: its offset is not committed.
    async fn hand_back(&self) -> Result<(), BoxError> {
        Ok(())
    }

    fn is_void(&self) -> bool {
        self.shared.is_void(&self.record)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let dropped = (After::Dropped, Duration::ZERO);
        let (after, pause) = self.after.get().copied().unwrap_or(dropped);
        self.shared.take_back(self.record.clone(), after, pause);
    }
}
