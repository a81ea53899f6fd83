//! Handlers, responses and clients that do what they should not, and what a handler has of its
//! guarded call.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::{ETAG, LOCATION};
use actix_web::{App, HttpResponse, HttpServer, web};
use idem_actix::Idempotent;
use idem_core::{Idempotency, MemoryStore, StoreErrorKind};
use idem_http::{IdempotencyLayer, Scoped, header};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

fn layer(idempotency: &Idempotency) -> IdempotencyLayer<Scoped> {
    let layer = IdempotencyLayer::new(idempotency.clone()).name("actix");
    layer.scope(|parts| header(parts, http::HeaderName::from_static("x-user")))
}

/// Serves at a port of this machine, until the runtime ends.
macro_rules! serve {
    ($app:expr) => {{
        let server = HttpServer::new($app)
            .workers(2)
            .disable_signals()
            .bind(("127.0.0.1", 0))
            .unwrap();
        let address = server.addrs()[0];
        actix_web::rt::spawn(server.run());
        address
    }};
}

fn post(path: &str, key: &str, more: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nx-user: alice\r\nidempotency-key: {key}\r\n{more}")
}

const LAST: &str = "connection: close\r\ncontent-length: 2\r\n\r\n10";

/// All that a server sends for these bytes, until it ends the connection.
async fn exchange(address: SocketAddr, sent: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // A connection that is reset has sent what it has sent.
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut text)).await;
    let _ = read.expect("the server ends the connection");
    String::from_utf8_lossy(&text).into_owned()
}

/// Counts the handlers that run at the moment, and tells when one is dropped.
#[derive(Clone, Default)]
struct Running(Arc<(AtomicUsize, Notify)>);

struct Run(Running);

impl Running {
    fn begin(&self) -> Run {
        assert_eq!(self.0.0.fetch_add(1, SeqCst), 0, "one at a time");
        Run(self.clone())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let (running, ended) = &*self.0.0;
        running.fetch_sub(1, SeqCst);
        ended.notify_one();
    }
}

#[actix_web::test]
async fn p1_a_handler_that_loses_its_lease_is_dropped_and_the_next_attempt_runs_alone() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::new(store);
    let running = Running::default();
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let app = {
        let running = running.clone();
        let attempts = attempts.clone();
        move || {
            let running = running.clone();
            let attempts = attempts.clone();
            let charge = move || {
                let running = running.clone();
                let attempts = attempts.clone();
                async move {
                    let _run = running.begin();
                    let call = idem_core::current().expect("inside of a guarded call");
                    attempts
                        .lock()
                        .unwrap()
                        .push((call.attempt(), call.child_key("bank")));
                    if call.attempt() == 1 {
                        std::future::pending::<()>().await;
                    }
                    call.attempt().to_string()
                }
            };
            let layer = layer(&idempotency).lease(Duration::from_secs(3));
            App::new()
                .wrap(Idempotent::new(layer))
                .route("/charges", web::post().to(charge))
        }
    };
    let address = serve!(app);
    faults.always(Step::Renew, Fault::Fail(StoreErrorKind::Unavailable));
    let lost = exchange(address, &post("/charges", "k", LAST)).await;
    assert!(
        lost.starts_with("HTTP/1.1 503") && lost.contains("retry-after: 1"),
        "{lost}"
    );
    assert!(lost.contains("lease_lost"), "{lost}");
    tokio::time::timeout(Duration::from_secs(30), running.0.1.notified())
        .await
        .expect("the handler is dropped");
    faults.clear();
    let again = exchange(address, &post("/charges", "k", LAST)).await;
    assert!(
        again.starts_with("HTTP/1.1 200") && again.ends_with("\r\n\r\n2"),
        "{again}"
    );
    let attempts = attempts.lock().unwrap();
    let [(1, first), (2, second)] = &attempts[..] else {
        panic!("{attempts:?}")
    };
    // So a body sends the same child keys in each attempt.
    assert_eq!(first, second);
}

#[actix_web::test]
async fn the_same_middleware_twice_fails_at_its_first_request_and_leaves_the_key_free() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs: Arc<AtomicUsize> = Arc::default();
    let app = {
        let idempotency = idempotency.clone();
        let runs = runs.clone();
        move || {
            let runs = runs.clone();
            let charge = move || {
                let run = runs.fetch_add(1, SeqCst) + 1;
                async move { run.to_string() }
            };
            let twice = web::resource("/twice").wrap(Idempotent::new(layer(&idempotency)));
            let other =
                web::resource("/other").wrap(Idempotent::new(layer(&idempotency).name("inner")));
            App::new()
                .wrap(Idempotent::new(layer(&idempotency)))
                .service(twice.route(web::post().to(charge.clone())))
                .service(other.route(web::post().to(charge)))
        }
    };
    let address = serve!(app);
    for _ in 0..2 {
        let refused = exchange(address, &post("/twice", "k", LAST)).await;
        assert!(
            refused.starts_with("HTTP/1.1 500") && refused.contains("reentrant"),
            "{refused}"
        );
    }
    assert_eq!(runs.load(SeqCst), 0);
    for replayed in [false, true] {
        let got = exchange(address, &post("/other", "k", LAST)).await;
        assert!(
            got.starts_with("HTTP/1.1 200") && got.ends_with("\r\n\r\n1"),
            "{got}"
        );
        assert_eq!(got.contains("idempotent-replayed: true"), replayed, "{got}");
    }
}

