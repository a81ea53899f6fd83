//! A web service with an idempotent handler.
//!
//! ```text
//! cargo run --example orders --features axum
//!
//! # The first call charges; it takes a second. The second call, at once or a minute later, gets the same receipt.
//! curl -i localhost:3000/orders -H 'x-customer: 7' -H 'idempotency-key: k-1' -H 'content-type: application/json' -d '{"item":"tea","cents":499}'
//! curl -i localhost:3000/orders -H 'x-customer: 7' -H 'idempotency-key: k-1' -H 'content-type: application/json' -d '{"item":"tea","cents":499}'
//!
//! # The same key with another order: 422. No key: 400.
//! curl -i localhost:3000/orders -H 'x-customer: 7' -H 'idempotency-key: k-1' -H 'content-type: application/json' -d '{"item":"tea","cents":1}'
//! curl -i localhost:3000/orders -H 'x-customer: 7' -H 'content-type: application/json' -d '{"item":"tea","cents":499}'
//!
//! # Ten at once: one charge, ten equal receipts.
//! seq 10 | xargs -P10 -I{} curl -s localhost:3000/orders -H 'x-customer: 7' -H 'idempotency-key: k-2' -H 'content-type: application/json' \
//!     -d '{"item":"cake","cents":899}'
//!
//! # What was really charged.
//! curl localhost:3000/ledger
//! ```
//!
//! `--port 8080` listens elsewhere (0: any free port). `--redis redis://127.0.0.1/` keeps the
//! records in Redis, so that several of these processes share them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use idem::{Idempotency, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    item: String,
    cents: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Receipt {
    number: usize,
    item: String,
    cents: u64,
}

#[derive(Clone)]
struct App {
    idempotency: Idempotency,
    ledger: Arc<Mutex<Vec<Receipt>>>,
}

/// A usual axum handler, with one attribute above it. A dropped connection does not stop the charge
/// (`detached`), and the client gets its receipt when it retries.
#[idempotent(
    key = ("customer(&headers)", "idempotency_key(&headers)"), // two customers may send the same key
    fingerprint = "order",
    ttl = "24h",
    name = "orders.create",
    runtime = "app.idempotency",
    detached
)]
async fn create_order(
    State(app): State<App>,
    headers: HeaderMap,
    Json(order): Json<Order>,
) -> Result<Json<Receipt>, Refusal> {
    tokio::time::sleep(Duration::from_secs(1)).await; // The payment provider takes its time.
    let mut ledger = app.ledger.lock().unwrap_or_else(PoisonError::into_inner);
    let receipt = Receipt {
        number: ledger.len() + 1,
        item: order.item,
        cents: order.cents,
    };
    ledger.push(receipt.clone());
    Ok(Json(receipt))
}

async fn ledger(State(app): State<App>) -> Json<Vec<Receipt>> {
    Json(
        app.ledger
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone(),
    )
}

/// Returns the sender of the request. A real service takes this from its authentication, never from
/// a header that anyone can set.
fn customer(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-customer")?.to_str().ok()
}

/// The header of the IETF draft; `None` makes the key missing.
fn idempotency_key(headers: &HeaderMap) -> Option<&str> {
    headers.get("idempotency-key")?.to_str().ok()
}

/// Every error of the service, as HTTP says it.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self::Idempotency(error) = &self;
        let status =
            StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body =
            Json(serde_json::json!({ "code": error.code(), "message": error.client_message() }));
        let mut response = (status, body).into_response();
        if let Some(wait) = error.retry_after() {
            // Whole seconds, and rounded up.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut port = 3000;
    let mut redis = None;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--port", Some(value)) => {
                port = value
                    .parse()
                    .map_err(|error| format!("--port {value}: {error}"))?;
            }
            ("--redis", Some(url)) => redis = Some(url),
            _ => return Err("usage: orders [--port PORT] [--redis URL]".into()),
        }
    }
    let idempotency = idem::connect(redis.as_deref().unwrap_or("memory:")).await?;
    let app = App {
        idempotency,
        ledger: Arc::default(),
    };
    let router = Router::new()
        .route("/orders", post(create_order))
        .route("/ledger", get(ledger))
        .with_state(app);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!(
        "\nOrder twice with one key, and see one charge:\n  \
         curl -i {address}/orders -H 'x-customer: 7' -H 'idempotency-key: k-1' \
         -H 'content-type: application/json' -d '{{\"item\":\"tea\",\"cents\":499}}'\n  \
         curl {address}/ledger"
    );
    axum::serve(listener, router).await?;
    Ok(())
}
