//! Tries that fail in the client: before a request is sent, and without a response.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use http::StatusCode;
use idem_http::{IdempotencyClient, UnknownOutcome};
use reqwest::ClientBuilder;
use reqwest::dns::{Name, Resolve, Resolving};
use reqwest_middleware::{ClientWithMiddleware, Error};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::reqwest_builder;
use super::scripted::{Act, Script, read_from, reply};

const TRIES: u32 = 3;

/// A client that hardly pauses between its tries.
fn client(reqwest: ClientBuilder) -> ClientWithMiddleware {
    let idempotent = IdempotencyClient::new("checkout")
        .tries(TRIES)
        .backoff(Duration::from_millis(1));
    let reqwest = reqwest
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap();
    reqwest_middleware::ClientBuilder::new(reqwest)
        .with(idempotent)
        .build()
}

#[tokio::test]
async fn a_try_that_reqwest_times_out_is_sent_again_with_its_key_and_may_have_been_carried_out() {
    let timing_out = |limit| client(reqwest_builder().timeout(Duration::from_secs(limit)));
    let script = Script::new([Act::Hang, reply(201)]);
    let url = format!("http://{}/charges", script.serve().await);
    assert_eq!(
        timing_out(3).post(&url).send().await.unwrap().status(),
        StatusCode::CREATED
    );
    assert_eq!(script.got().len(), 2);
    assert!(!script.key().is_empty());
    let script = Script::new([Act::Hang, Act::Hang, Act::Hang]);
    let url = format!("http://{}/charges", script.serve().await);
    let error = timing_out(1).post(&url).send().await.unwrap_err();
    let unknown = UnknownOutcome::find(&error).expect("unknown");
    assert_eq!(
        (unknown.tries(), unknown.status(), unknown.key().as_str()),
        (TRIES, None, &*script.key())
    );
}

/// Knows no host, and counts who asks.
#[derive(Clone, Default)]
struct Nowhere(Arc<AtomicUsize>);

impl Resolve for Nowhere {
    fn resolve(&self, _: Name) -> Resolving {
        self.0.fetch_add(1, SeqCst);
        Box::pin(async { Err(std::io::Error::other("no such host").into()) })
    }
}

fn assert_was_not_sent(error: &Error, what: &str) {
    assert!(
        error.is_connect() && UnknownOutcome::find(error).is_none(),
        "{what}: {error:?}"
    );
}

#[tokio::test]
async fn a_host_that_is_not_found_is_tried_again_and_is_not_unknown() {
    let nowhere = Nowhere::default();
    let client = client(reqwest_builder().dns_resolver(nowhere.clone()));
    let error = client
        .post("http://service.example/charges")
        .send()
        .await
        .unwrap_err();
    assert_was_not_sent(&error, "no host");
    assert_eq!(nowhere.0.load(SeqCst), usize::try_from(TRIES).unwrap());
}

/// A temporary directory, which is removed with this.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("idem-http-tls-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A self-signed certificate for `service.example`, and its key.
fn certificate(dir: &Path, name: &str) -> (String, String) {
    let file = dir.join(name);
    let key = dir.join(format!("{name}.key"));
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
            "/CN=service.example",
            "-addext",
            "subjectAltName=DNS:service.example",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-out"])
        .arg(&file)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl is installed");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    (
        std::fs::read_to_string(file).unwrap(),
        std::fs::read_to_string(key).unwrap(),
    )
}

/// How many connections a server had, and how many requests.
#[derive(Clone, Default)]
struct Seen {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// Serves TLS at a port of this machine.
async fn serve_tls((certificate, key): &(String, String), seen: Seen) -> SocketAddr {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            seen.connections.fetch_add(1, SeqCst);
            let acceptor = acceptor.clone();
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                read_from(&mut stream).await?;
                seen.requests.fetch_add(1, SeqCst);
                stream
                    .write_all(b"HTTP/1.1 201 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                    .await
                    .ok()?;
                stream.shutdown().await.ok()
            });
        }
    });
    address
}

#[tokio::test]
async fn a_server_without_a_valid_certificate_gets_no_request_and_the_outcome_is_not_unknown() {
    let dir = Dir::new();
    let known = certificate(&dir.0, "known");
    let other = certificate(&dir.0, "other");
    drop(dir);
    let seen = Seen::default();
    // Before the server, which needs the provider too.
    let trusting = |(certificate, _): &(String, String)| {
        let certificate = reqwest::Certificate::from_pem(certificate.as_bytes()).unwrap();
        reqwest_builder().tls_certs_only([certificate])
    };
    let _provider = reqwest_builder();
    let address = serve_tls(&known, seen.clone()).await;
    let send = async |trusted: &(String, String), host: &str, address: SocketAddr| {
        let client = client(trusting(trusted).resolve(host, address));
        client
            .post(format!("https://{host}:{}/charges", address.port()))
            .send()
            .await
    };
    assert_eq!(
        send(&known, "service.example", address)
            .await
            .unwrap()
            .status(),
        StatusCode::CREATED
    );
    assert_eq!(
        (seen.connections.load(SeqCst), seen.requests.load(SeqCst)),
        (1, 1)
    );
    for (trusted, host) in [(&other, "service.example"), (&known, "other.example")] {
        let before = seen.connections.load(SeqCst);
        assert_was_not_sent(&send(trusted, host, address).await.unwrap_err(), host);
        assert_eq!(
            seen.connections.load(SeqCst) - before,
            usize::try_from(TRIES).unwrap(),
            "{host}"
        );
    }
    assert_eq!(seen.requests.load(SeqCst), 1);
    // A server that speaks no TLS at all ends the connection at the first bytes.
    let plain = Script::new((0..TRIES).map(|_| Act::Cut)).serve().await;
    assert_was_not_sent(
        &send(&known, "service.example", plain).await.unwrap_err(),
        "plain text",
    );
}
