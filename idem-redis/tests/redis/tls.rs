//! TLS: spoken where the URL asks for it, and never to a server that cannot show a certificate for
//! its name.

use idem_core::Store as _;
use idem_testkit::HeldPort;

use crate::certificate::{certificate, said};
use crate::server::Server;
use crate::{SECOND, claim, patient_builder};

/// Tells this test, when it runs itself, where to connect to.
const URL: &str = "IDEM_REDIS_TEST_TLS_URL";

#[tokio::test]
async fn tls_is_spoken_and_the_servers_certificate_is_checked() {
    if let Ok(url) = std::env::var(URL) {
        return connect(&url).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let known = certificate(dir.path(), "known", "DNS:localhost");
    let other = certificate(dir.path(), "other", "DNS:localhost");
    let held = HeldPort::hold().unwrap();
    let port = held.port();
    let port_text = port.to_string();
    let tls = [
        "--tls-port",
        &port_text,
        "--tls-cert-file",
        &known,
        "--tls-key-file",
        &format!("{known}.key"),
    ];
    let server = Server::start(&[&tls[..], &["--tls-auth-clients", "no"]].concat()).await;

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
}

async fn connect(url: &str) {
    // Not longer, because one case waits for it: a server without TLS may say nothing.
    let builder = patient_builder(url).connect_time_limit(6 * SECOND);
    match builder.connect().await {
        Ok(store) => {
            store.claim(&claim("1")).await.unwrap();
            println!("\nstore: connected");
        }
        Err(error) => println!("\nstore: {error}"),
    }
}