async fn closing() -> HttpResponse {
    HttpResponse::Ok().force_close().body("closing")
}

async fn measured() -> HttpResponse {
    let chunk = Ok::<_, std::io::Error>(web::Bytes::from("measured"));
    HttpResponse::Ok()
        .no_chunking(8)
        .streaming(futures_util::stream::iter([chunk]))
}

async fn switching(body: web::Payload) -> HttpResponse {
    HttpResponse::build(StatusCode::SWITCHING_PROTOCOLS)
        .upgrade("websocket")
        .streaming(body)
}

async fn cut() -> HttpResponse {
    let frames = [
        Ok(web::Bytes::from("half")),
        Err(std::io::Error::other("cut")),
    ];
    HttpResponse::Ok().streaming(futures_util::stream::iter(frames))
}

async fn without_a_body(status: web::Path<u16>) -> HttpResponse {
    let mut response = HttpResponse::build(StatusCode::from_u16(*status).unwrap());
    response
        .insert_header((ETAG, "\"7\""))
        .insert_header((LOCATION, "/c/7"))
        .finish()
}

/// An application of such handlers.
fn odd() -> SocketAddr {
    let idempotency = Idempotency::new(MemoryStore::new());
    serve!(move || {
        App::new()
            .wrap(Idempotent::new(layer(&idempotency).max_body(8)))
            .route("/closing", web::post().to(closing))
            .route("/measured", web::post().to(measured))
            .route("/switching", web::get().to(switching))
            .route("/cut", web::post().to(cut))
            .route("/without/{status}", web::post().to(without_a_body))
    })
}

#[actix_web::test]
async fn a_response_keeps_its_framing_and_its_connection() {
    let address = odd();
    let open = "content-length: 2\r\n\r\n10";
    // The server ends this connection itself.
    let closing = exchange(address, &post("/closing", "k", open)).await;
    assert!(
        closing.contains("connection: close") && closing.ends_with("closing"),
        "{closing}"
    );
    let measured = exchange(address, &post("/measured", "k", LAST)).await;
    assert!(
        measured.contains("content-length: 8") && measured.ends_with("\r\n\r\nmeasured"),
        "{measured}"
    );
    assert!(!measured.contains("chunked"), "{measured}");
    // Its handler was asked to end that connection, not those of the replays.
    let replayed = exchange(
        address,
        &[post("/closing", "k", open), post("/closing", "k", LAST)].concat(),
    )
    .await;
    assert_eq!(
        replayed.matches("idempotent-replayed: true").count(),
        2,
        "{replayed}"
    );
}

#[actix_web::test]
async fn another_protocol_passes_in_both_directions() {
    let mut stream = TcpStream::connect(odd()).await.unwrap();
    let head =
        "GET /switching HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n") {
        got.push(stream.read_u8().await.unwrap());
    }
    let got = String::from_utf8(got).unwrap().to_ascii_lowercase();
    assert!(
        got.starts_with("http/1.1 101") && got.contains("upgrade: websocket"),
        "{got}"
    );
    assert!(got.contains("connection: upgrade"), "{got}");
    for _ in 0..3 {
        stream.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"ping");
    }
}

#[actix_web::test]
async fn a_response_without_a_body_is_replayed_without_one_and_the_connection_goes_on() {
    let address = odd();
    for status in ["204", "304", "303"] {
        let path = format!("/without/{status}");
        let open = post(&path, status, "content-length: 2\r\n\r\n10");
        let text = exchange(
            address,
            &[open.as_str(), &open, &post(&path, status, LAST)].concat(),
        )
        .await;
        let answers: Vec<_> = text.split("HTTP/1.1 ").skip(1).collect();
        assert_eq!(answers.len(), 3, "{text}");
        for (place, answer) in answers.into_iter().enumerate() {
            assert!(
                answer.starts_with(status) && answer.ends_with("\r\n\r\n"),
                "{text}"
            );
            assert_eq!(
                answer.contains("idempotent-replayed: true"),
                place > 0,
                "{text}"
            );
            assert!(
                answer.contains("etag: \"7\"") && answer.contains("location: /c/7"),
                "{text}"
            );
        }
    }
}

