//! Sentinels of a list and the servers that hold the records, each with its own TLS and login.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use std::{env, fs, thread};

use idem_core::{Idempotency, StoreError};
use idem_redis::{RedisNode, RedisStore, redis};

use crate::certificate::{certificate, said};
use crate::{RIGHTS, SECOND, calls_go_on, until, use_everything};

const THIS: &str =
    "lists_by_tls::sentinels_and_data_nodes_of_a_list_have_tls_and_logins_of_their_own";
/// Tells this test, when it runs itself, what to do: a case and the ports of the Sentinels.
const CASE: &str = "IDEM_REDIS_TEST_LISTED";
/// The password of the servers for each other.
const ADMIN: &str = "admin-of-data";
/// The password of the store at each Sentinel.
const FIRST_PASSWORD: &str = "p@s/s:1";
const SECOND_PASSWORD: &str = "p@s/s:2";

/// A server with a file of settings. Ends with the value.
struct Running(Child);

impl Running {
    fn start(dir: &Path, port: u16, mode: &[&str], settings: &str) -> Self {
        let dir = dir.join(port.to_string());
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("redis.conf");
        let home = dir.display();
        let settings = format!("bind 127.0.0.1\ndir {home}\nlogfile log\n{settings}");
        fs::write(&file, settings).unwrap();
        let program = env::var_os("IDEM_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let process = Command::new(program)
            .arg(&file)
            .args(mode)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut running = Self(process);
        let deadline = Instant::now() + 10 * SECOND;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            let ended = running.0.try_wait().unwrap();
            let log = || fs::read_to_string(dir.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "{ended:?}: {}", log());
            assert!(Instant::now() < deadline, "not ready: {}", log());
            thread::sleep(SECOND / 100);
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
fn data(dir: &Path, certificates: &Certificates, port: u16, role: &str) -> Running {
    let tls = certificates.settings(&certificates.of_data);
    let settings = format!(
        "port 0\ntls-port {port}\n{tls}save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n\
         requirepass {ADMIN}\nmasterauth {ADMIN}\n\
         user app on >hunter2 {RIGHTS} +role +select\n{role}\n"
    );
    Running::start(dir, port, &[], &settings)
}

/// Starts a Sentinel, which listens as `listens` says.
fn sentinel(dir: &Path, certificates: &Certificates, listens: &Listens, master: u16) -> Running {
    let Listens {
        port,
        settings,
        password,
    } = listens;
    let tls = certificates.settings(&certificates.of_sentinels);
    let settings = format!(
        "{settings}\n{tls}requirepass {password}-of-admin\n\
         user app on >{password} +sentinel|get-master-addr-by-name +subscribe +ping \
         &+switch-master\n\
         sentinel monitor main 127.0.0.1 {master} 1\nsentinel auth-pass main {ADMIN}\n\
         sentinel failover-timeout main 3000\n"
    );
    Running::start(dir, *port, &["--sentinel"], &settings)
}

/// Where a Sentinel listens, and the password of its user `app`.
struct Listens {
    port: u16,
    settings: String,
    password: &'static str,
}

#[test]
fn sentinels_and_data_nodes_of_a_list_have_tls_and_logins_of_their_own() {
    if let Ok(case) = env::var(CASE) {
        return child(&case);
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let certificates = Certificates::make(dir);
    let [master, replica, by_tls, plain] = free_ports();
    let _master = data(dir, &certificates, master, "");
    let role = format!("replicaof 127.0.0.1 {master}");
    let _replica = data(dir, &certificates, replica, &role);
    let first = Listens {
        port: by_tls,
        settings: format!("port 0\ntls-port {by_tls}"),
        password: FIRST_PASSWORD,
    };
    let second = Listens {
        port: plain,
        settings: format!("port {plain}"),
        password: SECOND_PASSWORD,
    };
    let _first = sentinel(dir, &certificates, &first, master);
    let _second = sentinel(dir, &certificates, &second, master);

    let said = |trusted: &str, case: &str| {
        let case = format!("{case},localhost:{by_tls},127.0.0.1:{plain}");
        said(THIS, trusted, CASE, &case)
    };
    let Certificates {
        of_sentinels,
        of_data,
        both,
    } = &certificates;
    assert_eq!(said(both, "alone"), "connected");
    for (trusted, case, words) in [
        (of_data, "alone", "certificate"),
        (of_sentinels, "alone", "certificate"),
        (both, "wrong sentinel", "Refused"),
        (both, "wrong data", "Refused"),
        (both, "plain sentinel", "Unavailable"),
        (both, "plain data", "Unavailable"),
    ] {
        let error = said(trusted, case);
        assert!(error.contains(words), "{case}: {error}");
        assert!(
            !error.contains("p@s") && !error.contains("hunter2"),
            "{error}"
        );
    }
    assert_eq!(said(both, "failover"), "connected");
}

/// What a process does that trusts certain certificates.
#[tokio::main]
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
        .password(unless(in_case("wrong data"), "hunter2"))
        .tls(!in_case("plain data"))
        .connect()
        .await
}

/// Puts the replica in place of the master, and waits until the first Sentinel names it.
async fn fail_over(sentinel: &str) {
    let url = format!("rediss://:p%40s%2Fs%3A1-of-admin@{sentinel}/");
    let client = redis::Client::open(url).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
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

/// Four ports that are free now, and differ.
fn free_ports() -> [u16; 4] {
    let bound = [(); 4].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    bound.map(|listener| listener.local_addr().unwrap().port())
}
