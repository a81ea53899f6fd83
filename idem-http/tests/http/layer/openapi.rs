//! The OpenAPI of the guide says what the layer and the lookup answer.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse as _;
use idem_core::{Abandoned, Begin, Idempotency, MemoryStore, StoreErrorKind};
use idem_http::{IdempotencyLayer, MAX_KEY_LEN, header};
use idem_testkit::{Fault, FaultStore, Step};
use serde_json::Value;

use crate::support::{Received, USER, send};

const LEASE: Duration = Duration::from_secs(1);

/// What the guide publishes.
fn published() -> Value {
    let guide = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../src/docs/http_api.md"
    ))
    .unwrap();
    let (_, rest) = guide
        .split_once("```yaml\n")
        .expect("the guide has a block of YAML");
    let (yaml, _) = rest.split_once("```").unwrap();
    serde_norway::from_str(yaml).unwrap()
}

/// The responses that received one really has, of those that are published.
struct Operation {
    published: Value,
    seen: BTreeSet<String>,
}

impl Operation {
    fn new(path: &str, method: &str) -> Self {
        let published = published()["paths"][path][method].clone();
        assert!(published.is_object(), "{method} {path} is not published");
        Self {
            published,
            seen: BTreeSet::new(),
        }
    }

    /// Looks whether a response is one of those.
    fn saw(&mut self, received: &Received) {
        let status = received.status.as_u16().to_string();
        let response = &self.published["responses"][&status];
        let description = response["description"]
            .as_str()
            .unwrap_or_else(|| panic!("{status} is not published"));
        let has_hint = received.headers.contains_key(RETRY_AFTER);
        assert_eq!(
            has_hint,
            description.contains("`Retry-After`"),
            "{status}: {description}"
        );
        let is_problem = received
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/problem+json");
        let content = &response["content"]["application/problem+json"];
        assert_eq!(is_problem, content.is_object(), "{status}: {response}");
        self.seen.insert(status);
    }

    /// That nothing else is published.
    fn assert_complete(self) {
        let responses = self.published["responses"].as_object().unwrap();
        assert_eq!(self.seen, responses.keys().cloned().collect());
    }
}

fn site(idempotency: &Idempotency) -> Router {
    let layer = IdempotencyLayer::new(idempotency.clone())
        .name("payments")
        .required(true)
        .max_body(64);
    let layer = layer
        .scope(|parts| header(parts, USER))
        .wait(Duration::from_millis(10));
    let lookup = idem_http::lookup(idempotency.clone())
        .name("payments")
        .route("POST", "/v1/charges");
    let charge = async || ([(CONTENT_TYPE, "application/json")], "{}").into_response();
    Router::new()
        .route("/v1/charges", axum::routing::post(charge))
        .layer(layer)
        .route_service(
            "/v1/charges/by-key/{key}",
            lookup.scope(|parts| header(parts, USER)),
        )
}

fn post(key: &str, body: &str) -> Request<Body> {
    let request = Request::post("/v1/charges")
        .header(USER, "alice")
        .header("idempotency-key", key);
    request.body(Body::from(body.to_owned())).unwrap()
}

fn ask(key: &str) -> Request<Body> {
    Request::get(format!("/v1/charges/by-key/{key}"))
        .header(USER, "alice")
        .body(Body::empty())
        .unwrap()
}

fn anonymous(request: Request<Body>) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    parts.headers.remove(USER);
    Request::from_parts(parts, body)
}

#[tokio::test(start_paused = true)]
async fn what_the_guide_publishes_is_what_the_layer_answers() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::builder(store)
        .abandoned(Abandoned::Reject)
        .build();
    let app = site(&idempotency);
    let mut charges = Operation::new("/v1/charges", "post");
    let mut lookups = Operation::new("/v1/charges/by-key/{key}", "get");
    let call = |key: &'static str| {
        idempotency
            .operation("payments.POST/v1/charges")
            .key(&("alice", key))
            .lease(LEASE)
    };

    let first = send(&app, post("k", "10")).await;
    let again = send(&app, post("k", "10")).await;
    let replayed =
        &charges.published["responses"]["200"]["headers"]["Idempotent-Replayed"]["schema"]["enum"];
    assert_eq!(
        replayed[0].as_str().unwrap(),
        again.headers["idempotent-replayed"].to_str().unwrap()
    );
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let Begin::Execute(running) = call("running").begin().await.unwrap() else {
        panic!("the key is free")
    };
    let missing = Request::post("/v1/charges")
        .header(USER, "alice")
        .body(Body::empty())
        .unwrap();
    for (request, code) in [
        (post("k", "11"), "fingerprint_mismatch"),
        (missing, "missing_key"),
        (post("a b", "10"), "invalid_key"),
        (post("running", "10"), "in_flight"),
        (post("long", &"x".repeat(65)), "body_too_large"),
        (anonymous(post("k", "10")), "no_scope"),
    ] {
        let refused = send(&app, request).await;
        assert_eq!(refused.code(), code);
        charges.saw(&refused);
    }
    for received in [&first, &again] {
        charges.saw(received);
    }

    lookups.saw(&send(&app, ask("k")).await);
    lookups.saw(&send(&app, ask("running")).await);
    lookups.saw(&send(&app, ask("unknown")).await);
    lookups.saw(&send(&app, ask("a%20b")).await);
    lookups.saw(&send(&app, anonymous(ask("k"))).await);
    drop(running);
    tokio::time::advance(LEASE * 2).await;
    lookups.saw(&send(&app, ask("running")).await);
    call("gone")
        .ttl(LEASE)
        .remember(LEASE * 100)
        .run(async || Ok::<_, idem_core::Error>(()))
        .await
        .unwrap();
    tokio::time::advance(LEASE * 2).await;
    lookups.saw(&send(&app, ask("gone")).await);
    for step in [Step::Claim, Step::Inspect] {
        faults.always(step, Fault::Fail(StoreErrorKind::Unavailable));
    }
    charges.saw(&send(&app, post("k", "10")).await);
    lookups.saw(&send(&app, ask("k")).await);
    charges.assert_complete();
    lookups.assert_complete();
}

#[tokio::test]
async fn the_published_schema_of_the_key_is_what_the_layer_takes() {
    let app = site(&Idempotency::new(MemoryStore::new()));
    let parameter = Operation::new("/v1/charges", "post").published["parameters"][0].clone();
    assert_eq!(
        (&parameter["in"], &parameter["required"]),
        (&Value::from("header"), &Value::from(true))
    );
    let name = parameter["name"].as_str().unwrap().to_lowercase();
    assert_eq!(name, "idempotency-key");
    let schema = &parameter["schema"];
    assert_eq!(
        (&schema["minLength"], &schema["maxLength"]),
        (&Value::from(1), &Value::from(MAX_KEY_LEN))
    );
    // Any visible characters but comma and semicolon. The first is no quotation mark: that begins a
    // quoted string.
    assert_eq!(schema["pattern"], "^[!#-+.-:<-~-][!-+.-:<-~-]*$");
    let is_taken = async |key: String| send(&app, post(&key, "10")).await.status == StatusCode::OK;
    for byte in (0x20..0x7f_u8).map(char::from) {
        assert_eq!(
            is_taken(byte.to_string()).await,
            !" \",;".contains(byte),
            "{byte:?}"
        );
        assert_eq!(
            is_taken(format!("a{byte}")).await,
            !" ,;".contains(byte),
            "{byte:?}"
        );
    }
    assert!(
        is_taken("x".repeat(MAX_KEY_LEN)).await && !is_taken("x".repeat(MAX_KEY_LEN + 1)).await
    );
}
