//! Sentinels and nodes of a cluster by TLS, from lists in which each has its own settings.

use std::path::Path;
use std::{env, fs};

use idem_core::{Idempotency, Store as _, StoreError};
use idem_redis::{RedisNode, RedisStore, redis};
use idem_testkit::{HeldPort, RedisServer, RedisServerBuilder};

use crate::certificate::{certificate, said};
use crate::patience::connection;
use crate::{RIGHTS, SECOND, calls_go_on, claim, until, use_everything};

const SENTINELS: &str =
    "lists_by_tls::sentinels_and_data_nodes_of_a_list_have_tls_and_logins_of_their_own";
const CLUSTER: &str = "lists_by_tls::nodes_of_a_list_and_those_that_they_name_are_reached_by_tls";
/// Tells this test, when it runs itself, what to do: a case and the ports of the Sentinels.
const CASE: &str = "IDEM_REDIS_TEST_LISTED";
/// The password of the servers for each other.
const ADMIN: &str = "admin-of-data";
/// The password of the store at the servers that hold the records.
const DATA_PASSWORD: &str = "hunter2";
/// The password of the store at each Sentinel, and at the second node of the cluster.
const FIRST_PASSWORD: &str = "p@s/s:1";
const SECOND_PASSWORD: &str = "p@s/s:2";

/// Certificates that no platform knows.
struct Certificates {
    of_sentinels: String,
    of_data: String,
    both: String,
}

impl Certificates {
    fn make(dir: &Path) -> Self {
        let of_sentinels = certificate(dir, "sentinels", "DNS:localhost");
        // By this address the Sentinels name the servers.
        let of_data = certificate(dir, "data", "IP:127.0.0.1");
        let files = [&of_sentinels, &of_data].map(|file| fs::read_to_string(file).unwrap());
        let both = dir.join("both");
        fs::write(&both, files.concat()).unwrap();
        Self {
            of_sentinels,
            of_data,
            both: both.to_str().unwrap().to_owned(),
        }
    }

    /// The settings of a server that has one of them, and speaks TLS to the other servers.
    fn settings(&self, own: &str) -> String {
        let both = &self.both;
        format!(
            "tls-cert-file {own}\ntls-key-file {own}.key\ntls-ca-cert-file {both}\n\
             tls-auth-clients no\ntls-replication yes\n"
        )
    }
}

/// Starts a server for records, which speaks nothing but TLS.
async fn data(certificates: &Certificates, password: &str, settings: &str) -> RedisServer {
    let tls = certificates.settings(&certificates.of_data);
    let settings = format!(
        "{tls}repl-diskless-sync-delay 0\nrequirepass {ADMIN}\nmasterauth {ADMIN}\n\
         user app on >{password} {RIGHTS} +role +select +cluster|slots +asking\n{settings}\n"
    );
    let server = RedisServer::builder().tls().config(settings).start();
    server.await.unwrap()
}

/// Starts a Sentinel.
async fn sentinel(
    builder: RedisServerBuilder,
    certificates: &Certificates,
    password: &str,
    master: u16,
) -> RedisServer {
    let tls = certificates.settings(&certificates.of_sentinels);
    let settings = format!(
        "{tls}requirepass {password}-of-admin\n\
         user app on >{password} +sentinel|get-master-addr-by-name +subscribe +ping \
         &+switch-master\n\
         sentinel monitor main 127.0.0.1 {master} 1\nsentinel auth-pass main {ADMIN}\n\
         sentinel failover-timeout main 3000\n"
    );
    let sentinel = builder.config(settings).arg("--sentinel").start();
    sentinel.await.unwrap()
}

/// Asks a process, and another one if a server was late on a busy machine.
fn says(words: &str, ask: impl Fn() -> String) -> String {
    let mut said = ask();
    for _ in 0..9 {
        if !said.contains(words) && said.contains("Unavailable") {
            said = ask();
        }
    }
    said
}

