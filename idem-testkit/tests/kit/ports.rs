//! Ports that stay ours while nobody listens there.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use idem_testkit::{
    HeldPort, MariaDbServer, MySqlServer, NatsServer, PgBouncerServer, PostgresServer,
    RabbitMqServer, RedisServer,
};

use crate::until::until;

/// Of some 14,000 ports that the system gives out, each one would come up once or twice.
const TRIES: usize = 20_000;

/// Binds as everybody does who wants a free port, and is never given one of these.
fn nobody_is_given(ports: &[u16]) {
    for _ in 0..TRIES {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let given = other.local_addr().unwrap().port();
        assert!(!ports.contains(&given), "{given} was given to somebody");
    }
}

fn is_refused(port: u16) -> bool {
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
        Ok(_) => false,
    }
}

#[tokio::test]
async fn a_held_port_is_given_to_nobody_and_refuses_connections() {
    let held: Vec<HeldPort> = (0..40).map(|_| HeldPort::hold().unwrap()).collect();
    let ports: Vec<u16> = held.iter().map(HeldPort::port).collect();
    assert!(ports.iter().all(|port| is_refused(*port)));
    nobody_is_given(&ports);
    assert!(ports.iter().all(|port| is_refused(*port)));
}

#[tokio::test]
async fn a_server_can_listen_at_a_held_port_end_and_come_back() {
    let held = HeldPort::hold().unwrap();
    let address = (Ipv4Addr::LOCALHOST, held.port());
    for _ in 0..3 {
        let server = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (accepted, _) = server.accept().unwrap();
        // The server's side ends first, and would keep its port for a minute.
        drop((server, accepted));
        drop(client);
        assert!(is_refused(held.port()));
    }
    nobody_is_given(&[held.port()]);
}

/// A server that can be killed and started again.
pub(crate) trait Server {
    fn port(&self) -> u16;
    fn kill(&self) -> io::Result<()>;
    async fn restart(&self) -> io::Result<()>;
}

macro_rules! servers {
    ($($Server:ty),*) => {$(
        impl Server for $Server {
            fn port(&self) -> u16 {
                self.port()
            }
            fn kill(&self) -> io::Result<()> {
                self.kill()
            }
            async fn restart(&self) -> io::Result<()> {
                self.restart().await
            }
        }
    )*};
}

servers!(
    RedisServer,
    PostgresServer,
    MariaDbServer,
    MySqlServer,
    NatsServer,
    PgBouncerServer,
    RabbitMqServer
);

pub(crate) async fn keeps_its_port_while_it_is_down(server: &impl Server) {
    let port = server.port();
    // What is open at its death keeps the port busy for a minute.
    let _open = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    for _ in 0..2 {
        server.kill().unwrap();
        // The last of a server's processes may end a moment later.
        until("connections are refused", || is_refused(port)).await;
        nobody_is_given(&[port]);
        assert!(is_refused(port));
        server.restart().await.unwrap();
        assert_eq!(server.port(), port);
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}

#[tokio::test]
async fn a_killed_redis_keeps_its_port() {
    keeps_its_port_while_it_is_down(&RedisServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_postgres_keeps_its_port() {
    keeps_its_port_while_it_is_down(&PostgresServer::start().await.unwrap()).await;
}

#[tokio::test]
async fn a_killed_mariadb_keeps_its_port() {
    keeps_its_port_while_it_is_down(&MariaDbServer::start().await.unwrap()).await;
}
