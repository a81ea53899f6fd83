//! Requests and responses between the `http` of actix-web and that of the layer.

use actix_web::HttpResponse;
use actix_web::body::BoxBody;
use actix_web::dev::ServiceRequest;
use actix_web::http::ConnectionType;
use actix_web::http::header::{HeaderName, HeaderValue};
use idem_http::Route;

/// How a response is sent. actix-web does not keep this in the headers. It is an extension, so a
/// replay does not have it.
#[derive(Clone, Copy)]
struct Sent {
    connection: ConnectionType,
    is_chunked: bool,
}

/// Converts the head of a request for the layer; `None` if `http` 1 refuses a part of it.
pub(crate) fn head(request: &ServiceRequest) -> Option<http::request::Parts> {
    let mut builder = http::Request::builder()
        .method(request.method().as_str())
        .uri(request.uri().to_string());
    for (name, value) in request.headers() {
        builder = builder.header(name.as_str(), value.as_bytes());
    }
    let (mut parts, ()) = builder.body(()).ok()?.into_parts();
    // All paths without a route are one operation, because clients choose them, and metrics keep
    // each name.
    parts
        .extensions
        .insert(Route(request.match_pattern().unwrap_or_default()));
    Some(parts)
}

/// Converts a response of the layer. Headers that actix-web does not accept are left out.
pub(crate) fn response(parts: &http::response::Parts, body: BoxBody) -> HttpResponse {
    let status = actix_web::http::StatusCode::from_u16(parts.status.as_u16());
    let mut response = HttpResponse::with_body(status.unwrap_or_default(), body);
    for (name, value) in &parts.headers {
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_bytes())) {
            response.headers_mut().append(name, value);
        }
    }
    if let Some(sent) = parts.extensions.get::<Sent>() {
        let head = response.head_mut();
        // Only the other two: whether a connection is kept alive depends on its request as well.
        if sent.connection != ConnectionType::KeepAlive {
            head.set_connection_type(sent.connection);
        }
        head.no_chunking(!sent.is_chunked);
    }
    response
}

/// Converts the head of a response of a service; `None` if `http` 1 refuses a part of it.
pub(crate) fn parts<B>(response: &HttpResponse<B>) -> Option<http::response::Parts> {
    let mut builder = http::Response::builder().status(response.status().as_u16());
    for (name, value) in response.headers() {
        builder = builder.header(name.as_str(), value.as_bytes());
    }
    let head = response.head();
    let sent = Sent {
        connection: head.connection_type(),
        is_chunked: head.chunked(),
    };
    Some(builder.extension(sent).body(()).ok()?.into_parts().0)
}
