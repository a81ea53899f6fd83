//! Ports of brokers that are down.

use idem_testkit::{NatsServer, RabbitMqServer};

use crate::ports::keeps_its_port_while_it_is_down;

#[tokio::test]
async fn a_killed_nats_keeps_its_port() {
    keeps_its_port_while_it_is_down(&NatsServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_rabbitmq_keeps_its_port() {
    keeps_its_port_while_it_is_down(&RabbitMqServer::start().await.unwrap()).await;
}
