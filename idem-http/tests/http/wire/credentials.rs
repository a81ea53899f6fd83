//! Credentials of requests, which are never a part of what is stored.

use std::sync::atomic::Ordering::SeqCst;

use axum::http::HeaderName;
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::request::Parts;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use idem_core::store::AdminStore as _;
use idem_core::store::admin::Listing;
use idem_core::{Idempotency, MemoryStore};
use idem_http::{IdempotencyLayer, ScopeSecret, header, lookup};
use reqwest::{Client, Response};

use super::serve;
use crate::support::Site;

const PASSWORD: &str = "s3cret";
const API_KEY: &str = "sk_live_4242";
const API_KEY_HEADER: HeaderName = HeaderName::from_static("x-api-key");

type Scope = fn(&Parts) -> Option<String>;

/// A request as `curl -u admin:s3cret` sends it, with the other kinds of credentials beside.
async fn send(client: &Client, method: reqwest::Method, url: &str) -> Response {
    let request = client
        .request(method, url)
        .basic_auth("admin", Some(PASSWORD));
    let request = request
        .header(API_KEY_HEADER, API_KEY)
        .header(COOKIE, format!("theme=dark; session={API_KEY}"));
    request.header("idempotency-key", "k").send().await.unwrap()
}

/// The keys of all records, as an operator lists them.
async fn stored(store: &MemoryStore) -> Vec<String> {
    let page = store.list(&Listing::all()).await.unwrap();
    page.records
        .iter()
        .map(|record| record.id.key().to_owned())
        .collect()
}

fn client() -> Client {
    super::reqwest_builder().no_proxy().build().unwrap()
}

fn decoded(parts: &Parts) -> Option<String> {
    let header = header(parts, AUTHORIZATION)?;
    String::from_utf8(
        BASE64_STANDARD
            .decode(header.strip_prefix("Basic ")?)
            .ok()?,
    )
    .ok()
}

/// A layer and a lookup with this scope, and the URL of the charges.
async fn served(scope: Scope) -> (MemoryStore, Site, String) {
    let store = MemoryStore::new();
    let site = Site::over(Idempotency::new(store.clone()));
    let layer = IdempotencyLayer::new(site.idempotency.clone()).scope(scope);
    let lookup = lookup(site.idempotency.clone())
        .route("POST", "/charges")
        .scope(scope);
    let app = site.router(layer).route_service("/charges/{key}", lookup);
    let url = format!("http://{}/charges", serve(app).await);
    (store, site, url)
}

#[tokio::test]
async fn a_scope_that_is_a_password_is_refused_by_layer_and_lookup_and_nothing_is_stored() {
    let scopes: [Scope; 3] = [
        |parts| header(parts, AUTHORIZATION),
        |parts| {
            Some(
                header(parts, AUTHORIZATION)?
                    .strip_prefix("Basic ")?
                    .to_owned(),
            )
        },
        decoded,
    ];
    let client = client();
    for (number, scope) in scopes.into_iter().enumerate() {
        let (store, site, url) = served(scope).await;
        for (method, url) in [
            (reqwest::Method::POST, url.clone()),
            (reqwest::Method::GET, format!("{url}/k")),
        ] {
            let refused = send(&client, method, &url).await;
            assert_eq!(refused.status(), 500, "scope {number}: {url}");
            let text = refused.text().await.unwrap();
            assert!(
                text.contains("\"config\"") && !text.contains(PASSWORD) && !text.contains(API_KEY),
                "{text}"
            );
        }
        assert_eq!(
            (stored(&store).await, site.runs.load(SeqCst)),
            (Vec::new(), 0),
            "scope {number}"
        );
    }
}

#[tokio::test]
async fn a_scope_that_is_a_token_is_stored_as_a_digest() {
    let scopes: [Scope; 3] = [
        |parts| header(parts, API_KEY_HEADER),
        |parts| header(parts, COOKIE),
        |parts| {
            Some(format!(
                "shop-7/{}",
                header(parts, COOKIE)?.split_once("session=")?.1
            ))
        },
    ];
    let client = client();
    for (number, scope) in scopes.into_iter().enumerate() {
        let (store, _site, url) = served(scope).await;
        for (method, url) in [
            (reqwest::Method::POST, url.clone()),
            (reqwest::Method::POST, url.clone()),
            (reqwest::Method::GET, format!("{url}/k")),
        ] {
            assert_eq!(
                send(&client, method, &url).await.text().await.unwrap(),
                "1",
                "scope {number}: {url}"
            );
        }
        let keys = stored(&store).await;
        assert!(
            keys.len() == 1 && !keys[0].contains(API_KEY),
            "scope {number}: {keys:?}"
        );
    }
}

#[tokio::test]
async fn a_digested_credential_and_a_user_name_are_owners() {
    let secret = ScopeSecret::new([7; 32]);
    let digest = secret.digest(&format!("Basic {}", BASE64_STANDARD.encode("admin:s3cret")));
    let user: Scope = |parts| Some(decoded(parts)?.split_once(':')?.0.to_owned());
    let client = client();
    for (name, owner) in [("digest", digest.as_str()), ("user", "admin")] {
        let store = MemoryStore::new();
        let site = Site::over(Idempotency::new(store.clone()));
        let layer = IdempotencyLayer::new(site.idempotency.clone());
        let lookup = lookup(site.idempotency.clone()).route("POST", "/charges");
        let (layer, lookup) = if name == "user" {
            (layer.scope(user), lookup.scope(user))
        } else {
            (
                layer.scope(secret.header(AUTHORIZATION)),
                lookup.scope(secret.header(AUTHORIZATION)),
            )
        };
        let app = site.router(layer).route_service("/charges/{key}", lookup);
        let url = format!("http://{}/charges", serve(app).await);
        for replayed in [false, true] {
            let got = send(&client, reqwest::Method::POST, &url).await;
            assert_eq!(
                (
                    got.status().as_u16(),
                    got.headers().contains_key("idempotent-replayed")
                ),
                (200, replayed)
            );
        }
        assert_eq!(
            send(&client, reqwest::Method::GET, &format!("{url}/k"))
                .await
                .text()
                .await
                .unwrap(),
            "1"
        );
        let other = client
            .post(&url)
            .basic_auth("other", Some("another"))
            .header("idempotency-key", "k");
        assert_eq!(other.send().await.unwrap().text().await.unwrap(), "2");
        let keys = stored(&store).await;
        assert_eq!(keys.len(), 2, "{keys:?}");
        assert!(keys.iter().any(|key| key.contains(owner)), "{keys:?}");
        let basic = BASE64_STANDARD.encode("admin:s3cret");
        assert!(
            !keys
                .iter()
                .any(|key| key.contains(PASSWORD) || key.contains(basic.trim_end_matches('='))),
            "{keys:?}"
        );
    }
}
