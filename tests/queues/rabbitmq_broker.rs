//! One RabbitMQ for several parts of a test, and ways to it that can be cut.

use std::time::Duration;

use idem::amqp::lapin::options::{ConfirmSelectOptions, QueueDeclareOptions};
use idem::amqp::lapin::types::FieldTable;
use idem::amqp::lapin::{Channel, Connection, ConnectionProperties, Queue};
use idem_testkit::{Proxy, RabbitMqServer};

use crate::rabbitmq::{declare, declare_dead, publish};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Broker {
    pub(crate) server: RabbitMqServer,
    /// Of the test itself.
    pub(crate) direct: Channel,
    _connection: Connection,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let server = RabbitMqServer::start().await.unwrap();
        let connection = Connection::connect(&server.url(), ConnectionProperties::default())
            .await
            .unwrap();
        let direct = connection.create_channel().await.unwrap();
        direct
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .unwrap();
        declare_dead(&direct).await;
        Self {
            server,
            direct,
            _connection: connection,
        }
    }

    pub(crate) async fn queue(&self, name: &str) {
        declare(
            &self.direct,
            name,
            &[
                ("x-queue-type", "quorum"),
                ("x-dead-letter-exchange", "dead"),
            ],
        )
        .await;
    }

    pub(crate) async fn proxied(&self, tries: usize) -> (Proxy, Connection) {
        let proxy = Proxy::start_opaque(&format!("127.0.0.1:{}", self.server.port()))
            .await
            .unwrap();
        let pause = Duration::from_millis(50);
        let properties = ConnectionProperties::default()
            .enable_auto_recover()
            .configure_backoff(|backoff| {
                backoff
                    .with_min_delay(pause)
                    .with_max_delay(pause)
                    .with_max_times(tries)
            });
        let url = self.server.url_through(proxy.address().port());
        let connection = Connection::connect(&url, properties).await.unwrap();
        (proxy, connection)
    }

    async fn found(&self, queue: &str) -> Queue {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        self.direct
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .unwrap()
    }

    pub(crate) async fn consumers(&self, queue: &str) -> u32 {
        self.found(queue).await.consumer_count()
    }

    /// How many messages wait, those not counted that a consumer has.
    pub(crate) async fn messages(&self, queue: &str) -> u32 {
        self.found(queue).await.message_count()
    }

    pub(crate) async fn publish(&self, queue: &str, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            publish(&self.direct, queue, &format!("m-{id}"), b"1")
                .await
                .unwrap();
        }
    }
}

/// Waits until something is so; says whether it is.
pub(crate) async fn until(limit: Duration, is_so: impl AsyncFn() -> bool) -> bool {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(limit, waiting).await.is_ok()
}
