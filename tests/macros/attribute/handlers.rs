//! Annotated handlers in a real router: what they may return, and how replays are marked.

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, NoContent, Redirect, Response};
use axum::routing::post;
use axum::{Json, Router};
use tower::ServiceExt as _;

use super::*;

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (StatusCode::BAD_GATEWAY, self.to_string()).into_response()
    }
}

type Count = State<Arc<Runs>>;

macro_rules! handlers {
    ($($name:ident($runs:ident) -> $outcome:ty { $value:expr })*) => {
        $(
            #[idempotent(key = id)]
            async fn $name(State($runs): Count, Path(id): Path<u64>) -> Result<$outcome, Failure> {
                Ok($value)
            }
        )*

        /// Each handler by its name.
        fn router(runs: Arc<Runs>) -> Router {
            Router::new()
                $(.route(concat!("/", stringify!($name), "/{id}"), post($name)))*
                .route("/create", post(create))
                .with_state(runs)
        }

        const HANDLERS: &[&str] = &[$(stringify!($name)),*];
    };
}

fn headers(count: u32) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::LOCATION,
        HeaderValue::from_str(&format!("/orders/{count}")).unwrap(),
    );
    headers.append("x-count", count.into());
    headers.append("x-count", HeaderValue::from_bytes(b"latin \xe9").unwrap());
    headers
}

fn array(count: u32) -> [(HeaderName, HeaderValue); 2] {
    [
        (header::RETRY_AFTER, count.into()),
        (
            header::SERVER,
            HeaderValue::from_bytes(b"latin \xe9").unwrap(),
        ),
    ]
}

fn texts(count: u32) -> [(HeaderName, String); 1] {
    [(header::LOCATION, format!("/orders/{count}"))]
}

handlers! {
    json(runs) -> Json<Req> { Json(Req::new(runs.count().into())) }
    status(runs) -> StatusCode { StatusCode::from_u16(u16::try_from(200 + runs.count()).unwrap()).unwrap() }
    text(runs) -> String { runs.count().to_string() }
    unit(runs) -> () { { runs.count(); } }
    html(runs) -> Html<String> { Html(format!("<b>{}</b>", runs.count())) }
    to(runs) -> Redirect { Redirect::to(&format!("/orders/{}", runs.count())) }
    temporary(runs) -> Redirect { Redirect::temporary(&format!("/orders/{}", runs.count())) }
    permanent(runs) -> Redirect { Redirect::permanent(&format!("/orders/{}", runs.count())) }
    no_content(runs) -> NoContent { { runs.count(); NoContent } }
    bytes(runs) -> Bytes { Bytes::from(vec![0xff, u8::try_from(runs.count()).unwrap()]) }
    only_headers(runs) -> HeaderMap { headers(runs.count()) }
    status_and_json(runs) -> (StatusCode, Json<u32>) { (StatusCode::CREATED, Json(runs.count())) }
    status_and_text(runs) -> (StatusCode, String) { (StatusCode::ACCEPTED, runs.count().to_string()) }
    status_and_html(runs) -> (StatusCode, Html<String>) { (StatusCode::ACCEPTED, Html(runs.count().to_string())) }
    headers_and_json(runs) -> (HeaderMap, Json<u32>) { (headers(runs.count()), Json(7)) }
    all_three(runs) -> (StatusCode, HeaderMap, Json<u32>) { (StatusCode::CREATED, headers(runs.count()), Json(7)) }
    array_alone(runs) -> [(HeaderName, HeaderValue); 2] { array(runs.count()) }
    array_and_json(runs) -> ([(HeaderName, HeaderValue); 2], Json<u32>) { (array(runs.count()), Json(7)) }
    texts_and_text(runs) -> ([(HeaderName, String); 1], String) { (texts(runs.count()), "7".to_owned()) }
    status_array_json(runs) -> (StatusCode, [(HeaderName, HeaderValue); 2], Json<u32>) {
        (StatusCode::CREATED, array(runs.count()), Json(7))
    }
    status_texts_json(runs) -> (StatusCode, [(HeaderName, String); 1], Json<u32>) {
        (StatusCode::CREATED, texts(runs.count()), Json(7))
    }
}

