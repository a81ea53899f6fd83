//! The client half of gRPC: which tries a call has, and what its caller gets.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::StreamExt as _;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use idem_core::{Idempotency, MemoryStore};
use idem_http::grpc::{self, ClientLayer, UnknownOutcome};
use idem_http::{IdempotencyLayer, RequestKey};
use tokio::time::Instant;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

const SECOND: Duration = Duration::from_secs(1);
/// A message of gRPC: a flag, the length, three bytes.
const MESSAGE: &[u8] = b"\0\0\0\0\x03one";

type BoxError = Box<dyn Error + Send + Sync>;

/// What the network and the server do with one try.
enum Scripted {
    /// A status in the head, with further metadata.
    Status(u8, &'static [(&'static str, &'static str)]),
    /// A message and `OK`.
    Good,
    Fails(ErrorKind),
    /// The body of the response breaks off before its trailers.
    Breaks,
    /// Two messages, and no end.
    Streams,
    Hangs,
}

use Scripted::{Breaks, Fails, Good, Hangs, Status, Streams};

/// What a try sent, and when.
#[derive(Clone)]
struct Sent {
    key: Option<String>,
    body: Bytes,
    at: Instant,
}

/// A channel that follows a script, and remembers what was sent.
#[derive(Clone, Default)]
struct Script {
    left: Arc<Mutex<VecDeque<Scripted>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Script {
    fn new(script: impl IntoIterator<Item = Scripted>) -> Self {
        Self {
            left: Arc::new(Mutex::new(script.into_iter().collect())),
            sent: Arc::default(),
        }
    }

    fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    fn keys(&self) -> Vec<Option<String>> {
        self.sent().into_iter().map(|sent| sent.key).collect()
    }

    async fn answer(self, request: Request<idem_http::Body>) -> Result<Response<Body>, BoxError> {
        let key = request.headers().get("idempotency-key");
        let key = key.map(|key| key.to_str().unwrap().to_owned());
        let (body, next) = {
            let is_stream = http_body::Body::size_hint(request.body()).exact().is_none();
            let body = if is_stream {
                Bytes::new()
            } else {
                request.into_body().collect().await.unwrap().to_bytes()
            };
            (body, self.left.lock().unwrap().pop_front())
        };
        let at = Instant::now();
        self.sent.lock().unwrap().push(Sent { key, body, at });
        let response = Response::builder().header("content-type", "application/grpc");
        let frames =
            |frames: Vec<io::Result<Frame<Bytes>>>| StreamBody::new(futures::stream::iter(frames));
        let message = || Ok(Frame::data(Bytes::from_static(MESSAGE)));
        let body = match next.expect("no further try is expected") {
            Status(status, metadata) => {
                let mut response = response.header("grpc-status", status.to_string());
                for (name, value) in metadata {
                    response = response.header(*name, *value);
                }
                return Ok(response.body(Body::empty())?);
            }
            Good => {
                let ok = HeaderMap::from_iter([("grpc-status".parse()?, 0.into())]);
                Body::new(frames(vec![message(), Ok(Frame::trailers(ok))]))
            }
            Breaks => Body::new(frames(vec![
                message(),
                Err(ErrorKind::ConnectionReset.into()),
            ])),
            Streams => {
                let messages = futures::stream::iter([message(), message()]);
                Body::new(StreamBody::new(messages.chain(futures::stream::pending())))
            }
            Fails(kind) => return Err(io::Error::other(io::Error::from(kind)).into()),
            Hangs => std::future::pending().await,
        };
        Ok(response.body(body)?)
    }

    /// Calls once through the layer.
    async fn call_by<F>(
        &self,
        layer: &ClientLayer<F>,
        request: Request<Body>,
    ) -> Result<Response<idem_http::Body>, BoxError>
    where
        F: Fn(idem_http::Body) -> idem_http::Body + Clone + Send + 'static,
    {
        let script = self.clone();
        let channel = service_fn(move |request| script.clone().answer(request));
        layer.layer(channel).oneshot(request).await
    }

    async fn call(&self, request: Request<Body>) -> Result<Response<idem_http::Body>, BoxError> {
        self.call_by(&client(), request).await
    }
}

fn same(body: idem_http::Body) -> idem_http::Body {
    body
}

fn client() -> ClientLayer<fn(idem_http::Body) -> idem_http::Body> {
    let as_it_is: fn(idem_http::Body) -> idem_http::Body = same;
    ClientLayer::new("t", as_it_is).tries(3)
}

fn request() -> Request<Body> {
    Request::post("/shop.Charges/Create")
        .header("content-type", "application/grpc")
        .body(Body::from(MESSAGE))
        .unwrap()
}

fn request_of(key: RequestKey) -> Request<Body> {
    let mut request = request();
    request.extensions_mut().insert(key);
    request
}

async fn status_of(response: Response<idem_http::Body>) -> String {
    let head = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let status = head.or_else(|| body.trailers()?.get("grpc-status").cloned());
    status.unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn all_tries_of_a_call_carry_one_key_and_the_same_message() {
    let script = Script::new([Fails(ErrorKind::ConnectionReset), Status(14, &[]), Good]);
    let response = script.call(request()).await.unwrap();
    assert_eq!(status_of(response).await, "0");
    let keys = script.keys();
    let first = keys[0].clone().unwrap();
    assert!(first.starts_with("t-"), "{first}");
    assert_eq!(keys, vec![Some(first.clone()); 3]);
    for sent in script.sent() {
        assert_eq!(sent.body, MESSAGE);
    }
    let other = Script::new([Good]);
    other.call(request()).await.unwrap();
    assert_ne!(other.keys()[0].as_ref(), Some(&first));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_never_sent_again_whatever_its_status() {
    for status in [3, 5, 6, 9, 11, 12, 7, 16] {
        let script = Script::new([Status(status, &[])]);
        let response = script.call(request()).await.unwrap();
        assert_eq!(status_of(response).await, status.to_string());
        assert_eq!(script.keys().len(), 1);
    }
    let replay = Script::new([Status(14, &[("idempotent-replayed", "true")])]);
    assert_eq!(status_of(replay.call(request()).await.unwrap()).await, "14");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_has_a_key_keeps_it() {
    let script = Script::new([Status(14, &[]), Good]);
    let mut own = request_of(RequestKey::new("unused"));
    own.headers_mut()
        .insert("idempotency-key", "own".parse().unwrap());
    script.call(own).await.unwrap();
    assert_eq!(script.keys(), vec![Some("own".to_owned()); 2]);

    let script = Script::new([Good, Good]);
    script
        .call(request_of(RequestKey::new("order-7")))
        .await
        .unwrap();
    script
        .call(request_of(RequestKey::new("order,7")))
        .await
        .unwrap();
    assert_eq!(
        script.keys(),
        [Some("order-7".to_owned()), Some("\"order,7\"".to_owned())]
    );
}

#[tokio::test]
async fn a_key_that_cannot_be_sent_is_an_error_and_nothing_is_sent() {
    let script = Script::new([]);
    for key in [
        RequestKey::new(""),
        RequestKey::new("\"a"),
        RequestKey::new("a b"),
        RequestKey::child("charge"),
    ] {
        script.call(request_of(key)).await.unwrap_err();
    }
    let mut twice = request();
    for _ in 0..2 {
        twice
            .headers_mut()
            .append("idempotency-key", "k".parse().unwrap());
    }
    script.call(twice).await.unwrap_err();
    assert!(script.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_guarded_body_have_child_keys_if_the_layer_says_so() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let script = Script::new([Good, Good, Good]);
    for _ in ["first", "after a crash"] {
        let script = script.clone();
        idempotency
            .operation("orders")
            .key("7")
            .run(async || {
                let layer = client().keys_from_call();
                script.call_by(&layer, request()).await.unwrap();
                Err::<(), _>(idem_core::Error::missing_key("orders"))
            })
            .await
            .unwrap_err();
    }
    script
        .call_by(&client().keys_from_call(), request())
        .await
        .unwrap();
    let keys = script.keys();
    assert_eq!(keys[0], keys[1]);
    assert!(!keys[0].as_ref().unwrap().starts_with("t-"));
    assert!(keys[2].as_ref().unwrap().starts_with("t-"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_been_carried_out_ends_as_unknown_and_has_its_key() {
    for (script, status) in [
        (
            [Status(14, &[]), Fails(ErrorKind::TimedOut), Status(14, &[])],
            Some(14),
        ),
        ([Breaks, Breaks, Breaks], None),
        // The last try was refused, and the first one may have been carried out.
        (
            [
                Status(4, &[]),
                Fails(ErrorKind::ConnectionRefused),
                Fails(ErrorKind::ConnectionRefused),
            ],
            None,
        ),
    ] {
        let script = Script::new(script);
        let error = script
            .call(request_of(RequestKey::new("order-7")))
            .await
            .unwrap_err();
        let outer = io::Error::other(error);
        let unknown = UnknownOutcome::find(&outer).expect("an unknown outcome");
        assert_eq!(
            (unknown.key().as_str(), unknown.tries(), unknown.status()),
            ("order-7", 3, status)
        );
        assert_eq!(unknown.last_error().is_some(), status.is_none());
        assert!(unknown.source().is_none());
        let text = unknown.to_string();
        assert!(
            text.contains("/shop.Charges/Create") && !text.contains("order-7"),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_surely_not_carried_out_ends_with_its_own_error_or_status() {
    let script = Script::new([
        Fails(ErrorKind::ConnectionRefused),
        Status(10, &[]),
        Fails(ErrorKind::ConnectionRefused),
    ]);
    let error = script.call(request()).await.unwrap_err();
    assert!(UnknownOutcome::find(&*error).is_none(), "{error}");
    let script = Script::new([Status(10, &[]), Status(10, &[]), Status(10, &[])]);
    assert_eq!(status_of(script.call(request()).await.unwrap()).await, "10");
    // A problem of the layer that is final.
    let problem = [("idempotency-problem", "already_done")];
    let leaked: &'static [_] = Box::leak(Box::new(problem));
    let script = Script::new([Status(14, &[]), Status(6, leaked)]);
    assert_eq!(status_of(script.call(request()).await.unwrap()).await, "6");
}

#[tokio::test(start_paused = true)]
async fn a_pushback_is_waited_for_and_a_negative_one_ends_the_tries() {
    let script = Script::new([Status(14, &[("grpc-retry-pushback-ms", "5000")]), Good]);
    script.call(request()).await.unwrap();
    let sent = script.sent();
    let pause = sent[1].at - sent[0].at;
    assert!(pause >= 5 * SECOND && pause < 7 * SECOND, "{pause:?}");

    let script = Script::new([Status(14, &[("grpc-retry-pushback-ms", "-1")])]);
    let error = script.call(request()).await.unwrap_err();
    assert_eq!(UnknownOutcome::find(&*error).unwrap().tries(), 1);

    // Beyond the deadline, which is 30 s.
    let script = Script::new([Status(8, &[("grpc-retry-pushback-ms", "60000")])]);
    let begun = script.clone();
    let error = begun.call(request()).await.unwrap_err();
    assert_eq!(UnknownOutcome::find(&*error).unwrap().tries(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_hangs_ends_at_the_deadline_as_unknown() {
    let script = Script::new([Status(10, &[]), Hangs]);
    let layer = client().deadline(3 * SECOND);
    let error = script.call_by(&layer, request()).await.unwrap_err();
    let unknown = UnknownOutcome::find(&*error).unwrap();
    assert_eq!((unknown.tries(), unknown.status()), (2, None));
    assert!(unknown.to_string().contains("deadline"), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_streams_is_sent_once_with_its_key() {
    let streaming = || {
        let first = futures::stream::iter([Ok::<_, io::Error>(MESSAGE)]);
        request().map(|_| Body::from_stream(first.chain(futures::stream::pending())))
    };
    let script = Script::new([Fails(ErrorKind::ConnectionReset)]);
    let error = script.call(streaming()).await.unwrap_err();
    assert_eq!(UnknownOutcome::find(&*error).unwrap().tries(), 1);
    assert!(script.keys()[0].is_some());
    let script = Script::new([Status(14, &[])]);
    assert_eq!(
        status_of(script.call(streaming()).await.unwrap()).await,
        "14"
    );
}

#[tokio::test(start_paused = true)]
async fn a_response_that_streams_passes_through() {
    let script = Script::new([Streams]);
    let response = script.call(request()).await.unwrap();
    let mut body = response.into_body();
    let mut read = 0;
    while read < 2 * MESSAGE.len() {
        let frame = body.frame().await.unwrap().unwrap();
        read += frame.into_data().unwrap().len();
    }
}

#[tokio::test]
async fn a_method_that_is_left_out_passes_without_a_key() {
    let script = Script::new([Status(14, &[]), Good]);
    let layer = client().methods(|path| path != "/shop.Charges/Create");
    let response = script.call_by(&layer, request()).await.unwrap();
    assert_eq!(status_of(response).await, "14");
    // Unless the caller gave it a key.
    let own = request_of(RequestKey::new("own"));
    script.call_by(&layer, own).await.unwrap();
    assert_eq!(script.keys(), [None, Some("own".to_owned())]);
}

/// A server behind the layer, with a network that loses the first replies.
#[tokio::test(start_paused = true)]
async fn a_call_whose_reply_is_lost_runs_once_behind_the_layer() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let counted = bodies.clone();
    let service = service_fn(move |_: Request<idem_http::Body>| {
        let count = counted.fetch_add(1, SeqCst) + 1;
        let ok = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
        let message = Bytes::from(format!("\0\0\0\0\x01{count}"));
        let frames = [
            Ok(Frame::data(message)),
            Ok::<_, io::Error>(Frame::trailers(ok)),
        ];
        let body = Body::new(StreamBody::new(futures::stream::iter(frames)));
        let response = Response::builder().header("content-type", "application/grpc");
        async move { Ok::<_, io::Error>(response.body(body).unwrap()) }
    });
    let server = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .unscoped()
        .problem(grpc::problem)
        .layer(service);
    let lost = Arc::new(AtomicUsize::new(0));
    let network = service_fn(move |request: Request<idem_http::Body>| {
        let mut server = server.clone();
        let lost = lost.clone();
        async move {
            let reply = server.call(request).await?;
            if lost.fetch_add(1, SeqCst) < 2 {
                return Err(io::Error::from(ErrorKind::ConnectionReset));
            }
            Ok(reply)
        }
    });
    let mut client = client().layer(network);
    let response = client.call(request()).await.unwrap();
    assert_eq!(response.headers()["idempotent-replayed"], "true");
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(&body.to_bytes()[5..], b"1");
    assert_eq!(bodies.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_problem_of_the_layer_is_a_status_that_the_client_understands() {
    let service = service_fn(async |_: Request<idem_http::Body>| {
        std::future::pending::<Result<Response<Body>, io::Error>>().await
    });
    let server = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .unscoped()
        .wait(Duration::ZERO)
        .problem(grpc::problem)
        .layer(service);
    let mut hanging = server.clone();
    let first = request_of(RequestKey::new("unused"));
    let mut keyed = first;
    keyed
        .headers_mut()
        .insert("idempotency-key", "k".parse().unwrap());
    let running = tokio::spawn(async move { hanging.call(keyed).await });
    tokio::task::yield_now().await;
    // The duplicate finds the key in flight, three times, after the server's pauses of a second.
    let mut client = client().layer(server);
    let begun = tokio::time::Instant::now();
    let mut duplicate = request();
    duplicate
        .headers_mut()
        .insert("idempotency-key", "k".parse().unwrap());
    let error = client.call(duplicate).await.unwrap_err();
    let unknown = UnknownOutcome::find(&*error).unwrap();
    assert_eq!((unknown.tries(), unknown.status()), (3, Some(10)));
    assert!(begun.elapsed() >= 2 * SECOND, "{:?}", begun.elapsed());
    running.abort();
}