/// A response in one of the forms that handlers give it.
async fn formed(path: web::Path<(u16, String)>) -> HttpResponse {
    let (status, form) = path.into_inner();
    let mut response = HttpResponse::build(StatusCode::from_u16(status).unwrap());
    match form.as_str() {
        "text" => response.body("text"),
        "typed" => response.content_type("text/x").body("text"),
        "finished" => response.finish(),
        "typed_only" => response.content_type("text/x").finish(),
        "length" => response.insert_header(("content-length", "4")).body("text"),
        "length_only" => response.insert_header(("content-length", "1234")).finish(),
        "zero" => response.insert_header(("content-length", "0")).finish(),
        "unchunked" => response.no_chunking(1234).finish(),
        "empty" => response.body(""),
        "chunked" => response
            .insert_header(("transfer-encoding", "chunked"))
            .finish(),
        other => panic!("{other}"),
    }
}

#[actix_web::test]
async fn a_replay_has_all_headers_of_the_first_response_with_a_body_and_without() {
    let forms = [
        "text",
        "typed",
        "finished",
        "typed_only",
        "length",
        "length_only",
        "zero",
        "unchunked",
        "empty",
        "chunked",
    ];
    let idempotency = Idempotency::new(MemoryStore::new());
    let address = serve!(move || {
        let methods = [http::Method::POST, http::Method::HEAD];
        App::new()
            .wrap(Idempotent::new(layer(&idempotency).methods(methods)))
            .route("/{status}/{form}", web::route().to(formed))
    });
    let lasting = |answer: &str| {
        let (head, _) = answer.split_once("\r\n\r\n").unwrap();
        let of_one = ["date:", "idempotent-replayed:", "connection:"];
        let is_lasting = |line: &&str| !of_one.iter().any(|name| line.starts_with(name));
        let mut lines: Vec<_> = head.lines().filter(is_lasting).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    for status in [
        "200", "201", "202", "204", "205", "206", "304", "308", "400", "404", "422",
    ] {
        for form in forms {
            for method in ["POST", "HEAD"] {
                let path = format!("/{status}/{form}");
                let key = format!("{method}-{status}-{form}");
                let request = || {
                    post(
                        &path,
                        &key,
                        "connection: close\r\ncontent-length: 0\r\n\r\n",
                    )
                    .replacen("POST", method, 1)
                };
                let bare =
                    exchange(address, &request().replace("idempotency-key", "x-other")).await;
                let first = exchange(address, &request()).await;
                let again = exchange(address, &request()).await;
                let case = format!("{method} {path}: {again}");
                assert!(again.contains("idempotent-replayed: true"), "{case}");
                assert_eq!(lasting(&first), lasting(&bare), "{case}");
                assert_eq!(lasting(&again), lasting(&first), "{case}");
            }
        }
    }
}

#[actix_web::test]
async fn a_response_that_breaks_off_is_cut_on_the_wire_and_its_request_is_done() {
    let address = odd();
    let text = exchange(address, &post("/cut", "k", LAST)).await;
    // The server ends the connection, maybe before it has sent the head.
    assert!(!text.ends_with("0\r\n\r\n"), "{text}");
    let again = exchange(address, &post("/cut", "k", LAST)).await;
    assert!(
        again.starts_with("HTTP/1.1 409") && again.contains("already_done"),
        "{again}"
    );
}

#[actix_web::test]
async fn a_refused_request_leaves_no_byte_of_its_body_to_the_next_one() {
    let address = odd();
    let next = post("/without/204", "next", LAST);
    for (refused, status) in [
        (
            post("/without/204", "not valid", "content-length: 2\r\n\r\n10"),
            "400",
        ),
        (
            post("/without/204", "l", "content-length: 9\r\n\r\n123456789"),
            "413",
        ),
        (
            post(
                "/without/204",
                "m",
                "transfer-encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n",
            ),
            "413",
        ),
        (
            post("/without/204", "n", "content-length: 2\r\n\r\n10").replace("alice", ""),
            "401",
        ),
    ] {
        let text = exchange(address, &[refused, next.clone()].concat()).await;
        let answers: Vec<_> = text.split("HTTP/1.1 ").skip(1).collect();
        // The server may end the connection, or serve the next request, but nothing else.
        assert!(answers[0].starts_with(status), "{text}");
        assert!(
            answers[1..].iter().all(|answer| answer.starts_with("204")) && answers.len() <= 2,
            "{text}"
        );
    }
}

#[actix_web::test]
async fn a_client_that_is_gone_within_its_body_leaves_the_key_free() {
    let address = odd();
    for (number, half) in ["content-length: 2\r\n\r\n", "content-length: 2\r\n\r\n1"]
        .into_iter()
        .enumerate()
    {
        let key = format!("k{number}");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(post("/without/204", &key, half).as_bytes())
            .await
            .unwrap();
        drop(stream);
        let whole = exchange(address, &post("/without/204", &key, LAST)).await;
        assert!(
            whole.starts_with("HTTP/1.1 204") && !whole.contains("idempotent-replayed"),
            "{whole}"
        );
    }
}
