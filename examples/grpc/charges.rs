//! The service `shop.Charges`: what `tonic-prost-build` would generate of a `.proto` file, by hand.
//! Its messages are JSON, so that the example needs no compiler of protocol buffers.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tonic::client::GrpcService;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, Bytes, Service, http};
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

const CREATE: &str = "/shop.Charges/Create";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Charge {
    pub(crate) cents: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) number: u32,
    pub(crate) cents: u64,
}

/// The server. It counts its bodies.
#[derive(Clone, Default)]
pub(crate) struct ChargesServer {
    pub(crate) bodies: Arc<AtomicU32>,
}

/// The method `Create`.
struct Create(ChargesServer);

impl Service<Request<Charge>> for Create {
    type Response = Response<Receipt>;
    type Error = Status;
    type Future = std::future::Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Charge>) -> Self::Future {
        let Charge { cents } = request.into_inner();
        // The money moves here.
        let number = self.0.bodies.fetch_add(1, Ordering::SeqCst) + 1;
        println!("  server: body {number} charges {cents} cents");
        ready(Ok(Response::new(Receipt { number, cents })))
    }
}

impl NamedService for ChargesServer {
    const NAME: &'static str = "shop.Charges";
}

impl<B> Service<http::Request<B>> for ChargesServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let create = Create(self.clone());
        Box::pin(async move {
            if request.uri().path() != CREATE {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let mut grpc = tonic::server::Grpc::new(Json::<Receipt, Charge>::new());
            Ok(grpc.unary(create, request).await)
        })
    }
}

/// The client.
pub(crate) struct ChargesClient<T>(tonic::client::Grpc<T>);

impl<T> ChargesClient<T>
where
    T: GrpcService<tonic::body::Body>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<BoxError> + Send,
{
    pub(crate) fn new(channel: T) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    pub(crate) async fn create(&mut self, request: Request<Charge>) -> Result<Receipt, Status> {
        self.0
            .ready()
            .await
            .map_err(|error| Status::unknown(error.into().to_string()))?;
        let path = http::uri::PathAndQuery::from_static(CREATE);
        let response = self.0.unary(request, path, Json::<Charge, Receipt>::new());
        Ok(response.await?.into_inner())
    }
}

/// Messages as JSON.
struct Json<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Json<E, D> {
    fn new() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for Json<E, D>
where
    E: Serialize + Send + 'static,
    D: DeserializeOwned + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<E: Serialize, D> Encoder for Json<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let bytes =
            serde_json::to_vec(&message).map_err(|error| Status::internal(error.to_string()))?;
        bytes::BufMut::put_slice(buffer, &bytes);
        Ok(())
    }
}

impl<E, D: DeserializeOwned> Decoder for Json<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let reader = bytes::Buf::reader(buffer);
        let message = serde_json::from_reader(reader);
        message
            .map(Some)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
