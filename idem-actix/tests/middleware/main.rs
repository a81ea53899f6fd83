//! The layer's rules, over a server of actix-web and real connections.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod events;
mod extensions;
mod hostile;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use futures_util::StreamExt as _;
use idem_actix::Idempotent;
use idem_core::{Idempotency, MemoryStore, StoreErrorKind};
use idem_http::{Fingerprints, IdempotencyLayer, header};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};

/// The state that the handlers share with their test.
struct Site {
    address: SocketAddr,
    runs: Arc<AtomicUsize>,
    open: watch::Sender<bool>,
    entered: Arc<Notify>,
}

#[derive(Clone)]
struct Shared {
    runs: Arc<AtomicUsize>,
    open: watch::Receiver<bool>,
    entered: Arc<Notify>,
}

async fn charge(shared: web::Data<Shared>, body: web::Bytes) -> HttpResponse {
    let run = shared.runs.fetch_add(1, SeqCst) + 1;
    shared.entered.notify_one();
    shared.open.clone().wait_for(|open| *open).await.unwrap();
    HttpResponse::Created()
        .insert_header(("location", "/c/1"))
        .body(format!("{run} {}", String::from_utf8_lossy(&body)))
}

async fn linked(shared: web::Data<Shared>) -> HttpResponse {
    shared.runs.fetch_add(1, SeqCst);
    HttpResponse::Created()
        .append_header(("link", "</b>"))
        .append_header(("link", "</a>"))
        .append_header(("set-cookie", "a=1"))
        .append_header(("set-cookie", "b=2"))
        .finish()
}

async fn streaming(shared: web::Data<Shared>) -> HttpResponse {
    shared.runs.fetch_add(1, SeqCst);
    let chunks =
        futures_util::stream::iter(0..100).map(|_| Ok::<_, std::io::Error>(web::Bytes::from("x")));
    HttpResponse::Ok().streaming(chunks)
}

async fn failing(shared: web::Data<Shared>) -> actix_web::Result<String> {
    match shared.runs.fetch_add(1, SeqCst) {
        0 => Err(actix_web::error::ErrorBadGateway("no bank")),
        1 => Err(actix_web::error::ErrorPaymentRequired("declined")),
        _ => Ok("paid".into()),
    }
}

async fn buggy(shared: web::Data<Shared>) -> String {
    let run = shared.runs.fetch_add(1, SeqCst) + 1;
    assert!(run > 1, "a bug");
    run.to_string()
}

fn site() -> Site {
    site_over(Idempotency::new(MemoryStore::new()))
}

fn site_over(idempotency: Idempotency) -> Site {
    let layer = IdempotencyLayer::new(idempotency)
        .name("actix")
        .scope(|parts| header(parts, http::HeaderName::from_static("x-user")))
        .required(true)
        .max_body(1000);
    site_of(layer)
}

fn site_of(layer: IdempotencyLayer<idem_http::Scoped>) -> Site {
    let (open, receiver) = watch::channel(true);
    let shared = Shared {
        runs: Arc::default(),
        open: receiver,
        entered: Arc::default(),
    };
    let site = (shared.runs.clone(), shared.entered.clone());
    let app = move || {
        App::new()
            .app_data(web::Data::new(shared.clone()))
            .wrap(Idempotent::new(layer.clone()))
            .route("/charges", web::post().to(charge))
            .route("/charges", web::get().to(charge))
            .route("/refunds/{id}", web::post().to(charge))
            .route("/linked", web::post().to(linked))
            .route("/streaming", web::post().to(streaming))
            .route("/failing", web::post().to(failing))
            .route("/buggy", web::post().to(buggy))
    };
    let server = HttpServer::new(app)
        .workers(2)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let address = server.addrs()[0];
    actix_web::rt::spawn(server.run());
    Site {
        address,
        runs: site.0,
        open,
        entered: site.1,
    }
}

impl Site {
    /// Opens a connection and sends a request over it.
    async fn begin(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}");
        let framing = if headers.contains("chunked") {
            format!("\r\n{length:x}\r\n{body}\r\n0\r\n\r\n")
        } else {
            format!("content-length: {length}\r\n\r\n{body}")
        };
        stream
            .write_all(format!("{head}{framing}").as_bytes())
            .await
            .unwrap();
        stream
    }

    /// All of a response, as text.
    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut text = String::new();
        self.begin(method, path, headers, body)
            .await
            .read_to_string(&mut text)
            .await
            .unwrap();
        text
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> String {
        self.send(
            "POST",
            path,
            &format!("x-user: alice\r\nidempotency-key: {key}\r\n"),
            body,
        )
        .await
    }
}

