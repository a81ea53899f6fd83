//! Rows of the tables that need a certain key, owner, body or record.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::IntoResponse;
use idem_core::{Abandoned, Error, Idempotency, MemoryStore};
use idem_http::{IdempotencyKey, header};
use tower::ServiceExt as _;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

use crate::support::{Received, Site, USER, layer, request, send};

/// A form, compressed in two ways.
const GZIP: [&[u8]; 2] = [
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03\x4b\xcc\xcd\x2f\xcd\x2b\xb1\x35\xb4\xb4\xb4\x54\x4b\x2e\x2d\x2a\x4a\xcd\x4b\xae\xb4\x2d\x2d\x4e\x51\x4b\x44\x48\x00\x00\x54\x61\xc3\x48\x24\x00\x00\x00",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x4b\xcc\xcd\x2f\xcd\x2b\xb1\x35\xb4\xb4\xb4\x54\x4b\x2e\x2d\x2a\x4a\xcd\x4b\xae\xb4\x2d\x2d\x4e\x51\x4b\x44\x48\x00\x00\x54\x61\xc3\x48\x24\x00\x00\x00",
];

/// What was logged.
#[derive(Clone, Default)]
pub(super) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Logs {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// While a process has one subscriber, the first thread at an event decides for all threads whether
/// anybody wants it: often one without a subscriber. With a second one, all are asked.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// Logs until the guard is dropped, without the time, whose digits can be any.
pub(super) fn logged(most: tracing::Level) -> (Logs, tracing::subscriber::DefaultGuard) {
    let logs = Logs::default();
    let writer = logs.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(most)
        .with_ansi(false)
        .without_time();
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    LazyLock::force(&SECOND);
    (logs, tracing::subscriber::set_default(subscriber))
}

fn empty(key: &str) -> Request<Body> {
    request(key).body(Body::empty()).unwrap()
}

fn is_replay(received: &Received) -> bool {
    received.headers.contains_key("idempotent-replayed")
}

#[tokio::test]
async fn a_key_is_1_to_255_visible_characters() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency));
    let keyed = |key: &[u8]| {
        let key = HeaderValue::from_bytes(key).unwrap();
        let request = Request::post("/charges")
            .header(USER, "alice")
            .header("idempotency-key", key);
        request.body(Body::empty()).unwrap()
    };
    let needs_quotes = |byte: &u8| matches!(byte, b',' | b';');
    let raw = (b'!'..=b'~')
        .filter(|byte| !needs_quotes(byte))
        .map(|byte| vec![b'a', byte]);
    let quoted = [&b"\"a,\""[..], b"\"a;\""].map(<[u8]>::to_vec);
    for visible in raw.chain(quoted).chain([vec![b'x'; 255], b"~".to_vec()]) {
        assert_eq!(
            send(&app, keyed(&visible)).await.status,
            StatusCode::OK,
            "{}",
            visible.escape_ascii()
        );
    }
    let runs = site.runs.load(SeqCst);
    let long = vec![b'x'; 256];
    let invalid: [&[u8]; 9] = [
        b"",
        b"\t",
        b"a\tb",
        b"a b",
        b"a\xff",
        "ä".as_bytes(),
        b"\"a",
        b"\"a\"b",
        &long,
    ];
    // Two lines that a proxy has joined, and parameters of a raw key.
    let separated: [&[u8]; 7] = [
        b"a,b",
        b"a,",
        b",a",
        b"k;v=1",
        b"\"a\",\"b\"",
        b"\"a\", \"b\"",
        b"\"k\";",
    ];
    for key in invalid.into_iter().chain(separated) {
        let refused = send(&app, keyed(key)).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (StatusCode::BAD_REQUEST, "invalid_key"),
            "{}",
            key.escape_ascii()
        );
    }
    assert_eq!(site.runs.load(SeqCst), runs);
}

#[tokio::test]
async fn the_key_can_come_from_any_part_of_the_request_and_is_checked_there_too() {
    let site = Site::new();
    let app = site.router(
        layer(&site.idempotency)
            .key_from(|parts| parts.uri.query().map(str::to_owned))
            .required(true),
    );
    let asked = |uri: &str| {
        Request::post(uri)
            .header(USER, "alice")
            .body(Body::empty())
            .unwrap()
    };
    for replayed in [false, true] {
        assert_eq!(is_replay(&send(&app, asked("/charges?k")).await), replayed);
    }
    assert_eq!(send(&app, asked("/charges")).await.code(), "missing_key");
    assert_eq!(send(&app, asked("/charges?")).await.code(), "invalid_key");
    assert_eq!(
        send(&app, asked(&format!("/charges?{}", "x".repeat(256))))
            .await
            .code(),
        "invalid_key"
    );
    // The header is another header now.
    assert_eq!(send(&app, empty("k")).await.code(), "missing_key");
}

