//! The sender of a form: a session, which is a random number in a cookie.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

/// A browser, as the server knows it.
#[derive(Clone)]
pub(crate) struct Visitor {
    /// The subject of its forms' tokens. With a login, it is the session that the login created.
    pub(crate) session: String,
    /// It sent no session, so none of its forms can be known.
    pub(crate) is_new: bool,
    /// The order whose page it was sent to last. This and the next are its own word: they remind
    /// it, and nothing else is made of them.
    pub(crate) last_order: Option<usize>,
    /// The token of the form that it has opened last, unless that was answered.
    pub(crate) last_form: Option<String>,
}

/// Gives each request its [`Visitor`], and each answer what must be around it.
///
/// With a login, a session is looked up among the issued ones. Here any number of the right form is
/// a session. A visitor who makes up another one has no valid forms for it, and so evades only the
/// limit on invalid tokens.
pub(crate) async fn welcome(mut request: Request, next: Next) -> Response {
    let known =
        cookie(request.headers(), "session").filter(|session| Uuid::try_parse(session).is_ok());
    let visitor = Visitor {
        session: known.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned),
        is_new: known.is_none(),
        last_order: cookie(request.headers(), "last_order").and_then(|number| number.parse().ok()),
        last_form: cookie(request.headers(), "last_form").map(str::to_owned),
    };
    request.extensions_mut().insert(visitor.clone());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if visitor.is_new {
        set_cookie(headers, "session", &visitor.session);
    }
    // With `private, no-cache`, going back would show the form that was sent, and sending it again
    // would end on its order. But the pages contain names, which must not stay in the browser. So
    // going back asks for a fresh form, with a new token. The page makes sure that the visitor does
    // not send that one without noticing (`pages::reminder`, `autocomplete`). Some browsers ignore
    // it at times; a form that they kept has its old token.
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'self'; form-action 'self'; frame-ancestors 'none'"),
    );
    response
}

/// `HttpOnly`: no script reads it. `SameSite=Lax`: no other site's form is sent with it. Over TLS
/// it should be `Secure` as well.
pub(crate) fn set_cookie(headers: &mut HeaderMap, name: &str, value: &str) {
    if let Ok(value) =
        HeaderValue::try_from(format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax"))
    {
        headers.append(header::SET_COOKIE, value);
    }
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|header| header.to_str().ok());
    all.flat_map(|header| header.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find_map(|(found, value)| (found == name).then_some(value))
}