#[idempotent(key = "req.order_id", fingerprint = "req", detached)]
async fn create(
    State(runs): Count,
    Json(req): Json<Req>,
) -> Result<(StatusCode, Json<Req>), Failure> {
    runs.count();
    Ok((StatusCode::CREATED, Json(req)))
}

/// A layer that marks replays.
async fn mark(request: Request, next: Next) -> Response {
    let (mut response, report) = idem::watch(next.run(request)).await;
    if report.is_replayed() {
        response
            .headers_mut()
            .insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    response
}

async fn send(router: &Router, path: &str, body: &str) -> (StatusCode, HeaderMap, Bytes) {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()));
    let response = router.clone().oneshot(request.unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    (
        parts.status,
        parts.headers,
        axum::body::to_bytes(body, usize::MAX).await.unwrap(),
    )
}

#[tokio::test]
async fn p2_what_handlers_return_is_replayed_equal_and_marked() {
    fresh(async {
        for name in HANDLERS {
            let runs = Arc::new(Runs::default());
            let router = router(runs.clone()).layer(from_fn(mark));
            let first = send(&router, &format!("/{name}/1"), "").await;
            assert!(
                !first.1.contains_key("idempotent-replayed"),
                "{name}: {first:?}"
            );
            assert!(
                first.0.is_success() || first.0.is_redirection(),
                "{name}: {first:?}"
            );
            let mut second = send(&router, &format!("/{name}/1"), "").await;
            assert_eq!(
                second.1.remove("idempotent-replayed"),
                Some(HeaderValue::from_static("true")),
                "{name}"
            );
            assert_eq!(first, second, "{name}");
            assert_eq!(runs.total(), 1, "{name}");
            let other = send(&router, &format!("/{name}/2"), "").await;
            assert!(
                !other.1.contains_key("idempotent-replayed") && runs.total() == 2,
                "{name}: {other:?}"
            );
        }
    })
    .await;
}

/// A deployment changed how many headers the handler returns.
#[tokio::test]
async fn an_array_of_headers_of_another_length_is_no_outcome_of_the_new_type() {
    type Two = ([(HeaderName, String); 2], Json<u32>);
    let idempotency = Idempotency::new(MemoryStore::new());
    let call = || idempotency.operation("headers").key(&1_u64);
    let before: Result<_, Failure> = call().run(|| async { Ok((texts(1), Json(7))) }).await;
    assert_eq!(before.unwrap().into_inner().0, texts(1));
    // A map takes any number.
    let map: Result<idem::Outcome<(HeaderMap, Json<u32>)>, Failure> =
        call().run(|| async { unreachable!() }).await;
    assert_eq!(
        map.unwrap().into_inner().0.get(header::LOCATION),
        Some(&HeaderValue::from_static("/orders/1"))
    );
    let two: Result<idem::Outcome<Two>, idem::Error> =
        call().run(|| async { unreachable!() }).await;
    assert!(matches!(two, Err(idem::Error::Codec { .. })), "{two:?}");
}

#[tokio::test]
async fn p7_a_handler_refuses_another_body_and_stores_what_is_inside_of_json() {
    let idempotency = Idempotency::new(MemoryStore::new());
    idem::scope(idempotency.clone(), async {
        let router = router(Arc::default()).layer(from_fn(mark));
        let body = |cents| {
            serde_json::to_string(&Req {
                cents,
                ..Req::new(1)
            })
            .unwrap()
        };
        let first = send(&router, "/create", &body(100)).await;
        assert_eq!(
            (first.0, &first.2[..]),
            (StatusCode::CREATED, body(100).as_bytes())
        );
        let other = send(&router, "/create", &body(200)).await;
        assert!(
            other.0 == StatusCode::BAD_GATEWAY && !other.1.contains_key("idempotent-replayed"),
            "{other:?}"
        );
        let again = send(&router, "/create", &body(100)).await;
        assert!(
            again.1.contains_key("idempotent-replayed") && again.2 == first.2,
            "{again:?}"
        );
    })
    .await;
    let begun = idempotency
        .operation("macros::attribute::handlers::create")
        .key(&1_u64)
        .begin()
        .await
        .unwrap();
    let idem::Begin::Replay(recorded) = begun else {
        panic!("nothing is recorded")
    };
    // As a record was written before statuses could be kept.
    let (status, req): (u16, Req) = recorded.decode().unwrap();
    assert_eq!((status, req), (201, Req::new(1)));
}