#[tokio::test]
async fn an_owner_that_is_empty_is_none() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency));
    let nobody = Request::post("/charges")
        .header(USER, "")
        .header("idempotency-key", "k");
    let refused = send(&app, nobody.body(Body::empty()).unwrap()).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::UNAUTHORIZED, "no_scope")
    );
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn a_scope_that_panics_shares_no_key() {
    let site = Site::new();
    let scoped = idem_http::IdempotencyLayer::new(site.idempotency.clone()).scope(|parts| {
        header(parts, USER).map(|owner| {
            if owner == "bug" {
                panic!("a bug")
            } else {
                owner
            }
        })
    });
    let app = site.router(scoped);
    let as_user = |user: &str| {
        let request = Request::post("/charges")
            .header("idempotency-key", "k")
            .header(USER, user);
        request.body(Body::empty()).unwrap()
    };
    let panicked = tokio::spawn({
        let app = app.clone();
        let request = as_user("bug");
        async move { send(&app, request).await }
    });
    assert!(panicked.await.is_err_and(|error| error.is_panic()));
    assert_eq!(send(&app, as_user("alice")).await.text, "1");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_expired_is_409_and_its_lookup_410() {
    let site = Site::new();
    let times = layer(&site.idempotency)
        .ttl(Duration::from_secs(60))
        .remember(Duration::from_secs(600));
    let lookup = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges");
    let lookup = lookup.scope(|parts| header(parts, USER));
    let app = site.router(times).route_service("/charges/{key}", lookup);
    let ask = || {
        Request::get("/charges/k")
            .header(USER, "alice")
            .body(Body::empty())
            .unwrap()
    };
    assert_eq!(send(&app, empty("k")).await.text, "1");
    tokio::time::advance(Duration::from_secs(61)).await;
    let late = send(&app, empty("k")).await;
    assert_eq!(
        (late.status, &*late.code()),
        (StatusCode::CONFLICT, "already_done")
    );
    assert!(!late.headers.contains_key(RETRY_AFTER));
    assert_eq!(send(&app, ask()).await.status, StatusCode::GONE);
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(send(&app, ask()).await.status, StatusCode::NOT_FOUND);
    assert_eq!(send(&app, empty("k")).await.text, "2");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_interrupted_and_one_that_failed_too_often_are_409() {
    let runtime = Idempotency::builder(MemoryStore::new())
        .abandoned(Abandoned::Reject)
        .build();
    let site = Site::over(runtime);
    let failing = site.router_of(layer(&site.idempotency).max_attempts(2), |_| {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    });
    for expected in [500, 500, 409, 409] {
        let received = send(&failing, empty("failing")).await;
        assert_eq!(received.status.as_u16(), expected);
        assert!(
            expected == 500 || received.code() == "attempts_exhausted",
            "{}",
            received.text
        );
    }
    let call = site
        .idempotency
        .operation("tests.POST/charges")
        .key(&("alice", "cut"))
        .lease(Duration::from_secs(1));
    drop(call.begin().await.unwrap());
    tokio::time::advance(Duration::from_secs(2)).await;
    let refused = send(&failing, empty("cut")).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::CONFLICT, "abandoned")
    );
    assert!(!refused.headers.contains_key(RETRY_AFTER));
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn a_record_of_something_else_is_500_and_nothing_runs() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency));
    let other = site
        .idempotency
        .operation("tests.POST/charges")
        .key(&("alice", "k"));
    other.run(async || Ok::<_, Error>(7)).await.unwrap();
    let refused = send(&app, empty("k")).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "codec")
    );
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn compressed_bodies_are_compared_and_replayed_as_they_are() {
    let site = Site::new();
    let app = site.app(|_| ([(CONTENT_ENCODING, "gzip")], GZIP[0]).into_response());
    let sent = |body: &'static [u8]| {
        request("k")
            .header(CONTENT_ENCODING, "gzip")
            .body(Body::from(body))
            .unwrap()
    };
    for replayed in [false, true] {
        let received = send(&app, sent(GZIP[0])).await;
        assert_eq!(
            (&received.bytes[..], &received.headers[CONTENT_ENCODING]),
            (GZIP[0], &"gzip".parse().unwrap())
        );
        assert_eq!(is_replay(&received), replayed);
    }
    // The bytes count: clients send the same ones in each try.
    assert_eq!(
        send(&app, sent(GZIP[1])).await.code(),
        "fingerprint_mismatch"
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn each_request_that_the_layer_refuses_or_lets_pass_is_an_event() {
    for (code, expected) in [
        ("missing_key", "INFO idem: rejected_missing_key"),
        ("invalid_key", "INFO idem: rejected_invalid"),
        ("no_scope", "INFO idem: rejected_invalid"),
        ("body_too_large", "INFO idem: rejected_invalid"),
        ("passes", "DEBUG idem: passed_without_key"),
    ] {
        let (logs, _guard) = logged(tracing::Level::DEBUG);
        let site = Site::new();
        let layer = layer(&site.idempotency)
            .max_body(4)
            .required(code != "passes");
        let app = site.router(layer.clone());
        let in_body = site.router(layer.name("forms").body_field("/key"));
        let mut request = Request::post("/charges").header(CONTENT_TYPE, "application/json");
        if code != "no_scope" {
            request = request.header(USER, "alice");
        }
        request = match code {
            "missing_key" | "passes" => request,
            "invalid_key" => request.header("idempotency-key", "a b"),
            _ => request.header("idempotency-key", "k"),
        };
        let text = if code == "body_too_large" {
            "12345"
        } else {
            "10"
        };
        let got = send(&app, request.body(Body::from(text)).unwrap()).await;
        if code == "passes" {
            assert_eq!(got.status, StatusCode::OK);
        } else {
            assert_eq!(got.code(), code);
        }
        let text = logs.text();
        assert!(
            text.contains(expected) && text.contains("tests.POST/charges"),
            "{code}: {text}"
        );
        if expected.contains("invalid") {
            assert!(text.contains(&format!("detail=\"{code}\"")), "{text}");
        }
        // The same of a key that is found after the body was read.
        if code == "passes" || code == "missing_key" {
            logs.0.lock().unwrap().clear();
            let request = Request::post("/charges")
                .header(USER, "alice")
                .header(CONTENT_TYPE, "application/json");
            send(&in_body, request.body(Body::from("{}")).unwrap()).await;
            let text = logs.text();
            assert!(
                text.contains(expected) && text.contains("forms.POST/charges"),
                "{code}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn p12_each_request_that_the_extractor_or_the_lookup_refuses_is_an_event() {
    let (logs, _guard) = logged(tracing::Level::DEBUG);
    let needs = async |_: IdempotencyKey| "ran";
    let takes = async |_: Option<IdempotencyKey>| "ran";
    let lookup = idem_http::lookup(Idempotency::new(MemoryStore::new())).name("tests");
    let lookup = lookup.scope(|parts| header(parts, USER));
    let app = axum::Router::new()
        .route("/needs/{id}", axum::routing::post(needs))
        .route("/takes", axum::routing::post(takes))
        .route_service("/asks/{key}", lookup);
    let long = "x".repeat(256);
    for (method, path, key, code, operation) in [
        (
            "POST",
            "/needs/7",
            "",
            "missing_key",
            "extractor.POST/needs/+7Bid+7D",
        ),
        (
            "POST",
            "/needs/7",
            "a b",
            "invalid_key",
            "extractor.POST/needs/+7Bid+7D",
        ),
        (
            "POST",
            "/takes",
            &long,
            "invalid_key",
            "extractor.POST/takes",
        ),
        ("POST", "/takes", "", "", ""),
        ("POST", "/takes", "k", "", ""),
        ("GET", "/asks/a%20b", "", "invalid_key", "tests.POST/"),
        ("GET", "/asks/k", "nobody", "no_scope", "tests.POST/"),
        ("POST", "/asks/k", "", "method_not_allowed", "tests.POST/"),
    ] {
        logs.0.lock().unwrap().clear();
        let mut request = Request::builder().method(method).uri(path);
        if key != "nobody" {
            request = request.header(USER, "alice");
        }
        if !key.is_empty() {
            request = request.header("idempotency-key", key);
        }
        let got = send(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(got.code(), code, "{path} {key}");
        let text = logs.text();
        let expected = match code {
            "" => "",
            "missing_key" => "INFO idem: rejected_missing_key",
            _ => "INFO idem: rejected_invalid",
        };
        assert!(text.contains(expected), "{path} {key}: {text}");
        assert!(
            code.is_empty() || text.contains(&format!("operation=\"{operation}")),
            "{path} {key}: {text}"
        );
        assert_eq!(text.is_empty(), code.is_empty(), "{path} {key}: {text}");
    }
}

#[tokio::test]
async fn nothing_of_a_key_an_owner_or_a_body_reaches_a_log_or_an_error_page() {
    const KEY: &str = "<script>alert(1)</script>";
    let (logs, _guard) = logged(tracing::Level::TRACE);
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).max_body(64));
    let of_body = site.router(
        layer(&site.idempotency)
            .name("forms")
            .body_field("/key")
            .required(true),
    );
    let with = |key: &str, body: &str| {
        let request = Request::post("/charges")
            .header(USER, "hunter2")
            .header("idempotency-key", key);
        request
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_owned()))
            .unwrap()
    };
    assert_eq!(
        send(&app, with(KEY, "4242\u{1b}[31m")).await.status,
        StatusCode::OK
    );
    let long = "4242".repeat(17);
    for (app, request, code) in [
        (&app, with(KEY, "4243"), "fingerprint_mismatch"),
        (&app, with(&format!("{KEY} {KEY}"), "4242"), "invalid_key"),
        (&app, with(KEY, &long), "body_too_large"),
        (&of_body, with("k", "{\"key\": 4242}"), "invalid_key"),
        (
            &of_body,
            with("k", "{\"key\": \"4242 4242\"}"),
            "invalid_key",
        ),
        (&of_body, with("k", "4242"), "missing_key"),
    ] {
        let page = send(app, request).await;
        assert_eq!(page.code(), code);
        let shown = format!("{:?} {}", page.headers, page.text);
        assert!(
            !["script", "4242", "4243", "hunter2"]
                .iter()
                .any(|secret| shown.contains(secret)),
            "{shown}"
        );
    }
    let logs = logs.text();
    assert!(
        logs.contains("executed") && logs.contains("rejected_mismatch"),
        "{logs}"
    );
    assert!(
        !["script", "4242", "4243", "hunter2", "\u{1b}"]
            .iter()
            .any(|secret| logs.contains(secret)),
        "{logs}"
    );
}

#[tokio::test]
async fn a_401_names_a_scheme_to_authenticate_by() {
    let site = Site::new();
    let lookup = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges");
    let lookup = lookup.scope(|parts| header(parts, USER));
    let app = site
        .router(layer(&site.idempotency))
        .route_service("/charges/{key}", lookup);
    let nobody = Request::post("/charges")
        .header("idempotency-key", "k")
        .body(Body::empty())
        .unwrap();
    let asked = Request::get("/charges/k").body(Body::empty()).unwrap();
    let of_error = idem_http::problem(&Error::missing_subject("tokens")).map(Body::from);
    let by_axum = Error::missing_subject("tokens").into_response();
    for response in [
        app.clone().oneshot(nobody).await.unwrap(),
        app.oneshot(asked).await.unwrap(),
        of_error,
        by_axum,
    ] {
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    }
    // A shape of the service's own says it itself, or leaves it to the layer.
    for (own, expected) in [
        (Some("Basic realm=\"shop\""), "Basic realm=\"shop\""),
        (None, "Bearer"),
    ] {
        let layer = layer(&site.idempotency).problem(move |problem| {
            let mut response = http::Response::new(problem.message.to_owned());
            *response.status_mut() = problem.status;
            if let Some(own) = own {
                response
                    .headers_mut()
                    .insert(WWW_AUTHENTICATE, HeaderValue::from_static(own));
            }
            response
        });
        let nobody = Request::post("/charges")
            .header("idempotency-key", "k")
            .body(Body::empty())
            .unwrap();
        let refused = send(&site.router(layer), nobody).await;
        let found: Vec<_> = refused.headers.get_all(WWW_AUTHENTICATE).iter().collect();
        assert_eq!(found, [expected]);
    }
}

#[tokio::test]
async fn a_scope_that_is_a_password_is_an_error_in_the_log_which_does_not_quote_it() {
    let (logs, _guard) = logged(tracing::Level::TRACE);
    let site = Site::new();
    let layer = idem_http::IdempotencyLayer::new(site.idempotency.clone()).name("tests");
    let app = site.router(layer.scope(|parts| header(parts, AUTHORIZATION)));
    let request = Request::post("/charges")
        .header(AUTHORIZATION, "Basic YWRtaW46czNjcmV0")
        .header("idempotency-key", "k");
    let refused = send(&app, request.body(Body::empty()).unwrap()).await;
    assert_eq!(
        (refused.status, &*refused.code()),
        (StatusCode::INTERNAL_SERVER_ERROR, "config")
    );
    let text = logs.text();
    for part in [
        "ERROR idem: ",
        "credential_in_scope",
        "header=authorization",
        "ScopeSecret",
        "misconfigured",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        !text.contains("YWRtaW46czNjcmV0") && !text.contains("s3cret"),
        "{text}"
    );
}
