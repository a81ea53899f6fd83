//! A response, read to its end while the request can still be sent again.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use reqwest::{Response, ResponseBuilderExt as _};

/// Reads a response of a known length, up to a limit. A larger one, or one without a length, is
/// returned as it is.
pub(super) async fn received(
    response: Response,
    limit: usize,
) -> Result<(Response, Option<Bytes>), reqwest::Error> {
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    if response
        .content_length()
        .is_none_or(|length| length > limit)
    {
        return Ok((response, None));
    }
    let url = http::Response::builder()
        .url(response.url().clone())
        .body(());
    let (mut parts, body) = http::Response::from(response).into_parts();
    let bytes = body.collect().await?.to_bytes();
    if let Ok(url) = url {
        parts.extensions.extend(url.into_parts().0.extensions);
    }
    Ok((
        http::Response::from_parts(parts, bytes.clone()).into(),
        Some(bytes),
    ))
}
