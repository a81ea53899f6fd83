//! Makes one session: finds the server, does the handshake, and looks at the clock.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::adapter::catch_user_panic;
use idem_core::store::clock::{Jump, ServerClock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult};
use tokio::time::timeout;

use super::{Inner, Peer};
use crate::connection::batch::Batches;
use crate::connection::error::{unconnected, unconnected_in_time};
use crate::connection::handshake::handshake;
use crate::connection::replicas::Acknowledgements;
use crate::connection::sentinel;
use crate::connection::session::{Connected, Session};
use crate::connection::subscriptions::{SubscriberConnection, Subscriptions};
use crate::connection::target::Address;

impl Inner {
    /// Makes a session, in the current runtime.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Session, StoreError> {
        let opening = async {
            match &self.peer {
                Peer::Server(client) => Arc::clone(self).open_at(client.clone(), None).await,
                Peer::Node(client, node) => {
                    Arc::clone(self)
                        .open_at(client.clone(), Some(node.clone()))
                        .await
                }
                Peer::Master(watched) => {
                    if let Some(announced) = self.announced_master() {
                        return self.open_at_announced(watched, announced).await;
                    }
                    let address =
                        sentinel::majority_master(watched, None, self.options.connect_limit)
                            .await?;
                    self.open_at_master(watched, address).await
                }
            }
        };
        timeout(self.options.connect_limit, opening)
            .await
            .map_err(|_| unconnected_in_time(&self.server, self.options.connect_limit))?
    }

    pub(super) async fn open_at(
        self: Arc<Self>,
        client: Client,
        address: Option<Address>,
    ) -> Result<Session, StoreError> {
        let runtime = self.options.runtime.runtime();
        let is_node = matches!(self.peer, Peer::Node(..));
        let subscriber = SubscriberConnection {
            client: client.clone(),
            server: Arc::clone(&self.server),
            limit: self.options.connect_limit,
        };
        let subscriptions = Subscriptions::new();
        // redis-rs's default length of the command queue stays: a longer one made no difference to
        // ten thousand callers.
        let config = AsyncConnectionConfig::new()
            // `open` has one limit around everything.
            .set_connection_timeout(None)
            // `StepRunner` has one limit around each step of the store.
            .set_response_timeout(None)
            .set_push_sender(self.on_disconnection(&subscriptions));
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let mut connection = connection.map_err(|error| unconnected(&self.server, error))?;
        if matches!(self.peer, Peer::Master(_)) {
            sentinel::check_is_master(&mut connection, &self.server).await?;
        }
        let has_ifeq = AtomicBool::new(
            handshake(
                &mut connection,
                &self.server,
                &self.options.handshake,
                is_node,
            )
            .await?,
        );
        // If the user may not ask, the clock is trusted.
        if let Err(error) = self.look_at_clock(connection.clone()).await
            && error.code() == Some("NOPERM")
        {
            catch_user_panic(|| {
                tracing::warn!(target: "idem", server = %self.server, "this user may not ask \
                    Redis for the TIME, so idem cannot tell when the server's clock is set (ACL \
                    SETUSER .. +time)");
            });
        }
        subscriptions.start(subscriber);
        Ok(Session(Arc::new(Connected {
            connection,
            subscriptions,
            acknowledgements: Arc::new(Acknowledgements::new()),
            batches: Batches::new(),
            has_ifeq,
            address,
            alive: runtime.alive().clone(),
        })))
    }

    /// Returns what redis-rs calls with each push message. If the connection is lost, replaces the
    /// session.
    fn on_disconnection(
        self: &Arc<Self>,
        subscriptions: &Arc<Subscriptions>,
    ) -> impl Fn(PushInfo) -> Result<(), ()> + use<> {
        let inner = Arc::downgrade(self);
        let lost = Arc::downgrade(subscriptions);
        move |push| {
            if let PushKind::Disconnection = push.kind
                && let Some(subscriptions) = lost.upgrade()
            {
                match inner.upgrade() {
                    Some(inner) => inner.lost(&subscriptions, Duration::ZERO),
                    None => subscriptions.close(),
                }
            }
            Ok(())
        }
    }

    pub(super) async fn look_at_clock(
        &self,
        mut connection: MultiplexedConnection,
    ) -> RedisResult<()> {
        let asked = ServerClock::asking();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        let time = Duration::from_secs(seconds) + Duration::from_micros(micros);
        match self.clock.looked(time, asked) {
            Some(Jump::Ahead(by)) => catch_user_panic(|| {
                tracing::warn!(
                    target: "idem",
                    server = %self.server,
                    "the clock of Redis was set ahead by {by:.1?}, or another server with another \
                     clock took over: keys that it affects are taken over up to one lease later; \
                     keep the clocks of Redis in step (NTP)"
                );
            }),
            Some(Jump::Back(by)) => catch_user_panic(|| {
                tracing::warn!(
                    target: "idem",
                    server = %self.server,
                    "the clock of Redis was set back by {by:.1?}, or another server with another \
                     clock took over: all records, abandoned ones too, are kept that much longer; \
                     keep the clocks of Redis in step (NTP)"
                );
            }),
            None => {}
        }
        Ok(())
    }
}
