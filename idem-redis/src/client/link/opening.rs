//! Makes one connection: finds the server, greets it, and looks at its clock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use idem_core::__private::outward;
use idem_core::StoreError;
use idem_core::store::clock::{Jump, ServerClock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult};
use tokio::time::timeout;

use super::{Inner, Peer};
use crate::client::batch::Batches;
use crate::client::error::{unconnected, unconnected_in_time};
use crate::client::greeting::greet;
use crate::client::replicas::Acknowledgements;
use crate::client::sentinel;
use crate::client::session::{Connected, Session};
use crate::client::target::Address;
use crate::client::wake::{Ear, Hub};

impl Inner {
    /// Makes a connection, in the current runtime.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Session, StoreError> {
        let opening = async {
            match &self.peer {
                Peer::Server(client) => Arc::clone(self).open_at(client.clone(), None).await,
                Peer::Node(client, node) => Arc::clone(self).open_at(client.clone(), Some(node.clone())).await,
                Peer::Master(watched) => {
                    if let Some(news) = self.news() {
                        return self.open_at_news(watched, news).await;
                    }
                    let address = sentinel::most_say(watched, None, self.connect_limit).await?;
                    self.open_at_master(watched, address).await
                }
            }
        };
        timeout(self.connect_limit, opening).await.map_err(|_| unconnected_in_time(&self.server, self.connect_limit))?
    }

    pub(super) async fn open_at(
        self: Arc<Self>,
        client: Client,
        address: Option<Address>,
    ) -> Result<Session, StoreError> {
        let runtime = self.home.runtime();
        let is_node = matches!(self.peer, Peer::Node(..));
        let ear = Ear { client: client.clone(), server: Arc::clone(&self.server), limit: self.connect_limit };
        let hub = Hub::new();
        let (inner, lost) = (Arc::downgrade(&self), Arc::downgrade(&hub));
        let receive = move |push: PushInfo| -> Result<(), ()> {
            let (PushKind::Disconnection, Some(hub)) = (&push.kind, lost.upgrade()) else { return Ok(()) };
            match inner.upgrade() {
                Some(inner) => inner.lost(&hub, Duration::ZERO),
                None => hub.close(),
            }
            Ok(())
        };
        // The line of commands stays as short as redis-rs has it: a longer one made no difference
        // to ten thousand callers.
        let config = AsyncConnectionConfig::new()
            // `open` has one limit for it all.
            .set_connection_timeout(None)
            // Each step of the store has one limit around all that it sends (`server.rs`).
            .set_response_timeout(None)
            .set_push_sender(receive);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(|error| unconnected(&self.server, error))?;
        if matches!(self.peer, Peer::Master(_)) {
            sentinel::must_be_master(&mut connection, &self.server).await?;
        }
        let compares = AtomicBool::new(greet(&mut connection, &self.server, &self.greeting, is_node).await?);
        // If this is refused, the clock is trusted.
        if let Err(error) = self.look_at_clock(connection.clone()).await
            && error.code() == Some("NOPERM")
        {
            outward(
                || tracing::warn!(target: "idem", server = %self.server, "this user may not ask Redis for the TIME, so idem cannot tell when the server's clock is set (ACL SETUSER .. +time)"),
            );
        }
        hub.serve(ear);
        Ok(Session(Arc::new(Connected {
            connection,
            hub,
            acknowledgements: Arc::new(Acknowledgements::here()),
            batches: Batches::new(),
            compares,
            address,
            pulse: runtime.pulse().clone(),
        })))
    }

    pub(super) async fn look_at_clock(&self, mut connection: MultiplexedConnection) -> RedisResult<()> {
        let asked = ServerClock::asking();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
        match self.clock.looked(time, asked) {
            Some(Jump::Ahead(by)) => outward(|| {
                tracing::warn!(
                    target: "idem",
                    server = %self.server,
                    "the clock of Redis was set ahead by {by:.1?}, or another server with another clock took over: keys that it affects are taken over up to one lease later; keep the clocks of Redis in step (NTP)"
                );
            }),
            Some(Jump::Back(by)) => outward(|| {
                tracing::warn!(
                    target: "idem",
                    server = %self.server,
                    "the clock of Redis was set back by {by:.1?}, or another server with another clock took over: all records, abandoned ones too, are kept that much longer; keep the clocks of Redis in step (NTP)"
                );
            }),
            None => {}
        }
        Ok(())
    }
}
