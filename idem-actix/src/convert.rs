//! Requests and responses between the `http` of actix-web and that of the layer.

use actix_web::HttpResponse;
use actix_web::body::BoxBody;
use actix_web::dev::ServiceRequest;
use actix_web::http::ConnectionType;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
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
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = request.method().as_str().parse().ok()?;
    parts.uri = request.uri().to_string().try_into().ok()?;
    parts.headers = headers(request.headers())?;
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
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = response.status().as_u16().try_into().ok()?;
    parts.headers = headers(response.headers())?;
    let head = response.head();
    let sent = Sent {
        connection: head.connection_type(),
        is_chunked: head.chunked(),
    };
    parts.extensions.insert(sent);
    Some(parts)
}

/// Converts headers; `None` if `http` 1 refuses one.
fn headers(from: &HeaderMap) -> Option<http::HeaderMap> {
    let mut headers = http::HeaderMap::try_with_capacity(from.len()).ok()?;
    for (name, value) in from {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        let value = http::HeaderValue::from_bytes(value.as_bytes()).ok()?;
        headers.try_append(name, value).ok()?;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    fn links(headers: &http::HeaderMap) -> Vec<&str> {
        let links = headers.get_all("link").iter();
        links.filter_map(|value| value.to_str().ok()).collect()
    }

    #[test]
    fn a_head_is_converted_with_each_value_of_its_headers() {
        let request = TestRequest::patch()
            .uri("/charges?dry=1")
            .append_header(("link", "a"))
            .append_header(("link", "b"))
            .to_srv_request();
        let head = head(&request).unwrap();
        assert_eq!(head.method, http::Method::PATCH);
        assert_eq!(head.uri, "/charges?dry=1");
        assert_eq!(links(&head.headers), ["a", "b"]);
        let response = HttpResponse::Accepted()
            .append_header(("link", "a"))
            .append_header(("link", "b"))
            .finish();
        let parts = parts(&response).unwrap();
        assert_eq!(parts.status, http::StatusCode::ACCEPTED);
        assert_eq!(links(&parts.headers), ["a", "b"]);
    }
}
