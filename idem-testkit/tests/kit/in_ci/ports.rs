//! Ports of servers that are down and that only CI installs.

use idem_testkit::{MySqlServer, NatsServer, PgBouncerServer, PostgresServer, RabbitMqServer};

use crate::ports::keeps_its_port_while_it_is_down;

#[tokio::test]
async fn a_killed_nats_keeps_its_port() {
    keeps_its_port_while_it_is_down(&NatsServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_rabbitmq_keeps_its_port() {
    keeps_its_port_while_it_is_down(&RabbitMqServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_real_mysql_keeps_its_port() {
    keeps_its_port_while_it_is_down(&MySqlServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_pgbouncer_keeps_its_port() {
    let server = PostgresServer::start().await.unwrap();
    keeps_its_port_while_it_is_down(&PgBouncerServer::start(&server).await.unwrap()).await;
}
