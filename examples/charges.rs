//! A payment API in the shape of Stripe's, guarded by the Idempotency-Key header.
//!
//! ```text
//! cargo run --example charges --features http
//!
//! # The first request charges. The second one gets the same charge, with `idempotent-replayed: true`.
//! curl -i localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-1' -d amount=1999 -d currency=usd -d source=tok_visa
//! curl -i localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-1' -d amount=1999 -d currency=usd -d source=tok_visa
//!
//! # The same key with another amount: 400, an idempotency_error. No key: 400. No authorization: 401.
//! curl -i localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-1' -d amount=5 -d currency=usd -d source=tok_visa
//! curl -i localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -d amount=5 -d currency=usd -d source=tok_visa
//! curl -i localhost:3000/v1/charges -H 'idempotency-key: k-1' -d amount=5 -d currency=usd -d source=tok_visa
//!
//! # A declined card is an answer: 402, and the same again.
//! curl -i localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-2' -d amount=7 -d currency=usd -d source=tok_chargeDeclined
//!
//! # Ten at once: one charge, ten equal responses.
//! seq 10 | xargs -P10 -I{} curl -s localhost:3000/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-3' \
//!     -d amount=899 -d currency=usd -d source=tok_visa
//!
//! # What became of a request whose response was lost; and what was really charged.
//! curl -i localhost:3000/v1/charges/by-key/k-1 -H 'authorization: Bearer sk_alice'
//! curl localhost:3000/v1/charges -H 'authorization: Bearer sk_alice'
//! ```
//!
//! `--port 8080` listens elsewhere (0: any free port, which the first line of the output names).
//! `--wait 0` holds no duplicate: it gets 409 and `Retry-After` while the first request runs. The
//! number is in milliseconds, and 1200 by default.
//! The clients of Stripe work against it: set their base URL to this server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequest as _, Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode, request};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Form, Json, Router};
use idem::http::IdempotencyLayer;
use idem::{Idempotency, MemoryStore};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The request of a client, as a form or as JSON.
#[derive(Deserialize)]
struct NewCharge {
    amount: u64,
    currency: String,
    source: Option<String>,
    description: Option<String>,
}

#[derive(Clone, Serialize)]
struct Charge {
    id: String,
    object: &'static str,
    amount: u64,
    currency: String,
    description: Option<String>,
    paid: bool,
    status: &'static str,
    #[serde(skip)]
    owner: String,
}

/// All charges that were made.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<Charge>>>);

impl Ledger {
    fn of(&self, account: &Account) -> Vec<Charge> {
        let ledger = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ledger
            .iter()
            .filter(|charge| charge.owner == account.0)
            .cloned()
            .collect()
    }
}

/// The account that sends a request.
#[derive(Clone)]
struct Account(String);

/// The secrets of all accounts. A real service looks a secret up; this one opens an account for
/// each.
#[derive(Clone, Default)]
struct Accounts(Arc<Mutex<Vec<HeaderValue>>>);

impl Accounts {
    fn of(&self, secret: &HeaderValue) -> Account {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = secrets
            .iter()
            .position(|known| known == secret)
            .unwrap_or_else(|| {
                secrets.push(secret.clone());
                secrets.len() - 1
            });
        Account(format!("acct_{}", number + 1))
    }
}

/// Puts the account into the request. The credentials end here: nothing behind it needs them.
async fn authenticate(
    State(accounts): State<Accounts>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(secret) = request.headers_mut().remove(AUTHORIZATION) else {
        let message = "Send your secret key as `Authorization: Bearer sk_..`.";
        let refused = error(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "no_scope",
            message,
        );
        return ([(WWW_AUTHENTICATE, "Bearer")], refused).into_response();
    };
    request.extensions_mut().insert(accounts.of(&secret));
    next.run(request).await
}

/// Whose key it is.
fn owner(parts: &request::Parts) -> Option<String> {
    parts
        .extensions
        .get::<Account>()
        .map(|account| account.0.clone())
}

