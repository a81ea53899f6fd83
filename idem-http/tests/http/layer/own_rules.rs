//! Services that had rules of their own before the layer: other keys, other comparisons, other routes.

use std::convert::Infallible;
use std::sync::atomic::Ordering::SeqCst;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use idem_core::{Idempotency, MemoryStore};
use idem_http::{Fingerprints, KeyRules, Route};
use tower::{Layer as _, ServiceBuilder, service_fn};

use crate::support::{Received, Site, USER, layer, request, send};

fn is_replay(got: &Received) -> bool {
    got.headers.contains_key("idempotent-replayed")
}

fn with_body(path: &str, body: impl Into<Body>) -> Request<Body> {
    request("k").uri(path).body(body.into()).unwrap()
}

/// A body of unknown length that breaks off after these bytes.
fn broken(begin: &'static str) -> Body {
    let error = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Body::from_stream(tokio_stream::iter([
        Ok(Bytes::from_static(begin.as_bytes())),
        Err(error),
    ]))
}

#[tokio::test]
async fn replays_that_are_not_marked_are_equal_to_the_first_response() {
    for status in [StatusCode::CREATED, StatusCode::BAD_GATEWAY] {
        let site = Site::new();
        let layer = layer(&site.idempotency).keep(|_| true).mark_replays(false);
        let app = site.router_of(layer, move |n| (status, n.to_string()).into_response());
        let first = send(&app, with_body("/charges", "")).await;
        let again = send(&app, with_body("/charges", "")).await;
        assert_eq!(
            (again.status, &again.headers, &*again.text),
            (status, &first.headers, "1")
        );
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn an_unmarked_replay_still_has_its_extension_for_outer_layers() {
    let site = Site::new();
    let seen = axum::middleware::from_fn(async |request, next: axum::middleware::Next| {
        let mut response = next.run(request).await;
        let is_replay = response.extensions().get::<idem_http::Replayed>().is_some();
        let value = if is_replay { "yes" } else { "no" };
        response
            .headers_mut()
            .insert("x-replay", value.parse().unwrap());
        response
    });
    let app = site
        .router(layer(&site.idempotency).mark_replays(false))
        .layer(seen);
    for expected in ["no", "yes"] {
        let got = send(&app, with_body("/charges", "")).await;
        assert_eq!(got.headers["x-replay"], expected);
    }
}

#[tokio::test]
async fn a_duplicate_is_compared_as_the_service_says() {
    for (fingerprints, other_body, other_url) in [
        (Fingerprints::body_and_url(), 422, 422),
        (Fingerprints::url(), 200, 422),
        (Fingerprints::nothing(), 200, 200),
    ] {
        let site = Site::new();
        let app = site.router(layer(&site.idempotency).fingerprint(fingerprints));
        send(&app, with_body("/refunds/1", "a")).await;
        let equal = send(&app, with_body("/refunds/1", "a")).await;
        assert!(is_replay(&equal), "{fingerprints:?}");
        for (sent, status) in [
            (with_body("/refunds/1", "b"), other_body),
            (with_body("/refunds/1?c", "a"), other_url),
            (with_body("/refunds/2", "a"), other_url),
        ] {
            assert_eq!(
                send(&app, sent).await.status.as_u16(),
                status,
                "{fingerprints:?}"
            );
        }
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

/// An app that answers with the length of a body, or with 400 if it breaks off.
fn measuring(site: &Site, fingerprints: Fingerprints) -> Router {
    let runs = site.runs.clone();
    let measure = async move |body: Result<Bytes, axum::extract::rejection::BytesRejection>| {
        runs.fetch_add(1, SeqCst);
        body.map(|body| body.len().to_string())
    };
    let layer = layer(&site.idempotency)
        .max_body(8)
        .fingerprint(fingerprints);
    Router::new()
        .route("/uploads", post(measure))
        .route_layer(layer)
}

#[tokio::test]
async fn the_limit_counts_only_bodies_that_are_compared() {
    for fingerprints in [Fingerprints::url(), Fingerprints::nothing()] {
        let site = Site::new();
        let app = measuring(&site, fingerprints);
        let chunks = tokio_stream::iter(["12345", "67890", "1"].map(Ok::<_, Infallible>));
        for (body, replayed) in [
            (Body::from("12345678901"), false),
            (Body::from_stream(chunks), true),
        ] {
            let got = send(&app, with_body("/uploads", body)).await;
            assert_eq!(
                (got.status, &*got.text, is_replay(&got)),
                (StatusCode::OK, "11", replayed)
            );
        }
    }
    let site = Site::new();
    let app = measuring(&site, Fingerprints::body_and_url());
    let refused = send(&app, with_body("/uploads", "123456789")).await;
    assert_eq!(refused.code(), "body_too_large");
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn a_body_that_may_hold_the_key_is_limited_although_it_is_not_compared() {
    let site = Site::new();
    let by_field = layer(&site.idempotency)
        .body_field("key")
        .replay_on_mismatch()
        .max_body(16);
    let app = site.router(by_field);
    let refused = send(&app, with_body("/charges", r#"{"key": "0123456789"}"#)).await;
    assert_eq!(refused.code(), "body_too_large");
}

#[tokio::test]
async fn by_default_a_body_of_two_mebibytes_is_compared_and_a_larger_one_refused() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency));
    for (length, status) in [
        (2 << 20, StatusCode::OK),
        ((2 << 20) + 1, StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let got = send(&app, with_body("/charges", vec![b'x'; length])).await;
        assert_eq!(got.status, status);
    }
}

#[tokio::test]
async fn an_upload_that_breaks_off_in_the_service_runs_again_with_the_same_key() {
    let site = Site::new();
    let app = measuring(&site, Fingerprints::url());
    let cut = send(&app, with_body("/uploads", broken("1234567890"))).await;
    assert_eq!(cut.status, StatusCode::BAD_REQUEST);
    let whole = send(&app, with_body("/uploads", "12345678901")).await;
    assert_eq!((&*whole.text, is_replay(&whole)), ("11", false));
    assert_eq!(site.runs.load(SeqCst), 2);
    // A short one is read before the claim.
    let cut = send(&app, with_body("/uploads", broken("123"))).await;
    assert_eq!(cut.code(), "incomplete_body");
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn what_a_service_did_in_spite_of_a_broken_upload_is_recorded() {
    let site = Site::new();
    let lenient = service_fn(async |request: Request<idem_http::Body>| {
        let read = axum::body::to_bytes(Body::new(request.into_body()), usize::MAX).await;
        assert!(read.is_err());
        Ok::<_, Infallible>(axum::response::Response::new(Body::from("kept")))
    });
    let layer = layer(&site.idempotency)
        .max_body(8)
        .replay_on_mismatch()
        .layer(lenient);
    let app = Router::new().route_service("/uploads", layer);
    for replayed in [false, true] {
        let got = send(&app, with_body("/uploads", broken("1234567890"))).await;
        assert_eq!((&*got.text, is_replay(&got)), ("kept", replayed));
    }
}

/// A request whose key is in the header `x-order`, as UTF-8.
fn of_order(order: &str) -> Request<Body> {
    Request::post("/charges")
        .header(USER, "alice")
        .header("x-order", order.as_bytes())
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn keys_of_the_services_own_rules_are_taken_as_they_are() {
    let site = Site::new();
    let by_order = || {
        let order = HeaderName::from_static("x-order");
        layer(&site.idempotency).key_from(move |parts| {
            let value = parts.headers.get(&order)?;
            String::from_utf8(value.as_bytes().to_vec()).ok()
        })
    };
    let strict = site.router(by_order());
    let ruled = site.router(by_order().key_rules(KeyRules::any().max_length(300)));
    let long = "ü".repeat(300);
    for (run, key) in ["order 7, Zürich", "\"7\"", "7", &long].iter().enumerate() {
        let run = (run + 1).to_string();
        for replayed in [false, true] {
            let got = send(&ruled, of_order(key)).await;
            assert_eq!((&*got.text, is_replay(&got)), (&*run, replayed), "{key}");
        }
    }
    for key in ["order 7, Zürich", &long] {
        assert_eq!(send(&strict, of_order(key)).await.code(), "invalid_key");
    }
    for key in [&*"x".repeat(301), ""] {
        let refused = send(&ruled, of_order(key)).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (StatusCode::BAD_REQUEST, "invalid_key"),
        );
        assert!(!refused.text.contains("255"), "{}", refused.text);
    }
}

#[tokio::test]
async fn a_field_of_the_body_follows_the_same_rules_and_a_header_does_not() {
    let site = Site::new();
    let rules = KeyRules::any();
    let by_field = layer(&site.idempotency).body_field("key").key_rules(rules);
    let app = site.router(by_field);
    for replayed in [false, true] {
        let got = send(&app, with_body("/charges", r#"{"key": "order 7"}"#)).await;
        assert_eq!((&*got.text, is_replay(&got)), ("1", replayed));
    }
    let by_header = site.router(layer(&site.idempotency).key_rules(rules));
    let spaced = request("order 7").body(Body::empty()).unwrap();
    assert_eq!(send(&by_header, spaced).await.code(), "invalid_key");
}

#[tokio::test]
async fn a_lookup_with_the_same_rules_finds_such_a_key() {
    let site = Site::new();
    let rules = KeyRules::any();
    let guarded = layer(&site.idempotency)
        .key_from(|parts| idem_http::header(parts, HeaderName::from_static("x-order")))
        .key_rules(rules);
    let user = |parts: &axum::http::request::Parts| idem_http::header(parts, USER);
    let find = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges")
        .scope(user);
    let app = site
        .router(guarded)
        .route_service("/ruled/{key}", find.clone().key_rules(rules))
        .route_service("/strict/{key}", find);
    send(&app, of_order("order 7/8")).await;
    let asked = |path: &str| {
        let request = Request::get(path).header(USER, "alice");
        request.body(Body::empty()).unwrap()
    };
    let found = send(&app, asked("/ruled/order%207%2F8")).await;
    assert!(is_replay(&found) && found.text == "1", "{}", found.text);
    let refused = send(&app, asked("/strict/order%207%2F8")).await;
    assert_eq!(refused.code(), "invalid_key");
    let no_text = send(&app, asked("/ruled/%FF")).await;
    assert_eq!(no_text.code(), "invalid_key");
}

async fn record_exists(idempotency: &Idempotency, operation: &str) -> bool {
    let operation = idempotency.operation(operation.to_owned());
    let found = operation.key(&("alice", "k")).inspect().await;
    found.unwrap().is_some()
}

#[tokio::test]
async fn behind_nest_service_the_route_is_the_path_unless_the_layer_or_an_outer_one_names_it() {
    let service = service_fn(async |_: Request<idem_http::Body>| {
        Ok::<_, Infallible>(axum::response::Response::new(Body::empty()))
    });
    let named = Some("/v1/charges/{id}".to_owned());
    let by_layer = named.clone();
    for (route_from, outer, operation) in [
        (None, None, "tests.POST/v1/charges/7"),
        (None, Some("/a"), "tests.POST/a"),
        (by_layer, Some("/a"), "tests.POST/v1/charges/+7Bid+7D"),
    ] {
        let idempotency = Idempotency::new(MemoryStore::new());
        let guard = match route_from {
            Some(route) => layer(&idempotency).route_from(move |_| Some(route.clone())),
            None => layer(&idempotency).route_from(|_| None),
        };
        let set_outer = ServiceBuilder::new().map_request(move |mut request: Request<Body>| {
            if let Some(route) = outer {
                request.extensions_mut().insert(Route(route.to_owned()));
            }
            request
        });
        let app = Router::new().nest_service("/v1", set_outer.service(guard.layer(service)));
        let got = send(&app, with_body("/v1/charges/7", "")).await;
        assert_eq!(got.status, StatusCode::OK);
        assert!(record_exists(&idempotency, operation).await, "{operation}");
    }
}

#[tokio::test]
async fn a_route_that_the_application_names_goes_before_that_of_the_router() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).route_from(|_| Some("/money".to_owned())));
    assert_eq!(send(&app, with_body("/charges", "")).await.text, "1");
    assert!(record_exists(&site.idempotency, "tests.POST/money").await);
    // Two routes of the router are now one operation.
    let other = send(&app, with_body("/refunds/1", "")).await;
    assert_eq!(other.code(), "fingerprint_mismatch");
}

#[tokio::test]
async fn a_request_that_a_proxy_spells_in_another_way_is_the_same_and_runs_once() {
    let services = |site: &Site| {
        let counted = site.runs.clone();
        let without_routes = service_fn(move |_: Request<idem_http::Body>| {
            counted.fetch_add(1, SeqCst);
            std::future::ready(Ok::<_, Infallible>("ran".into_response()))
        });
        let layer = layer(&site.idempotency);
        let alone = layer.layer(without_routes);
        [site.router(layer), Router::new().fallback_service(alone)]
    };
    let sent = |path: &str, content_type: &str| {
        let request = request("k").uri(path).header(CONTENT_TYPE, content_type);
        request.body(Body::from("{}")).unwrap()
    };
    let json = "application/json";
    for (first, same) in [
        (
            ("/refunds/a~b", json),
            ("/refunds/a%7Eb", "application/json; charset=utf-8"),
        ),
        (
            ("/refunds/a%2fb", "Application/JSON"),
            ("/refunds/a%2Fb", "application/json;charset=\"UTF-8\""),
        ),
        (
            ("/charges?q=%c3%a4", "text/plain;charset=UTF-8"),
            ("/charges?q=%C3%A4", "Text/Plain; Charset=utf-8"),
        ),
        (
            ("/charges?q=%41", "a/b; x=1; y=\"2\""),
            ("/charges?q=A", "A/b;y=2;x=\"1\""),
        ),
    ] {
        let site = Site::new();
        for app in services(&site) {
            let before = site.runs.load(SeqCst);
            for (path, content_type) in [first, same, first] {
                let got = send(&app, sent(path, content_type)).await;
                assert_eq!(
                    got.status,
                    StatusCode::OK,
                    "{path} {content_type}: {}",
                    got.text
                );
            }
            assert!(site.runs.load(SeqCst) - before <= 1, "{same:?}");
        }
    }
    let site = Site::new();
    let [app, _] = services(&site);
    send(&app, sent("/charges?q=a", "text/plain")).await;
    for (path, content_type) in [
        ("/charges?q=b", "text/plain"),
        ("/charges?q=%2541", "text/plain"),
        ("/charges", "text/plain"),
        ("/charges?q=a", "text/plain; charset=utf-8"),
        ("/charges?q=a", "text/html"),
    ] {
        let got = send(&app, sent(path, content_type)).await;
        assert_eq!(got.code(), "fingerprint_mismatch", "{path} {content_type}");
    }
}
