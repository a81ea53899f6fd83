//! A receiver of webhooks from Stripe and GitHub: verify first, then record, answer soon.
//!
//! ```text
//! cargo run --example webhooks --features webhooks
//! ```
//!
//! It starts a receiver, delivers to it as the two senders do (a duplicate, a forgery, a handler
//! that fails once), and prints each answer and what was really done.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hmac::{Hmac, KeyInit as _, Mac as _};
use idem::{Idempotency, MemoryStore, idempotent};
use sha2::Sha256;

/// A signature that is older is not accepted: it may belong to a recorded request.
const TOLERANCE: u64 = 300;

// ----- verify ----------------------------------------------------------------------------------

/// `Stripe-Signature: t=<seconds>,v1=<hex>,..`, an HMAC of `<seconds>.<body>`.
fn is_from_stripe(secret: &[u8], headers: &HeaderMap, body: &[u8], now: u64) -> Option<bool> {
    let header = headers.get("stripe-signature")?.to_str().ok()?;
    let fields = || header.split(',').filter_map(|field| field.split_once('='));
    let (_, time) = fields().find(|(name, _)| *name == "t")?;
    let is_recent = now.abs_diff(time.parse().ok()?) <= TOLERANCE;
    let signed = [time.as_bytes(), b".", body].concat();
    let is_signed = fields()
        .filter(|(name, _)| *name == "v1")
        .any(|(_, signature)| is_signature(secret, &signed, signature));
    Some(is_recent && is_signed)
}

/// `X-Hub-Signature-256: sha256=<hex>`, an HMAC of the body.
fn is_from_github(secret: &[u8], headers: &HeaderMap, body: &[u8]) -> Option<bool> {
    let header = headers.get("x-hub-signature-256")?.to_str().ok()?;
    Some(is_signature(secret, body, header.strip_prefix("sha256=")?))
}

/// Compares in constant time.
fn is_signature(secret: &[u8], signed: &[u8], signature: &str) -> bool {
    let hex = |index: usize| u8::from_str_radix(signature.get(index..index + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..signature.len()).step_by(2).map(hex).collect();
    let Some(bytes) = bytes else { return false };
    mac(secret, signed).verify_slice(&bytes).is_ok()
}

fn mac(secret: &[u8], signed: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::new_from_slice(secret).unwrap_or_else(|_| unreachable!("any length is one"));
    mac.update(signed);
    mac
}

// ----- record ----------------------------------------------------------------------------------

/// The work of the receiver. A real one updates its orders.
type Done = Arc<Mutex<Vec<String>>>;

#[derive(Debug, thiserror::Error)]
enum WebhookError {
    #[error("{0}")]
    Failed(&'static str),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// One event, once. No fingerprint: senders may deliver an event again with other details.
///
/// `detached`: the body goes on if the sender closes the connection.
#[idempotent(name = "webhooks.receive", key = (source, event), ttl = "30d", detached)]
async fn receive(source: &'static str, event: String, done: Done) -> Result<(), WebhookError> {
    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
    let did = format!("{source}: {event}");
    // The first delivery of this one fails, so that its sender delivers again.
    if event == "evt_3" && !done.contains(&format!("{did} failed")) {
        done.push(format!("{did} failed"));
        return Err(WebhookError::Failed("the warehouse is closed"));
    }
    done.push(did);
    Ok(())
}

/// 2xx says "delivered". After anything else the sender tries again.
fn answer(received: Result<(), WebhookError>) -> StatusCode {
    match received {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(WebhookError::Failed(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        Err(WebhookError::Idempotency(error)) => {
            StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

#[derive(Clone)]
struct App {
    stripe_secret: &'static [u8],
    github_secret: &'static [u8],
    done: Done,
}

/// The id of an event is in its signed body.
async fn stripe(State(app): State<App>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if is_from_stripe(app.stripe_secret, &headers, &body, now()) != Some(true) {
        return StatusCode::BAD_REQUEST;
    }
    let event = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
    match event["id"].as_str() {
        Some(id) => answer(receive("stripe", id.to_owned(), app.done).await),
        None => StatusCode::BAD_REQUEST,
    }
}

/// The id of a delivery is in a header, which the signature does not cover.
async fn github(State(app): State<App>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if is_from_github(app.github_secret, &headers, &body) != Some(true) {
        return StatusCode::BAD_REQUEST;
    }
    let id = headers.get("x-github-delivery");
    match id.and_then(|id| id.to_str().ok()) {
        Some(id) => answer(receive("github", id.to_owned(), app.done).await),
        None => StatusCode::BAD_REQUEST,
    }
}

#[allow(clippy::disallowed_methods)] // A signature has the time of the wall.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

// ----- the senders -----------------------------------------------------------------------------

fn hex(mac: Hmac<Sha256>) -> String {
    format!("{:x}", Bytes::copy_from_slice(&mac.finalize().into_bytes()))
}

fn stripe_delivery(secret: &[u8], id: &str) -> String {
    let body = format!(r#"{{"id":"{id}","type":"charge.succeeded"}}"#);
    let time = now();
    let signature = hex(mac(secret, format!("{time}.{body}").as_bytes()));
    request(
        "/stripe",
        &format!("stripe-signature: t={time},v1={signature}\r\n"),
        &body,
    )
}

fn github_delivery(secret: &[u8], id: &str) -> String {
    let body = r#"{"action":"opened"}"#;
    let signature = hex(mac(secret, body.as_bytes()));
    let headers = format!("x-hub-signature-256: sha256={signature}\r\nx-github-delivery: {id}\r\n");
    request("/github", &headers, body)
}

fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// Sends a request, and returns the status.
fn deliver(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut connection = std::net::TcpStream::connect(address)?;
    connection.write_all(request.as_bytes())?;
    let mut response = String::new();
    connection.read_to_string(&mut response)?;
    Ok(response.split(' ').nth(1).unwrap_or_default().to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    idem::install(Idempotency::new(MemoryStore::new()))?;
    let app = App {
        stripe_secret: b"whsec_4242",
        github_secret: b"a secret of the repository",
        done: Done::default(),
    };
    let stripe_secret = app.stripe_secret;
    let github_secret = app.github_secret;
    let done = app.done.clone();
    let router = Router::new()
        .route("/stripe", post(stripe))
        .route("/github", post(github))
        .with_state(app);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });

    let again = stripe_delivery(stripe_secret, "evt_1");
    let deliveries = [
        ("Stripe delivers evt_1", again.clone()),
        ("Stripe had no answer, and delivers it again", again),
        (
            "somebody forges evt_2",
            stripe_delivery(b"a guess", "evt_2"),
        ),
        (
            "Stripe delivers evt_3, and the handler fails",
            stripe_delivery(stripe_secret, "evt_3"),
        ),
        (
            "Stripe delivers evt_3 again",
            stripe_delivery(stripe_secret, "evt_3"),
        ),
        ("GitHub delivers d-1", github_delivery(github_secret, "d-1")),
        (
            "a person presses Redeliver",
            github_delivery(github_secret, "d-1"),
        ),
    ];
    for (what, request) in deliveries {
        let status = tokio::task::spawn_blocking(move || deliver(address, &request)).await??;
        println!("  {status}  {what}");
    }
    println!("\n  what was done:");
    for did in done.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("  {did}");
    }
    Ok(())
}
