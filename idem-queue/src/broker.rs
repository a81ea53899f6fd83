//! The traits that an adapter implements.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::Stream;
use tokio::sync::Notify;

use crate::delivery::Delivery;
use crate::error::{BoxError, Error};

/// Deliveries as they arrive, each with what settles it. After an error the stream is dropped, and
/// opened again (but see [`Fault::Final`]).
pub type Deliveries<'b, T> = Pin<Box<dyn Stream<Item = Result<(Delivery, T), Fault>> + Send + 'b>>;

/// The reason why no deliveries arrive.
#[derive(Debug)]
pub enum Fault {
    /// The connection was lost, or the broker refused a request. At the start it is returned; later
    /// the consumer tries again.
    Passing(BoxError),
    /// At the start it ends the consumer. Later only [`Error::Disconnected`] does; another error is
    /// logged, and the broker is opened again.
    Final(Error),
}

impl Fault {
    /// Creates a [`Passing`](Self::Passing).
    pub fn passing(error: impl Into<BoxError>) -> Self {
        Self::Passing(error.into())
    }

    /// Creates a [`Final`](Self::Final) for a mistake that the application must fix.
    pub fn config(reason: impl Into<String>) -> Self {
        Self::Final(Error::Config {
            reason: reason.into(),
        })
    }

    /// Returns the error inside.
    pub fn into_inner(self) -> BoxError {
        match self {
            Self::Passing(error) => error,
            Self::Final(error) => error.into(),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Passing(source) => Self::Broker { source },
            Fault::Final(error) => error,
        }
    }
}

/// A broker, as the common part needs it.
pub trait Broker {
    /// The type that settles one delivery.
    type Ticket: Ticket;

    /// Whether deliveries that have arrived and were not handled are handed back one by one at
    /// shutdown. Otherwise they return because their channel is closed.
    const HANDS_BACK: bool;

    /// Returns the queue or the stream, for events.
    fn source(&self) -> &str;

    /// Checks that no message can be lost, and begins to receive. It is called at the start, and
    /// again after each [`Fault`].
    ///
    /// The stream asks the broker for no more deliveries than `room` allows. It is also polled
    /// while nothing fits, to notice a lost connection. When it is dropped, it receives no more. A
    /// future of `open` is dropped after 30 s at the start, and after 5 s later.
    ///
    /// # Errors
    ///
    /// The reason that makes it impossible, such as a missing dead-letter destination.
    fn open(
        &self,
        room: Arc<Room>,
    ) -> impl Future<Output = Result<Deliveries<'_, Self::Ticket>, Fault>> + Send;

    /// Waits, at the end, until the broker has received what was sent. Does nothing by default.
    /// Dropped after 5 s.
    fn flush(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Settles one delivery. A step is dropped after 15 s, `keep_alive` after its interval. It must be
/// safe to drop a step, and to try it again.
pub trait Ticket {
    /// Whether settling is tried until it succeeds or the delivery is void. Otherwise the message
    /// is handed back after six tries. For brokers that drop a message after some returns, or that
    /// never take back a message whose channel is open. Default: `false`.
    const KEEPS: bool = false;

    /// Returns how often the broker must be told that the handler still runs, if at all.
    fn keep_alive_every(&self) -> Option<Duration>;

    /// Tells the broker that the handler still runs.
    fn keep_alive(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Acknowledges the message.
    fn ack(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Has the message delivered again after this pause, without counting against its delivery
    /// limit.
    fn retry(
        &self,
        delivery: &Delivery,
        after: Duration,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Dead-letters the message. The destination must have it before the message is acknowledged.
    fn dead_letter(
        &self,
        delivery: &Delivery,
        reason: &str,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Hands the message back, to be delivered again immediately.
    fn hand_back(&self) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns whether the broker has taken the delivery back, so that it can no longer be settled.
    fn is_void(&self) -> bool;
}

/// How many more deliveries can be handled now.
#[derive(Debug)]
pub struct Room {
    free: AtomicUsize,
    changed: Notify,
}

impl Room {
    pub(crate) fn new(free: usize) -> Arc<Self> {
        Arc::new(Self {
            free: AtomicUsize::new(free),
            changed: Notify::new(),
        })
    }

    pub(crate) fn set(&self, free: usize) {
        if self.free.swap(free, Ordering::Relaxed) == 0 && free > 0 {
            self.changed.notify_one();
        }
    }

    /// Returns how many more deliveries fit.
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Waits until a delivery fits. At the shutdown that never happens.
    ///
    /// # Cancellation safety
    ///
    /// It can be dropped, and called again.
    pub async fn until_free(&self) {
        while self.free() == 0 {
            self.changed.notified().await;
        }
    }
}
