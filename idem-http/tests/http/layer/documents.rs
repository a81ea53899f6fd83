//! OpenAPI documents by utoipa and by aide, in which a layer describes itself.

use std::time::Duration;

use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use axum::Router;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, Method, Request, StatusCode};
use idem_core::{Abandoned, Begin, Idempotency, MemoryStore, StoreErrorKind};
use idem_http::{
    Fingerprints, IdempotencyKey, IdempotencyLayer, MAX_KEY_LEN, Scoped, header, stripe,
};
use idem_testkit::{Fault, FaultStore, Step};
use serde_json::{Value, json};
use utoipa::OpenApi as _;

use crate::support::{USER, send};

const LEASE: Duration = Duration::from_secs(1);

#[utoipa::path(post, path = "/charges", responses(
    (status = 201, description = "The charge."),
    (status = 422, description = "The amount is invalid."),
    (status = 503, description = "The bank is closed."),
))]
async fn charge() -> String {
    "charged".to_owned()
}

#[utoipa::path(get, path = "/charges", responses((status = 200, description = "All charges.")))]
async fn list() -> String {
    "all".to_owned()
}

#[utoipa::path(post, path = "/refunds", params(IdempotencyKey))]
#[allow(dead_code, reason = "it is in the document alone")]
fn refund() {}

#[derive(utoipa::OpenApi)]
#[openapi(paths(charge, list))]
struct Charges;

#[derive(utoipa::OpenApi)]
#[openapi(paths(refund))]
struct Refunds;

