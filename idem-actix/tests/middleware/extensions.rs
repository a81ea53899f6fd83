//! The authenticated user as the owner of a key, without the credentials.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error, HttpMessage as _, HttpServer, web};
use idem_actix::Idempotent;
use idem_core::store::AdminStore as _;
use idem_core::store::admin::Listing;
use idem_core::{Idempotency, MemoryStore};
use idem_http::IdempotencyLayer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[derive(Clone)]
struct User(&'static str);

async fn authenticate(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let credentials = request
        .headers()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    let user = match credentials {
        Some("Bearer alices-s3cret") => Some(User("alice")),
        Some("Bearer bobs-s3cret") => Some(User("bob")),
        _ => None,
    };
    if let Some(user) = user {
        request.extensions_mut().insert(user);
    }
    next.call(request).await
}

#[actix_web::test]
async fn an_extension_of_the_request_is_the_owner_and_its_credentials_are_not_stored() {
    let store = MemoryStore::new();
    let layer = IdempotencyLayer::new(Idempotency::new(store.clone()));
    let layer = layer.scope(|parts| parts.extensions.get::<User>().map(|user| user.0.to_owned()));
    let runs: Arc<AtomicUsize> = Arc::default();
    let app = move || {
        let runs = runs.clone();
        let charge = move || {
            let run = runs.fetch_add(1, SeqCst) + 1;
            async move { run.to_string() }
        };
        let idempotent = Idempotent::new(layer.clone()).copy_extension::<User>();
        let charges = web::resource("/charges")
            .wrap(idempotent)
            .wrap(from_fn(authenticate))
            .post(charge);
        App::new().service(charges)
    };
    let server = HttpServer::new(app)
        .workers(2)
        .disable_signals()
        .bind(("127.0.0.1", 0))
        .unwrap();
    let address = server.addrs()[0];
    actix_web::rt::spawn(server.run());

    for (path, credentials, expected) in [
        ("/charges", "alices-s3cret", "HTTP/1.1 200"),
        ("/charges", "bobs-s3cret", "HTTP/1.1 200"),
        ("/charges", "nobodys-s3cret", "HTTP/1.1 401"),
        // Around a resource, a path without a route is not guarded.
        ("/nowhere", "alices-s3cret", "HTTP/1.1 404"),
    ] {
        let head = "host: x\r\nconnection: close\r\ncontent-length: 0\r\nidempotency-key: k";
        let request = format!(
            "POST {path} HTTP/1.1\r\n{head}\r\nauthorization: Bearer {credentials}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with(expected), "{path} {credentials}: {text}");
    }
    let page = store.list(&Listing::all()).await.unwrap();
    let mut keys: Vec<_> = page
        .records
        .iter()
        .map(|record| record.id.key().to_owned())
        .collect();
    keys.sort();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(
        keys[0].contains("alice") && keys[1].contains("bob"),
        "{keys:?}"
    );
    assert!(!keys.iter().any(|key| key.contains("s3cret")), "{keys:?}");
}
