//! The master as the Sentinels announce it.
//!
//! After a failover, some Sentinels still name the old master for a while. So a link connects to
//! the announced address first, and asks all Sentinels again when the announcement is old or wrong.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::StoreError;
use tokio::time::{Instant, timeout};

use super::{Inner, LinkState, Peer};
use crate::connection::clock;
use crate::connection::dial::client;
use crate::connection::error::unconnected_in_time;
use crate::connection::location::Watched;
use crate::connection::sentinel::{self, Statement};
use crate::connection::session::Session;
use crate::connection::target::Address;

/// How long an attempt to connect to the announced master may take.
const ANNOUNCED_CONNECT_LIMIT: Duration = Duration::from_millis(500);
/// How long an announcement outweighs what the Sentinels answer. They tell each other of a failover
/// every two seconds.
const ANNOUNCEMENT_TRUSTED_FOR: Duration = Duration::from_secs(10);

/// What is known of the master's address besides the session.
#[derive(Default)]
pub(super) struct MasterHint {
    announced: Option<AnnouncedMaster>,
    /// The address of the last attempt to connect.
    tried: Option<Address>,
}

/// The master's new address, as a Sentinel announced it at a failover.
#[derive(Clone, PartialEq)]
pub(super) struct AnnouncedMaster {
    pub(super) address: Address,
    at: Instant,
    /// An attempt to connect there has failed.
    is_doubtful: bool,
}

impl Inner {
    pub(super) async fn open_at_master(
        self: &Arc<Self>,
        watched: &Watched,
        address: Address,
    ) -> Result<Session, StoreError> {
        self.master_hint().tried = Some(address.clone());
        let target = watched.data.at(&address.0, address.1);
        Arc::clone(self)
            .open_at(client(target)?, Some(address))
            .await
    }

    /// Connects to the announced master. If that server is not a master, or cannot be reached
    /// twice, the announcement is dropped: another failover may have followed that was not
    /// announced.
    pub(super) async fn open_at_announced(
        self: &Arc<Self>,
        watched: &Watched,
        announced: AnnouncedMaster,
    ) -> Result<Session, StoreError> {
        let opening = timeout(
            ANNOUNCED_CONNECT_LIMIT,
            self.open_at_master(watched, announced.address.clone()),
        );
        let error = match opening.await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error)) => error,
            Err(_) => unconnected_in_time(&self.server, ANNOUNCED_CONNECT_LIMIT),
        };
        let mut hint = self.master_hint();
        if let Some(current) = &mut hint.announced
            && *current == announced
        {
            if sentinel::is_no_master(&error) || current.is_doubtful {
                hint.announced = None;
            } else {
                current.is_doubtful = true;
            }
        }
        Err(error)
    }

    /// Takes in what a Sentinel says of the master. An announcement is acted on at once. If a
    /// Sentinel only believes that the master is elsewhere, all Sentinels are asked.
    pub(super) fn handle_statement(self: &Arc<Self>, statement: Statement) {
        match statement {
            Statement::Switched(address) => {
                self.master_hint().announced = Some(AnnouncedMaster {
                    address: address.clone(),
                    at: clock::now(),
                    is_doubtful: false,
                });
                self.leave_other_than(&address);
            }
            Statement::Believes(address) => {
                let Peer::Master(watched) = &self.peer else {
                    return;
                };
                let current = match self.current_address() {
                    Some(current) if current != address => current,
                    _ => return,
                };
                let inner = Arc::downgrade(self);
                let watched = Arc::clone(watched);
                let limit = self.options.connect_limit;
                tokio::spawn(async move {
                    let asking = sentinel::majority_master(&watched, Some(&current), limit);
                    let Ok(address) = asking.await else { return };
                    if let Some(inner) = inner.upgrade()
                        && inner
                            .announced_master()
                            .is_none_or(|announced| announced.address == address)
                    {
                        inner.leave_other_than(&address);
                    }
                });
            }
        }
    }

    /// Gives up a session with another server than the master, or an attempt to make one. A former
    /// master may be cut off, so that it does not know of the failover.
    fn leave_other_than(self: &Arc<Self>, master: &Address) {
        if self
            .current_address()
            .is_none_or(|current| current == *master)
        {
            return;
        }
        let subscriptions = match &*self.lock() {
            LinkState::Up(session) => Some(Arc::clone(&session.subscriptions)),
            LinkState::Down(_) => None,
        };
        match subscriptions {
            Some(subscriptions) => self.lost(&subscriptions, Duration::ZERO),
            None => self.wrong_master.send_replace(()),
        }
    }

    /// Returns the address of the session, or of the last attempt.
    fn current_address(&self) -> Option<Address> {
        if let LinkState::Up(session) = &*self.lock() {
            return session.address.clone();
        }
        self.master_hint().tried.clone()
    }

    /// Returns the announced master, while some Sentinels may not know of it yet.
    pub(super) fn announced_master(&self) -> Option<AnnouncedMaster> {
        let hint = self.master_hint();
        let announced = hint.announced.as_ref()?;
        let age = clock::now().saturating_duration_since(announced.at);
        (age < ANNOUNCEMENT_TRUSTED_FOR).then(|| announced.clone())
    }

    pub(super) fn master_hint(&self) -> MutexGuard<'_, MasterHint> {
        // Nothing that could panic runs under the lock.
        self.master_hint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