/// The document of `/charges` by each of both, described by a layer as many times as it is given.
fn documents(layers: &[&IdempotencyLayer<Scoped>]) -> [(&'static str, Value); 2] {
    let mut by_utoipa = Charges::openapi();
    let mut by_aide = aide::openapi::OpenApi::default();
    let router: ApiRouter = ApiRouter::new().api_route(
        "/charges",
        post_with(charge, |operation| {
            operation
                .response_with::<201, String, _>(|response| response.description("The charge."))
                .response_with::<422, String, _>(|response| {
                    response.description("The amount is invalid.")
                })
                .response_with::<503, String, _>(|response| {
                    response.description("The bank is closed.")
                })
        })
        .get_with(list, |operation| {
            operation
                .response_with::<200, String, _>(|response| response.description("All charges."))
        }),
    );
    let _ = router
        .with_path_items(|mut path| {
            for layer in layers {
                layer.document(path.inner_mut());
            }
            path
        })
        .finish_api(&mut by_aide);
    for layer in layers {
        layer.document(&mut by_utoipa);
    }
    [
        ("utoipa", serde_json::to_value(by_utoipa).unwrap()),
        ("aide", serde_json::to_value(by_aide).unwrap()),
    ]
}

fn layer(idempotency: &Idempotency) -> IdempotencyLayer<Scoped> {
    IdempotencyLayer::new(idempotency.clone())
        .name("payments")
        .scope(|parts| header(parts, USER))
        .wait(Duration::from_millis(10))
        .max_body(64)
}

fn in_memory() -> IdempotencyLayer<Scoped> {
    layer(&Idempotency::new(MemoryStore::new()))
}

fn post(key: &str, body: &str) -> Request<Body> {
    let request = Request::post("/charges").header(USER, "alice");
    let request = request.header("idempotency-key", key);
    request.body(Body::from(body.to_owned())).unwrap()
}

#[test]
fn a_guarded_operation_has_the_header_the_marks_and_the_extension_and_no_other_has() {
    for required in [false, true] {
        for (of, document) in documents(&[&in_memory().required(required)]) {
            let guarded = &document["paths"]["/charges"]["post"];
            let parameters = guarded["parameters"].as_array().unwrap();
            let [key] = &parameters[..] else {
                panic!("{of}: {parameters:?}")
            };
            assert_eq!(key["name"], "Idempotency-Key", "{of}");
            assert_eq!(key["in"], "header", "{of}");
            assert_eq!(
                key["required"].as_bool().unwrap_or_default(),
                required,
                "{of}"
            );
            assert_eq!(key["schema"]["type"], "string", "{of}");
            assert_eq!(key["schema"]["minLength"], 1, "{of}");
            assert_eq!(key["schema"]["maxLength"], MAX_KEY_LEN, "{of}");
            assert_eq!(
                key["schema"]["pattern"], "^[!#-+.-:<-~-][!-+.-:<-~-]*$",
                "{of}"
            );
            assert_eq!(guarded["x-fern-idempotent"], true, "{of}");

            let responses = &guarded["responses"];
            let mark = |status: &str| responses[status]["headers"].get("Idempotent-Replayed");
            for recorded in ["201", "422"] {
                assert_eq!(
                    mark(recorded).unwrap()["schema"]["enum"],
                    json!(["true"]),
                    "{of}"
                );
            }
            // A 503 is not recorded, and the layer's own 409 is no response of the service.
            assert!(
                mark("503").is_none() && mark("409").is_none(),
                "{of}: {responses}"
            );
            assert_eq!(responses["201"]["description"], "The charge.", "{of}");
            let both = responses["422"]["description"].as_str().unwrap();
            assert!(both.starts_with("The amount is invalid."), "{of}: {both}");
            assert!(
                both.contains("used for a different request"),
                "{of}: {both}"
            );

            let list = &document["paths"]["/charges"]["get"];
            assert_eq!(
                list["responses"].as_object().unwrap().len(),
                1,
                "{of}: {list}"
            );
            assert!(list.get("parameters").is_none(), "{of}: {list}");
            assert!(list.get("x-fern-idempotent").is_none(), "{of}: {list}");
        }
    }
}

#[test]
fn a_document_follows_the_settings_of_the_layer() {
    let layer = in_memory()
        .header(HeaderName::from_static("x-request-key"))
        .methods([Method::GET])
        .mismatch(StatusCode::BAD_REQUEST)
        .mark_replays(false)
        .problem(stripe);
    for (of, document) in documents(&[&layer]) {
        let charge = &document["paths"]["/charges"]["post"];
        assert!(charge.get("x-fern-idempotent").is_none(), "{of}: {charge}");
        let list = &document["paths"]["/charges"]["get"];
        assert_eq!(list["parameters"][0]["name"], "x-request-key", "{of}");
        let responses = &list["responses"];
        assert!(
            responses["200"].get("headers").is_none(),
            "{of}: {responses}"
        );
        assert!(responses.get("422").is_none(), "{of}: {responses}");
        let mismatch = &responses["400"]["content"]["application/json"]["examples"];
        let error = &mismatch["fingerprint_mismatch"]["value"]["error"];
        assert_eq!(error["type"], "idempotency_error", "{of}: {responses}");
    }
    // A key that is elsewhere, and requests that are not compared.
    let layer = in_memory()
        .key_from(|_| None)
        .fingerprint(Fingerprints::nothing());
    for (of, document) in documents(&[&layer]) {
        let charge = &document["paths"]["/charges"]["post"];
        assert!(charge.get("parameters").is_none(), "{of}: {charge}");
        assert_eq!(charge["x-fern-idempotent"], true, "{of}");
        let responses = &charge["responses"];
        assert_eq!(
            responses["422"]["description"], "The amount is invalid.",
            "{of}"
        );
        assert!(responses.get("413").is_none(), "{of}: {responses}");
    }
}

#[test]
fn a_document_that_is_described_twice_is_the_same() {
    let layer = in_memory().required(true);
    assert_eq!(documents(&[&layer]), documents(&[&layer, &layer]));
    // What is there stays, but for a key that is needed.
    let mut refunds = Refunds::openapi();
    let by_extractor = serde_json::to_value(&refunds).unwrap();
    in_memory().document(&mut refunds);
    let refunds = serde_json::to_value(refunds).unwrap();
    let parameters = |document: &Value| document["paths"]["/refunds"]["post"]["parameters"].clone();
    assert_eq!(parameters(&by_extractor)[0]["required"], true);
    assert_eq!(parameters(&by_extractor), parameters(&refunds));
}

#[tokio::test(start_paused = true)]
async fn each_response_of_a_layer_is_in_its_document() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::builder(store)
        .abandoned(Abandoned::Reject)
        .build();
    let layer = layer(&idempotency).required(true);
    let documents = documents(&[&layer]);
    let app: Router = Router::new()
        .route("/charges", axum::routing::post(charge))
        .layer(layer);
    let call = |key: &'static str| {
        let operation = idempotency.operation("payments.POST/charges");
        operation.key(&("alice", key)).lease(LEASE)
    };

    send(&app, post("k", "10")).await;
    call("done")
        .ttl(LEASE)
        .remember(LEASE * 100)
        .run(async || Ok::<_, idem_core::Error>(()))
        .await
        .unwrap();
    let Begin::Execute(dead) = call("dead").begin().await.unwrap() else {
        panic!("the key is free")
    };
    drop(dead);
    tokio::time::advance(LEASE * 2).await;
    let Begin::Execute(_running) = call("running").begin().await.unwrap() else {
        panic!("the key is free")
    };
    let missing = Request::post("/charges").header(USER, "alice");
    let anonymous = Request::post("/charges").header("idempotency-key", "k");
    let mut refused = Vec::new();
    for request in [
        missing.body(Body::empty()).unwrap(),
        anonymous.body(Body::empty()).unwrap(),
        post("a b", "10"),
        post("k", "11"),
        post("running", "10"),
        post("done", "10"),
        post("dead", "10"),
        post("long", &"x".repeat(65)),
    ] {
        refused.push(send(&app, request).await);
    }
    faults.always(Step::Claim, Fault::Fail(StoreErrorKind::Unavailable));
    refused.push(send(&app, post("k", "10")).await);

    let codes: Vec<_> = refused.iter().map(crate::support::Received::code).collect();
    let expected = [
        "missing_key",
        "no_scope",
        "invalid_key",
        "fingerprint_mismatch",
        "in_flight",
        "already_done",
        "abandoned",
        "body_too_large",
        "store",
    ];
    assert_eq!(codes, expected);
    for (of, document) in &documents {
        let responses = &document["paths"]["/charges"]["post"]["responses"];
        for (refused, code) in refused.iter().zip(&codes) {
            let response = &responses[refused.status.as_str()];
            let examples = &response["content"]["application/problem+json"]["examples"];
            assert_eq!(examples[code]["value"], refused.json(), "{of}: {code}");
            let tells_when = response["headers"].get("Retry-After").is_some();
            assert!(
                tells_when || !refused.headers.contains_key(RETRY_AFTER),
                "{of}: {code}"
            );
        }
        let with_pause: Vec<_> = ["400", "401", "409", "413", "422", "503"]
            .into_iter()
            .filter(|status| responses[status]["headers"].get("Retry-After").is_some())
            .collect();
        assert_eq!(with_pause, ["409", "503"], "{of}");
    }
}
