//! The responses of a service behind the layer.

mod compression;
mod cors;
mod documents;
mod grpc;
mod handlers;
mod hostile;
mod keys;
mod nested;
mod openapi;
mod own_rules;
mod problems;
mod rows;
mod storage;
mod strict;
mod validation;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::support::{Site, USER, layer, patient_store, request, send};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, DATE, LINK, LOCATION, RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode};
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::{get, post};
use axum::{Json, Router};
use idem_core::{Idempotency, MemoryStore};
use idem_http::{IdempotencyLayer, header};
use serde_json::json;
use tokio_stream::StreamExt as _;

#[tokio::test]
async fn a_duplicate_gets_the_first_response_with_its_status_and_headers() {
    let site = Site::new();
    let app = site.app(|n| {
        let headers = [
            (LOCATION, "/charges/7"),
            (SET_COOKIE, "a=1"),
            (DATE, "now"),
            (CONTENT_TYPE, "text/x"),
        ];
        (StatusCode::CREATED, headers, format!("charge {n}")).into_response()
    });
    let first = send(&app, request("k").body(Body::from("10")).unwrap()).await;
    assert_eq!(
        (first.status, &*first.text),
        (StatusCode::CREATED, "charge 1")
    );
    assert_eq!(first.headers[SET_COOKIE], "a=1");
    assert!(!first.headers.contains_key("idempotent-replayed"));
    for key in ["k", "\"k\"", "\"k\";v=1"] {
        let again = send(&app, request(key).body(Body::from("10")).unwrap()).await;
        assert_eq!(
            (again.status, &*again.text),
            (StatusCode::CREATED, "charge 1")
        );
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(
            (&again.headers[LOCATION], &again.headers[CONTENT_TYPE]),
            (&"/charges/7".parse().unwrap(), &"text/x".parse().unwrap())
        );
        assert!(!again.headers.contains_key(SET_COOKIE));
        assert_ne!(
            again
                .headers
                .get(DATE)
                .map(axum::http::HeaderValue::as_bytes),
            Some(&b"now"[..])
        );
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn each_value_of_a_header_is_sent_and_replayed_in_order() {
    let site = Site::new();
    let app = site.app(|_| {
        let headers = [
            (LINK, "</b>"),
            (LINK, "</a>"),
            (SET_COOKIE, "a=1"),
            (SET_COOKIE, "b=2"),
        ];
        AppendHeaders(headers).into_response()
    });
    for cookies in [&["a=1", "b=2"][..], &[]] {
        let got = send(&app, request("k").body(Body::empty()).unwrap()).await;
        let values = |name| got.headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(values(LINK), ["</b>", "</a>"]);
        assert_eq!(values(SET_COOKIE), cookies);
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn bodies_that_are_empty_or_no_text_are_replayed_as_they_were() {
    for body in [&b""[..], b"\x00\xff\xfe", "\u{e4}".as_bytes()] {
        let site = Site::new();
        let app = site.app(move |_| Body::from(body).into_response());
        for _ in 0..2 {
            assert_eq!(
                send(&app, request("k").body(Body::empty()).unwrap())
                    .await
                    .bytes,
                body
            );
        }
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn a_request_without_an_owner_is_refused_and_two_owners_never_share_a_key() {
    let site = Site::new();
    let app = site.app(|n| n.to_string().into_response());
    let nobody = Request::post("/charges")
        .header("idempotency-key", "k")
        .body(Body::empty())
        .unwrap();
    assert_eq!(send(&app, nobody).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(site.runs.load(SeqCst), 0);
    let as_user = |user: &'static str| {
        Request::post("/charges")
            .header("idempotency-key", "k")
            .header(USER, user)
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(send(&app, as_user("alice")).await.text, "1");
    assert_eq!(send(&app, as_user("bob")).await.text, "2");
    assert_eq!(send(&app, as_user("alice")).await.text, "1");
}

#[tokio::test]
async fn another_request_under_the_same_key_is_a_mismatch() {
    let site = Site::new();
    let app = site.app(|n| n.to_string().into_response());
    assert_eq!(
        send(&app, request("k").body(Body::from("10")).unwrap())
            .await
            .text,
        "1"
    );
    let other_body = request("k").body(Body::from("11")).unwrap();
    let other_type = request("k")
        .header(CONTENT_TYPE, "text/plain")
        .body(Body::from("10"))
        .unwrap();
    let other_query = request("k")
        .uri("/charges?x=1")
        .body(Body::from("10"))
        .unwrap();
    for request in [other_body, other_type, other_query] {
        let refused = send(&app, request).await;
        assert_eq!(
            (refused.status, refused.code()),
            (
                StatusCode::UNPROCESSABLE_ENTITY,
                "fingerprint_mismatch".into()
            )
        );
    }
    // Clients change other headers between their tries.
    let other_header = request("k")
        .header("x-retry-count", "1")
        .body(Body::from("10"))
        .unwrap();
    assert_eq!(send(&app, other_header).await.text, "1");

    let stripe = site.router(
        layer(&site.idempotency)
            .mismatch(StatusCode::BAD_REQUEST)
            .problem(idem_http::stripe),
    );
    let refused = send(&stripe, request("k").body(Body::from("11")).unwrap()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.json()["error"]["type"], "idempotency_error");
    let by_key = site.router(layer(&site.idempotency).replay_on_mismatch());
    assert_eq!(
        send(&by_key, request("k").body(Body::from("11")).unwrap())
            .await
            .text,
        "1"
    );
}

#[tokio::test]
async fn methods_and_routes_are_operations_and_two_paths_of_one_route_a_mismatch() {
    let site = Site::new();
    let app = site.app(|n| n.to_string().into_response());
    let sent = |method, path: &str| {
        let request = request("k")
            .method(method)
            .uri(path)
            .body(Body::empty())
            .unwrap();
        let app = app.clone();
        async move { send(&app, request).await }
    };
    assert_eq!(sent(Method::POST, "/charges").await.text, "1");
    assert_eq!(sent(Method::PATCH, "/charges").await.text, "2");
    assert_eq!(sent(Method::POST, "/refunds/1").await.text, "3");
    assert_eq!(
        sent(Method::POST, "/refunds/2").await.status,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    assert_eq!(sent(Method::POST, "/charges").await.text, "1");
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_whether_its_length_is_known_or_not() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).max_body(8));
    let chunks = tokio_stream::iter(["12345", "67890"].map(Ok::<_, std::io::Error>));
    for body in [Body::from("123456789"), Body::from_stream(chunks)] {
        assert_eq!(
            send(&app, request("k").body(body).unwrap()).await.status,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }
    assert_eq!(site.runs.load(SeqCst), 0);
    let chunks = tokio_stream::iter(["1234", "5678"].map(Ok::<_, std::io::Error>));
    assert_eq!(
        send(&app, request("k").body(Body::from_stream(chunks)).unwrap())
            .await
            .status,
        StatusCode::OK
    );
    // Chunked or whole, the bytes are the same.
    let again = send(&app, request("k").body(Body::from("12345678")).unwrap()).await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
}

#[tokio::test]
async fn a_body_that_breaks_off_runs_nothing() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency));
    let broken = tokio_stream::iter([Ok("12"), Err(std::io::Error::other("cut"))]);
    let refused = send(&app, request("k").body(Body::from_stream(broken)).unwrap()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn responses_that_may_change_release_the_key_and_others_are_kept() {
    for (status, is_kept) in [
        (200, true),
        (302, true),
        (400, true),
        (402, true),
        (404, true),
        (422, true),
        (401, false),
        (403, false),
        (408, false),
        (409, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let site = Site::new();
        let status = StatusCode::from_u16(status).unwrap();
        let app = site.app(move |_| (status, "text").into_response());
        for _ in 0..2 {
            let response = send(&app, request("k").body(Body::empty()).unwrap()).await;
            assert_eq!((response.status, &*response.text), (status, "text"));
        }
        assert_eq!(
            site.runs.load(SeqCst),
            if is_kept { 1 } else { 2 },
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_kept_server_error_tells_clients_not_to_retry() {
    let site = Site::new();
    let app = site.router_of(layer(&site.idempotency).keep(|_| true), |_| {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    });
    let first = send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert!(!first.headers.contains_key("stripe-should-retry"));
    let again = send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert_eq!(again.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        (
            &again.headers["stripe-should-retry"],
            &again.headers["x-should-retry"]
        ),
        (&"false".parse().unwrap(), &"false".parse().unwrap())
    );
}

#[tokio::test]
async fn a_streaming_or_oversized_response_passes_complete_and_has_no_recorded_answer() {
    let site = Site::new();
    let large = "x".repeat(100);
    let whole = large.clone();
    let oversized = site.router_of(layer(&site.idempotency).name("a").max_body(64), move |_| {
        whole.clone().into_response()
    });
    let streaming = site.router_of(layer(&site.idempotency).name("b"), |_| {
        let chunks = tokio_stream::iter(0..100).map(|_| Ok::<_, std::io::Error>("x"));
        Body::from_stream(chunks).into_response()
    });
    for app in [oversized, streaming] {
        assert_eq!(
            send(&app, request("k").body(Body::empty()).unwrap())
                .await
                .text,
            large
        );
        let again = send(&app, request("k").body(Body::empty()).unwrap()).await;
        assert_eq!(
            (again.status, again.code()),
            (StatusCode::CONFLICT, "already_done".into())
        );
        assert!(!again.headers.contains_key(RETRY_AFTER));
    }
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn a_duplicate_is_held_and_gets_the_answer_or_409_after_its_wait() {
    let site = Site::new();
    let app = site.router_of(
        layer(&site.idempotency).wait(Duration::from_millis(50)),
        |_| "done".into_response(),
    );
    site.close();
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k").body(Body::empty()).unwrap()).await }
    });
    site.entered().await;
    let early = send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert_eq!(
        (early.status, early.code()),
        (StatusCode::CONFLICT, "in_flight".into())
    );
    assert_eq!(early.headers[RETRY_AFTER], "1");
    // A mismatch is found before any hold.
    let other = send(&app, request("k").body(Body::from("x")).unwrap()).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    let patient = site.router_of(
        layer(&site.idempotency).wait(Duration::from_secs(60)),
        |_| "done".into_response(),
    );
    let held =
        tokio::spawn(
            async move { send(&patient, request("k").body(Body::empty()).unwrap()).await },
        );
    site.open();
    assert_eq!(
        (first.await.unwrap().text, held.await.unwrap().text),
        ("done".into(), "done".into())
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_client_that_disconnects_stops_nothing_and_gets_the_answer_next_time() {
    // After each number of polls of the response: while the claim is on its way, and while the
    // service runs.
    for polls in 0..6 {
        let site = Site::new();
        let app = site.app(|n| n.to_string().into_response());
        site.close();
        {
            let mut pending = Box::pin(send(&app, request("k").body(Body::from("10")).unwrap()));
            for _ in 0..polls {
                let _ = futures::poll!(pending.as_mut());
                tokio::task::yield_now().await;
            }
        }
        site.open();
        assert_eq!(
            send(&app, request("k").body(Body::from("10")).unwrap())
                .await
                .text,
            "1",
            "after {polls} polls"
        );
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn a_handler_that_panics_releases_the_key_and_the_panic_goes_on() {
    let site = Site::new();
    let app = site.app(|n| {
        if n == 1 {
            panic!("a bug")
        } else {
            "well".into_response()
        }
    });
    let panicked = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k").body(Body::empty()).unwrap()).await }
    });
    assert!(panicked.await.is_err_and(|error| error.is_panic()));
    assert_eq!(
        send(&app, request("k").body(Body::empty()).unwrap())
            .await
            .text,
        "well"
    );
}

#[tokio::test]
async fn a_hundred_duplicates_at_once_over_two_connections_run_one_body() {
    let server = idem_testkit::RedisServer::start().await.unwrap();
    let sites = [
        Site::over(Idempotency::new(patient_store(server.url()).await)),
        Site::over(Idempotency::new(patient_store(server.url()).await)),
    ];
    let apps = sites
        .each_ref()
        .map(|site| site.app(|n| Json(json!({ "charge": n })).into_response()));
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let app = apps[n % 2].clone();
            tokio::spawn(async move {
                send(&app, request("k").body(Body::from("10")).unwrap())
                    .await
                    .text
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), "{\"charge\":1}");
    }
    assert_eq!(
        sites
            .iter()
            .map(|site| site.runs.load(SeqCst))
            .sum::<usize>(),
        1
    );
}

#[tokio::test]
async fn the_layer_serves_hyper_and_tower_services_that_are_no_axum() {
    use http_body_util::{BodyExt as _, Full};
    use tower::{Layer as _, ServiceExt as _};
    let inner = tower::service_fn(|request: Request<idem_http::Body>| async move {
        let text = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, std::io::Error>(http::Response::new(Full::new(text)))
    });
    let service = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .unscoped()
        .layer(inner);
    for replayed in [false, true] {
        let request = request("k")
            .body(Full::new(bytes::Bytes::from("10")))
            .unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            replayed
        );
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "10"
        );
    }
}

#[tokio::test]
async fn headers_that_the_author_excludes_are_not_recorded() {
    let site = Site::new();
    let name = HeaderName::from_static("x-request-id");
    let app = site.router_of(layer(&site.idempotency).exclude_header(name), |_| {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "7".parse().unwrap());
        headers.insert("connection", "x-hop".parse().unwrap());
        headers.insert("x-hop", "1".parse().unwrap());
        headers.into_response()
    });
    send(&app, request("k").body(Body::empty()).unwrap()).await;
    let again = send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert!(!again.headers.contains_key("x-request-id") && !again.headers.contains_key("x-hop"));
}

#[test]
fn routes_and_scopes_are_needed_to_make_an_app() {
    let app: Router = Router::new()
        .route("/charges", post(|| async {}))
        .route("/health", get(|| async {}))
        .layer(
            IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
                .scope(|parts| header(parts, USER)),
        );
    drop(app);
}
