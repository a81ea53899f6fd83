//! Requests, responses and closures that do what they should not.

use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use idem_core::{Error, Idempotency, MemoryStore};
use idem_http::{IdempotencyLayer, MarkReplays, header};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

use crate::support::{Received, Site, USER, layer, request, send};

fn empty(key: &str) -> Request<Body> {
    request(key).body(Body::empty()).unwrap()
}

fn is_replay(received: &Received) -> bool {
    received.headers.contains_key("idempotent-replayed")
}

/// Chunks, then whatever comes last.
fn chunks<L>(first: &[&'static [u8]], last: L) -> Body
where
    L: futures::Stream<Item = Result<&'static [u8], std::io::Error>> + Send + 'static,
{
    let first: Vec<_> = first.iter().map(|chunk| Ok(*chunk)).collect();
    Body::from_stream(tokio_stream::iter(first).chain(last))
}

/// One message of gRPC, with its flag and its length.
const MESSAGE: &[u8] = b"\0\0\0\0\x03one";

#[tokio::test(start_paused = true)]
async fn a_response_that_never_ends_passes_from_its_first_byte_and_its_request_is_done() {
    let cases: [(&str, &[&[u8]]); 4] = [
        ("text/event-stream", &[b"data: 1\n\n"]),
        // A stream of messages: one and a pause, one and a part of the next, all of two.
        ("application/grpc", &[MESSAGE]),
        ("application/grpc+proto", &[b"\0\0\0\0\x03one\0"]),
        ("Application/gRPC", &[b"\0\0", b"\0\0\x03one", MESSAGE]),
    ];
    for (content_type, first) in cases {
        let site = Site::new();
        let app = site.app(move |_| {
            (
                [(CONTENT_TYPE, content_type)],
                chunks(first, futures::stream::pending()),
            )
                .into_response()
        });
        let response = app.clone().oneshot(empty("k"));
        // The clock is paused: it goes on only when nothing else can.
        let response = tokio::time::timeout(Duration::from_secs(60), response).await;
        let mut body = response
            .expect("the response has begun")
            .unwrap()
            .into_body();
        let expected = first.concat();
        let mut got = Vec::new();
        while got.len() < expected.len() {
            got.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        assert_eq!(got, expected, "{content_type}");
        let again = send(&app, empty("k")).await;
        assert_eq!(
            (again.status, &*again.code()),
            (StatusCode::CONFLICT, "already_done"),
            "{content_type}"
        );
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_messages_that_never_pauses_for_long_passes_from_its_second_message() {
    let site = Site::new();
    let messages = || {
        futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            Some((Ok(MESSAGE), ()))
        })
    };
    let app = site.app(move |_| {
        (
            [(CONTENT_TYPE, "application/grpc")],
            chunks(&[], messages()),
        )
            .into_response()
    });
    let response =
        tokio::time::timeout(Duration::from_secs(60), app.clone().oneshot(empty("k"))).await;
    let mut body = response
        .expect("the response has begun")
        .unwrap()
        .into_body();
    for expected in [2, 1, 1] {
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(data, MESSAGE.repeat(expected));
    }
    assert_eq!(send(&app, empty("k")).await.code(), "already_done");
}

#[tokio::test(start_paused = true)]
async fn a_unary_response_of_grpc_that_comes_in_pieces_is_recorded() {
    let site = Site::new();
    let pieces = || {
        let late = tokio_stream::once(Ok(&b"one"[..]));
        let late = late.then(|piece| async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            piece
        });
        chunks(&[b"\0\0\0\0\x03"], Box::pin(late))
    };
    let app = site.app(move |_| ([(CONTENT_TYPE, "application/grpc")], pieces()).into_response());
    for replayed in [false, true] {
        let got = send(&app, empty("k")).await;
        assert_eq!((&got.bytes[..], is_replay(&got)), (MESSAGE, replayed));
    }
}

#[tokio::test]
async fn paths_without_a_route_are_unguarded_behind_a_route_layer() {
    let site = Site::new();
    let runs = site.runs.clone();
    let charge = move || async move { (runs.fetch_add(1, SeqCst) + 1).to_string() };
    let app: Router = Router::new()
        .route("/charges/{id}", post(charge))
        .route_layer(layer(&site.idempotency));
    let sent = |path: &str| {
        let request = request("k")
            .uri(path.to_owned())
            .body(Body::empty())
            .unwrap();
        let app = app.clone();
        async move { send(&app, request).await }
    };
    for _ in 0..2 {
        let unknown = sent("/nothing").await;
        assert!(unknown.status == StatusCode::NOT_FOUND && !is_replay(&unknown));
    }
    assert_eq!(sent("/charges/1").await.text, "1");
    assert!(is_replay(&sent("/charges/1").await));
    // One route, one operation.
    assert_eq!(sent("/charges/2").await.code(), "fingerprint_mismatch");
}

#[tokio::test]
async fn one_service_nested_at_two_places_has_two_operations() {
    use tower::Layer as _;
    let site = Site::new();
    let runs = site.runs.clone();
    let charge = tower::service_fn(move |_: Request<idem_http::Body>| {
        let count = runs.fetch_add(1, SeqCst) + 1;
        async move { Ok::<_, std::convert::Infallible>(count.to_string().into_response()) }
    });
    let guarded = layer(&site.idempotency).layer(charge);
    let app = Router::new()
        .nest_service("/v1", guarded.clone())
        .nest_service("/v2", guarded);
    let sent =
        async |path: &str| send(&app, request("k").uri(path).body(Body::from("10")).unwrap()).await;
    assert_eq!(sent("/v1/charges").await.text, "1");
    // The service sees the same path and the same body.
    let other = sent("/v2/charges").await;
    assert!(other.text == "2" && !is_replay(&other), "{}", other.text);
    for (path, expected) in [("/v1/charges", "1"), ("/v2/charges", "2")] {
        let again = sent(path).await;
        assert!(
            again.text == expected && is_replay(&again),
            "{path}: {}",
            again.text
        );
    }
}

/// A body that says a length, and breaks off before it.
struct Short(bool);

impl HttpBody for Short {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let is_first = !std::mem::replace(&mut self.0, true);
        let frame = if is_first {
            Ok(Frame::data(Bytes::from("half")))
        } else {
            Err(std::io::Error::other("cut"))
        };
        Poll::Ready(Some(frame))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(8)
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_is_broken_for_its_client_and_never_replayed_as_whole() {
    let site = Site::new();
    let app = site.app(|_| Body::new(Short(false)).into_response());
    let mut first = app.clone().oneshot(empty("k")).await.unwrap().into_body();
    assert_eq!(
        first.frame().await.unwrap().unwrap().into_data().unwrap(),
        "half"
    );
    assert!(first.frame().await.unwrap().is_err());
    assert_eq!(send(&app, empty("k")).await.code(), "already_done");
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn headers_of_one_response_are_not_those_of_another() {
    let site = Site::new();
    let app = site.app(|_| {
        let mut headers = HeaderMap::new();
        let pairs = [
            ("connection", "x-hop, Keep-Alive"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authentication-info", "nextnonce=x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "x"),
            ("content-length", "4"),
            ("set-cookie", "session=alice"),
            ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("x-kept", "1"),
            ("x-kept", "2"),
        ];
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        (headers, "text").into_response()
    });
    send(&app, empty("k")).await;
    let again = send(&app, empty("k")).await;
    assert!(is_replay(&again) && again.text == "text");
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        assert!(!again.headers.contains_key(&name), "{name}");
    }
    for name in [
        "x-hop",
        "keep-alive",
        "proxy-connection",
        "proxy-authentication-info",
        "set-cookie",
        "date",
    ] {
        assert!(
            !again.headers.contains_key(name),
            "{name}: {:?}",
            again.headers
        );
    }
    // axum states the length of the body that it has.
    let lengths: Vec<_> = again.headers.get_all(CONTENT_LENGTH).iter().collect();
    assert_eq!(lengths, ["4"]);
    assert_eq!(
        again.headers.get_all("x-kept").iter().collect::<Vec<_>>(),
        ["1", "2"]
    );
}

#[tokio::test]
async fn other_methods_pass_with_a_key_and_switching_protocols_is_not_recorded() {
    let site = Site::new();
    let app = site.app(|_| "text".into_response());
    let methods = [
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::DELETE,
        Method::TRACE,
    ];
    for method in methods.iter().chain(&methods) {
        let sent = send(
            &app,
            request("k").method(method).body(Body::empty()).unwrap(),
        )
        .await;
        assert!(sent.status.is_success() && !is_replay(&sent), "{method}");
    }
    assert_eq!(site.runs.load(SeqCst), 2 * methods.len());
    let upgrading = site.router_of(layer(&site.idempotency).name("upgrade"), |_| {
        (StatusCode::SWITCHING_PROTOCOLS, [(UPGRADE, "x")]).into_response()
    });
    for _ in 0..2 {
        let sent = request("k")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "x")
            .body(Body::empty())
            .unwrap();
        let sent = send(&upgrading, sent).await;
        assert!(sent.status == StatusCode::SWITCHING_PROTOCOLS && !is_replay(&sent));
    }
}

#[tokio::test]
async fn a_content_type_has_no_case_so_no_form_hides_its_key() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).body_field("/key"));
    for replayed in [false, true] {
        let form = request("unused").header(
            CONTENT_TYPE,
            "Application/X-WWW-Form-Urlencoded; charset=UTF-8",
        );
        let sent = send(&app, form.body(Body::from("key=k&cents=1")).unwrap()).await;
        assert_eq!(is_replay(&sent), replayed);
    }
}

