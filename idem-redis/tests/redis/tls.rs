//! TLS: spoken where the URL asks for it, and never to a server that cannot show a certificate for
//! its name.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use idem_core::Store as _;
use idem_redis::RedisStore;

use crate::claim;
use crate::server::Server;

/// Tells this test, when it runs itself, where to connect to.
const URL: &str = "IDEM_REDIS_TEST_TLS_URL";

#[test]
fn tls_is_spoken_and_the_servers_certificate_is_checked() {
    if let Ok(url) = std::env::var(URL) {
        return connect(&url);
    }
    let dir = std::env::temp_dir().join(format!("idem-redis-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let known = certificate(&dir, "known");
    let other = certificate(&dir, "other");
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let port_text = port.to_string();
    let tls = [
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &known,
        "--tls-key-file",
        &format!("{known}.key"),
    ];
    let server = Server::start(&[&tls[..], &["--tls-auth-clients", "no"]].concat());

    let url = |host: &str| format!("rediss://:hunter2@{host}:{port}/");
    assert_eq!(said(&known, &url("localhost")), "connected");
    for (trusted, url) in [(&other, url("localhost")), (&known, url("127.0.0.1"))] {
        let error = said(trusted, &url);
        assert!(
            error.contains("certificate") && !error.contains("hunter2"),
            "{error}"
        );
    }
    let plain = said(&known, &format!("rediss://localhost:{}/", server.port()));
    assert!(plain.contains("cannot connect"), "{plain}");
    let _ = std::fs::remove_dir_all(&dir);
}

/// Runs this test for a URL in a process whose platform trusts one certificate. The environment
/// says where to look it up, and a process cannot safely change its own environment.
fn said(trusted: &str, url: &str) -> String {
    let this = "tls::tls_is_spoken_and_the_servers_certificate_is_checked";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([this, "--exact", "--nocapture"])
        .env("SSL_CERT_FILE", trusted)
        .env_remove("SSL_CERT_DIR")
        .env(URL, url)
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let said = output.lines().find_map(|line| line.split_once("store: "));
    said.unwrap_or_else(|| panic!("{output}")).1.to_owned()
}

fn connect(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match RedisStore::connect(url).await {
            Ok(store) => {
                store.claim(&claim("1")).await.unwrap();
                println!("\nstore: connected");
            }
            Err(error) => println!("\nstore: {error}"),
        }
    });
}

/// A self-signed certificate for `localhost`, and its key.
fn certificate(dir: &Path, name: &str) -> String {
    let file = dir.join(name).to_str().unwrap().to_owned();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out", &file, "-keyout", &format!("{file}.key")])
        .output()
        .expect("openssl is installed");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    file
}
