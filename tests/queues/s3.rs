//! As much of S3 as tansu needs for its files. They are in the memory of the test, so they outlive
//! a broker that is killed.
//!
//! tansu lists all files of a partition for each fetch, and has a file for each batch. In moto, the
//! usual S3 for tests, that takes so long that storms of 10,000 stand still (docs/proof.md).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

/// Each file by its path, with how often files were written before it.
#[derive(Default)]
struct Files {
    written: u64,
    files: BTreeMap<String, (u64, Bytes)>,
}

/// Serves files until the test ends, at the address that it returns.
pub(crate) async fn serve() -> String {
    let files = Arc::new(Mutex::new(Files::default()));
    let service = Router::new()
        .fallback(answer)
        .layer(DefaultBodyLimit::disable())
        .with_state(files);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

async fn answer(
    State(files): State<Arc<Mutex<Files>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut files = files.lock().unwrap();
    let path = uri.path();
    if method == Method::PUT {
        files.put(path, &headers, body)
    } else if method == Method::GET && uri.query().is_some_and(|query| query.contains("list-type"))
    {
        files.list(&uri)
    } else if method == Method::GET {
        files.get(path, &headers)
    } else {
        (StatusCode::NOT_IMPLEMENTED, format!("{method} {uri}")).into_response()
    }
}

fn tag(version: u64) -> String {
    format!("\"{version}\"")
}

impl Files {
    /// Returns whether a condition of a request names the file as it is.
    fn names(&self, path: &str, headers: &HeaderMap, condition: HeaderName) -> Option<bool> {
        let wanted = headers.get(condition)?.to_str().unwrap();
        let found = self.files.get(path);
        Some(found.is_some_and(|(version, _)| wanted == "*" || wanted == tag(*version)))
    }

    fn put(&mut self, path: &str, headers: &HeaderMap, body: Bytes) -> Response {
        let is_there = self.names(path, headers, IF_NONE_MATCH) == Some(true);
        if is_there || self.names(path, headers, IF_MATCH) == Some(false) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        self.written += 1;
        self.files.insert(path.to_owned(), (self.written, body));
        [(ETAG, tag(self.written))].into_response()
    }

    fn get(&self, path: &str, headers: &HeaderMap) -> Response {
        let Some((version, body)) = self.files.get(path) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        if self.names(path, headers, IF_NONE_MATCH) == Some(true) {
            return StatusCode::NOT_MODIFIED.into_response();
        }
        let modified = "Sat, 01 Jan 2000 00:00:00 GMT".to_owned();
        let headers = [(ETAG, tag(*version)), (LAST_MODIFIED, modified)];
        (headers, body.clone()).into_response()
    }

    /// All files of a folder, on one page.
    fn list(&self, uri: &Uri) -> Response {
        let query = uri.query().unwrap_or_default();
        let mut options = query.split('&');
        let folder = options.find_map(|option| option.strip_prefix("prefix="));
        let folder = folder.unwrap_or_default().replace("%2F", "/");
        let bucket = format!("{}/", uri.path().trim_end_matches('/'));
        let prefix = format!("{bucket}{folder}");
        let mut page = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
        let found = self.files.range(prefix.clone()..);
        for (path, (version, body)) in found.take_while(|(path, _)| path.starts_with(&prefix)) {
            let key = &path[bucket.len()..];
            let _ = write!(
                page,
                "<Contents><Key>{key}</Key><LastModified>2000-01-01T00:00:00Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                tag(*version),
                body.len(),
            );
        }
        page.push_str("</ListBucketResult>");
        page.into_response()
    }
}