#[tokio::test]
async fn closures_that_panic_share_no_key_and_lock_none() {
    let as_user = |user: &str, key: &str| {
        let request = Request::post("/charges")
            .header("idempotency-key", key)
            .header(USER, user);
        request.body(Body::from("10")).unwrap()
    };
    let bug =
        |text: Option<String>| text.map(|text| if text == "bug" { panic!("a bug") } else { text });
    let site = Site::new();
    let base = || IdempotencyLayer::new(site.idempotency.clone());
    let by_key = HeaderName::from_static("idempotency-key");
    let key_from = base().name("a").scope(|parts| header(parts, USER));
    let key_from = key_from.key_from(move |parts| bug(header(parts, by_key.clone())));
    let keep = base()
        .name("b")
        .scope(|parts| header(parts, USER))
        .keep(|parts| {
            assert!(parts.headers["x-count"] != "1", "a bug");
            true
        });
    let keep = Site::over(site.idempotency.clone())
        .router_of(keep, |n| ([("x-count", n)], n.to_string()).into_response());
    for (app, user, key, then, expected) in [
        (site.router(key_from), "alice", "bug", "fine", "1"),
        (keep, "alice", "k", "k", "2"),
    ] {
        let panicked = tokio::spawn({
            let app = app.clone();
            let request = as_user(user, key);
            async move { send(&app, request).await }
        });
        assert!(panicked.await.is_err_and(|error| error.is_panic()));
        for replayed in [false, true] {
            let sent = send(&app, as_user("alice", then)).await;
            assert_eq!((&*sent.text, is_replay(&sent)), (expected, replayed));
        }
    }
}

