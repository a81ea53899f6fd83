//! Starts the server, and calls it.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use idem::http::{IdempotencyLayer, RequestKey, grpc, header};
use idem::{Idempotency, MemoryStore};
use tonic::codegen::http::HeaderName;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tower_layer::Layer as _;

use crate::charges::{Charge, ChargesClient, ChargesServer, Receipt};
use crate::lossy::Lossy;

pub(crate) async fn conduct() -> Result<bool, Box<dyn Error>> {
    let service = ChargesServer::default();
    let bodies = service.bodies.clone();
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = incoming.local_addr()?;
    let server = Server::builder().layer(guard()).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}"))?
        .connect()
        .await?;

    println!("An order is charged, and the first reply is lost:");
    let first = charge(Lossy::new(channel.clone()), "order-7", 1999).await?;
    println!("  client: has receipt {}", first.number);

    println!("The client restarts, and charges the same order:");
    let again = charge(channel.clone(), "order-7", 1999).await?;
    println!("  client: has receipt {}", again.number);

    println!("A bug charges it with another amount:");
    let refused = charge(channel.clone(), "order-7", 5).await;
    let code = refused.as_ref().map_or_else(Status::code, |_| Code::Ok);
    println!("  client: is refused with {code:?}");

    println!("Another order:");
    let other = charge(channel, "order-8", 500).await?;
    println!("  client: has receipt {}", other.number);

    let bodies = bodies.load(Ordering::SeqCst);
    println!("2 orders, {bodies} bodies");
    let is_good = first == again && code == Code::FailedPrecondition && bodies == 2;
    Ok(is_good)
}

/// The server half.
fn guard() -> IdempotencyLayer<idem::http::Scoped> {
    // From a gateway in front, which authenticates, and lets no client send this metadata.
    let user = HeaderName::from_static("x-user");
    IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .name("shop")
        .scope(move |parts| header(parts, user.clone()))
        .required(true)
        .problem(grpc::problem)
}

/// One call by the client half. Its key is the order, so that a restarted client has it again.
async fn charge<S>(channel: S, order: &str, cents: u64) -> Result<Receipt, Status>
where
    S: tonic::codegen::Service<
            tonic::codegen::http::Request<tonic::body::Body>,
            Response = tonic::codegen::http::Response<tonic::body::Body>,
            Future: Send,
            Error: Into<Box<dyn Error + Send + Sync>>,
        > + Clone
        + Send
        + 'static,
{
    let layer = grpc::ClientLayer::new("checkout", tonic::body::Body::new)
        .tries(4)
        .deadline(Duration::from_secs(10));
    let mut client = ChargesClient::new(layer.layer(channel));
    let mut request = Request::new(Charge { cents });
    request.set_timeout(Duration::from_secs(2)); // of each try
    request.metadata_mut().insert(
        "x-user",
        tonic::metadata::MetadataValue::from_static("alice"),
    );
    request.extensions_mut().insert(RequestKey::new(order));
    client.create(request).await
}
