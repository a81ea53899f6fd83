//! A ticket that records the steps it is asked for.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{BoxError, Delivery, Ticket};

/// What became of the messages: each step and the id of its message, in order.
pub(crate) type Steps = Arc<Mutex<Vec<String>>>;

/// The client of a broker: what happens before a step is recorded.
pub(crate) trait Client: Send + Sync {
    fn before(&self, step: &str) -> impl Future<Output = ()> + Send;
}

pub(crate) struct FakeTicket<C> {
    pub(crate) id: String,
    pub(crate) client: C,
    pub(crate) steps: Steps,
}

impl<C: Client> FakeTicket<C> {
    async fn step(&self, what: &str) -> Result<(), BoxError> {
        self.client.before(what).await;
        self.steps
            .lock()
            .unwrap()
            .push(format!("{what} {}", self.id));
        Ok(())
    }
}

impl<C: Client> Ticket for FakeTicket<C> {
    fn keep_alive_every(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    async fn keep_alive(&self) -> Result<(), BoxError> {
        self.step("kept alive").await
    }

    async fn ack(&self) -> Result<(), BoxError> {
        self.step("acknowledged").await
    }

    async fn retry(&self, _: &Delivery, _: Duration) -> Result<(), BoxError> {
        self.step("retried").await
    }

    async fn dead_letter(&self, _: &Delivery, _: &str) -> Result<(), BoxError> {
        self.step("put aside").await
    }

    async fn hand_back(&self) -> Result<(), BoxError> {
        self.step("handed back").await
    }

    fn is_void(&self) -> bool {
        false
    }
}