#[tokio::test]
async fn sentinels_and_data_nodes_of_a_list_have_tls_and_logins_of_their_own() {
    if let Ok(case) = env::var(CASE) {
        return child(&case).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(dir.path());
    let master = data(&certificates, DATA_PASSWORD, "").await;
    let follows = format!("replicaof 127.0.0.1 {}", master.port());
    let _replica = data(&certificates, DATA_PASSWORD, &follows).await;
    let first = RedisServer::builder().tls();
    let first = sentinel(first, &certificates, FIRST_PASSWORD, master.port()).await;
    let second = RedisServer::builder();
    let second = sentinel(second, &certificates, SECOND_PASSWORD, master.port()).await;
    let (by_tls, plain) = (first.port(), second.port());

    let says = |words: &str, trusted: &str, case: &str| {
        let case = format!("{case},localhost:{by_tls},127.0.0.1:{plain}");
        says(words, || said(SENTINELS, trusted, CASE, &case))
    };
    let Certificates {
        of_sentinels,
        of_data,
        both,
    } = &certificates;
    assert_eq!(says("connected", both, "alone"), "connected");
    for (trusted, case, words) in [
        (of_data, "alone", "certificate"),
        (of_sentinels, "alone", "certificate"),
        (both, "wrong sentinel", "Refused"),
        (both, "wrong data", "Refused"),
        (both, "plain sentinel", "Unavailable"),
        (both, "plain data", "Unavailable"),
    ] {
        let error = says(words, trusted, case);
        assert!(error.contains(words), "{case}: {error}");
        assert!(
            !error.contains("p@s") && !error.contains(DATA_PASSWORD),
            "{error}"
        );
    }
    assert_eq!(says("connected", both, "failover"), "connected");
}

/// The work of a process that trusts certain certificates.
async fn child(case: &str) {
    let [case, by_tls, plain] = case.split(',').collect::<Vec<_>>()[..] else {
        panic!("{case}")
    };
    match connect(case, by_tls, plain).await {
        Ok(store) => {
            if case == "failover" {
                use_everything(&store).await;
                let idempotency = Idempotency::new(store);
                calls_go_on(&idempotency, "a", fail_over(by_tls)).await;
            }
            println!("\nstore: connected");
        }
        Err(error) => println!("\nstore: {:?} {error}", error.kind()),
    }
}

async fn connect(case: &str, by_tls: &str, plain: &str) -> Result<RedisStore, StoreError> {
    let in_case = |wanted: &str| case == wanted;
    let unless = |wrong: bool, password: &'static str| if wrong { "p@sX" } else { password };
    let first = RedisNode::new(by_tls)
        .user("app")
        .password(unless(in_case("wrong sentinel"), FIRST_PASSWORD))
        .tls(!in_case("plain sentinel"));
    let second = RedisNode::new(plain).user("app").password(SECOND_PASSWORD);
    let mut nodes = vec![first];
    // In the other cases, a Sentinel that answers would hide what is wrong with the first one.
    if in_case("failover") {
        nodes.push(second);
    }
    RedisStore::builder()
        .sentinels("main", nodes)
        .user("app")
        .password(unless(in_case("wrong data"), DATA_PASSWORD))
        .tls(!in_case("plain data"))
        .time_limit(2 * SECOND)
        .connect()
        .await
}

/// Puts the replica in place of the master, and waits until the first Sentinel names it.
async fn fail_over(sentinel: &str) {
    let url = format!("rediss://:p%40s%2Fs%3A1-of-admin@{sentinel}/");
    let connection = connection(url).await;
    let address = |mut connection: redis::aio::MultiplexedConnection| async move {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg("main");
        let address: Vec<String> = question.query_async(&mut connection).await.unwrap();
        address
    };
    let command = |words: &'static [&'static str]| {
        let mut connection = connection.clone();
        async move {
            let mut command = redis::cmd("SENTINEL");
            command.arg(words);
            command.exec_async(&mut connection).await
        }
    };
    let old = address(connection.clone()).await;
    // It asks the master for its replicas every ten seconds otherwise.
    command(&["DEBUG", "INFO-PERIOD", "500"]).await.unwrap();
    until("the failover begins", || async {
        command(&["FAILOVER", "main"]).await.is_ok()
    })
    .await;
    until("another server is the master", || async {
        address(connection.clone()).await != old
    })
    .await;
}

