//! Faults at an exact step: what goes wrong with single requests of one kind.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::fault::{Gate, at_least};

/// A mishap of one request that passes a [`Proxy`](crate::Proxy), or of its reply.
///
/// Replies come in the order of the requests, on one connection. So what is lost ends the
/// connection, and what hangs holds up all that comes after it there.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Mishap {
    /// Nothing: lets a script leave out a request.
    Pass,
    /// The connection ends before the server has seen the request.
    LoseRequest,
    /// The server carries the request out, and the connection ends before the reply.
    LoseReply,
    /// The request, and all that come after it, stay on their way until the gate is open. Then they
    /// arrive, whatever has become of who sent them.
    Hang(Gate),
    /// The server carries the request out; the reply, and all that come after it, stay on their way
    /// until the gate is open.
    HangReply(Gate),
}

/// The requests of one kind that pass a [`Proxy`](crate::Proxy), and their mishaps, which a test
/// scripts. From [`Proxy::passing`](crate::Proxy::passing). Cheap to clone; clones script the same
/// requests.
///
/// Each mishap from [`next`](Self::next) applies to one request, in order. Then the one from
/// [`always`](Self::always) applies.
#[derive(Clone)]
pub struct Passing(Arc<Inner>);

type Kind = dyn Fn(&[&[u8]]) -> bool + Send + Sync;

struct Inner {
    is_one: Box<Kind>,
    script: Mutex<(VecDeque<Mishap>, Option<Mishap>)>,
    /// How many have come.
    calls: watch::Sender<u64>,
}

impl Passing {
    pub(super) fn new(is_one: impl Fn(&[&[u8]]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            is_one: Box::new(is_one),
            script: Mutex::default(),
            calls: watch::Sender::new(0),
        }))
    }

    /// The next request for which nothing else is scripted yet has this mishap.
    pub fn next(&self, mishap: Mishap) {
        self.script().0.push_back(mishap);
    }

    /// Each request has this mishap, unless one is scripted for it.
    pub fn always(&self, mishap: Mishap) {
        self.script().1 = Some(mishap);
    }

    /// Removes all mishaps from now on. Requests that hang do so until their [`Gate`] opens; the
    /// counts stay.
    pub fn clear(&self) {
        *self.script() = (VecDeque::new(), None);
    }

    /// How many have come so far, lost ones too.
    pub fn calls(&self) -> u64 {
        *self.0.calls.borrow()
    }

    /// Waits until so many have come, counted from the beginning.
    pub async fn reached(&self, calls: u64) {
        at_least(&self.0.calls, calls).await;
    }

    /// Counts a request, if it is one of these, and says what goes wrong with it.
    pub(super) fn meet(&self, words: &[&[u8]]) -> Option<Mishap> {
        if !(self.0.is_one)(words) {
            return None;
        }
        let mut script = self.script();
        let mishap = script
            .0
            .pop_front()
            .or_else(|| script.1.clone())
            .unwrap_or(Mishap::Pass);
        // Counted under the lock, so that who sees the count scripts the next request, not this
        // one.
        self.0.calls.send_modify(|calls| *calls += 1);
        Some(mishap)
    }

    fn script(&self) -> MutexGuard<'_, (VecDeque<Mishap>, Option<Mishap>)> {
        self.0.script.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passing")
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}
