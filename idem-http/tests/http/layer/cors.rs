//! The layer behind the CORS of the guide.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_TYPE,
    LOCATION, ORIGIN, RETRY_AFTER,
};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use tower_http::cors::CorsLayer;

use crate::support::{Site, layer, request, send};

const SHOPS: [HeaderValue; 2] = [
    HeaderValue::from_static("https://shop.example"),
    HeaderValue::from_static("https://other.example"),
];

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(SHOPS)
        .allow_methods([Method::GET, Method::POST, Method::PATCH])
        .allow_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
        ])
        .expose_headers([
            LOCATION,
            RETRY_AFTER,
            HeaderName::from_static("idempotent-replayed"),
        ])
}

#[tokio::test]
async fn a_preflight_needs_no_key_and_each_response_is_readable_by_the_page_that_asked() {
    let site = Site::new();
    let app = site
        .router(layer(&site.idempotency).required(true))
        .layer(cors());
    let preflight = Request::options("/charges")
        .header(ORIGIN, &SHOPS[0])
        .header(ACCESS_CONTROL_REQUEST_METHOD, "POST");
    let preflight = preflight.header(
        ACCESS_CONTROL_REQUEST_HEADERS,
        "content-type,idempotency-key",
    );
    let allowed = send(&app, preflight.body(Body::empty()).unwrap()).await;
    assert_eq!(allowed.status, StatusCode::OK);
    let headers = allowed.headers[ACCESS_CONTROL_ALLOW_HEADERS]
        .to_str()
        .unwrap();
    assert!(
        headers.split(',').any(|name| name == "idempotency-key"),
        "{headers}"
    );

    let asked = |origin: &HeaderValue, key| {
        request(key)
            .header(ORIGIN, origin)
            .body(Body::empty())
            .unwrap()
    };
    for (origin, key, status) in [
        (&SHOPS[0], "k", 200),
        (&SHOPS[1], "k", 200),
        (&SHOPS[1], "not valid", 400),
    ] {
        let got = send(&app, asked(origin, key)).await;
        assert_eq!(
            (
                got.status.as_u16(),
                &got.headers[ACCESS_CONTROL_ALLOW_ORIGIN]
            ),
            (status, origin)
        );
        let exposed = got.headers[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap();
        for name in ["idempotent-replayed", "retry-after", "location"] {
            assert!(
                exposed.split(',').any(|exposed| exposed == name),
                "{exposed}"
            );
        }
        assert_eq!(
            got.headers.contains_key("idempotent-replayed"),
            *origin == SHOPS[1] && status == 200
        );
    }
}
