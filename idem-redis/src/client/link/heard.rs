//! Tracks the master by the Sentinels' announcements of failovers, and how long those are trusted.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::StoreError;
use tokio::time::{Instant, timeout};

use super::{Inner, LinkState, Peer};
use crate::client::clock;
use crate::client::dial::client;
use crate::client::error::unconnected_in_time;
use crate::client::location::Watched;
use crate::client::sentinel::{self, Statement};
use crate::client::session::Session;
use crate::client::target::Address;

/// How long an attempt may take at the server that the news of a failover names.
const NEWS_LIMIT: Duration = Duration::from_millis(500);
/// For so long, the news of a failover says more than the Sentinels that have not heard it yet;
/// they tell each other every two seconds.
const NEWS: Duration = Duration::from_secs(10);

/// The master's address, as announced by Sentinels.
#[derive(Default)]
pub(super) struct Heard {
    /// Of the last failover, and when that was.
    news: Option<News>,
    /// The target of the last attempt to connect.
    tried: Option<Address>,
}

/// The master's new address, announced by a Sentinel.
#[derive(Clone, PartialEq)]
pub(super) struct News {
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
        self.heard().tried = Some(address.clone());
        let target = watched.data.at(&address.0, address.1);
        Arc::clone(self).open_at(client(target)?, Some(address)).await
    }

    /// Connects to the master that the news names. If that server is not a master, or is
    /// unreachable twice, the news is dropped: another failover may have followed without an
    /// announcement.
    pub(super) async fn open_at_news(self: &Arc<Self>, watched: &Watched, news: News) -> Result<Session, StoreError> {
        let opening = timeout(NEWS_LIMIT, self.open_at_master(watched, news.address.clone())).await;
        let (error, is_contradicted) = match opening {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error)) => {
                let is_contradicted = sentinel::is_no_master(&error);
                (error, is_contradicted)
            }
            Err(_) => (unconnected_in_time(&self.server, NEWS_LIMIT), false),
        };
        let mut heard = self.heard();
        if let Some(now) = &mut heard.news
            && *now == news
        {
            if is_contradicted || now.is_doubtful {
                heard.news = None;
            } else {
                now.is_doubtful = true;
            }
        }
        Err(error)
    }

    /// Hears where the master is. Whatever is believed is but a reason to ask them all.
    pub(super) fn hear(self: &Arc<Self>, statement: Statement) {
        match statement {
            Statement::Switched(address) => {
                self.heard().news = Some(News { address: address.clone(), at: clock::now(), is_doubtful: false });
                self.master_is_at(&address);
            }
            Statement::Believes(address) => {
                let Peer::Master(watched) = &self.peer else { return };
                let now = match self.goes_to() {
                    Some(now) if now != address => now,
                    _ => return,
                };
                let (inner, watched, limit) = (Arc::downgrade(self), Arc::clone(watched), self.connect_limit);
                tokio::spawn(async move {
                    let Ok(address) = sentinel::most_say(&watched, Some(&now), limit).await else { return };
                    if let Some(inner) = inner.upgrade()
                        && inner.news().is_none_or(|news| news.address == address)
                    {
                        inner.master_is_at(&address);
                    }
                });
            }
        }
    }

    /// Leaves a former master: it may not have noticed yet, or be silent.
    fn master_is_at(self: &Arc<Self>, master: &Address) {
        if self.goes_to().is_none_or(|now| now == *master) {
            return;
        }
        let hub = match &*self.lock() {
            LinkState::Up(session) => Some(Arc::clone(&session.hub)),
            LinkState::Down(_) => None,
        };
        match hub {
            Some(hub) => self.lost(&hub, Duration::ZERO),
            None => self.astray.send_replace(()),
        }
    }

    /// Returns the target of the connection, or of the last attempt.
    fn goes_to(&self) -> Option<Address> {
        if let LinkState::Up(session) = &*self.lock() {
            return session.address.clone();
        }
        self.heard().tried.clone()
    }

    /// Returns the master's new address, while some Sentinels may not know it yet.
    pub(super) fn news(&self) -> Option<News> {
        let heard = self.heard();
        let news = heard.news.as_ref()?;
        (clock::now().saturating_duration_since(news.at) < NEWS).then(|| news.clone())
    }

    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        // Nothing that could panic runs under the lock.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
