//! TLS: spoken where the URL asks for it, and never to a server that cannot show a certificate for
//! its name.

use std::net::TcpListener;

use idem_core::Store as _;
use idem_redis::RedisStore;

use crate::certificate::{certificate, said};
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
    let known = certificate(&dir, "known", "DNS:localhost");
    let other = certificate(&dir, "other", "DNS:localhost");
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

    let said = |trusted: &str, url: &str| {
        let this = "tls::tls_is_spoken_and_the_servers_certificate_is_checked";
        said(this, trusted, URL, url)
    };
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