#[tokio::test]
async fn nodes_of_a_list_and_those_that_they_name_are_reached_by_tls() {
    if let Ok(case) = env::var(CASE) {
        return child_of_cluster(&case).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(dir.path());
    let buses = [(); 2].map(|()| HeldPort::hold().unwrap());
    let settings = |bus: &HeldPort| {
        let bus = bus.port();
        format!("cluster-enabled yes\ntls-cluster yes\ncluster-port {bus}")
    };
    let first = data(&certificates, DATA_PASSWORD, &settings(&buses[0])).await;
    let second = data(&certificates, SECOND_PASSWORD, &settings(&buses[1])).await;
    let says = |words: &str, case: &str| {
        let ports = [first.port(), second.port(), buses[1].port()];
        let case = format!("{case},{},{},{}", ports[0], ports[1], ports[2]);
        says(words, || said(CLUSTER, &certificates.both, CASE, &case))
    };
    assert_eq!(says("met", "meet"), "met");
    assert_eq!(says("connected", "right"), "connected");
    for case in ["plain second", "plain others"] {
        let error = says("Unavailable", case);
        assert!(error.contains("Unavailable"), "{case}: {error}");
        assert!(
            !error.contains("p@s") && !error.contains(DATA_PASSWORD),
            "{error}"
        );
    }
}

/// The work of a process that trusts the certificate of the nodes.
async fn child_of_cluster(case: &str) {
    let [case, first, second, second_bus] = case.split(',').collect::<Vec<_>>()[..] else {
        panic!("{case}")
    };
    if case == "meet" {
        meet(first, second, second_bus).await;
        println!("\nstore: met");
        return;
    }
    let node = |port: &str| RedisNode::new(format!("127.0.0.1:{port}"));
    let mut own = node(second).user("app").password(SECOND_PASSWORD);
    let mut seed = node(first);
    if case == "plain second" {
        own = own.tls(false);
    }
    if case == "plain others" {
        seed = seed.tls(true);
    }
    let store = RedisStore::builder()
        .cluster_nodes([seed, own])
        .user("app")
        .password(DATA_PASSWORD)
        .tls(case != "plain others")
        .time_limit(20 * SECOND)
        .connect()
        .await;
    match store {
        Ok(store) => {
            use_everything(&store).await;
            for number in 0..60 {
                store.claim(&claim(&format!("n{number}"))).await.unwrap();
            }
            println!("\nstore: connected");
        }
        Err(error) => println!("\nstore: {:?} {error}", error.kind()),
    }
}

/// Makes a cluster of two nodes, and waits until both know it.
async fn meet(first: &str, second: &str, second_bus: &str) {
    // The store does this when it connects; here is none yet.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut connections = Vec::new();
    for (port, from, to) in [(first, 0, 8191), (second, 8192, 16383)] {
        let url = format!("rediss://:{ADMIN}@127.0.0.1:{port}/");
        let mut connection = connection(url).await;
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("ADDSLOTSRANGE").arg(from).arg(to);
        slots.exec_async(&mut connection).await.unwrap();
        connections.push(connection);
    }
    let mut meeting = redis::cmd("CLUSTER");
    meeting.arg(&["MEET", "127.0.0.1", second, second_bus]);
    meeting.exec_async(&mut connections[0]).await.unwrap();
    for connection in connections {
        until("the node knows all slots", || {
            let mut connection = connection.clone();
            async move {
                let mut question = redis::cmd("CLUSTER");
                let info = question.arg("INFO").query_async(&mut connection).await;
                let info: String = info.unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            }
        })
        .await;
    }
}
