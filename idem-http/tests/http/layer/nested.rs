//! Layers in layers, and in each place where a router takes one.

use std::sync::atomic::Ordering::SeqCst;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use idem_core::{Idempotency, MemoryStore};

use crate::support::{Received, Site, USER, layer, request, send};

fn is_replay(received: &Received) -> bool {
    received.headers.contains_key("idempotent-replayed")
}

fn charge(key: &str) -> Request<Body> {
    request(key).body(Body::from("10")).unwrap()
}

fn charge_of(user: &str, path: &str) -> Request<Body> {
    let request = Request::post(path)
        .header(USER, user)
        .header("idempotency-key", "k");
    request.body(Body::from("10")).unwrap()
}

#[tokio::test]
async fn the_same_layer_twice_fails_at_its_first_request_and_leaves_the_key_free() {
    let site = Site::new();
    let once = site.router(layer(&site.idempotency));
    let twice = once.clone().layer(layer(&site.idempotency));
    for _ in 0..2 {
        let refused = send(&twice, charge("k")).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (StatusCode::INTERNAL_SERVER_ERROR, "reentrant")
        );
    }
    assert_eq!(site.runs.load(SeqCst), 0);
    // Requests that are not guarded pass both.
    assert_eq!(
        send(
            &twice,
            Request::get("/charges").body(Body::empty()).unwrap()
        )
        .await
        .text,
        "1"
    );
    assert_eq!(send(&once, charge("k")).await.text, "2");
}

#[tokio::test]
async fn two_layers_with_two_names_run_the_service_once_even_if_the_outer_record_is_gone() {
    let site = Site::new();
    let inner = site.router(layer(&site.idempotency).name("inner"));
    let app = inner.layer(layer(&site.idempotency).name("outer"));
    for replayed in [false, true] {
        let got = send(&app, charge("k")).await;
        assert_eq!((&*got.text, is_replay(&got)), ("1", replayed));
    }
    site.idempotency
        .operation("outer.POST/charges")
        .key(&("alice", "k"))
        .forget()
        .await
        .unwrap();
    let again = send(&app, charge("k")).await;
    assert!(again.text == "1" && is_replay(&again), "{}", again.text);
    // Two owners share neither record.
    assert_eq!(send(&app, charge_of("bob", "/charges")).await.text, "2");
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn two_layers_of_two_owners_each_keep_their_own_rule() {
    let site = Site::new();
    let tenant = axum::http::HeaderName::from_static("x-tenant");
    let by_tenant = idem_http::IdempotencyLayer::new(site.idempotency.clone())
        .name("tests")
        .scope(move |parts| idem_http::header(parts, tenant.clone()));
    let app = site.router(layer(&site.idempotency)).layer(by_tenant);
    let sent = |tenant: &str, user: &str| {
        let mut request = charge_of(user, "/charges");
        request
            .headers_mut()
            .insert("x-tenant", tenant.parse().unwrap());
        request
    };
    assert_eq!(send(&app, sent("a", "alice")).await.text, "1");
    // The outer one is asked first; the inner one has the rest.
    assert!(is_replay(&send(&app, sent("a", "bob")).await));
    let inner = send(&app, sent("b", "alice")).await;
    assert!(is_replay(&inner) && inner.text == "1", "{}", inner.text);
    assert_eq!(
        send(&app, sent("b", "")).await.status,
        StatusCode::OK,
        "the outer record of b"
    );
    assert_eq!(
        send(&app, sent("c", "")).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(
        send(&app, charge_of("alice", "/charges")).await.status,
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_layer_in_a_nested_router_knows_the_whole_route() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let charges = || Router::new().route("/charges/{id}", post(async || "charged"));
    let app = Router::new()
        .nest("/v1", charges().layer(layer(&idempotency)))
        .nest("/v2", charges().route_layer(layer(&idempotency)))
        .nest_service("/v3", charges().layer(layer(&idempotency)));
    for version in ["v1", "v2", "v3"] {
        for replayed in [false, true] {
            let got = send(&app, charge_of("alice", &format!("/{version}/charges/7"))).await;
            assert_eq!(
                (&*got.text, is_replay(&got)),
                ("charged", replayed),
                "{version}"
            );
        }
        let operation = format!("tests.POST/{version}/charges/+7Bid+7D");
        let record = idempotency
            .operation(operation)
            .key(&("alice", "k"))
            .inspect()
            .await
            .unwrap();
        assert!(record.is_some(), "{version}");
        assert_eq!(
            send(&app, charge_of("alice", &format!("/{version}/charges/8")))
                .await
                .code(),
            "fingerprint_mismatch"
        );
    }
}

#[tokio::test]
async fn a_fallback_behind_a_layer_is_guarded_path_by_path_and_behind_a_route_layer_it_is_not() {
    let site = Site::new();
    let runs = site.runs.clone();
    let fallback = move || {
        let runs = runs.clone();
        async move { (runs.fetch_add(1, SeqCst) + 1).to_string() }
    };
    let guarded = Router::new()
        .fallback(fallback.clone())
        .layer(layer(&site.idempotency));
    for (path, expected, replayed) in [("/a", "1", false), ("/a", "1", true), ("/b", "2", false)] {
        let got = send(&guarded, charge_of("alice", path)).await;
        assert_eq!(
            (&*got.text, is_replay(&got)),
            (expected, replayed),
            "{path}"
        );
    }
    let routes = Router::new()
        .route("/charges", post(async || "charged"))
        .route_layer(layer(&site.idempotency));
    let open = routes.fallback(fallback);
    for expected in ["3", "4"] {
        let got = send(&open, charge_of("alice", "/a")).await;
        assert!(got.text == expected && !is_replay(&got), "{}", got.text);
    }
    // Another method of a guarded route is no request of that route.
    let other = Request::patch("/charges")
        .header(USER, "alice")
        .header("idempotency-key", "k");
    let other = send(&open, other.body(Body::empty()).unwrap()).await;
    assert!(other.status == StatusCode::METHOD_NOT_ALLOWED && !is_replay(&other));
}

#[tokio::test]
async fn a_disabled_runtime_guards_nothing_and_refuses_nothing_but_what_is_malformed() {
    let site = Site::over(Idempotency::disabled());
    let app = site.router(layer(&site.idempotency).required(true));
    for expected in ["1", "2"] {
        let got = send(&app, charge("k")).await;
        assert!(got.text == expected && !is_replay(&got), "{}", got.text);
    }
    assert_eq!(send(&app, charge("not valid")).await.code(), "invalid_key");
}