#[tokio::test]
async fn a_lookup_is_for_no_cache_and_says_which_methods_it_has() {
    let site = Site::new();
    let lookup = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges");
    let lookup = lookup.scope(|parts| header(parts, USER));
    let app = site
        .app(|n| n.to_string().into_response())
        .route_service("/charges/{key}", lookup);
    let ask = async |method: Method| {
        let request = Request::builder()
            .method(method)
            .uri("/charges/k")
            .header(USER, "alice");
        send(&app, request.body(Body::empty()).unwrap()).await
    };
    let unknown = ask(Method::GET).await;
    assert_eq!(
        (unknown.status, &unknown.headers[CACHE_CONTROL]),
        (StatusCode::NOT_FOUND, &"no-store".parse().unwrap())
    );
    send(&app, empty("k")).await;
    let found = ask(Method::GET).await;
    assert_eq!(
        (&*found.text, &found.headers[CACHE_CONTROL]),
        ("1", &"no-store".parse().unwrap())
    );
    let refused = ask(Method::DELETE).await;
    assert_eq!(
        (refused.status, &refused.headers[ALLOW]),
        (
            StatusCode::METHOD_NOT_ALLOWED,
            &"GET, HEAD".parse().unwrap()
        )
    );
}

#[tokio::test]
async fn the_replays_of_guarded_handlers_are_marked_and_nothing_else_is() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let handler = move |body: String| {
        let idempotency = idempotency.clone();
        async move {
            if body == "free" {
                return "free".to_owned();
            }
            let call = |key: &str| {
                idempotency
                    .operation("transfers.create")
                    .key(key)
                    .run(async || Ok::<_, Error>(7))
            };
            let detached = idempotency.operation("transfers.notify").key(&body);
            let told = detached
                .run_detached(async || Ok::<_, Error>(8))
                .await
                .unwrap()
                .into_inner();
            format!("{} {told}", call(&body).await.unwrap().into_inner())
        }
    };
    let app = Router::new()
        .route("/transfers", post(handler))
        .layer(MarkReplays);
    for (body, replayed) in [
        ("a", false),
        ("a", true),
        ("b", false),
        ("free", false),
        ("free", false),
        ("a", true),
    ] {
        let response = app
            .clone()
            .oneshot(Request::post("/transfers").body(Body::from(body)).unwrap())
            .await
            .unwrap();
        assert_eq!(
            response.extensions().get::<idem_http::Replayed>().is_some(),
            replayed,
            "{body}"
        );
        assert_eq!(
            response
                .headers()
                .get("idempotent-replayed")
                .is_some_and(|mark| mark == "true"),
            replayed,
            "{body}"
        );
    }
}