async fn create(
    State(ledger): State<Ledger>,
    Extension(account): Extension<Account>,
    request: Request,
) -> Response {
    let content_type = request.headers().get(CONTENT_TYPE);
    let is_json =
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    let new: Result<NewCharge, String> = if is_json {
        Json::from_request(request, &())
            .await
            .map(|Json(new)| new)
            .map_err(|error| error.body_text())
    } else {
        Form::from_request(request, &())
            .await
            .map(|Form(new)| new)
            .map_err(|error| error.body_text())
    };
    let new = match new {
        Ok(new) => new,
        Err(message) => {
            return error(
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                "parameter_invalid",
                &message,
            );
        }
    };
    tokio::time::sleep(Duration::from_millis(200)).await; // The bank takes its time.
    if new.source.as_deref() == Some("tok_chargeDeclined") {
        return error(
            StatusCode::PAYMENT_REQUIRED,
            "card_error",
            "card_declined",
            "Your card was declined.",
        );
    }
    let mut ledger = ledger.0.lock().unwrap_or_else(PoisonError::into_inner);
    let charge = Charge {
        id: format!("ch_{}", ledger.len() + 1),
        object: "charge",
        amount: new.amount,
        currency: new.currency,
        description: new.description,
        paid: true,
        status: "succeeded",
        owner: account.0,
    };
    ledger.push(charge.clone());
    Json(charge).into_response()
}

async fn retrieve(
    State(ledger): State<Ledger>,
    Extension(account): Extension<Account>,
    Path(id): Path<String>,
) -> Response {
    match ledger
        .of(&account)
        .into_iter()
        .find(|charge| charge.id == id)
    {
        Some(charge) => Json(charge).into_response(),
        None => error(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            "resource_missing",
            "No such charge.",
        ),
    }
}

async fn list(State(ledger): State<Ledger>, Extension(account): Extension<Account>) -> Response {
    Json(json!({
        "object": "list",
        "url": "/v1/charges",
        "has_more": false,
        "data": ledger.of(&account),
    }))
    .into_response()
}

/// An error in Stripe's shape.
fn error(status: StatusCode, kind: &str, code: &str, message: &str) -> Response {
    (
        status,
        Json(json!({ "error": { "type": kind, "code": code, "message": message } })),
    )
        .into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut port = 3000;
    let mut wait = 1200;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--port", Some(value)) => {
                port = value
                    .parse()
                    .map_err(|error| format!("--port {value}: {error}"))?;
            }
            ("--wait", Some(value)) => {
                wait = value
                    .parse()
                    .map_err(|error| format!("--wait {value}: {error}"))?;
            }
            _ => return Err("usage: charges [--port PORT] [--wait MILLISECONDS]".into()),
        }
    }
    let idempotency = Idempotency::new(MemoryStore::new());
    let layer = IdempotencyLayer::new(idempotency.clone())
        .name("payments")
        .scope(owner)
        .required(true)
        .wait(Duration::from_millis(wait))
        .mismatch(StatusCode::BAD_REQUEST)
        .problem(idem::http::stripe);
    let lookup = idem::http::lookup(idempotency)
        .name("payments")
        .route("POST", "/v1/charges")
        .scope(owner)
        .problem(idem::http::stripe);
    let app = Router::new()
        .route("/v1/charges", post(create).get(list))
        .route("/v1/charges/{id}", get(retrieve))
        .with_state(Ledger::default())
        .route_layer(layer)
        .route_service("/v1/charges/by-key/{key}", lookup)
        .route_layer(from_fn_with_state(Accounts::default(), authenticate)); // outside: added last
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!(
        "\nCharge twice with one key, and see one charge:\n  \
         curl -i {address}/v1/charges -H 'authorization: Bearer sk_alice' -H 'idempotency-key: k-1' \
         -d amount=1999 -d currency=usd -d source=tok_visa\n  \
         curl {address}/v1/charges -H 'authorization: Bearer sk_alice'"
    );
    axum::serve(listener, app).await?;
    Ok(())
}
