//! A small site whose handler counts its runs and can be held up.
#![allow(unreachable_pub, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, Request, StatusCode, request};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use idem_core::{Idempotency, MemoryStore};
use idem_http::{IdempotencyLayer, Scoped, header};
use idem_redis::RedisStore;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tower::ServiceExt as _;

pub struct Site {
    pub idempotency: Idempotency,
    pub runs: Arc<AtomicUsize>,
    open: watch::Sender<bool>,
    entered: Arc<Notify>,
}

/// A response, read to its end.
pub struct Received {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
    pub text: String,
}

impl Received {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// The header that a gateway in front of the service puts the authenticated user into.
pub const USER: HeaderName = HeaderName::from_static("x-user");

/// A layer that takes the header [`USER`] for the owner.
pub fn layer(idempotency: &Idempotency) -> IdempotencyLayer<Scoped> {
    IdempotencyLayer::new(idempotency.clone())
        .name("tests")
        .scope(|parts| header(parts, USER))
}

/// A store whose steps may take long: a machine may be busy.
pub async fn patient_store(url: String) -> RedisStore {
    let limit = Duration::from_secs(15);
    let store = RedisStore::builder().url(url).time_limit(limit);
    store.connect_time_limit(limit).connect().await.unwrap()
}

/// A request of Alice.
pub fn request(key: &str) -> request::Builder {
    let alice = Request::post("/charges").header(USER, "alice");
    alice.header("idempotency-key", key)
}

pub async fn send(app: &Router, request: Request<Body>) -> Received {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Received {
        status: parts.status,
        headers: parts.headers,
        bytes,
        text,
    }
}

impl Site {
    pub fn new() -> Self {
        Self::over(Idempotency::new(MemoryStore::new()))
    }

    pub fn over(idempotency: Idempotency) -> Self {
        Self {
            idempotency,
            runs: Arc::default(),
            open: watch::Sender::new(true),
            entered: Arc::default(),
        }
    }

    /// From now on, the handler waits.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// A handler has begun.
    pub async fn entered(&self) {
        self.entered.notified().await;
    }

    pub fn app<F>(&self, answer: F) -> Router
    where
        F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
    {
        self.router_of(layer(&self.idempotency), answer)
    }

    pub fn router(&self, layer: IdempotencyLayer<Scoped>) -> Router {
        self.router_of(layer, |n| n.to_string().into_response())
    }

    /// A router whose routes all count, wait until the site is open, and answer with what the count
    /// gives.
    pub fn router_of<F>(&self, layer: IdempotencyLayer<Scoped>, answer: F) -> Router
    where
        F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
    {
        let runs = self.runs.clone();
        let open = self.open.subscribe();
        let entered = self.entered.clone();
        let handler = move || {
            let runs = runs.clone();
            let mut open = open.clone();
            let entered = entered.clone();
            let answer = answer.clone();
            async move {
                let count = runs.fetch_add(1, SeqCst) + 1;
                entered.notify_one();
                open.wait_for(|open| *open).await.unwrap();
                answer(count)
            }
        };
        Router::new()
            .route("/charges", any(handler.clone()))
            .route("/refunds/{id}", any(handler))
            .layer(layer)
    }
}
