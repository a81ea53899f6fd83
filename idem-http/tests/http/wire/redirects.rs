//! What another place says than the server that got the request: the target of a redirect, a time
//! limit, middleware inside.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::Router;
use axum::http::header::{AUTHORIZATION, LOCATION};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::get;
use idem_http::{IdempotencyClient, RequestKey, UnknownOutcome};
use idem_testkit::HeldPort;
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Error, Middleware, Next, Result};
use tower_http::timeout::TimeoutLayer;

use super::scripted::{Act, Script};
use super::serve;
use crate::support::{Site, layer};

fn builder(client: reqwest::ClientBuilder) -> ClientBuilder {
    let idempotent = IdempotencyClient::new("checkout").backoff(Duration::from_millis(1));
    ClientBuilder::new(client.build().unwrap()).with(idempotent)
}

fn reqwest() -> reqwest::ClientBuilder {
    super::reqwest_builder().no_proxy()
}

fn is_unknown(sent: &Result<Response>) -> bool {
    sent.as_ref()
        .is_err_and(|error| UnknownOutcome::find(error).is_some())
}

/// Sends a request that the server answers with a redirect.
async fn redirected_to(target: &str) -> Result<Response> {
    let site = Site::new();
    let location = target.to_owned();
    let app =
        site.app(move |_| (StatusCode::SEE_OTHER, [(LOCATION, location.clone())]).into_response());
    let url = format!("http://{}/charges#fragment", serve(app).await);
    let sent = builder(reqwest())
        .build()
        .post(url)
        .header("x-user", "alice")
        .header(AUTHORIZATION, "alice")
        .send()
        .await;
    assert!(site.runs.load(SeqCst) > 0, "the request was carried out");
    sent
}

#[tokio::test]
async fn what_the_target_of_a_redirect_refuses_was_carried_out_before() {
    let receipts = get(|headers: HeaderMap| async move {
        // reqwest takes credentials to no other origin.
        if headers.contains_key(AUTHORIZATION) {
            StatusCode::OK
        } else {
            StatusCode::UNAUTHORIZED
        }
    });
    let receipts = serve(Router::new().route("/receipts/1", receipts)).await;
    let sent = redirected_to(&format!("http://{receipts}/receipts/1")).await;
    assert!(is_unknown(&sent), "{sent:?}");
    // Not a URL that reqwest could send to.
    let sent = redirected_to("shop://done").await;
    assert!(is_unknown(&sent), "{sent:?}");
}

#[tokio::test]
async fn a_refusal_of_a_url_with_a_fragment_is_one_of_the_server_itself() {
    let address = serve(Router::new()).await;
    let sent = builder(reqwest())
        .build()
        .post(format!("http://{address}/charges#fragment"))
        .send()
        .await;
    assert_eq!(sent.unwrap().status(), StatusCode::NOT_FOUND);
    let refusing = axum::routing::post(async || StatusCode::UNAUTHORIZED);
    let address = serve(Router::new().route("/charges", refusing)).await;
    let sent = builder(reqwest())
        .build()
        .post(format!("http://{address}/charges#fragment"))
        .send()
        .await;
    assert_eq!(sent.unwrap().status(), StatusCode::UNAUTHORIZED);
}

/// The order of the guide: the service runs to its end.
#[tokio::test]
async fn a_408_of_a_time_limit_around_the_layer_is_unknown() {
    let site = Site::new();
    site.close();
    let limit =
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(200));
    let url = format!(
        "http://{}/charges",
        serve(site.router(layer(&site.idempotency)).layer(limit)).await
    );
    let client = builder(reqwest()).build();
    let charge = || {
        client
            .post(&url)
            .header("x-user", "alice")
            .with_extension(RequestKey::new("order-7"))
            .send()
    };
    let sent = charge().await;
    site.open();
    site.idempotency
        .shutdown(Duration::from_secs(60))
        .await
        .unwrap();
    let again = charge().await.unwrap();
    assert_eq!(
        (again.status(), site.runs.load(SeqCst)),
        (StatusCode::OK, 1)
    );
    assert_eq!(
        again.headers()["idempotent-replayed"],
        "true",
        "the first request was carried out"
    );
    assert!(is_unknown(&sent), "{sent:?}");
}

/// Puts each error into one of its own, as middleware does that retries.
struct Wrapping;

#[derive(Debug)]
struct Wrapped(Error);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed after 2 tries")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[async_trait::async_trait]
impl Middleware for Wrapping {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        next.run(request, extensions)
            .await
            .map_err(|error| Error::middleware(Wrapped(error)))
    }
}

fn wrapping() -> ClientWithMiddleware {
    // Long enough for a busy machine to send a request.
    builder(reqwest().timeout(Duration::from_secs(5)))
        .with(Wrapping)
        .build()
}

#[tokio::test]
async fn middleware_that_retries_inside_hides_no_lost_reply() {
    let script = Script::new([Act::Hang]);
    let sent = wrapping()
        .post(format!("http://{}/charges", script.serve().await))
        .send()
        .await;
    assert!(is_unknown(&sent) && script.got().len() == 1, "{sent:?}");
    // Nor does it make a refused connection one.
    let nobody = HeldPort::hold().unwrap();
    let sent = wrapping()
        .post(format!("http://127.0.0.1:{}/charges", nobody.port()))
        .send()
        .await;
    assert!(sent.is_err() && !is_unknown(&sent), "{sent:?}");
}