fn status(response: &str) -> &str {
    &response[9..12]
}

#[actix_web::test]
async fn a_duplicate_gets_the_recorded_response_and_another_request_a_mismatch() {
    let site = site();
    let first = site.post("/charges", "k", "10").await;
    assert!(
        status(&first) == "201"
            && first.ends_with("1 10")
            && !first.contains("idempotent-replayed"),
        "{first}"
    );
    let again = site.post("/charges", "k", "10").await;
    assert!(
        status(&again) == "201" && again.ends_with("1 10"),
        "{again}"
    );
    assert!(
        again.contains("idempotent-replayed: true") && again.contains("location: /c/1"),
        "{again}"
    );
    assert_eq!(status(&site.post("/charges", "k", "11").await), "422");
    // The route names the operation, so another path of it is another request with this key.
    assert_eq!(status(&site.post("/refunds/7", "k", "10").await), "201");
    assert_eq!(status(&site.post("/refunds/8", "k", "10").await), "422");
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[actix_web::test]
async fn each_value_of_a_header_is_sent_and_replayed_in_order() {
    let site = site();
    for cookies in [&["a=1", "b=2"][..], &[]] {
        let got = site.post("/linked", "k", "").await;
        let values = |name: &str| -> Vec<_> {
            let lines = got.lines().filter_map(|line| line.split_once(": "));
            lines
                .filter(|(found, _)| *found == name)
                .map(|(_, value)| value)
                .collect()
        };
        assert_eq!(values("link"), ["</b>", "</a>"], "{got}");
        assert_eq!(values("set-cookie"), cookies, "{got}");
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[actix_web::test]
async fn an_upload_that_is_not_compared_may_be_large_and_its_replay_unmarked() {
    let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .name("actix")
        .unscoped()
        .max_body(1000)
        .fingerprint(Fingerprints::url())
        .mark_replays(false);
    let site = site_of(layer);
    let upload = "x".repeat(5000);
    let key = "idempotency-key: k\r\n";
    let chunked = "idempotency-key: k\r\ntransfer-encoding: chunked\r\n";
    for headers in [key, chunked] {
        // The response is larger than `max_body`, so the record has none.
        let got = site.send("POST", "/charges", headers, &upload).await;
        let expected = if headers == key { "201" } else { "409" };
        assert_eq!(status(&got), expected, "{got}");
    }
    let key = "idempotency-key: l\r\n";
    for _ in ["first", "replay"] {
        let got = site.send("POST", "/charges", key, "10").await;
        assert!(got.ends_with("2 10") && !got.contains("replayed"), "{got}");
    }
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[actix_web::test]
async fn bad_requests_are_refused_and_unguarded_ones_pass() {
    let site = site();
    let refused = site
        .send("POST", "/charges", "x-user: alice\r\n", "10")
        .await;
    assert!(
        status(&refused) == "400" && refused.contains("missing_key"),
        "{refused}"
    );
    assert_eq!(
        status(
            &site
                .send("POST", "/charges", "idempotency-key: k\r\n", "10")
                .await
        ),
        "401"
    );
    assert_eq!(
        status(&site.post("/charges", "k", &"x".repeat(1001)).await),
        "413"
    );
    let chunked = "x-user: alice\r\nidempotency-key: l\r\ntransfer-encoding: chunked\r\n";
    assert_eq!(
        status(
            &site
                .send("POST", "/charges", chunked, &"x".repeat(1001))
                .await
        ),
        "413"
    );
    assert_eq!(site.runs.load(SeqCst), 0);
    assert!(
        site.send("POST", "/charges", chunked, "ten")
            .await
            .ends_with("1 ten")
    );
    assert!(
        site.send("POST", "/charges", chunked, "ten")
            .await
            .ends_with("1 ten")
    );
    let large = "x".repeat(5000);
    assert!(
        site.send("GET", "/charges", "", &large)
            .await
            .ends_with(&format!("2 {large}"))
    );
    assert_eq!(status(&site.post("/nowhere", "k", "10").await), "404");
}

#[actix_web::test]
async fn invalid_keys_are_refused() {
    let site = site();
    let long = "x".repeat(256);
    for key in ["", "a b", "\"a", "\u{e4}", &long] {
        let refused = site.post("/charges", key, "10").await;
        assert!(
            status(&refused) == "400" && refused.contains("invalid_key"),
            "{key}: {refused}"
        );
    }
    let twice = "x-user: alice\r\nidempotency-key: k\r\nidempotency-key: k\r\n";
    assert_eq!(
        status(&site.send("POST", "/charges", twice, "10").await),
        "400"
    );
    assert_eq!(site.runs.load(SeqCst), 0);
    // Quoted or raw, it is one key.
    assert!(site.post("/charges", "k", "10").await.ends_with("1 10"));
    assert!(site.post("/charges", "\"k\"", "10").await.ends_with("1 10"));
}

#[actix_web::test]
async fn a_request_in_flight_and_a_store_that_is_gone_are_409_and_503_with_a_hint() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let site = site_over(
        Idempotency::builder(store)
            .wait(Duration::from_millis(20))
            .build(),
    );
    site.open.send_replace(false);
    let headers = "x-user: alice\r\nidempotency-key: k\r\n";
    let first = site.begin("POST", "/charges", headers, "10").await;
    site.entered.notified().await;
    let early = site.post("/charges", "k", "10").await;
    assert!(
        status(&early) == "409" && early.contains("in_flight") && early.contains("retry-after: 1"),
        "{early}"
    );
    site.open.send_replace(true);
    let mut text = String::new();
    { first }.read_to_string(&mut text).await.unwrap();
    assert!(text.ends_with("1 10"), "{text}");
    faults.always(Step::Claim, Fault::Fail(StoreErrorKind::Unavailable));
    let refused = site.post("/charges", "l", "10").await;
    assert!(
        status(&refused) == "503" && refused.contains("retry-after: 1"),
        "{refused}"
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[actix_web::test]
async fn compressed_empty_and_binary_bodies_are_replayed_as_they_are() {
    let site = site();
    let headers = "x-user: alice\r\ncontent-encoding: gzip\r\n";
    for (number, body) in ["", "\u{1f}\u{0}\u{7f}"].into_iter().enumerate() {
        let headers = format!("{headers}idempotency-key: k{number}\r\n");
        for _ in 0..2 {
            let response = site.send("POST", "/charges", &headers, body).await;
            assert!(
                response.ends_with(&format!("{} {body}", number + 1)),
                "{response:?}"
            );
        }
    }
}

#[actix_web::test]
async fn a_client_that_disconnects_does_not_stop_the_handler() {
    let site = site();
    site.open.send_replace(false);
    let headers = "x-user: alice\r\nidempotency-key: k\r\n";
    drop(site.begin("POST", "/charges", headers, "10").await);
    site.entered.notified().await;
    site.open.send_replace(true);
    assert!(site.post("/charges", "k", "10").await.ends_with("1 10"));
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[actix_web::test]
async fn a_handler_that_panics_releases_the_key() {
    let site = site();
    let failed = site.post("/buggy", "k", "10").await;
    assert!(
        status(&failed) == "500" && !failed.contains("a bug"),
        "{failed}"
    );
    for replayed in [false, true] {
        let well = site.post("/buggy", "k", "10").await;
        assert!(
            status(&well) == "200" && well.ends_with("\r\n\r\n2"),
            "{well}"
        );
        assert_eq!(well.contains("idempotent-replayed: true"), replayed);
    }
}

#[actix_web::test]
async fn a_streaming_response_passes_complete_and_is_not_recorded() {
    let site = site();
    assert_eq!(
        site.post("/streaming", "k", "")
            .await
            .matches("\r\nx\r\n")
            .count(),
        100
    );
    let again = site.post("/streaming", "k", "").await;
    assert!(
        status(&again) == "409" && again.contains("already_done"),
        "{again}"
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[actix_web::test]
async fn errors_of_a_handler_are_responses_that_are_kept_or_released() {
    let site = site();
    assert_eq!(status(&site.post("/failing", "k", "").await), "502");
    for _ in 0..2 {
        let declined = site.post("/failing", "k", "").await;
        assert!(
            status(&declined) == "402" && declined.ends_with("declined"),
            "{declined}"
        );
    }
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[actix_web::test]
async fn duplicates_at_once_over_several_workers_run_one_handler() {
    let site = site();
    site.open.send_replace(false);
    let calls = futures_util::future::join_all((0..20).map(|_| site.post("/charges", "k", "10")));
    let open = async {
        site.entered.notified().await;
        site.open.send_replace(true);
    };
    let (responses, ()) = futures_util::future::join(calls, open).await;
    assert!(
        responses.iter().all(|response| response.ends_with("1 10")),
        "{responses:?}"
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[actix_web::test]
async fn p8_a_panic_releases_the_key_under_the_strict_profile_too() {
    let site = site_over(Idempotency::builder(MemoryStore::new()).strict().build());
    assert_eq!(status(&site.post("/buggy", "k", "10").await), "500");
    let again = site.post("/buggy", "k", "10").await;
    assert!(
        status(&again) == "200" && !again.contains("idempotent-replayed"),
        "{again}"
    );
}

/// A stream that sends one event, and then nothing.
struct Quiet {
    has_sent: bool,
    open: Arc<AtomicUsize>,
}

impl futures_util::Stream for Quiet {
    type Item = Result<web::Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::replace(&mut self.has_sent, true) {
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(web::Bytes::from_static(b"data: hello\n\n"))))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.open.fetch_sub(1, SeqCst);
    }
}

#[actix_web::test]
async fn a_stream_that_says_nothing_ends_with_its_client() {
    let open: Arc<AtomicUsize> = Arc::default();
    let counted = open.clone();
    let app = move || {
        let open = counted.clone();
        let events = move || {
            open.fetch_add(1, SeqCst);
            let quiet = Quiet {
                has_sent: false,
                open: open.clone(),
            };
            async {
                HttpResponse::Ok()
                    .content_type("text/event-stream")
                    .streaming(quiet)
            }
        };
        let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new())).unscoped();
        App::new()
            .wrap(Idempotent::new(layer))
            .route("/events", web::get().to(events))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let address = server.addrs()[0];
    actix_web::rt::spawn(server.run());
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("hello") {
        got.push(stream.read_u8().await.unwrap());
    }
    assert_eq!(open.load(SeqCst), 1);
    drop(stream);
    let gone = async {
        while open.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .expect("the stream is still there");
}

#[actix_web::test]
async fn all_paths_without_a_route_are_one_operation() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let site = site_over(idempotency.clone());
    assert_eq!(status(&site.post("/nowhere", "k", "10").await), "404");
    assert!(
        site.post("/nowhere", "k", "10")
            .await
            .contains("idempotent-replayed: true")
    );
    assert_eq!(status(&site.post("/elsewhere", "k", "10").await), "422");
    let recorded = idempotency.operation("actix.POST").key(&("alice", "k"));
    assert!(recorded.inspect().await.unwrap().is_some());
}

#[actix_web::test]
async fn around_a_resource_the_middleware_leaves_paths_without_a_route_alone() {
    let runs: Arc<AtomicUsize> = Arc::default();
    let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .name("actix")
        .unscoped();
    let counted = runs.clone();
    let app = move || {
        let runs = counted.clone();
        let charge = move || {
            let run = runs.fetch_add(1, SeqCst) + 1;
            async move { run.to_string() }
        };
        let charges = web::resource("/charges")
            .wrap(Idempotent::new(layer.clone()))
            .route(web::post().to(charge));
        App::new().service(charges)
    };
    let server = HttpServer::new(app)
        .workers(1)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let site = Site {
        address: server.addrs()[0],
        runs,
        open: watch::channel(true).0,
        entered: Arc::default(),
    };
    actix_web::rt::spawn(server.run());
    for _ in 0..2 {
        let unknown = site.post("/nowhere", "k", "10").await;
        assert!(
            status(&unknown) == "404" && !unknown.contains("idempotent-replayed"),
            "{unknown}"
        );
    }
    for replayed in [false, true] {
        let charged = site.post("/charges", "k", "10").await;
        assert!(charged.ends_with("\r\n\r\n1"), "{charged}");
        assert_eq!(charged.contains("idempotent-replayed: true"), replayed);
    }
}
